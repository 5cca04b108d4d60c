"""A look at messages: proposals, by recipes or by the fields that there are, tried by the decoder of jobs.

The proposal that reads most messages wins, so ``check`` accepts it; where others are as likely it is a question. Of the
messages only names go into it: of fields, numbers of topic levels, a word for what is measured at such a level, units
that are known. No value does, and no name of a series.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from pydantic import ValidationError

from ...schemas.settings.base import SettingsError
from ...schemas.settings.readings import Payload, Readings
from ...schemas.settings.recipes import RECIPES, Recipe
from ...transforms.common.batches import Floats, Ints
from ...transforms.payloads.avro import SchemaLookup
from ...transforms.payloads.decoder import PayloadDecoder, parser_of
from ...transforms.payloads.messages import Messages, topics
from ...transforms.payloads.parsing import unpacked
from ...transforms.payloads.units import FIELDS, UNITS
from ..errors import CommandError, ExitCode
from .look import Question
from .rhythm import COUNTER_RISES, are_counters, runs_of, slot_of
from .times import EPOCHS, text_format
from .words import ELECTRIC, SERIES, TIME, TOTAL, VALUE, flow, unit_of

#: Messages whose fields are looked at, levels of a document, answers to a question.
_LOOKED, _DEEPEST, _ANSWERS = 200, 6, 8
#: A part of the messages that must be written in a way, or have a field, for it to be that of all.
_MOST, _FEW = 0.9, 0.2
#: Rises from which a value whose name is that of a counter is one, where it does not fall.
_FEWEST_RISES = 5
_FORMATS: tuple[Payload, ...] = ("json", "csv", "msgpack", "cbor")
_MARKED: dict[bytes, tuple[Payload, ...]] = {b"/": ("dsmr",), b"<": ("cim",)}
_OTHER_TIME = re.compile(r"up_?time|boot|start|since|first|expir|install|today|yesterday|month", re.IGNORECASE)
_OWN_TIME = re.compile(r"^(t|ts|at)$|_at$|[a-z]At$")
_ID = re.compile(r"(?<!message)(?<!msg)(?<!event)[a-z]I[dD]$|^sn$|serial|eui$", re.IGNORECASE)
#: Words at a level of the topic for kinds of messages and for what is measured, which name no person.
_WORDS = re.compile(
    r"in|out|rx|tx|up|down|uplink|status|state|set|get|cmd|info|lwt|online|data|sensor|tele\w*|events?|relay"
    r"|((re)?active|apparent|total|l[123])?[_ ]?(power|energy|voltage|current|frequency|temperature|humidity|k?wh?)",
    re.IGNORECASE,
)
#: Names of parts of one meter.
_PART = re.compile(
    r"(l|p|phase|ph|ch|channel|input|output|tariff|t)?[_-]?[abc\d]|total|sum|import|export|grid|solar|battery|load",
    re.IGNORECASE,
)
_WORD = re.compile(r"[\w-]+")
_NUMBER = re.compile(r"\s*[-+]?\d{1,20}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?\s*")
#: How likely a name is that of the value, the likeliest first: a power, an energy, another value; anything else last.
_LIKELY = (re.compile(r"power|watt|(^|_)k?w$", re.IGNORECASE), ELECTRIC, VALUE)
#: Instants that a time lies between: the years 2000 to 2100.
_EARLIEST_S, _LATEST_S = 946_684_800, 4_102_444_800
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
#: What no field of a message hides in expressions, and words that are values there.
_NAMES = {"payload", "text", "topic", "header", "key", "stamp", "each", "it", "null", "true", "false"}

Section = Mapping[str, Any]


@dataclass(frozen=True)
class MessageLook:
    """A section of readings, and what it makes of some messages."""

    readings: dict[str, Any]
    count: int  # messages
    rejected: int  # those that cannot be read
    passed: int  # those that are of another kind
    codes: Ints  # the series of each reading, shape (n,)
    instants: Ints  # the time of each in microseconds, shape (n,)
    values: Floats  # shape (n,)
    questions: tuple[Question, ...] = ()  # its keys that are open

    @property
    def whole(self) -> Readings:
        """The section with what its recipe says."""
        return Readings.model_validate(self.readings)

    @property
    def read(self) -> int:
        """Messages with a reading."""
        return max(0, self.count - self.rejected - self.passed)

    @property
    def names(self) -> int:
        """Distinct series."""
        return len(np.unique(self.codes))

    @property
    def rank(self) -> tuple[int, int]:
        """Messages with a reading, less those that are lost, and series."""
        return self.read - self.rejected, self.names

    @property
    def late_us(self) -> int:
        """The most that a reading is behind one that came before it."""
        return int((np.maximum.accumulate(self.instants) - self.instants).max())

    def _times(self) -> Ints:
        return np.unique(np.stack([self.codes, self.instants]), axis=1)

    @property
    def again(self) -> float:
        """Share of the readings at whose time their series has another one."""
        return 1 - self._times().shape[1] / len(self.codes)

    @property
    def interval_us(self) -> int | None:
        """A usual length of slot near the distance of two readings; ``None`` if no series had two."""
        codes, instants = self._times()
        apart = np.diff(instants)[np.diff(codes) == 0]
        return slot_of(apart) if len(apart) else None

    def counted(self) -> MessageLook:
        """The same, as a counter where the values rise and hardly fall."""
        name, runs = str(self.readings.get("value", "")), runs_of(self.codes, self.instants, self.values)
        fewest = _FEWEST_RISES if TOTAL.search(name) else COUNTER_RISES
        if not name or not _rank(name) or not are_counters(runs, fewest):
            return self
        return replace(self, readings=self.readings | {"register": {"gap": "2h"}})


@dataclass
class _Leaf:
    """A field of the messages."""

    each: str  # JMESPath to the objects that have it
    steps: tuple[str, ...]
    values: list[Any] = field(default_factory=list[Any])
    documents: set[int] = field(default_factory=set[int])

    @property
    def name(self) -> str:
        return self.steps[-1]

    @property
    def path(self) -> str:
        """From the object."""
        said = ".".join(map(_identifier, self.steps))
        return f"it.{said}" if self.steps[0] in _NAMES or said.startswith('"') else said

    def within(self, each: str) -> str | None:
        """The expression for readings of some objects; ``None`` where they cannot reach it."""
        return self.path if self.each == each else f"payload.{self.path}" if self.each == "payload" else None

    @property
    def is_number(self) -> bool:
        """Whether most values are."""
        good = sum(isinstance(one, (int, float)) or bool(_NUMBER.fullmatch(str(one))) for one in self.values)
        return good >= _MOST * len(self.values)

    def time(self) -> dict[str, Any] | None:
        """How the times are written, as settings; ``None`` if it holds none."""
        named = bool(TIME.search(self.name) or _OWN_TIME.search(self.name)) and not _OTHER_TIME.search(self.name)
        texts = [str(one) for one in self.values]
        if named and self.is_number:
            typical = median(float(one) for one in texts if _NUMBER.fullmatch(one))
            unit = next((unit for fewest, unit in EPOCHS if typical >= fewest), "s")
            is_time = _EARLIEST_S <= typical / _PER_SECOND[unit] <= _LATEST_S
            return ({"time_unit": unit} if unit != "s" else {}) if is_time else None
        if not (named or all("-" in one and ":" in one for one in texts)) or max(map(len, texts)) > 40:
            return None
        form = text_format(texts)
        return {"time_format": form} if form else None if form is None else {}


def _identifier(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else json.dumps(name)


def _rank(name: str) -> int:
    return next((at for at, form in enumerate(_LIKELY) if form.search(name)), len(_LIKELY))


def _unit(name: str) -> dict[str, str]:
    return {"unit": unit_of(name)} if unit_of(name) else {}


class _Sample:
    """Some messages, and proposals tried on them."""

    def __init__(self, messages: Messages, timezone: str, schemas: SchemaLookup | None, only: str) -> None:
        self.messages, self.timezone, self.schemas, self.only = messages, timezone, schemas, only
        raw = [payload or b"" for payload in messages.payloads[:_LOOKED]]
        packed = raw[0].startswith(b"\x1f\x8b")
        self.own: dict[str, Any] = {"compression": "gzip"} if packed else {}
        self.bodies = self._parsed([_unpacked(one) for one in raw] if packed else raw)
        self.plain = self.bodies is None and _NUMBER.fullmatch(raw[0][:100].decode("ascii", "replace")) is not None
        self.leaves = _leaves(self.bodies or [])
        self.topics = topics(messages, range(len(messages)))
        split = [one.split("/") for one in self.topics]
        words = {at: {one[at] for one in split} for at in range(min(map(len, split)))}
        known = {at for at, said in words.items() if all(map(_WORDS.fullmatch, said))}
        self.measured = next(([(at, one) for one in sorted(words[at])] for at in sorted(known, reverse=True)
                              if len(words[at]) > 1), [])  # fmt: skip
        self.levels = [at for at, said in words.items() if at not in known and len(said) > 1]

    def _parsed(self, raw: Sequence[bytes]) -> list[Any] | None:
        """What the payloads hold, by the first format in which most are objects or arrays."""
        first = raw[0].partition(b"\n")[0]
        delimiter = max((",", ";", "\t", "|"), key=lambda one: first.count(one.encode()))
        for name in (*_MARKED.get(raw[0][:1], _FORMATS), *(("avro",) if self.schemas is not None else ())):
            how = {"payload": name} | ({"delimiter": delimiter} if name == "csv" and delimiter != "," else {})
            try:
                section = Readings.model_validate({"each": "payload", "series": "s", "time": "t", "value": "v"} | how)
                found = parser_of(section, self.schemas)(raw, range(len(raw)))
            except SettingsError:  # a library is not installed
                continue
            bodies = [one for one in found.values if isinstance(one, (dict, list)) and one]
            if len(bodies) >= max(1, (_FEW if name == "json" else _MOST) * len(raw)):
                self.own |= {} if name == "json" else how
                return bodies
        return None

    def outcome(self, readings: Section) -> MessageLook | None:
        """What a proposal makes of the messages; ``None`` if it is no mapping, or makes no reading."""
        try:
            section = Readings.model_validate(dict(readings))
            parts = PayloadDecoder(section, self.timezone, schemas=self.schemas).decode(self.messages)
        except (ValidationError, SettingsError):
            return None
        found = [one.readings for one in parts if one.readings is not None]
        if not found:
            return None
        names = [name for one in found for name in one.column("series").to_pylist()]
        return MessageLook(
            dict(readings),
            len(self.messages),
            len({int(at) for one in parts for lost in one.rejects for at in lost.positions}),
            sum(one.passed for one in parts),
            np.unique(names, return_inverse=True)[1].astype(np.int64),
            np.concatenate([one.column("time").cast("int64").to_numpy(zero_copy_only=False) for one in found]),
            np.concatenate([one.column("value").to_numpy(zero_copy_only=False) for one in found]),
        )

    def chosen(self, tried: Iterable[tuple[str, Section, Iterable[Section]]]) -> MessageLook | None:
        """Of what may be meant the likeliest by its name, with a question where others are as likely.

        Args:
            tried: A name, what it adds to the settings, and whole proposals with it.
        """
        good = list[tuple[MessageLook, Section]]()
        least = len(_LIKELY)
        for name, said, proposals in sorted(tried, key=lambda one: _rank(one[0])):
            if good and _rank(name) > least:
                break
            best = max(filter(None, map(self.outcome, proposals)), key=lambda one: one.rank, default=None)
            if best is not None:
                least = _rank(name)
                good.append((best, said))
        if not good:
            return None
        best, said = max(good, key=lambda one: one[0].rank[0])
        key = next(iter(said), "")
        others = dict.fromkeys(flow(one.get(key)) for _, one in sorted(good, key=lambda one: -one[0].rank[0]))
        question = Question(f"readings.{key}", "which of them is it?", tuple((one, "") for one in others))
        return replace(best, questions=(question,) if len(others) > 1 else ())

    def values(self, wanted: str | None) -> list[_Leaf]:
        """The fields that may be the value, the likeliest first."""
        numbers = [one for one in self.leaves if one.is_number]
        if wanted is not None:
            return [one for one in numbers if wanted in (one.name, one.path, ".".join(one.steps))]
        kept = [one for one in numbers if one.time() is None and not SERIES.search(one.name)]
        return sorted(kept, key=lambda one: (_rank(one.name), -len(one.documents), len(one.steps), one.path))[:_ANSWERS]

    def series(self, each: str) -> list[Section]:
        """What may name the series."""
        levels = [f"topic[{at}]" for at in self.levels]
        named = [
            one
            for leaf in self.leaves
            if SERIES.search(leaf.name) or _ID.search(leaf.name) or leaf.steps[-2:-1] == ("tags",)
            if (one := leaf.within(each)) is not None and len(leaf.documents) >= _FEW * len(self.bodies or [])
        ][:_ANSWERS]
        own = ["name"] if each.startswith("fields(") else []
        joined = [f"name([{', '.join(levels)}])"] if len(levels) > 1 else []
        keys = ["key"] if all(key and key.isascii() for key in self.messages.keys) else []
        only = [{"constant": self.only}] if self.only else []
        return [{"series": one} for one in (*own, *named, *joined, *levels, *keys, *only)]

    def times(self, each: str) -> list[Section]:
        """What may be the time, the likeliest first."""
        found = [(one.each != each, len(one.steps), said, how) for one in self.leaves
                 if (how := one.time()) is not None and (said := one.within(each)) is not None]  # fmt: skip
        return [*({"time": said, **how} for *_, said, how in sorted(found, key=lambda one: one[:3])), {"time": "stamp"}]

    def by_recipe(self, wanted: str | None) -> MessageLook | None:
        """The recipe that reads most messages; of several the one that names most of their fields."""
        found = list[tuple[tuple[int, int, int], MessageLook]]()
        words = set(_WORD.findall(json.dumps((self.bodies or [])[:_ANSWERS], default=str)))
        texts = {one.path for one in self.leaves if type(one.values[0]) is str}
        for recipe in RECIPES.values():
            # a recipe without topics of its own is told by how its times are written
            alien = "time_unit" in recipe.readings and recipe.readings["time"] in texts
            if any(_is_on(name, recipe.topic) for name in set(self.topics)) if recipe.topic else not alien:
                each = "payload.metrics[]" if "metrics" in recipe.readings["each"] else "payload"
                series = self.series(each) if "series" in recipe.missing else [{}]
                best = self.chosen(
                    (name, said, [{"recipe": recipe.name, **said, **one} for one in series])
                    for name, said in self._named(recipe, wanted)
                )
                if best is not None and best.rank[0] > 0:
                    fit = words.intersection(_WORD.findall(f"{best.readings} {recipe.readings}"))
                    found.append(((best.rank[0], len(fit), best.rank[1]), best))
        return max(found, key=lambda one: one[0])[1] if found else None

    def _named(self, recipe: Recipe, wanted: str | None) -> list[tuple[str, Section]]:
        """What the settings must name beside a recipe and its series, each with the name that says how likely it is."""
        leaves = self.values(wanted)
        if "value" in recipe.missing or wanted is not None:
            unit = {} if "unit" in recipe.readings else {"unit": ""}
            return [(one.name, {"value": f"{one.path} || false"} | (unit and _unit(one.name))) for one in leaves]
        if "of" in recipe.missing:
            return [(one, {"of": _identifier(one)}) for one in dict.fromkeys(leaf.steps[0] for leaf in leaves)]
        if "where" in recipe.missing:
            said = {str(one) for leaf in self.leaves if leaf.name == "resourceName" for one in leaf.values}
            return [(one, {"where": f"resourceName == '{one}'"}) for one in sorted(filter(_WORDS.fullmatch, said))]
        return [("", {})]

    def by_fields(self, wanted: str | None) -> MessageLook | None:
        """Expressions for the fields that messages have, or for payloads that are numbers."""
        if self.bodies is not None:
            return self.chosen(map(self._of_leaf, self.values(wanted)))
        if not self.plain:
            return None
        said = {**self.own, "each": "@", "time": "stamp", "value": "text"}
        words = [(one, {"where": f"topic[{at}] == '{one}'", **_unit(one)}) for at, one in self.measured]
        return self.chosen(
            (name, more, [{**said, **more, **one} for one in self.series("@")]) for name, more in words or [("", {})]
        )

    def _of_leaf(self, leaf: _Leaf) -> tuple[str, Section, Iterable[Section]]:
        """A field as the value, with every time and series that there may be."""
        beside = {(leaf.each, (*leaf.steps[:-1], name)) for name in (*FIELDS, f"{leaf.name} unit")}
        units = (one for one in self.leaves if (one.each, one.steps) in beside and str(one.values[0]) in UNITS)
        unit = next(units, None)
        said: dict[str, Any] = {**self.own, "each": leaf.each, "value": leaf.path, **_unit(leaf.name)}
        said |= {"value": f"{leaf.path} || false"} if len(leaf.documents) < len(self.bodies or []) else {}
        said |= {} if unit is None else {"units": unit.path, "unit": str(unit.values[0])}
        both = product(self.times(leaf.each), self.series(leaf.each))
        return leaf.name, {"value": said["value"]}, ({**said, **how, **one} for how, one in both)


def _unpacked(payload: bytes) -> bytes:
    with suppress(ValueError):
        return unpacked(payload, 1_000_000)
    return b""


def _leaves(documents: Sequence[Any]) -> list[_Leaf]:
    """The fields of documents, in an object, or in the objects of one array or of one object of names."""
    objects = [one for document in documents for one in (document if isinstance(document, list) else [document])]
    shapes = defaultdict[tuple[str, ...], list[Any]](list)
    for one in objects:
        deque(_walk(one, "payload", (), set(), shapes), maxlen=0)
    keyed = {steps for steps, inner in shapes.items() if _is_keyed(inner)}
    found = dict[tuple[str, tuple[str, ...]], _Leaf]()
    for number, one in enumerate(objects):
        for each, steps, value in _walk(one, "payload", (), keyed, shapes):
            leaf = found.setdefault((each, steps), _Leaf(each, steps))
            leaf.documents.add(number)
            leaf.values.append(value)
    return list(found.values())


def _is_keyed(objects: Sequence[dict[str, Any]]) -> bool:
    """Whether the fields are names of devices, which no settings have: all of them objects with the same fields."""
    inner = [one for given in objects for one in given.values()]
    names = {name for given in objects for name in given}
    alike = all(type(one) is dict for one in inner) and len({frozenset(one) for one in inner}) == 1
    return alike and len(names) > 1 and not all(map(_PART.fullmatch, names))


def _walk(
    value: Any, each: str, steps: tuple[str, ...], keyed: set[tuple[str, ...]], shapes: dict[tuple[str, ...], list[Any]]
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    here = ".".join([each, *map(_identifier, steps)])
    if value is None or len(steps) > _DEEPEST or "" in steps:
        return
    if isinstance(value, dict) and value:
        if each == "payload":
            shapes[steps].append(value)
        within = (f"fields({here})", ("value",)) if each == "payload" and steps in keyed else None
        for name, inner in value.items():
            yield from _walk(inner, *(within or (each, (*steps, str(name)))), keyed, shapes)
    elif isinstance(value, list):
        for inner in value if each == "payload" else []:
            if isinstance(inner, dict):
                yield from _walk(inner, f"{here}[]", (), keyed, shapes)
    elif steps and not isinstance(value, dict):
        yield each, steps, value


def _is_on(name: str, form: str) -> bool:
    """Whether a topic is of the form of a recipe, whose levels in capitals stand for anything.

    A device's own prefix, where the form begins with it, may have several levels; the recipe counts from the end then.
    """
    levels, wanted = name.split("/"), form.split("/")
    levels = levels[-len(wanted) :] if wanted[0].isupper() else levels
    return len(levels) == len(wanted) and all(
        one == two or two.replace("@", "").isupper() or ":" in two for one, two in zip(levels, wanted, strict=True)
    )


def look_at_messages(
    messages: Messages,
    where: str,
    *,
    value: str | None = None,
    timezone: str = "UTC",
    only: str = "",
    schemas: SchemaLookup | None = None,
) -> MessageLook:
    """Look at messages of one topic or of several.

    Args:
        messages: some of them.
        where: they come from, for errors.
        value: name or path of the value; if left out it is told by its name, or asked for.
        timezone: zone of times without an offset.
        only: the name of a series, where messages come from one place and have none.
        schemas: gives the schema of an id of Avro's wire format.
    """
    kept = [at for at, payload in enumerate(messages.payloads) if payload]
    messages = replace(messages.some(kept), positions=np.arange(len(kept), dtype=np.int64))
    if not len(messages):
        raise CommandError(f"{where}: no message with a payload came: let a device send some", ExitCode.SOURCE)
    sample = _Sample(messages, timezone, schemas, only)
    found = sample.by_recipe(value)
    if found is None or found.rank[0] < _FEW * len(messages):
        found = max(filter(None, (found, sample.by_fields(value))), key=lambda one: one.rank, default=None)
    if found is None:
        raise CommandError(
            f"{where}: neither a recipe nor fields of objects in {', '.join(_FORMATS)} read {len(messages)} messages"
            + ("" if value is None else f" with --value {value!r}")
            + "; give --value PATH, --registry for Avro, or a narrower topic, and see docs/messages.md",
            ExitCode.SOURCE,
        )
    return found.counted()
