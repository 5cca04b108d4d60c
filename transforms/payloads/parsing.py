r"""Payloads to plain values: JSON, lines of JSON, CSV, CBOR, MessagePack, CIM and DSMR.

Each document becomes plain values, so that expressions mean the same in every format. A line that cannot be read makes
its message a reject; its other lines count. All formats take time in proportion to the payload.

>>> parse_ndjson([b'{"kw": 1}\n{"kw": 2}'], [7])
Parsed(values=[{'kw': 1}, {'kw': 2}], message=[7, 7], bad={})
"""

from __future__ import annotations

import csv
import gc
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import orjson

from ...schemas.errors import QuiltstreamError
from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ..readings.meters import check_xml, cim, telegram, telegrams


@dataclass(frozen=True, slots=True)
class Parsed:
    """What some payloads hold."""

    values: list[Any] = field(default_factory=list[Any])
    message: list[int] = field(default_factory=list[int])
    bad: dict[int, RejectReason] = field(default_factory=dict[int, RejectReason])


#: Numbered payloads to what they hold.
Parser = Callable[[Sequence[bytes], Sequence[int]], Parsed]

#: Spellings of numbers that orjson takes for no number, because no float is so large.
_VAST = re.compile(rb"[eE]\+?\d{2}|\d{300}")
#: Integers of so many digits fit 64 bits.
_SHORT = 18
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(payloads: Sequence[bytes], numbers: Sequence[int]) -> Parsed:
    """Parse JSON."""
    loads = orjson.loads
    try:
        return Parsed([loads(one) for one in payloads], list(numbers))
    except orjson.JSONDecodeError:
        return parse_each(payloads, numbers, parse_json_text)


@contextmanager
def collector_held_back() -> Generator[None]:
    """Python's collector of cycles waits meanwhile, unless it was off before."""
    held = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if held:
            gc.enable()


def parse_each(payloads: Sequence[bytes], numbers: Sequence[int], parse: Callable[[bytes], Any]) -> Parsed:
    """Parse payloads one by one; whatever a parser says of a bad one stays here, because it may quote it."""
    parsed = Parsed()
    for number, payload in zip(numbers, payloads, strict=True):
        try:
            parsed.values.append(parse(payload))
        except Exception:  # noqa: BLE001 - whatever a parser raises is about this message alone
            parsed.bad[number] = RejectReason.MALFORMED_ROW
        else:
            parsed.message.append(number)
    return parsed


def parse_json_text(payload: bytes | str) -> Any:
    """What one JSON document holds."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        payload = payload.encode("utf-8") if isinstance(payload, str) else payload
        # a number is never rejected for its size
        if _VAST.search(payload) is None or _SURROGATE.search(payload) is not None:
            raise
        try:
            return json.loads(payload.decode("utf-8"), parse_float=clamped, parse_int=_integer, parse_constant=_refuse)
        except RecursionError:  # of brackets alone
            raise ValueError("nested too deeply") from None


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= _SHORT else clamped(digits)


def clamped(digits: str) -> float:
    """The digits of a number as a float; one that no float is large enough for is the largest."""
    largest = sys.float_info.max
    return max(-largest, min(largest, float(digits)))


def _refuse(*_: Any) -> NoReturn:
    raise ValueError("what is not read")


#: Tags that the library would decode by itself; the others go to the hook.
_TAGS = (*range(6), 25, *range(28, 31), *range(35, 38), 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
_DECIMAL_FRACTION = 4
#: Times as texts, times as numbers of seconds, and what says that a document is CBOR: read as what stands behind them.
_SAY_NO_MORE = (0, 1, 55799)
_HIGHEST_EXPONENT = 400
_DEPTH = 32


def cbor_parser() -> Parser:
    """The parser of CBOR.

    Tags are refused but those of times and decimal fractions, since some let a few bytes stand for endless work.
    """
    try:
        import cbor2  # noqa: PLC0415 - of the extra
    except ImportError:
        raise SettingsError("CBOR payloads need cbor2; install quiltstream[formats]") from None
    decoders: Any = dict.fromkeys(_TAGS, _refuse) | dict.fromkeys(_SAY_NO_MORE, _as_it_is)
    decoders[_DECIMAL_FRACTION] = _decimal_fraction

    def parse(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        value = cbor2.load(stream, semantic_decoders=decoders, tag_hook=_refuse, max_depth=_DEPTH)
        if stream.tell() != len(payload):
            raise ValueError("more than one value")
        return value

    return lambda payloads, numbers: parse_each(payloads, numbers, parse)


def _as_it_is(value: Any, _immutable: bool) -> Any:
    return value


def _decimal_fraction(value: Any, _immutable: bool) -> float:
    exponent, digits = value if isinstance(value, (list, tuple)) else (None, None)  # two bytes are integers, too
    if not isinstance(exponent, int) or not isinstance(digits, int) or abs(exponent) > _HIGHEST_EXPONENT:
        raise ValueError("no decimal fraction")
    return clamped(f"{digits}e{exponent}")


class TooLargeError(QuiltstreamError, ValueError):
    """A payload has more bytes than it may, unpacked."""


#: Members of gzip in one payload: each copies what is behind it, so many short ones would take quadratic time.
_MOST_MEMBERS = 100


def unpacked(payload: bytes, most: int) -> bytes:
    """What a payload of gzip holds, which may have some members."""
    found = bytearray()
    members = 0
    while payload:
        if members == _MOST_MEMBERS:
            raise ValueError("many members")
        members += 1
        member = zlib.decompressobj(wbits=31)
        try:
            found += member.decompress(payload, most + 1 - len(found))
        except zlib.error:
            raise ValueError("no gzip") from None
        if len(found) > most:
            raise TooLargeError("too many bytes")
        if not member.eof:
            raise ValueError("cut short")
        payload = member.unused_data
    return bytes(found)


def _several(payloads: Sequence[bytes], numbers: Sequence[int], read: Callable[[bytes], Iterable[Any]]) -> Parsed:
    """Parse payloads of several documents each; of a bad one those before the damage count."""
    parsed = Parsed()
    for number, payload in zip(numbers, payloads, strict=True):
        try:
            for one in read(payload):
                parsed.values.append(one)
                parsed.message.append(number)
        except Exception:  # noqa: BLE001 - whatever a parser raises is about this message alone
            parsed.bad[number] = RejectReason.MALFORMED_ROW
    return parsed


def _each(payload: bytes, cut: Callable[[bytes], Iterable[bytes]], parse: Callable[[bytes], Any]) -> Iterator[Any]:
    """What the parts of a payload hold but for blank ones; a bad one is an error when the others are read."""
    broken = False
    for one in cut(payload):
        try:
            if one.strip():
                yield parse(one)
        except Exception:  # noqa: BLE001 - whatever a parser raises is about this part alone
            broken = True
    if broken:
        raise ValueError("a bad part")


#: The parser of lines that are JSON documents.
parse_ndjson = partial(_several, read=partial(_each, cut=lambda payload: payload.split(b"\n"), parse=parse_json_text))
#: The parser of telegrams of DSMR, of which a message may have several, each for itself.
parse_dsmr = partial(_several, read=partial(_each, cut=telegrams, parse=telegram))


def csv_parser(columns: Sequence[str], delimiter: str) -> Parser:
    """The parser of CSV, whose rows become objects with the fields of their columns; an empty field is null."""
    return partial(_several, read=partial(_csv_rows, columns=columns, delimiter=delimiter))


def _csv_rows(payload: bytes, columns: Sequence[str], delimiter: str) -> Iterator[dict[str, str | None]]:
    text = io.StringIO(payload.decode("utf-8-sig"), newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    names = list(columns) or next(rows, [])
    if len(set(names)) != len(names):
        raise ValueError("a column twice")
    broken = False
    for row in rows:
        if len(row) == len(names):
            yield {name: field or None for name, field in zip(names, row, strict=True)}
        broken |= len(row) not in {0, len(names)}
    if broken:
        raise ValueError("a row of another width")


#: Elements of an array of MessagePack: the library makes room for all of them before it reads one.
_MOST_ELEMENTS = 1 << 16


def msgpack_parser() -> Parser:
    """The parser of MessagePack: names are texts, and of the extensions only the time stamp is read."""
    try:
        import msgpack  # noqa: PLC0415 - of the extra
    except ImportError:
        raise SettingsError("MessagePack payloads need msgpack; install quiltstream[formats]") from None

    def parse(payload: bytes) -> Any:
        return msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            timestamp=3,
            ext_hook=_refuse,
            max_array_len=min(len(payload), _MOST_ELEMENTS),
        )

    return lambda payloads, numbers: parse_each(payloads, numbers, parse)


def cim_parser() -> Parser:
    """The parser of documents of CIM, each an array of values."""
    check_xml("CIM payloads")
    return lambda payloads, numbers: parse_each(payloads, numbers, cim)
