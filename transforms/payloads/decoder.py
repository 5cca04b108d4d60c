"""The decoder of messages: the payload format by the settings, and readings or a reject for each message.

Whatever a message holds, it never raises: a message that cannot be read is one reject, counted once, and so is one
some of whose readings are none. Nothing of a message's content is in what is said of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...schemas.readings import LENGTH, RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings
from ...schemas.settings.readings import Payload, Readings, check_message
from ..common.batches import Rejects
from ..formats.rows import Decoded, RowDecoder
from ..readings.slots import Words, words_of
from .avro import AvroParser, SchemaLookup, known_schemas
from .columns import GROUP, SERIES, TIME, VALUE, Rows
from .messages import MessageDecoder, Messages, rejects_of
from .parsing import (
    Parser,
    TooLargeError,
    cbor_parser,
    cim_parser,
    collector_held_back,
    csv_parser,
    msgpack_parser,
    parse_dsmr,
    parse_json,
    parse_ndjson,
    unpacked,
)

#: From messages, and the numbers of those with a payload, to their readings.
PayloadFormat = Callable[[Messages, list[int]], list[Rows]]


def payload_format_of(readings: Readings, group: str | None, schemas: SchemaLookup | None) -> PayloadFormat:
    """What reads messages by JMESPath.

    Raises:
        SettingsError: an expression cannot be used, or a library is missing.
    """
    try:
        from .expressions import Expressions
    except ImportError:
        raise SettingsError("readings.each is JMESPath, which needs jmespath; install quiltstream[messages]") from None

    expressions = Expressions(readings, group)
    parse = parser_of(readings, schemas)
    return lambda messages, chosen: expressions.rows(messages, chosen, parse)


def parser_of(readings: Readings, schemas: SchemaLookup | None) -> Parser:
    """What parses payloads.

    Raises:
        SettingsError: a library or the registry is missing.
    """
    if readings.payload == "avro-single":
        return AvroParser(known_schemas(readings.avro_schemas), single=True)
    if readings.payload == "avro":
        if schemas is None:
            raise SettingsError("readings.payload is avro, which needs a schema registry; name it in the source")
        return AvroParser(schemas)
    return _PARSERS[readings.payload](readings)


#: Of each way to write a payload but Avro, what makes its parser.
_PARSERS: dict[Payload, Callable[[Readings], Parser]] = {
    "json": lambda _: parse_json,
    "ndjson": lambda _: parse_ndjson,
    "csv": lambda readings: csv_parser(readings.columns, readings.delimiter),
    "cbor": lambda _: cbor_parser(),
    "msgpack": lambda _: msgpack_parser(),
    "cim": lambda _: cim_parser(),
    "dsmr": lambda _: parse_dsmr,
}


#: Bytes of the messages that are parsed together; a larger message is parsed alone.
_PARSED_BYTES = 1 << 21


@dataclass(frozen=True)
class PayloadDecoder(MessageDecoder):
    """Decodes messages by the settings; a plain value that remembers nothing.

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
            SettingsError: the settings cannot be used, or a library for them is missing.
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
        self._payload_format = payload_format_of(readings, decoder.group, decoder.schemas)
        plain = Readings(
            series=SERIES,
            time=TIME,
            value=VALUE,
            scale=readings.scale,
            time_format=readings.time_format,
            time_unit=readings.time_unit,
            ambiguous=readings.ambiguous,
            pseudonyms=readings.pseudonyms,
            length=LENGTH.name if readings.length is not None and readings.length_us is None else readings.length,
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
            for some, opened in self._parts(messages, chosen, bad):
                for rows in self._payload_format(opened, some):
                    silent[rows.message] = False
                    found += [self._rows.decode(raw) for raw in rows.raw()]
                    bad |= rows.bad
            silent[list(bad)] = False
        rejects = [one for part in found for one in part.rejects]
        parts = [replace(part, rejects=()) for part in found if part.readings is not None]
        return _with_rejects(parts, bad, rejects, messages, int(silent.sum()))

    def _parts(
        self, messages: Messages, chosen: list[int], bad: dict[int, RejectReason]
    ) -> Iterator[tuple[list[int], Messages]]:
        """Messages with their payloads unpacked, cut where more bytes than :data:`_PARSED_BYTES` would come together.

        What cannot be unpacked is bad.
        """
        payloads = list(messages.payloads)
        opened, some, held = replace(messages, payloads=payloads), list[int](), 0
        for number in chosen:
            body = payloads[number] or b""
            if self._packed:
                try:
                    payloads[number] = body = unpacked(body, self._limit)
                except ValueError as error:
                    too_large = isinstance(error, TooLargeError)
                    bad[number] = RejectReason.TOO_LARGE if too_large else RejectReason.MALFORMED_ROW
                    continue
            if some and held + len(body) > _PARSED_BYTES:
                yield some, opened
                for one in some:
                    payloads[one] = None
                some, held = [], 0
            some.append(number)
            held += len(body)
        if some:
            yield some, opened


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
