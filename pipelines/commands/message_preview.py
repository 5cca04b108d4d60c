"""Preview of messages for ``init``: how payloads are written, and where the parts of a reading are.

A proposal is a section ``readings``. Those of recipes and presets come first, then mappings made of the fields that
messages have. Each is tried by the decoder of jobs on the messages themselves, so what is proposed is what ``try``
accepts. Of the messages only names go into it: of fields, headers and the key, numbers of topic levels, a word for what
is measured at such a level, units that are known, and under a preset the name of its value. No value does, and no name
of a series but that of a topic which is the only one.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from ...schemas.settings.base import SettingsError
from ...schemas.settings.mappings import RECIPES, Payload, Readings
from ...schemas.settings.places import (
    MOST_WILDCARDS,
    Do,
    Place,
    Step,
    Steps,
    parts_of,
    path_steps,
    path_text,
)
from ...transforms.payloads.avro import SchemaLookup
from ...transforms.payloads.columns import FIELDS, UNITS, level_of, power_of_ten, topics
from ...transforms.payloads.decoder import PayloadDecoder, documents_of, shown
from ...transforms.payloads.messages import Messages
from ...transforms.payloads.parsing import parse_json_text, unpacked
from ..errors import CommandError, ExitCode
from ..init.rhythm import COUNTER_RISES, are_counters, runs_of, slot_of
from ..init.times import EPOCHS, text_format
from ..init.words import DELIMITERS, SERIES, TIME, VALUE, unit_of

#: Messages whose fields are looked at, levels of a document, and fields of one.
_LOOKED, _DEEPEST, _MOST_LEAVES = 200, 8, 1_000
#: A part of the messages that must be written in a way, or have a field, for it to be that of all.
_MOST, _FEW = 0.9, 0.2
#: Places of each part that are tried together.
_TRIED = 6
#: Rises from which a value whose name is that of a counter is one, where it does not fall.
_FEWEST_RISES = 5

_FORMATS: tuple[Payload, ...] = ("json", "ndjson", "csv", "msgpack", "cbor")
_GZIP = b"\x1f\x8b"

#: Names of values, the ones that are most often meant first; of times that are none of the reading; of names that
#: differ from message to message.
_VALUES = (
    re.compile(r"power|watt|(^|_)k?w$", re.IGNORECASE),
    re.compile(r"energy|wh$|consum|load|total|import", re.IGNORECASE),
    re.compile(r"^(value|val|v|reading|state|measurement)s?$", re.IGNORECASE),
    VALUE,
)
_OTHER_TIME = re.compile(r"up_?time|boot|start|since|first|expir|install|today|yesterday|month", re.IGNORECASE)
_OWN_TIME = re.compile(r"^(t|ts|at)$|_at$|[a-z]At$")
_OF_MESSAGE = re.compile(
    r"msg|message|event|request|trans|frame|packet|session|seq|corr|uuid|batch|trace|count|version|type|unit",
    re.IGNORECASE,
)
_ID = re.compile(r"[a-z]I[dD]$|^sn$|serial|eui$", re.IGNORECASE)
#: Words at a level of the topic for kinds of messages.
_KIND = re.compile(
    r"in|out|rx|tx|up|down|uplink|status|state|set|get|cmd|info|lwt|online|data|sensor|tele|telemetry|events?",
    re.IGNORECASE,
)
#: What may be measured, and what stands beside it in a word. A word of these alone names no person, so it is written.
_MEASURE = re.compile(
    r"a?(power|energy)|watts?|k?w|[km]?wh|k?(va|var)h?|consum(ed|ption)|produc(ed|tion)|generat(ed|ion)|delivered|returned"
    r"|(im|ex)port(ed)?|load|total|value|reading|measurement|volt(s|age)?|current|amp(ere|s)|frequency|hz|pf|powerfactor"
    r"|temperature|humidity|pressure|flow|volume|gas|water|heat|co2|rssi|lqi|linkquality|uptime|(wirk)?leistung|energie"
    r"|verbrauch|spannung|strom",
    re.IGNORECASE,
)
_BESIDE = re.compile(
    r"active|reactive|apparent|net|grid|solar|pv|battery|[ad]c|l[123]|phase|factor|today", re.IGNORECASE
)
_TOKENS = re.compile(r"[\s_.()\[\]-]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STEP = re.compile(r"interval|step|resolution|period", re.IGNORECASE)
_PART = re.compile(
    r"(l|phase|ph|t|tariff|input|output)?[_-]?[abc123]|total|sum|import|export|in|out|grid|solar|pv|battery|load|house|ac"
    r"|dc|active|reactive|apparent|power|energy|voltage|current|min|max|avg|mean",
    re.IGNORECASE,
)
_TOTAL = re.compile(r"total|import|counter|register|kwh|energy|(^|_)wh$", re.IGNORECASE)
_WITH_UNIT = re.compile(r"\s*[-+]?\d+(?:[.,]\d+)?\s*([A-Za-z]\w{0,4})\s*")
_NUMBER_TEXT = re.compile(r"\s*[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d{1,3})?\s*")

#: Instants that a time lies between: the years 2000 to 2100.
_EARLIEST_S, _LATEST_S = 946_684_800, 4_102_444_800
#: Characters of a number or a time.
_LONGEST_NUMBER = 40
_LONGEST_LINE = 10_000
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class MessageLook:
    """What some messages suggest."""

    readings: dict[str, Any]  # the section of the settings
    called: str  # what the mapping is, in words
    count: int  # messages that were looked at
    read: int  # those of them with a reading
    passed: int  # those that are of another kind
    rejected: int  # those that cannot be read
    names: int  # distinct series seen
    interval_us: int | None  # a usual length of slot near the distance of two readings; ``None`` if no series had two
    rises: bool  # whether the value is a counter
    unit: str  # of the values; empty if it is not known
    latest_us: int  # the latest reading
    late_us: int  # the most that a reading is behind one that came before it
    again: float  # share of the readings at whose time their series has another one
    unread: str  # a path that looks like a time where the stamp is taken for it; empty for none
    naive: bool  # whether the times have no offset


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a proposal makes of the messages."""

    readings: dict[str, Any]
    read: int  # messages with a reading
    rejects: frozenset[int]  # positions of messages that cannot be read
    passed: int  # messages of another kind
    codes: npt.NDArray[np.int64]  # the series of each reading, shape (n,)
    instants: npt.NDArray[np.int64]  # the time of each in microseconds, shape (n,)
    values: npt.NDArray[np.float64]  # its value, shape (n,)

    @property
    def names(self) -> int:
        return len(np.unique(self.codes))

    @property
    def score(self) -> int:
        """Messages with a reading, less those that are lost."""
        return self.read - len(self.rejects)


@dataclass(frozen=True)
class _Tester:
    """Tries proposals on messages."""

    messages: Messages
    timezone: str
    schemas: SchemaLookup | None = None

    def outcome(self, readings: Mapping[str, Any]) -> _Outcome | None:
        """What a proposal makes of the messages; ``None`` if it is no mapping, or makes no reading."""
        try:
            section = shown(Readings.model_validate(dict(readings)))
            decoder = PayloadDecoder(section, timezone=self.timezone, schemas=self.schemas)
            parts = decoder.decode(self.messages)
        except (ValidationError, SettingsError):
            return None
        found = [one.readings for one in parts if one.readings is not None]
        if not found:
            return None
        names = [name for one in found for name in one.column("series").to_pylist()]
        instants = np.concatenate([one.column("time").cast("int64").to_numpy(zero_copy_only=False) for one in found])
        rejects = {int(at) for one in parts for lost in one.rejects for at in lost.positions}
        passed = sum(one.passed for one in parts)
        return _Outcome(
            readings=dict(readings),
            read=max(0, len(self.messages) - len(rejects) - passed),
            rejects=frozenset(rejects),
            passed=passed,
            codes=np.unique(names, return_inverse=True)[1].astype(np.int64),
            instants=instants,
            values=np.concatenate([one.column("value").to_numpy(zero_copy_only=False) for one in found]),
        )

    def best(
        self, proposals: Iterable[dict[str, Any]], besides: Callable[[_Outcome], Any] = lambda _: 0, least: int = 1
    ) -> _Outcome | None:
        """The first of the proposals that most messages can be read by, and of these one that ranks highest besides."""
        found = [one for one in map(self.outcome, proposals) if one is not None and one.score >= least]
        return max(found, key=lambda one: (one.score, besides(one)), default=None)


def look_at_messages(
    messages: Messages,
    where: str,
    *,
    value: str | None = None,
    timezone: str = "UTC",
    levels: Sequence[int] = (),
    only: str = "",
    schemas: SchemaLookup | None = None,
    hint: str = "",
) -> MessageLook:
    """Look at messages of one topic or of several.

    Args:
        messages: some of them.
        where: they come from, for errors.
        value: path, or name, of the value; guessed if left out.
        timezone: zone of times without an offset.
        levels: levels of the topic that differ from message to message, as wildcards of a subscription say.
        only: the name of a series, where messages come from one place and have none.
        schemas: gives the schema of an id of Avro's wire format.
        hint: what else may help where nothing is found.
    """
    messages = _chosen(messages, [at for at, payload in enumerate(messages.payloads) if payload])
    if not len(messages):
        raise CommandError(
            f"{where}: no message with a payload to look at: let a device send some, or name another topic",
            ExitCode.SOURCE,
        )
    tester = _Tester(messages, timezone, schemas)
    fields = _Fields.of(messages, levels, only, schemas)
    named = tester.best(_of_presets(fields, value))
    recipe = tester.best(_of_recipes(fields, value), fields.fit)
    found = max((one for one in (named, recipe) if one is not None), key=lambda one: one.score, default=None)
    if found is None or found.read < _FEW * len(messages):
        own = _generic(tester, fields, value)
        found = own if own is not None and (found is None or own.score > found.score) else found
    if found is None:
        raise CommandError(f"{where}: {_nothing(fields, value)}{hint}", ExitCode.SOURCE)
    return _look(found, fields, tester)


def _nothing(fields: _Fields, value: str | None) -> str:
    """Why nothing is proposed, without a word of a message."""
    count = len(fields.messages)
    if fields.payload is None and not fields.plain:
        return (
            f"most of {count} payloads are in none of the formats {', '.join(_FORMATS)}, nor of a known preset; for "
            "Avro of a schema registry give --registry, for CSV without a line of names write readings.columns, "
            "and see docs/mappings.md for other formats"
        )
    if value is not None:
        return f"--value {value!r} leads to no number in {count} messages; give the path of one, such as values.power"
    if _values(fields, None):
        return (
            f"no mapping reads most of {count} messages, which are of several kinds: look at one of them, by a filter "
            "of its topics or by --value PATH with its value, and see `where` in docs/mappings.md"
        )
    return (
        f"no field of {count} messages holds numbers beside a name and a time; name the value by --value PATH, or "
        "write the mapping yourself (docs/mappings.md)"
    )


def _chosen(messages: Messages, kept: Sequence[int]) -> Messages:
    """Some of the messages, numbered anew."""
    return replace(messages.some(kept), positions=np.arange(len(kept), dtype=np.int64))


@dataclass
class _Leaf:
    """A field at the end of a path."""

    steps: Steps
    values: list[Any] = field(default_factory=list[Any])  # what stands there, without nulls
    documents: set[int] = field(default_factory=set[int])  # numbers of the documents that have it

    @property
    def name(self) -> str:
        return next((one for one in reversed(self.steps) if isinstance(one, str)), "")

    @property
    def text(self) -> str:
        return path_text(self.steps)

    @property
    def arrays(self) -> Steps:
        """The path up to its last wildcard."""
        many = [at + 1 for at, one in enumerate(self.steps) if one is None or one is Do.FIELDS]
        return self.steps[: many[-1]] if many else ()

    @property
    def kind(self) -> str | None:
        """Whether its values are numbers, texts of numbers, or texts of numbers with units behind them."""
        if not self.values:
            return None
        numbers = sum(type(one) in (int, float) for one in self.values)
        if numbers >= _MOST * len(self.values):
            return "number"
        texts = [one for one in self.values if type(one) is str and len(one) <= _LONGEST_NUMBER]
        for kind, form in (("text", _NUMBER_TEXT), ("unit", _WITH_UNIT)):
            if sum(form.fullmatch(one) is not None for one in texts) >= _MOST * len(self.values):
                return kind
        return None


@dataclass(frozen=True)
class _Fields:
    """What the messages have."""

    messages: Messages
    topics: Sequence[str]  # that of each message
    payload: str | None  # how payloads are written; ``None`` where they are not in a form with fields
    delimiter: str  # between the columns where they are CSV
    packed: bool  # whether they are packed by gzip
    plain: bool  # whether the payload as a whole is a value
    leaves: Mapping[Steps, _Leaf]  # the fields, by their paths
    documents: int  # how many documents there are
    levels: tuple[int, ...]  # levels of the topic that differ, from 1
    words: Mapping[int, Counter[str]]  # of each such level what stands there
    keyed: bool  # whether messages have keys of text
    only: str  # the name of a series where there is no other
    bodies: Sequence[Any]  # what the payloads hold
    said_unit: str  # the unit that stands behind numbers in payloads; empty for none that is known

    @classmethod
    def of(cls, messages: Messages, levels: Sequence[int], only: str, schemas: SchemaLookup | None) -> _Fields:
        raw = [payload or b"" for payload in messages.payloads[:_LOOKED]]
        packed = sum(one.startswith(_GZIP) for one in raw) >= _MOST * len(raw)
        raw = [_unpacked(one) for one in raw] if packed else raw
        delimiter = _delimiter_of(raw)
        payload, bodies = _format_of(raw, schemas, delimiter)
        short = [one.decode("ascii", "replace") for one in raw if payload is None and len(one) <= _LONGEST_NUMBER]
        numbers = [one for one in short if _NUMBER_TEXT.fullmatch(one) or _WITH_UNIT.fullmatch(one)]
        names = topics(messages, range(len(messages)))
        words = _words(names)
        return cls(
            messages=messages,
            topics=names,
            payload=payload,
            delimiter=delimiter,
            packed=packed,
            plain=payload is None and len(numbers) >= _FEW * len(raw),
            leaves=_leaves(bodies),
            documents=len(bodies),
            levels=tuple(at for at, said in words.items() if len(said) > 1 or at in levels),
            words=words,
            keyed=all(key and key.decode("utf-8", "surrogateescape").isprintable() for key in messages.keys),
            only=only,
            bodies=bodies,
            said_unit=_unit_behind(numbers),
        )

    @property
    def own(self) -> dict[str, Any]:
        """The settings that say how payloads are written."""
        said: dict[str, Any] = {} if self.payload in (None, "json") else {"payload": self.payload}
        said |= {"delimiter": self.delimiter} if self.payload == "csv" and self.delimiter != "," else {}
        return said | ({"compression": "gzip"} if self.packed else {})

    def fit(self, outcome: _Outcome) -> tuple[int, int, bool, int]:
        """How many of the fields a recipe names, how many series it distinguishes, and how short their place is."""
        whole = Readings.model_validate(outcome.readings)
        said = (whole.series, whole.time, whole.value, whole.where, whole.each, whole.of)
        words = set(re.findall(r"[\w-]+", " ".join(map(str, said))))
        fits = sum(words.issuperset(one for one in steps if isinstance(one, str)) for steps in self.leaves)
        return (fits, *_apart(outcome))

    def sorted(self, rank: Any) -> list[_Leaf]:
        """Fields that most documents have, by a rank that is ``None`` for those that are none of it."""
        ranked = [(rank(one), -len(one.documents), len(one.steps), one.text, one) for one in self.leaves.values()]
        return [one[-1] for one in sorted((one for one in ranked if one[0] is not None), key=lambda one: one[:-1])]


def _unpacked(payload: bytes) -> bytes:
    try:
        return unpacked(payload, 1_000_000)
    except ValueError:
        return b""


def _unit_behind(texts: Iterable[str]) -> str:
    """The known unit that stands behind most numbers; empty for none."""
    units = Counter(match[1] for one in texts if (match := _WITH_UNIT.fullmatch(one)) is not None)
    return next((one for one, _ in units.most_common() if one in UNITS), "")


def _delimiter_of(raw: list[bytes]) -> str:
    """What stands most often in the first lines, of what may stand between columns; a comma where there is none."""
    first = b"".join(one[:_LONGEST_LINE].partition(b"\n")[0] for one in raw)
    return max(DELIMITERS, key=lambda one: first.count(one.encode()))


def _format_of(raw: list[bytes], schemas: SchemaLookup | None, delimiter: str) -> tuple[str | None, list[Any]]:
    """The first format by which most payloads are objects or arrays, and what they hold."""
    registered: tuple[Payload, ...] = () if schemas is None else ("avro",)
    for name in (*_FORMATS, *registered):
        try:
            found = documents_of(name, raw, schemas, **({"delimiter": delimiter} if name == "csv" else {}))
        except SettingsError:  # a library is not installed
            continue
        bodies = [one for one in found.values if isinstance(one, (dict, list)) and one]
        messages = {at for at, one in zip(found.message, found.values, strict=True) if isinstance(one, (dict, list))}
        if len(messages) >= _FEW * len(raw) and len(bodies) >= _MOST * len(found.values):
            return name, bodies
        if name == "json" and len(bodies) >= max(1, _FEW * len(raw)):
            return name, bodies
    return None, []


def _words(names: Sequence[str]) -> dict[int, Counter[str]]:
    """What stands at each level of the topics that all of them have, from 1; of one level there is none."""
    split = [name.split("/") for name in names]
    depth = min(map(len, split), default=0)
    if depth < 2:  # noqa: PLR2004 - a topic of Kafka
        return {}
    return {at + 1: Counter(one[at] for one in split) for at in range(depth)}


def _leaves(documents: Sequence[Any]) -> dict[Steps, _Leaf]:
    """The fields of documents; objects whose fields are all alike are taken for a name and a device each."""
    keyed = _keyed(documents)
    found: dict[Steps, _Leaf] = {}
    for number, document in enumerate(documents):
        for steps, value in _walk(document, (), keyed):
            leaf = found.get(steps)
            if leaf is None:
                if len(found) >= _MOST_LEAVES:
                    continue
                leaf = found[steps] = _Leaf(steps)
            leaf.documents.add(number)
            leaf.values.append(value)
    wild = {steps: sum(one is None or one is Do.FIELDS for one in steps) for steps in found}
    odd = {steps for steps in found if any(isinstance(one, str) and ('"' in one or not one) for one in steps)}
    return {steps: one for steps, one in found.items() if wild[steps] <= MOST_WILDCARDS and steps not in odd}


def _walk(value: Any, steps: Steps, keyed: set[Steps]) -> Iterator[tuple[Steps, Any]]:
    if len(steps) >= _DEEPEST:
        return
    parts = _parts(value, is_keyed=steps in keyed)
    for step, inner in parts or ():
        yield from _walk(inner, (*steps, step), keyed)
    if parts is None and value is not None:
        yield steps, value


def _parts(value: Any, *, is_keyed: bool) -> list[tuple[Step, Any]] | None:
    """What a value holds, and the steps to it; ``None`` where it is no object, list or text of an object."""
    if isinstance(value, dict):
        given = cast("dict[Any, Any]", value).items()
        return [(Do.FIELDS if is_keyed else name, inner) for name, inner in given if isinstance(name, str)]
    if isinstance(value, list):
        return [(None, inner) for inner in cast("list[Any]", value)]
    found = _json_in(value) if isinstance(value, str) and value.startswith("{") else None
    return None if found is None else [(Do.JSON, found)]


def _json_in(text: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        if isinstance(found := parse_json_text(text), dict):
            return cast("dict[str, Any]", found)
    return None


def _keyed(documents: Sequence[Any]) -> set[Steps]:
    """The objects whose fields are names of devices: all of them objects with the same fields, and no phases."""
    shapes: dict[Steps, list[dict[str, Any]]] = defaultdict(list)

    def look(value: Any, steps: Steps) -> None:
        if len(steps) >= _DEEPEST:
            return
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            shapes[steps].append(given)
            for name, inner in given.items():
                look(inner, (*steps, name))
        elif isinstance(value, list):
            for inner in cast("list[Any]", value):
                look(inner, (*steps, None))

    for document in documents:
        look(document, ())
    return {steps for steps, objects in shapes.items() if _is_keyed(objects)}


def _is_keyed(objects: Sequence[dict[str, Any]]) -> bool:
    inner = [one for given in objects for one in given.values()]
    names = {name for given in objects for name in given}
    alike = bool(inner) and all(type(one) is dict and one for one in inner)
    if not alike or len({frozenset(one) for one in inner}) != 1 or len(names) == 1:
        return False
    # rather two series that are one meter's than the name of a person in a path
    return not all(_PART.fullmatch(name) for name in names)


def _time_of(leaf: _Leaf) -> dict[str, Any] | None:
    """How the times of a field are written, as settings; ``None`` if it holds none."""
    named, least = bool(TIME.search(leaf.name) or _OWN_TIME.search(leaf.name)), _MOST * len(leaf.values)
    if named and len(numbers := _counts(leaf.values)) >= least:
        typical = median(numbers)
        unit = next((unit for fewest, unit in EPOCHS if typical >= fewest), None)
        if unit is None or not _EARLIEST_S <= typical / _PER_SECOND[unit] <= _LATEST_S:
            return None
        return {} if unit == "s" else {"time_unit": unit}
    texts = [one for one in leaf.values if type(one) is str and 8 <= len(one) <= _LONGEST_NUMBER]  # noqa: PLR2004 - of a time
    if len(texts) < least or not (named or all("-" in one and ":" in one for one in texts)):
        return None
    form = text_format(texts)
    return {"time_format": form} if form else None if form is None else {}


def _counts(values: Sequence[Any]) -> list[float]:
    """Numbers that may count since 1970, as texts too."""
    given = [one for one in values if type(one) in (int, float) or (type(one) is str and one.isdecimal())]
    return [float(one) for one in given if len(str(one)) <= _LONGEST_NUMBER and math.isfinite(float(one))]


def _rank(name: str, forms: Sequence[re.Pattern[str]]) -> int:
    return next((at for at, form in enumerate(forms) if form.search(name)), len(forms))


def _value_rank(leaf: _Leaf) -> int | None:
    is_other = leaf.kind is None or _time_of(leaf) is not None or SERIES.search(leaf.name)
    return None if is_other else _rank(leaf.name, _VALUES)


def _values(fields: _Fields, wanted: str | None) -> list[_Leaf]:
    """The fields that may be the value, the likeliest first."""
    if wanted is None:
        return fields.sorted(_value_rank)[:_TRIED]
    return [one for one in fields.leaves.values() if wanted in (one.text, one.name) and one.kind is not None]


def _times(fields: _Fields, value: _Leaf) -> Iterator[dict[str, Any]]:
    """Settings of the time, the likeliest first; the broker's stamp last."""

    def rank(leaf: _Leaf) -> tuple[int, int] | None:
        if _time_of(leaf) is None or value.arrays[: len(leaf.arrays)] != leaf.arrays:
            return None
        # of the element itself before that of the message, and none that tells of something else
        return (int(bool(_OTHER_TIME.search(leaf.name))), -len(leaf.arrays))

    is_bare = value.steps[-1:] == (None,)
    # the numbers of an array are a step apart, which a field says
    around = (one for one in fields.leaves.values() if one.arrays == value.arrays[: len(one.arrays)] != value.arrays)
    steps = [{"every": one.text} for one in around if _STEP.search(one.name)][:1]
    for leaf in fields.sorted(rank)[:_TRIED]:
        for more in steps if is_bare and leaf.arrays != value.arrays else [{}]:
            yield {"time": {"path": leaf.text, **more}, **(_time_of(leaf) or {})}
    for leaf in fields.leaves.values() if is_bare else ():
        beside = leaf.steps[-1:] == (None,) and leaf.steps[:-2] == value.steps[:-2] and leaf is not value
        how = _time_of(leaf) if beside else None
        if how is not None:
            yield {"time": {"path": path_text((*leaf.steps[:-1], Do.NTH))}, **how}
    yield {"time": {"stamp": True}}


def _series(fields: _Fields, inside: Steps | None) -> list[Any]:
    """Places of the series for a value inside an array, or anywhere, the likeliest first."""
    found: list[Any] = []
    if inside is not None and Do.FIELDS in inside:
        at = len(inside) - 1 - inside[::-1].index(Do.FIELDS)
        found.append({"path": path_text((*inside[: at + 1], Do.NAME))})

    def rank(leaf: _Leaf) -> int | None:
        plain = all(type(one) in (str, int) for one in leaf.values)
        plain = plain and (inside is None or inside[: len(leaf.arrays)] == leaf.arrays)
        named = SERIES.search(leaf.name) or _ID.search(leaf.name) or leaf.steps[-2:-1] == ("tags",)
        steady = plain and named and not _OF_MESSAGE.search(leaf.name)
        return 0 if steady and len(leaf.documents) >= _FEW * fields.documents else None

    found += [{"path": one.text} for one in fields.sorted(rank)[:_TRIED]]
    measured = _measured(fields)
    levels = [
        {"topic": at} for at in fields.levels if at not in measured and not all(map(_KIND.fullmatch, fields.words[at]))
    ]
    joined = [{"join": [*levels, *found[:1]]}] if levels and found else []
    joined += [{"join": list(levels)}] if len(levels) > 1 else []
    keyed = [{"key": True}] if fields.keyed else []
    return [*found, *levels, *joined, *keyed, *([{"constant": fields.only}] if fields.only else [])]


def _is_measure(word: str) -> bool:
    """Whether the whole of a word says what is measured.

    >>> [_is_measure(one) for one in ("power", "TotalActivePower", "Energy (kWh)", "alice_energy", "powers", "l1")]
    [True, True, True, False, False, False]
    """
    parts = [
        part
        for token in _TOKENS.split(word)
        for part in ([token] if _MEASURE.fullmatch(token) else _CAMEL.split(token))
        if part
    ]
    measures = [part for part in parts if _MEASURE.fullmatch(part)]
    return bool(measures) and all(_BESIDE.fullmatch(part) for part in parts if part not in measures)


def _likeliest(words: Iterable[str]) -> list[str]:
    """Those of words that are a power or an energy and nothing else, the likeliest first."""
    found = [(_rank(word, _VALUES[:2]), len(word), word) for word in words if _is_measure(word)]
    return [word for rank, _, word in sorted(found) if rank < 2]  # noqa: PLR2004 - of the two


def _measured(fields: _Fields) -> list[int]:
    """The levels that say what is measured, and not by whom.

    One of them has words of measures and of kinds alone. Others may stand there too where another level names the
    series: a lone level with ``adams`` and ``power`` has names.
    """
    said = {at: fields.words[at] for at in fields.levels if _likeliest(fields.words[at])}
    names = any(at not in said and not all(map(_KIND.fullmatch, fields.words[at])) for at in fields.levels)
    return [
        at for at, words in said.items() if names or all(_is_measure(word) or _KIND.fullmatch(word) for word in words)
    ]


def _generic(tester: _Tester, fields: _Fields, wanted: str | None) -> _Outcome | None:
    """A mapping made of the fields that messages have."""
    if fields.payload is None:
        return _whole_payload(tester, fields) if fields.plain else None
    for leaf in _values(fields, wanted):
        best = tester.best(_proposals(fields, leaf), least=-len(tester.messages))
        found = None if best is None else _sifted(tester, _with_names(tester, fields, leaf, best), fields)
        if found is not None and (found.score > 0 or wanted is not None):
            return found
    return None


def _proposals(fields: _Fields, leaf: _Leaf) -> Iterator[dict[str, Any]]:
    """Mappings of a value, each with another time; the series is any that there is."""
    series = next(iter(_series(fields, leaf.arrays)), None)
    if series is None:
        return
    for time in _times(fields, leaf):
        nth = str(time["time"].get("path", "")).endswith("[n]")
        yield {**fields.own, "series": series, **time, **_value(fields, leaf, nth=nth)}


def _value(fields: _Fields, leaf: _Leaf, *, nth: bool = False) -> dict[str, Any]:
    """Settings of a value: its path, whether it may be missing, and its unit."""
    said: dict[str, Any] = {"path": path_text((*leaf.steps[:-1], Do.NTH)) if nth else leaf.text}
    if len(leaf.documents) < fields.documents:
        said["optional"] = True
    texts = [one for one in leaf.values if type(one) is str]
    unit, beside = unit_of(leaf.name), None if leaf.kind == "unit" else _unit_beside(fields, leaf)
    if leaf.kind == "unit":
        said["unit"], unit = True, _unit_behind(texts)
    elif beside is not None:
        said["unit"], unit = {"path": beside[0]}, beside[1]
    more: dict[str, Any] = {}
    if beside is not None and beside[2]:
        more["where"] = [{"path": beside[0], "equals": beside[2] if len(beside[2]) > 1 else beside[2][0]}]
    return {"value": said, **({"unit": unit} if unit else {}), **more}


def _unit_beside(fields: _Fields, leaf: _Leaf) -> tuple[str, str, list[str]] | None:
    """The path of the unit beside a value, a known one, and all of its quantity if there are others beside these.

    That of a power or an energy comes first, then the one that most values have. There may be none.
    """
    near = (one for one in fields.leaves.values() if one.steps[:-1] == leaf.steps[:-1] and one.name in FIELDS)
    beside = next(near, None)
    units = [] if beside is None else [one for one, _ in Counter(map(str, beside.values)).most_common()]
    known = (one for one in units if one in UNITS)
    unit = min(known, key=lambda one: UNITS[one][0] not in ("W", "Wh"), default="")
    if beside is None or not unit:
        return None
    same = sorted(one for one in units if power_of_ten(one, unit) is not None)
    return beside.text, unit, same if len(same) < len(units) else []


def _with_names(tester: _Tester, fields: _Fields, leaf: _Leaf, best: _Outcome) -> _Outcome:
    """The same with the series that distinguishes most meters, by the fewest parts."""
    tried = [tester.outcome({**best.readings, "series": place}) for place in _series(fields, leaf.arrays)]
    found = [one for one in tried if one is not None and one.score >= best.score]
    return max(found, key=_apart, default=best)


def _apart(outcome: _Outcome) -> tuple[int, bool, int]:
    """How many series are distinguished, whether by the messages, and how short their place is."""
    place = outcome.readings.get("series", {})
    return outcome.names, "constant" not in place, -len(str(place))


def _sifted(tester: _Tester, best: _Outcome, fields: _Fields) -> _Outcome:
    """The same where a level of the topic tells messages of another kind from those that are read."""
    if not best.rejects:
        return best
    for level in fields.levels:
        if {"topic": level} in (best.readings["series"], *dict(best.readings["series"]).get("join", ())):
            continue
        bad = {level_of(fields.topics[at], level) or "" for at in best.rejects}
        good = {level_of(name, level) or "" for at, name in enumerate(fields.topics) if at not in best.rejects}
        if bad & good:
            continue
        # words that are no kinds of messages may be names of meters, and are not written
        for how, words in (("equals", sorted(good)), ("differs", sorted(bad))):
            if all(map(_KIND.fullmatch, words)):
                said = {"topic": level, how: words[0] if len(words) == 1 else words}
                where = [*best.readings.get("where", ()), said]
                return tester.outcome({**best.readings, "where": where}) or best
    return best


def _whole_payload(tester: _Tester, fields: _Fields) -> _Outcome | None:
    """Mappings of payloads that are numbers: a level of the topic says of what."""
    where = [{"topic": level, "equals": _likeliest(fields.words[level])[0]} for level in _measured(fields)[-1:]]
    named = next((unit for one in where if (unit := unit_of(str(one["equals"])))), "")
    values: list[dict[str, Any]] = [{"value": {"payload": True}, **({"unit": named} if named else {})}]
    if fields.said_unit:
        values.append({"value": {"payload": True, "unit": True}, "unit": fields.said_unit})
    begin, end = fields.own, {"where": where} if where else {}
    places = [{"series": series, "time": {"stamp": True}} for series in _series(fields, ())]
    return tester.best(({**begin, **place, **value, **end} for place in places for value in values), _apart)


def _of_recipes(fields: _Fields, wanted: str | None) -> Iterator[dict[str, Any]]:
    """The recipes whose topics the messages have; where a recipe has none, their times are in its unit."""
    texts = {one.text for one in fields.leaves.values() if one.kind is None}
    for recipe in RECIPES.values():
        if recipe.name in _NAMING:
            continue
        if recipe.topic and not any(_is_on(name, recipe.topic) for name in set(fields.topics)):
            continue
        if not recipe.topic and "time_unit" in recipe.readings and recipe.readings["time"] in texts:
            continue
        series = _series(fields, None)[:_TRIED] if "series" in recipe.missing else [None]
        own = {} if "value" in recipe.missing or wanted is not None else {"value": None}
        for place in series:
            given: dict[str, Any] = {"preset": recipe.name} | ({} if place is None else {"series": _expression(place)})
            if own:
                yield given
                continue
            for leaf in _values(fields, wanted):
                said = _value(fields, leaf)
                kept = () if "unit" in recipe.readings else ("unit",)
                value = _expression(said["value"]) + (" || false" if said["value"].get("optional") else "")
                yield given | {"value": value} | {name: said[name] for name in kept if name in said}


def _expression(place: Any) -> Any:
    """The JMESPath of a place, which begins at the innermost object; a constant stays."""
    if isinstance(place, str) or "path" in place:
        steps = path_steps(place if isinstance(place, str) else place["path"])
        said = ""
        for step in steps[
            max((at + 1 for at, one in enumerate(steps) if one is None or isinstance(one, Do)), default=0) :
        ]:
            said += f".{_identifier(step)}" if isinstance(step, str) else f"[{step}]"
        return said.removeprefix(".") if said[1:].isidentifier() and said[1:] not in _NAMES else f"it{said}"
    if "join" in place:
        return f"name([{', '.join(map(_expression, place['join']))}])"
    if "topic" in place:
        return f"topic[{place['topic'] - (place['topic'] > 0)}]"
    if "header" in place:
        return f"header.{_identifier(place['header'])}"
    return place if "constant" in place else next(iter(place))


#: What no field of a message hides in expressions.
_NAMES = {"payload", "text", "topic", "header", "key", "stamp", "each", "it", "null", "true", "false"}


def _identifier(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else json.dumps(name)


def _is_on(name: str, form: str) -> bool:
    """Whether a topic is of the form of a recipe, whose levels in capitals stand for anything.

    A device's own prefix, where the form begins with it, may have several levels; the recipe counts from the end then.
    """
    levels, wanted = name.split("/"), form.split("/")
    if wanted[0].isupper():
        levels = levels[-len(wanted) :]
    if len(levels) != len(wanted):
        return False
    pairs = zip(levels, wanted, strict=True)
    return all(one == two or two.replace("@", "").isupper() or ":" in two for one, two in pairs)


#: How a counter is read whose readings are as close as those of most meters.
_COUNTER = {"gap": "2h"}

#: What most telegrams of DSMR have, the power that is taken; and XML of the Green Button and CIM.
_TELEGRAM = tuple(
    {"preset": "dsmr", "value": code, "unit": "kW", **time}
    for time in ({}, {"time": {"stamp": True}})
    for code in ("1-0:1.7.0", "1-0:21.7.0")
)
_DOCUMENT = tuple(
    {"preset": preset, "value": unit, "unit": unit, **({"register": _COUNTER} if is_counter else {})}
    for preset, is_counter in (("green-button", False), ("cim", False), ("cim", True))
    for unit in ("Wh", "W", "m3", "therm")
)


def _of_presets(fields: _Fields, wanted: str | None) -> list[dict[str, Any]]:
    """The presets with a convention of their own that fit the messages, each with names that its value may have."""
    body = (fields.messages.payloads[0] or b"").lstrip()
    of_text = _TELEGRAM if body.startswith(b"/") and b"!" in body else _DOCUMENT if body.startswith(b"<") else ()
    said = _names_of_convention(fields.bodies)
    if of_text:
        named = [one for one in of_text if wanted in (None, one["value"])]
        return named or [{**one, "value": wanted} for one in of_text[:2]]
    found = [
        {"preset": preset, **_NAMING[preset](one)}
        for preset, values in said.items()
        for one in values
        if wanted in (None, one)
    ]
    series = next((one for one in _series(fields, ()) if not {"path", "join"} & set(one)), None)
    if series is not None:
        found += [one | {"series": _expression(series)} for one in found if one["preset"] == "thingsboard"]
    return found


#: What names a value in the recipes of platforms whose values have names.
_NAMING: dict[str, Callable[[str], dict[str, str]]] = {
    "edgex": lambda name: {"where": "resourceName == '{}'".format(name.replace("'", "\\'"))},
    "ngsi-ld": lambda name: {"of": _identifier(name)},
    "thingsboard": lambda name: {"value": f"values.{_identifier(name)} || false"},
}


def _names_of_convention(bodies: Sequence[Any]) -> dict[str, list[str]]:
    """Names that values have in EdgeX, NGSI and behind a gateway of ThingsBoard, the likeliest first."""
    found: dict[str, set[str]] = defaultdict(set)
    for preset, name in (pair for body in bodies for pair in _named_values(body)):
        if isinstance(name, str) and name:
            found[preset].add(name)
    return {
        preset: sorted(names, key=lambda one: (_rank(one, _VALUES), one))[:_TRIED] for preset, names in found.items()
    }


def _named_values(body: Any) -> Iterator[tuple[str, Any]]:
    """The presets of which a message may be, each with what stands there for the name of a value."""
    if not isinstance(body, dict):
        return
    event = body.get("event", body)
    for one in _objects(event.get("readings")) if isinstance(event, dict) else ():
        yield "edgex", one.get("resourceName")
    for one in _objects(body.get("data")):
        if {"id", "type"} <= set(one):
            yield from (("ngsi-ld", name) for name, said in one.items() if isinstance(said, dict) and "value" in said)
    for one in (one for items in body.values() for one in _objects(items)):
        if isinstance(one.get("values"), dict) and "ts" in one:
            yield from (("thingsboard", name) for name in one["values"])


def _objects(value: Any) -> list[dict[Any, Any]]:
    """The objects in a list; none in anything else."""
    return [one for one in cast("list[Any]", value) if isinstance(one, dict)] if isinstance(value, list) else []


def _late_us(found: _Outcome, tester: _Tester) -> int:
    """The most that a reading is behind one that came before it; what has the same stamp came at once."""
    stamps, latest, late = tester.messages.stamps_us, -1, 0
    for stamp in np.unique(stamps):
        some = _chosen(tester.messages, np.flatnonzero(stamps == stamp).tolist())
        one = replace(tester, messages=some).outcome(found.readings)
        if one is not None:
            late = max(late, latest - int(one.instants.min()))
            latest = max(latest, int(one.instants.max()))
    return late


def _look(found: _Outcome, fields: _Fields, tester: _Tester) -> MessageLook:
    """What is said of the best proposal."""
    readings = dict(found.readings)
    whole = Readings.model_validate(readings)
    value = readings.get("value")
    rises = _rises(found, value)
    if rises:
        readings["register"] = _COUNTER
    times = np.unique(np.stack([found.codes, found.instants]), axis=1)
    apart = np.diff(times[1])[np.diff(times[0]) == 0]
    stamped = any(isinstance(one, Place) and one.stamp for one in parts_of(whole.time))
    stamped |= whole.each is not None and "stamp" in str(whole.time)
    # what the broker had kept came at once, whenever it was measured
    came_at_once = stamped and any(("mqtt-retain", b"1") in one for one in fields.messages.headers)
    apart = apart[:0] if came_at_once else apart[apart > 0]
    preset = readings.get("preset")
    whole_value = "the payload is the value" if fields.plain else "a mapping of its fields"
    return MessageLook(
        readings=readings,
        called=f"preset {preset}" if preset else whole_value,
        count=len(fields.messages),
        read=found.read,
        passed=found.passed,
        rejected=len(found.rejects),
        names=found.names,
        interval_us=slot_of(apart) if len(apart) else None,
        rises=rises or whole.register_ is not None,
        unit=whole.unit.strip(),
        latest_us=int(found.instants.max()),
        late_us=_late_us(found, tester),
        again=1 - times.shape[1] / len(found.codes),
        unread=next(_unread_times(fields), "") if preset is None and whole.time == Place(stamp=True) else "",
        naive=_is_naive(whole, fields),
    )


def _unread_times(fields: _Fields) -> Iterator[str]:
    """Paths of fields that look like the time of a reading."""
    return (
        one.text for one in fields.leaves.values() if _time_of(one) is not None and not _OTHER_TIME.search(one.name)
    )


def _rises(found: _Outcome, value: Any) -> bool:
    """Whether the values are those of a meter's counter; fewer rises tell it where the name does."""
    name = str(value.get("path", "")) if isinstance(value, dict) else str(value or "")
    fewest = _FEWEST_RISES if _TOTAL.search(name) else COUNTER_RISES
    is_power = _VALUES[0].search(name) is not None
    return not is_power and are_counters(runs_of(found.codes, found.instants, found.values), fewest)


def _is_naive(whole: Readings, fields: _Fields) -> bool:
    """Whether the times are texts without an offset."""
    if whole.each is not None:
        leaf = next((one for one in fields.leaves.values() if one.text.endswith(str(whole.time))), None)
    else:
        steps = getattr(whole.time, "steps", None)
        leaf = fields.leaves.get(tuple(None if one is Do.NTH else one for one in steps)) if steps else None
    texts = [one for one in leaf.values if type(one) is str] if leaf is not None else []
    return bool(texts) and not any(re.search(r"(Z|[+-]\d\d:?\d\d)$", one) for one in texts)
