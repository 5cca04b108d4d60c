"""What settings documents are made of: sections, field types, errors, and the reading of a document.

>>> read_document("{query: weekly-load}", "settings")
{'query': 'weekly-load'}
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from ..calendars import UNITS
from ..errors import ArgumentError
from ..files import MOST_SETTINGS_BYTES, read_regular, reason
from ..slots import format_duration, parse_duration

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class SettingsError(ArgumentError):
    """Settings that cannot be used.

    Attributes:
        problems: one line each: the field, the value, the limit and the next step.
    """

    def __init__(self, problems: Iterable[str] | str) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        # one text, so that pickles and exceptions made anew from it by a runner say the same
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class Explained:
    """Where it is said what a document's settings are."""

    schema: str  # a command that lists all of them
    example: str  # where to see what one looks like


#: The settings of a job.
OF_JOBS = Explained("`quiltstream schema`", "`quiltstream init` for a commented example")


#: The value of a setting that is a question to the author of the settings.
OPEN = "???"

#: Settings that earlier versions had, and what replaces each.
GONE: dict[str, str] = {
    "back": "released rows are read from the job's sink",
    "stop": "a gateway that is stopped takes 5 s at most",
    "mqtt.keepalive": "it is 30 s",
    "metrics.every": "the log has a line every 30 s",
    "forward.limits": "mqtt.packet says how large a message may be; at most 64 MiB are held",
    "forward.rejects": "dropped messages are counted, by reason",
    "forward.retained": "what the broker had kept goes on with a flag",
    "forward.unsubscribe": "messages of filters that are no longer named are dropped",
    "forward.to.kafka.key": "a message's key is its topic, of which a job reads a level as topic[1]",
    "forward.to.folder.size": "a file has 2,500 messages or 64 MiB at most",
    "readings.preset": "write readings.recipe: NAME; CIM and DSMR are payloads, and Green Button is source.greenbutton",
    "rejects.encrypted": "rejects are counted by reason; read them at the source",
    "model.estimate.every": "a job estimates once, when it begins; later use `quiltstream ledger belief`",
    "model.estimate.change": "a job estimates once, when it begins; later use `quiltstream ledger belief`",
    "readings.wide": "a SELECT reads such a table: select name as series, date as time, num(value) as value from "
    "(unpivot files on columns(* exclude (date)) into name name value value); of times of the day: "
    "day_clock(date, name, 'Europe/Berlin') as time",
    "readings.value.register": "name the counter in readings.value, and say register: {gap: 2h} beside it",
    "readings.until": 'a SELECT says what an interval covers: select id as series, begin as time, "end" - begin as '
    "length, label as value from files; with length: length and hold: 26h a label holds so long",
    "readings.remember": "counters are compared where windows are counted, and no reader remembers them",
    "source.pubsub.settle": "the runner's watermark knows what waits",
    "source.pubsub.outstanding": "the runner says how many messages may wait",
    "readings.decimal": "a SELECT reads such numbers: select id as series, ts as time, num_marks(kwh, '.', ',') as "
    "value from files",
    "live.restarts": "a job that failed ends with an exit code, by which systemd or Kubernetes begin it again",
    "model.estimate.gap": "nothing is estimated from released rows; give bounds by hand, or estimate from counts",
}


def problems_of(error: ValidationError, explained: Explained = OF_JOBS) -> list[str]:
    """One line for every mistake, of which the first are told: the field, the value, the limit and the next step.

    A value is shown only where a plain value belongs: what stands in the place of a section may be a secret.
    """
    expected = {
        "extra_forbidden": f"is not a setting; remove it or check its spelling against {explained.schema}",
        "missing": f"is missing; add it (see {explained.example})",
    }
    problems: dict[str, None] = {}
    meant = _meant(error.errors(include_url=False))
    whole = _of_no_kind(meant)
    for one in meant:
        union = (_member(one) or ())[:-1]
        place = _place(part for part in one["loc"] if str(part) not in _VARIANTS) or "settings"
        message = one["msg"].removeprefix("Value error, ")
        if union in whole and one["loc"] == _member(one):
            line = f"{_place(union)} is {_shown(one['input'], section=False)}: input should be {whole[union]}"
            line += f" (see {explained.example})"
        elif one["type"] == "extra_forbidden" and place in GONE:
            line = f"{place} is gone: {GONE[place]}"
        elif one["type"] in expected:
            line = f"{place} {expected[one['type']]}"
        elif one["type"] == "value_error":
            named = message.startswith(place) or (not one["loc"] and _NAMED.match(message))
            line = message if named else f"{place}: {message}"
        else:
            line = _of_value(one, place, message, explained)
        problems[_short(without_credentials(line), _LONGEST_LINE)] = None
    told = list(problems)[:_MOST_TOLD]
    more = len(problems) - len(told)
    return [*told, f"and {more:,} more problems of the settings"] if more else told


def _of_value(one: ErrorDetails, place: str, message: str, explained: Explained) -> str:
    """The line of a value that is not what its setting takes."""
    section, value = one["type"] in _SECTIONS, one["input"]
    # the ledger's URL may hold a password
    given = "set" if place.startswith("ledger") else _shown(value, section=section)
    if section:
        message = "it is a section of settings: give it as {name: value, ...}, or leave it out"
    elif one["type"] == "string_type" and isinstance(value, (bool, int, float, dt.date)):
        message += "; put it in quotes"
    elif one["type"] == "list_type" and isinstance(value, (int, float)):
        message += f"; write for example [{given}]"
    elif one["type"] == "too_long" and isinstance(value, str):
        most = one.get("ctx", {}).get("max_length", 0)
        message = f"it has {len(value):,} characters, and {most:,} are the limit; write a shorter one"
    elif one["type"] == "union_tag_invalid":
        message = f"input should be a valid string, or {_SECTION} (see {explained.example})"
    if place in _NEXT:
        message += f"; {_NEXT[place]}"
    return f"{place} is {given}: {message[:1].lower()}{message[1:]}"


def _meant(found: list[ErrorDetails]) -> list[ErrorDetails]:
    """The problems without those of members of a union that were not meant; a union reports every member it tried.

    Meant is the member that got furthest, and of several the one that has most of the names given.
    """
    deepest: dict[str, int] = {}
    for one in found:
        deepest[str(one["loc"][:1])] = max(len(one["loc"]), deepest.get(str(one["loc"][:1]), 0))
    kept = [one for one in found if _member(one) is None or len(one["loc"]) == deepest[str(one["loc"][:1])]]
    strange = Counter(_member(one) for one in kept if one["type"] == "extra_forbidden")
    fewest: dict[tuple[int | str, ...], int] = {}
    for one in kept:
        if (member := _member(one)) is not None:
            fewest[member[:-1]] = min(strange[member], fewest.get(member[:-1], strange[member]))
    return [one for one in kept if (member := _member(one)) is None or strange[member] == fewest[member[:-1]]]


_SECTION = "a section of settings, {name: value, ...}"


def _of_no_kind(found: list[ErrorDetails]) -> dict[tuple[int | str, ...], str]:
    """What may stand where a value is of the kind of no member of a union, by the union's place."""
    kinds: dict[tuple[int | str, ...], dict[str, None]] = {}
    for one in found:
        if one["loc"] == _member(one):
            section = one["type"] in _SECTIONS
            kind = _SECTION if section else one["msg"].removeprefix("Input should be ")
            kinds.setdefault(one["loc"][:-1], {})[kind] = None
    return {union: ", or ".join(names) for union, names in kinds.items() if len(names) > 1}


def _member(problem: ErrorDetails) -> tuple[int | str, ...] | None:
    """The place of the first member of a union that a problem is in."""
    place = problem["loc"]
    return next((place[: at + 1] for at, part in enumerate(place) if str(part) in _VARIANTS), None)


#: Problems that are told at once.
_MOST_TOLD = 20

_LONGEST_SHOWN, _LONGEST_LINE = 100, 1_000

#: What a setting may be called; a longer key may be a secret in the place of a name.
_SETTING = re.compile(r"[\w.@ -]{1,40}")


def without_credentials(text: str) -> str:
    """A line of text whose URLs have no user and no password.

    >>> without_credentials("servers is 'mqtt://me:secret@host'")
    "servers is 'mqtt://***@host'"
    """
    # without an expression, whose time would grow with the square of a text of "://"
    return "\n".join(map(_without_credentials, text.split("\n")))


def _without_credentials(line: str) -> str:
    before, _, behind = line.partition("://")
    _, found, host = behind.rpartition("@")
    return f"{before}://***@{host}" if found else line


def _place(parts: Iterable[int | str]) -> str:
    """Where a setting is: names with dots between them, and the number of an element of a list in brackets."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in parts).removeprefix(".")


def _key(part: int | str) -> str:
    text = str(part)
    return text if _SETTING.fullmatch(text) else f"(a key of {len(text):,} characters)"


def _shown(value: Any, *, section: bool) -> str:
    """A value for a message; of what stands in the place of a section, and of what holds others, only the kind."""
    if isinstance(value, (dict, list, tuple, set)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if section and isinstance(value, (str, bytes)):
        return "a text, which is not shown"
    return _short(repr(value), _LONGEST_SHOWN)


def _short(text: str, most: int) -> str:
    """A text whose middle is left out where it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


#: a message about the whole document that begins with the name of a setting
_NAMED = re.compile(r"[a-z_]+\.[a-z_]+\b")

#: pydantic's types of the mistake that a section is no mapping, whose messages name classes of this package
_SECTIONS = frozenset({"model_type", "model_attributes_type", "dict_type"})

#: what to do about a setting whose limit alone does not say it
_NEXT = {
    "privacy.epsilon": "write what the query may tell about one slot of one series, for example 1.0",
    "privacy.budget": "write what all queries of the domain may tell together, or leave it out: it is then epsilon",
}

#: what pydantic puts into a location to say which member of a union it tried
_VARIANTS = frozenset(
    {
        "MappingFile",
        "RosterColumn",
        "str",
        "list[str]",
        "Constant",
        "Bounds",
        "EstimatedModel",
        "RosterFile",
        "Break",
        "literal['public','state']",
    }
)


#: Limits of a document: values and keys that it holds, sections within sections, and bits of a whole number.
MOST_NODES = 50_000
MOST_DEPTH = 64
_BITS = 64


#: YAML's tags of numbers.
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


class _Refused(yaml.constructor.ConstructorError):
    """A document that is YAML and cannot be settings; the text says why."""

    def __init__(self, why: str, mark: yaml.Mark) -> None:
        super().__init__(None, None, why, mark)


def _within(node: yaml.Node) -> Iterable[yaml.Node]:
    """The nodes that a node holds itself."""
    if isinstance(node, yaml.MappingNode):
        return (one for pair in node.value for one in pair)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


class _Loader(yaml.SafeLoader):
    """YAML as plain data of a bounded size, refusing a key that stands twice: the second would silently win."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._composed = 0
        self._depth = 0
        # of each node that is whole: how many it stands for, with itself, and how many levels
        self._sizes: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark, alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        before = self._composed
        if not alias:
            self._hold(1, 1, mark)
        self._depth += 1
        try:
            node = super().compose_node(parent, index)
        finally:
            self._depth -= 1
        if alias:
            # a few aliases within each other stand for more values than any memory holds
            if id(node) not in self._sizes:
                raise _Refused("an alias within what it stands for", mark)
            self._hold(*self._sizes[id(node)], mark)
        elif node is not None:
            levels = max((self._sizes[id(one)][1] for one in _within(node)), default=0)
            self._sizes[id(node)] = self._composed - before, levels + 1
        return node

    def _hold(self, nodes: int, levels: int, mark: yaml.Mark) -> None:
        self._composed += nodes
        if self._composed > MOST_NODES:
            raise _Refused(f"more than {MOST_NODES:,} keys and values, which is the limit of settings", mark)
        if self._depth + levels > MOST_DEPTH:
            raise _Refused(f"more than {MOST_DEPTH} levels, which is the limit of settings", mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and ":" in node.value and node.tag in _NUMBERS:
            return node.value  # 1:00:00 is 3600 to YAML, and to nobody who writes settings
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
            if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:timestamp":
                return node.value  # 30 February: the setting says what it is to be
            raise _Refused("a value that is not what its form or its tag says", node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float, bool)):
                raise _Refused("a key is neither text nor a number", key_node.start_mark)
            if key in seen:
                raise _Refused("a setting stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_text(path: Path, what: str = "settings") -> str:
    """Read the text of a document, which messages call ``what``.

    Raises:
        SettingsError: the file cannot be read, or is no UTF-8.
    """
    try:
        return read_regular(path, MOST_SETTINGS_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError([f"{what} {path}: not UTF-8 from byte {error.start} on; save it as UTF-8"]) from None
    except OSError as error:
        raise SettingsError([f"{what} {path}: cannot be read ({reason(error)})"]) from None


def read_document(text: str, name: str, explained: Explained = OF_JOBS) -> dict[str, Any]:
    """Read a YAML or JSON mapping, which messages call ``name``, as plain data.

    Raises:
        SettingsError: it is not YAML, a key stands twice, it is not a mapping, or it is larger or deeper than settings
            are, or holds what no setting can be.
    """
    try:
        document = yaml.load(text, _Loader)  # noqa: S506 - a safe loader with limits
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        if isinstance(error, _Refused):
            raise SettingsError([f"{name}: {error.problem}{where}; correct it there"]) from None
        raise SettingsError([f"{name}: not YAML{where}; check keys, indentation, brackets and quotes there"]) from None
    if not isinstance(document, dict):
        raise SettingsError([f"{name}: a mapping of settings is expected (see {explained.example})"])
    problems = _unusable(document)
    if problems:
        raise SettingsError(problems)
    return document


def _unusable(document: dict[str, Any]) -> list[str]:
    """Values that no setting can be: their kind is told with their place, and not they themselves."""
    problems: list[str] = []
    for place, value in _plain_values(document):
        if len(problems) >= _MOST_TOLD:
            break
        if isinstance(value, str):
            if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
                problems.append(f"{place} holds a NUL character or half of a surrogate pair; remove it")
            elif value.strip() == OPEN:
                problems.append(f"{place} is {OPEN}, an open question: write one of the answers that stand beside it")
        elif isinstance(value, int):
            if value.bit_length() > _BITS:
                problems.append(f"{place} is a whole number of more than {_BITS} bits; write a smaller one")
        elif value is not None and not isinstance(value, (float, dt.date)):
            problems.append(f"{place} has a tag of YAML that no setting has; write it without")
    return problems


def _plain_values(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every value and every key that holds no others, with its place."""
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            for key, inside in value.items():
                at = f"{place}.{_key(key)}".removeprefix(".")
                waiting += [(at, inside), (f"a key of {place or 'settings'}", key)]
        elif isinstance(value, list):
            waiting += [(f"{place}[{number}]", inside) for number, inside in enumerate(value)]
        else:
            yield place, value


#: A part of a text that the environment would fill in.
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def _check_filled(document: dict[str, Any], filled: frozenset[str]) -> None:
    """Refuse what looks as if the environment filled it in and stays as it is written."""
    problems = [
        f"{place} holds {found[0]}, and {' and '.join(sorted(filled)) or 'no setting of this file'} "
        f"{'alone is' if filled else 'is'} filled in from the environment; write the value itself"
        for place, value in _plain_values(document)
        if place not in filled and isinstance(value, str) and (found := _VARIABLE.search(value)) is not None
    ]
    if problems:
        raise SettingsError(sorted(problems[:_MOST_TOLD]))


def _duration(text: Any) -> str:
    if isinstance(text, dt.timedelta):  # from Python; files have none
        text = format_duration(text // dt.timedelta(microseconds=1))
    if not isinstance(text, str):
        raise ArgumentError(f"duration {text!r} has no unit; write for example 30min or 7d")
    parse_duration(text)
    return text


def _length(text: Any) -> str:
    return text if text in UNITS else _duration(text)


def _instant(value: Any) -> str:
    if isinstance(value, (dt.date, dt.datetime)):
        value = value.isoformat()
    if not isinstance(value, str):
        raise ArgumentError(f"instant {value!r} is not an ISO 8601 date or date-time")
    return value


def _name(text: str) -> str:
    if not text.strip() or text != text.strip() or any(ord(c) < ord(" ") for c in text):
        raise ArgumentError(f"{text!r} is not a name; use printable text without blanks at its ends")
    if without_credentials(text) != text:
        raise ArgumentError("the user and password of a URL are no name, which is published; write a name")
    return text


Duration = Annotated[str, BeforeValidator(_duration), Field(examples=["30min", "7d"])]
#: A duration, or days, weeks or months of the calendar.
Length = Annotated[str, BeforeValidator(_length), Field(examples=["7d", "day"])]
Instant = Annotated[str, BeforeValidator(_instant), Field(examples=["2013-01-01", "2013-01-01T00:30Z"])]
Name = Annotated[str, AfterValidator(_name), Field(min_length=1, max_length=200)]


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ArgumentError(f"{value} is not a number")
    return value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]


class Section(BaseModel):
    """A section: unknown settings are mistakes, and nothing changes after the check."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False, hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would take yes for 1."""
        of = cls.model_fields[info.field_name or ""].annotation
        return _number(value) if of is int or of == int | None else value

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What its repr shows: texts without the credentials of URLs."""
        for name, value in super().__repr_args__():
            yield name, without_credentials(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """A section as the document that it was parsed from; any other value as it is."""
    return value.model_dump(by_alias=True, exclude_unset=True) if isinstance(value, BaseModel) else value


class Document(Section):
    """The outermost section of a settings file."""

    #: where a message about a mistake sends its reader
    explained: ClassVar[Explained] = OF_JOBS
    #: settings in which ``${NAME}`` is filled in from the environment of the process that uses them
    filled: ClassVar[frozenset[str]] = frozenset()
    _folder: Path = PrivateAttr(default_factory=Path)

    @classmethod
    def parse(cls, document: dict[str, Any], folder: Path | None = None) -> Self:
        """Check a document; relative paths start at a folder, the current one if left out.

        Raises:
            SettingsError: with one line for every mistake.
        """
        _check_filled(document, cls.filled)
        try:
            settings = cls.model_validate(document)
        except ValidationError as error:
            raise SettingsError(problems_of(error, cls.explained)) from None
        settings._folder = Path() if folder is None else folder  # noqa: SLF001 - its own private attribute
        return settings

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The settings with other values, all checked as a document's are; pydantic's own copy checks none.

        Raises:
            SettingsError: with one line for every mistake.
        """
        if not update:
            return super().model_copy(deep=deep)
        given = {name: _plain(value) for name, value in update.items()}
        made = type(self).parse(_plain(self) | given, self._folder)
        for name in self.__private_attributes__:
            setattr(made, name, getattr(self, name))
        return made

    @classmethod
    def load(cls, text: str, *, folder: Path | None = None, name: str = "settings") -> Self:
        """Read the text of a settings file, YAML or JSON.

        Raises:
            SettingsError: it is not a mapping, or a setting is wrong; one line for every mistake.
        """
        return cls.parse(read_document(text, name, cls.explained), folder)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a settings file.

        Raises:
            SettingsError: the file cannot be read, or a setting is wrong.
        """
        return cls.load(read_text(path), folder=path.parent, name=str(path))
