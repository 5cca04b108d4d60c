"""Payloads that hold several documents, or one in another form: lines of JSON, CSV, the line protocol, MessagePack.

Each becomes plain values, one for each document, so that paths mean the same in them as in JSON. A line that cannot be
read makes its message a reject; its other lines count. All of them take time in proportion to the payload.

>>> line_values("power,meter=m7 kw=1.5,phase=1i 1767614400000000000")
{'measurement': 'power', 'tags': {'meter': 'm7'}, 'fields': {'kw': 1.5, 'phase': 1}, 'time': 1767614400000000000}
"""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import orjson

from ...schemas.errors import QuiltstreamError
from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from .parsing import Parsed, Parser, clamped, parse_each, parse_json_text

__all__ = ["TooLargeError", "csv_parser", "line_values", "msgpack_parser", "parse_lines", "parse_ndjson", "unpacked"]


class TooLargeError(QuiltstreamError, ValueError):
    """A payload has more bytes than it may, unpacked."""


def unpacked(payload: bytes, most: int) -> bytes:
    """What a payload of gzip holds, which may have several members.

    Args:
        payload: the packed bytes.
        most: how many bytes it may hold; no more than these and one are ever unpacked.

    Raises:
        TooLargeError: it holds more.
        ValueError: it is no gzip, or cut short.
    """
    found = b""
    while payload:
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
    return found


def parse_ndjson(payloads: Sequence[bytes], numbers: Sequence[int]) -> Parsed:
    """Parse payloads whose lines are JSON documents; empty lines are none."""
    return _each_line(payloads, numbers, lambda payload: payload.split(b"\n"), _json)


def _json(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return parse_json_text(line)


def _each_line(
    payloads: Sequence[bytes],
    numbers: Sequence[int],
    split: Callable[[bytes], Iterable[bytes]],
    parse: Callable[[bytes], Any],
) -> Parsed:
    """What the lines of payloads hold; a bad line makes its message bad, and its other lines count."""
    parsed = Parsed()
    for number, payload in zip(numbers, payloads, strict=True):
        for line in split(payload):
            if not line.strip():
                continue
            try:
                parsed.values.append(parse(line))
            except Exception:  # noqa: BLE001 - whatever a parser raises is about this line alone
                parsed.bad[number] = RejectReason.MALFORMED_ROW
            else:
                parsed.message.append(number)
    return parsed


def csv_parser(columns: Sequence[str], delimiter: str) -> Parser:
    """The parser of CSV, whose rows become objects with the fields of their columns; an empty field is null.

    Args:
        columns: names of the columns; empty where the first line has them.
        delimiter: between the columns.
    """

    def parse(payloads: Sequence[bytes], numbers: Sequence[int]) -> Parsed:
        parsed = Parsed()
        for number, payload in zip(numbers, payloads, strict=True):
            try:
                for row in _csv_rows(payload, columns, delimiter):
                    parsed.values.append(row)
                    parsed.message.append(number)
            except (ValueError, csv.Error):  # noqa: PERF203 - what is before the damage counts
                parsed.bad[number] = RejectReason.MALFORMED_ROW
        return parsed

    return parse


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


#: A part of a line up to a blank, a comma or an equals sign that no backslash stands before; linear in its text.
_PART = re.compile(r"(?:[^\\ ,=]|\\.|\\$)+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BARE = re.compile(r"[^ ,]+")
_ESCAPED = re.compile(r"\\([ ,=\"\\])")
_INTEGER = re.compile(r"[+-]?\d{1,20}")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_TRUE, _FALSE = {"t", "T", "true", "True", "TRUE"}, {"f", "F", "false", "False", "FALSE"}


def parse_lines(payloads: Sequence[bytes], numbers: Sequence[int]) -> Parsed:
    """Parse payloads of InfluxDB's line protocol; a text value has no line end in it."""
    return _each_line(payloads, numbers, _without_remarks, lambda line: line_values(line.decode("utf-8")))


def _without_remarks(payload: bytes) -> Iterable[bytes]:
    return (line for line in payload.split(b"\n") if not line.lstrip().startswith(b"#"))


def line_values(line: str) -> dict[str, Any]:
    """What a line of the line protocol holds: measurement, tags, fields and the time as an integer or ``None``.

    Raises:
        ValueError: it is none.
    """
    line = line.strip()
    name, at = _part(line, 0)
    tags: dict[str, str] = {}
    while line[at : at + 1] == ",":
        key, at = _part(line, at + 1)
        tags[key], at = _part(line, _behind(line, at, "="))
    at = _behind(line, at, " ")
    fields: dict[str, Any] = {}
    while True:
        key, at = _part(line, at)
        fields[key], at = _value(line, _behind(line, at, "="))
        if line[at : at + 1] != ",":
            break
        at += 1
    stamp = line[at:].strip()
    if stamp and (line[at] != " " or not _INTEGER.fullmatch(stamp)):
        raise ValueError("no time")
    return {"measurement": name, "tags": tags, "fields": fields, "time": int(stamp) if stamp else None}


def _part(line: str, at: int) -> tuple[str, int]:
    found = _PART.match(line, at)
    if found is None:
        raise ValueError("no name")
    text = found[0]
    return (_ESCAPED.sub(r"\1", text) if "\\" in text else text), found.end()


def _behind(line: str, at: int, mark: str) -> int:
    if line[at : at + 1] != mark:
        raise ValueError(f"no {mark!r}")
    return at + 1


def _value(line: str, at: int) -> tuple[Any, int]:
    quoted = _QUOTED.match(line, at)
    if quoted is not None:
        return _ESCAPED.sub(r"\1", quoted[1]), quoted.end()
    found = _BARE.match(line, at)
    if found is None:
        raise ValueError("no value")
    text = found[0]
    if text in _TRUE or text in _FALSE:
        return text in _TRUE, found.end()
    if text[-1] in "iu" and _INTEGER.fullmatch(text[:-1]):
        return int(text[:-1]), found.end()
    if not _NUMBER.fullmatch(text):
        raise ValueError("no number")
    return clamped(text), found.end()


#: Elements of an array of MessagePack: the library makes room for all of them before it reads one.
_MOST_ELEMENTS = 1 << 16


def msgpack_parser() -> Parser:
    """The parser of MessagePack: names are texts, and of the extensions only the time stamp is read.

    Raises:
        SettingsError: the library is not installed.
    """
    try:
        import msgpack  # noqa: PLC0415 - of the extra
    except ImportError:
        raise SettingsError(["MessagePack payloads need msgpack; install quiltstream[formats]"]) from None

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


def _refuse(*_: Any) -> NoReturn:
    raise ValueError("an extension that is not read")
