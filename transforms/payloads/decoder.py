"""The decoder of messages: the payload format by the settings, and readings or a reject for each message.

Whatever a message holds, it never raises: a message that cannot be read is one reject, counted once, and so is one
some of whose readings are none. Nothing of a message's content is in what is said of it.

:class:`Trial` explains what a mapping makes of single messages, for the author of the mapping. Each message is decoded
as a job decodes it, by itself. A counter is shown as it stands, and names are shown in clear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings
from ...schemas.settings.mappings import NAMED, Payload, Readings, check_message
from ...schemas.settings.places import Condition, Constant, Do, Place, Steps, place_text
from ...schemas.slots import format_instant
from ..common.batches import Rejects
from ..formats.rows import Decoded, RowDecoder
from ..readings.slots import Words, words_of
from .avro import AvroParser, SchemaLookup, known_schemas
from .columns import GROUP, SERIES, TIME, VALUE, RowList, Rows, field_column
from .mapped import Mapping, fulfilling_beside, mapped_rows
from .messages import MessageDecoder, Messages, rejects_of
from .parsing import (
    Parsed,
    ParsedColumns,
    Parser,
    TooLargeError,
    cbor_parser,
    collector_held_back,
    csv_parser,
    msgpack_parser,
    parse_json,
    parse_ndjson,
    unpacked,
    xml_parser,
)

if TYPE_CHECKING:
    from .expressions import Expressions
    from .presets.wanted import Wanted


#: From messages, and the numbers of those with a payload, to their readings.
PayloadFormat = Callable[[Messages, list[int]], list[Rows]]


def payload_format_of(
    readings: Readings, timezone: str, group: str | None, schemas: SchemaLookup | None
) -> PayloadFormat:
    """What parses messages."""
    if readings.preset in NAMED:
        return _named(readings, timezone, None if group is None else readings.attributes[group])
    if readings.each is not None:
        return _by_expressions(readings, group, schemas)
    try:
        mapping = Mapping.of(readings, group)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    parse = _parser(readings, mapping, schemas)

    def rows(messages: Messages, chosen: list[int]) -> list[Rows]:
        kept = fulfilling_beside(mapping.beside, messages, chosen)
        return [mapped_rows(messages, parsed, mapping) for parsed in parse(_payloads(messages, kept), kept)]

    return rows


def _parser(
    readings: Readings, mapping: Mapping, schemas: SchemaLookup | None
) -> Callable[[Sequence[bytes], Sequence[int]], Sequence[Parsed | ParsedColumns]]:
    if not mapping.needs_payload:
        return lambda payloads, numbers: [Parsed([None] * len(payloads), list(numbers))]
    if readings.payload in ("avro", "avro-single"):
        if readings.payload == "avro" and schemas is None:
            raise SettingsError("readings.payload is avro, which needs a schema registry; name it in the source")
        single = readings.payload == "avro-single"
        lookup = known_schemas(readings.avro_schemas) if single or schemas is None else schemas
        if mapping.is_plain:
            return AvroParser(lookup, mapping.paths, single=single)
        return AvroParser(lookup, _times_of(mapping), single=single, vectorised=False)
    parse = _PARSERS[readings.payload](readings)
    return lambda payloads, numbers: [parse(payloads, numbers)]


def _by_expressions(readings: Readings, group: str | None, schemas: SchemaLookup | None) -> PayloadFormat:
    """What reads messages by JMESPath."""
    expressions = expressions_of(readings, group)
    if readings.payload in ("avro", "avro-single"):
        single = readings.payload == "avro-single"
        if schemas is None and not single:
            raise SettingsError("readings.payload is avro, which needs a schema registry; name it in the source")
        lookup = known_schemas(readings.avro_schemas) if single or schemas is None else schemas
        avro: Any = AvroParser(lookup, None, single=single)  # whose documents are values, as nothing is vectorised
        return lambda messages, chosen: expressions.rows(messages, chosen, avro)
    parse = _PARSERS[readings.payload](readings)
    return lambda messages, chosen: expressions.rows(messages, chosen, lambda *given: [parse(*given)])


def expressions_of(readings: Readings, group: str | None) -> Expressions:
    """The expressions of the settings.

    Raises:
        SettingsError: one cannot be used, or the library is missing.
    """
    try:
        from .expressions import Expressions
    except ImportError:
        raise SettingsError("readings.each is JMESPath, which needs jmespath; install quiltstream[messages]") from None

    return Expressions(readings, group)


#: Of each way to write a payload as plain values, what makes its parser.
_PARSERS: dict[str, Callable[[Readings], Parser]] = {
    "json": lambda _: parse_json,
    "ndjson": lambda _: parse_ndjson,
    "csv": lambda readings: csv_parser(readings.columns, readings.delimiter),
    "cbor": lambda _: cbor_parser(),
    "msgpack": lambda _: msgpack_parser(),
}


def documents_of(payload: Payload, bodies: Sequence[bytes], schemas: SchemaLookup | None = None, **how: Any) -> Parsed:
    """What payloads hold as plain values, for the search of a mapping; ``how`` are more settings of ``readings``."""
    numbers = range(len(bodies))
    if payload != "avro":
        read = Readings(payload=payload, series="series", time="time", value="value", **how)
        return _PARSERS[payload](read)(bodies, numbers)
    parts = AvroParser(schemas or known_schemas([]), {}, vectorised=False)(bodies, numbers)
    found = [one for one in parts if isinstance(one, Parsed)]
    return Parsed([value for one in found for value in one.values], [at for one in found for at in one.message])


def _times_of(mapping: Mapping) -> dict[str, Steps]:
    """Where the time is, if it is at one path of the payload: the schema says what its integers are."""
    time = mapping.time.steps if isinstance(mapping.time, Place) else mapping.time
    return {TIME: time} if isinstance(time, tuple) and not any(isinstance(step, Do) for step in time) else {}


def _payloads(messages: Messages, chosen: list[int]) -> list[Any]:
    payloads = messages.payloads
    return [payloads[number] for number in chosen]


def _name_of(readings: Readings) -> str:
    if readings.value is not None:
        return str(readings.value)
    from .presets.xml_documents import DEFAULT_UNIT

    return DEFAULT_UNIT


def _named(readings: Readings, timezone: str, group: str | Place | None) -> PayloadFormat:
    """The payload format of a preset that parses payloads by itself."""
    from .presets.wanted import Wanted

    name, place, unit = _name_of(readings), readings.series, readings.unit.strip()
    find = _finder(readings, name)

    def rows(messages: Messages, chosen: list[int]) -> list[Rows]:
        def beside(place: Place | Constant) -> dict[int, Any]:
            return dict(zip(chosen, field_column(place, messages, chosen), strict=True))

        series = beside(place) if isinstance(place, (Place, Constant)) else None
        times = beside(readings.time) if isinstance(readings.time, Place) else None
        groups: list[Any] | None = None
        if isinstance(group, Place):
            named = beside(group)
            groups = [named.get(number) for number in range(len(messages))]
        return [find(messages, chosen, Wanted(name, series, timezone, unit, times)).rows(groups)]

    return rows


def _finder(readings: Readings, name: str) -> Callable[[Messages, list[int], Wanted], RowList]:
    """What finds the readings of a preset, whose module is imported here: a job has one preset or none."""
    preset = str(readings.preset)
    if preset == "dsmr":
        from .presets.dsmr import check_codes, dsmr_rows

        check_codes(name, readings.unit.strip())
        return lambda messages, chosen, wanted: dsmr_rows(_payloads(messages, chosen), chosen, wanted)
    if preset == "green-button":
        from .presets.xml_documents import blocks_of, check_unit, espi_rows

        check_unit(name)
        xml = xml_parser(preset, blocks_of)
        return lambda messages, chosen, wanted: espi_rows(xml(_payloads(messages, chosen), chosen), wanted)
    from .presets.xml_documents import check_code, cim_rows, values_of

    check_code(name)
    documents, counted = xml_parser(preset, values_of), readings.register_ is not None
    return lambda messages, chosen, wanted: cim_rows(
        documents(_payloads(messages, chosen), chosen), wanted, registers=counted
    )


#: Bytes of the messages that are parsed together; a larger message is parsed alone.
_PARSED_BYTES = 1 << 21


@dataclass(frozen=True)
class PayloadDecoder(MessageDecoder):
    """Decodes messages by the mapping of the settings; a plain value that remembers nothing.

    Attributes:
        group: the attribute, or path, with the group; ``None`` without groups.
        words: what the settings say of several readings of a series.
        schemas: gives the schema of an id of Avro's wire format; must travel to any machine.
    """

    readings: Readings
    timezone: str = "UTC"
    group: str | None = None
    words: Words | None = None
    schemas: SchemaLookup | None = None

    @classmethod
    def of(cls, settings: Settings, *, group: str | None = None, schemas: SchemaLookup | None = None) -> PayloadDecoder:
        """The decoder of a job."""
        if settings.readings is None:
            raise SettingsError("readings is missing: it says where the parts of a reading are in a message")
        words = words_of(settings.readings, settings.slots.of)
        decoder = cls(settings.readings, settings.slots.timezone, group, words, schemas)
        decoder.check()
        return decoder

    def check(self) -> None:
        """See whether messages can be decoded here.

        Raises:
            SettingsError: the mapping cannot be used, or a library for it is missing.
        """
        _Worker(self)

    def decode(self, messages: Messages) -> list[Decoded]:
        """The readings of some messages, and what could not be read; never raises for a message's content."""
        return self._worker.decode(messages)

    @cached_property
    def _worker(self) -> _Worker:
        return _Worker(self)

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this worker."""
        return {name: value for name, value in self.__dict__.items() if name != "_worker"}


class _Worker:
    def __init__(self, decoder: PayloadDecoder) -> None:
        readings = decoder.readings
        try:
            check_message(readings, decoder.group)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        self._limit = readings.max_bytes
        self._packed = readings.compression is not None
        self._payload_format = payload_format_of(readings, decoder.timezone, decoder.group, decoder.schemas)
        plain = Readings(
            series=SERIES,
            time=TIME,
            value=VALUE,
            scale=readings.scale,
            time_format=readings.time_format,
            time_unit=readings.time_unit,
            ambiguous=readings.ambiguous,
            pseudonyms=readings.pseudonyms,
            length=readings.length,
            stamps=readings.stamps,
        )
        group = None if decoder.group is None else GROUP
        try:
            self._rows = RowDecoder(
                plain, timezone=decoder.timezone, group=group, live_clocks=True, words=decoder.words
            )
        except ValueError as error:
            raise SettingsError(f"readings.time_format: {error}") from None

    def decode(self, messages: Messages) -> list[Decoded]:
        bad: dict[int, RejectReason] = {}
        chosen: list[int] = []
        ends: list[int] = []
        for number, payload in enumerate(messages.payloads):
            if payload is None:
                ends.append(number)  # the end of a key, which is no reading and no mistake
            elif len(payload) > self._limit:
                bad[number] = RejectReason.TOO_LARGE
            else:
                chosen.append(number)
        if not chosen:
            return _with_rejects([], bad, [], messages)
        # what is made of a batch has no cycles, and looking for some takes longer than making it
        with collector_held_back():
            # some at a time: parsed they take up to two hundred times their bytes
            found: list[Decoded] = []
            silent = np.ones(len(messages), dtype=np.bool_)
            silent[ends] = False
            for some, opened in self._opened(messages, chosen, bad):
                for rows in self._payload_format(opened, some):
                    silent[rows.message] = False
                    found += [self._rows.decode(raw) for raw in rows.raw()]
                    bad |= rows.bad
            silent[list(bad)] = False
        rejects = [one for part in found for one in part.rejects]
        parts = [replace(part, rejects=()) for part in found if part.readings is not None]
        return _with_rejects(parts, bad, rejects, messages, int(silent.sum()))

    def _opened(
        self, messages: Messages, chosen: list[int], bad: dict[int, RejectReason]
    ) -> Iterator[tuple[list[int], Messages]]:
        """Messages in parts that are parsed together, with their payloads unpacked; what cannot be is bad."""
        if not self._packed:
            for some in _in_parts(messages, chosen):
                yield some, messages
            return
        payloads = list(messages.payloads)
        opened = replace(messages, payloads=payloads)
        some, held = list[int](), 0
        for number in chosen:
            try:
                body = unpacked(messages.payloads[number] or b"", self._limit)
            except TooLargeError:
                bad[number] = RejectReason.TOO_LARGE
                continue
            except ValueError:
                bad[number] = RejectReason.MALFORMED_ROW
                continue
            if some and held + len(body) > _PARSED_BYTES:
                yield some, opened
                for one in some:
                    payloads[one] = None
                some, held = [], 0
            payloads[number] = body
            some.append(number)
            held += len(body)
        if some:
            yield some, opened


def _in_parts(messages: Messages, chosen: list[int]) -> Iterator[list[int]]:
    """Messages in their order, cut where more bytes than :data:`_PARSED_BYTES` would come together."""
    first, held = 0, 0
    for place, number in enumerate(chosen):
        size = len(messages.payloads[number] or b"")
        if held and held + size > _PARSED_BYTES:
            yield chosen[first:place]
            first, held = place, 0
        held += size
    yield chosen[first:]


def _with_rejects(
    parts: list[Decoded], bad: dict[int, RejectReason], rejects: Sequence[Rejects], messages: Messages, passed: int = 0
) -> list[Decoded]:
    """The decoded parts with the rejects of all of them, each message once with its size, by what was found first."""
    why = dict(bad)
    for one in rejects:
        for number in np.unique(one.positions).tolist():
            why.setdefault(number, one.reason)
    if not why and not passed:
        return parts
    each = tuple(
        rejects_of(reason, messages, np.array(sorted(at for at in why if why[at] is reason), dtype=np.int64))
        for reason in dict.fromkeys(why.values())
    )
    first = parts[0] if parts else Decoded(None, 0, ())
    return [replace(first, rejects=each, passed=passed), *parts[1:]]


#: The part of a reading that a reason is about.
_PART = {
    RejectReason.MISSING_SERIES: "series",
    RejectReason.UNPARSABLE_TIME: "time",
    RejectReason.IMPLAUSIBLE_TIME: "time",
    RejectReason.NONEXISTENT_LOCAL_TIME: "time",
    RejectReason.MISSING_VALUE: "value",
    RejectReason.NOT_A_NUMBER: "value",
    RejectReason.NOT_FINITE: "value",
    RejectReason.MIXED_UNITS: "value",
}


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one message."""

    topic: str
    size: int
    # series, instant and value of each reading, values times ``readings.scale``
    readings: tuple[tuple[str, str, float], ...]
    places: dict[str, str]  # where series, time and value came from, in words
    passed: str | None  # why it was passed over; ``None`` if it was not
    rejected: str | None  # why it is a reject, and at which place; ``None`` if it is none


class Trial:
    """Tries messages; it belongs to one command."""

    def __init__(
        self, readings: Readings, timezone: str, group: str | None = None, schemas: SchemaLookup | None = None
    ) -> None:
        self._readings = shown(readings)
        self._options: dict[str, Any] = {"timezone": timezone, "group": group, "schemas": schemas}
        self._decoder = self._made(self._readings)
        self._upto = [
            self._made(self._readings.model_copy(update={"where": self._readings.conditions[: at + 1]}))
            for at in range(len(self._readings.conditions))
        ]
        self._without = (
            self._made(self._readings.model_copy(update={"where": []}))
            if isinstance(self._readings.where, str)
            else None
        )
        self._parts = {
            name: [(part, self._made(self._readings.model_copy(update={name: part}))) for part in place.first]
            for name in ("series", "time", "value")
            if isinstance(place := getattr(self._readings, name), Place) and place.first is not None
        }

    def _made(self, readings: Readings) -> PayloadDecoder:
        decoder = PayloadDecoder(readings, **self._options)
        decoder.check()
        return decoder

    def of(self, messages: Messages) -> Iterator[Tried]:
        """What becomes of each message, in order."""
        for number in range(len(messages)):
            yield self._one(messages.some([number]))

    def _one(self, message: Messages) -> Tried:
        parts = self._decoder.decode(message)
        reasons = [one.reason for part in parts for one in part.rejects]
        rows = tuple(_rows(parts))
        return Tried(
            topic=message.topics[0],
            size=len(message.payloads[0] or b""),
            readings=rows,
            places=self._places(message) if rows else {},
            passed=self._why_passed(message) if not rows and not reasons else None,
            rejected=self._why_rejected(reasons[0]) if reasons else None,
        )

    def _places(self, message: Messages) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in ("series", "time", "value"):
            place = getattr(self._readings, name)
            for part, decoder in self._parts.get(name, ()):
                if any(one.readings is not None for one in decoder.decode(message)):
                    place = part
                    break
            found[name] = self._text(place)
        return found

    def _text(self, place: object) -> str:
        if self._readings.each is not None and isinstance(place, str):
            return place
        if isinstance(place, Constant):
            return f"constant {place.constant}"
        if place is None or (isinstance(place, str) and self._readings.preset == "dsmr"):
            return f"preset {self._readings.preset}" + ("" if place is None else f", {place}")
        return f"path {place}" if isinstance(place, str) else place_text(place)

    def _why_passed(self, message: Messages) -> str:
        if message.payloads[0] is None:
            return "it has no payload"
        if self._without is not None:
            parts = self._without.decode(message)
            if any(part.readings is not None or part.rejects for part in parts):
                return f"readings.where does not hold: {self._readings.where}"
        for number, (condition, decoder) in enumerate(zip(self._readings.conditions, self._upto, strict=True)):
            parts = decoder.decode(message)
            if not any(part.readings is not None or part.rejects for part in parts):
                return f"readings.where[{number}] does not hold: that {_condition_text(condition)}"
        return "it holds no value that the mapping asks for"

    def _why_rejected(self, reason: RejectReason) -> str:
        part = _PART.get(reason)
        where = "" if part is None else f" (readings.{part}: {self._text(getattr(self._readings, part))})"
        return f"{reason.value}: {reason.text}{where}"


def shown(readings: Readings) -> Readings:
    """The mapping without what needs a key: names in clear."""
    return readings.model_copy(update={"pseudonyms": None})


def _rows(parts: list[Decoded]) -> Iterator[tuple[str, str, float]]:
    for part in parts:
        if part.readings is not None:
            columns = [part.readings.column(name) for name in ("series", "time", "value")]
            times = columns[1].cast("int64").to_pylist()
            for series, time, value in zip(columns[0].to_pylist(), times, columns[2].to_pylist(), strict=True):
                yield series, format_instant(time), value


def _condition_text(condition: Condition) -> str:
    place = condition.place.text
    if condition.exists is not None:
        return f"{place} {'exists' if condition.exists else 'does not exist'}"
    values = ", ".join("nothing" if one is None else repr(one) for one in condition.values)
    return f"{place} {'differs from' if condition.negated else 'is'} {values}"
