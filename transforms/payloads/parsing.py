"""Payloads to plain values: JSON and CBOR, each message by itself, and those that are neither."""

from __future__ import annotations

import gc
import io
import json
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn
from xml.etree.ElementTree import TreeBuilder

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError


@dataclass(frozen=True, slots=True)
class Parsed:
    """What some payloads hold.

    Attributes:
        values: the values of those that could be parsed.
        message: the number of each one's message.
        bad: the messages that could not be, and why.
        stamps: what integers at the path of the time are; ``None`` if the settings say it.
    """

    values: list[Any] = field(default_factory=list[Any])
    message: list[int] = field(default_factory=list[int])
    bad: dict[int, RejectReason] = field(default_factory=dict[int, RejectReason])
    stamps: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class Apart:
    """What some payloads hold that were taken apart already.

    Attributes:
        columns: the parts of the readings that are in the payloads, one entry for each reading, shape (n,).
        message: the number of each message.
        at: place of each reading's message among these, shape (n,).
    """

    columns: dict[str, pa.Array]
    message: list[int]
    at: npt.NDArray[np.int64]


#: Numbered payloads to what they hold.
Parser = Callable[[Sequence[bytes], Sequence[int]], Parsed]

#: Spellings of numbers that orjson takes for no number, because no float is so large.
_VAST = re.compile(rb"[eE]\+?\d{2}|\d{300}")
#: Integers of so many digits fit 64 bits.
_SHORT = 18
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(payloads: Sequence[bytes], numbers: Sequence[int]) -> Parsed:
    """Parse JSON.

    Args:
        payloads: n of them.
        numbers: their numbers.
    """
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
        except Exception:  # noqa: BLE001, PERF203 - whatever a parser raises is about this message alone
            parsed.bad[number] = RejectReason.MALFORMED_ROW
        else:
            parsed.message.append(number)
    return parsed


def parse_json_text(payload: bytes | str) -> Any:
    """What one JSON document holds.

    Raises:
        ValueError: it is none.
    """
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


#: Tags that the library would decode by itself; of the others it asks.
_TAGS = (*range(6), 25, *range(28, 31), *range(35, 38), 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
_DECIMAL_FRACTION = 4
_HIGHEST_EXPONENT = 400
_DEPTH = 32


def cbor_parser() -> Parser:
    """The parser of CBOR.

    Tags are refused but for decimal fractions, since some of them let a few bytes stand for endless work.

    Raises:
        SettingsError: the library is not installed.
    """
    try:
        import cbor2  # noqa: PLC0415 - of the extra
    except ImportError:
        raise SettingsError(["CBOR payloads need cbor2; install quiltstream[formats]"]) from None
    decoders: Any = dict.fromkeys(_TAGS, _refuse) | {_DECIMAL_FRACTION: _decimal_fraction}

    def parse(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        value = cbor2.load(stream, semantic_decoders=decoders, tag_hook=_refuse, max_depth=_DEPTH)
        if stream.tell() != len(payload):
            raise ValueError("more than one value")
        return value

    return lambda payloads, numbers: parse_each(payloads, numbers, parse)


#: Characters of the name of a namespace. A few bytes of an element repeat all of it.
_LONGEST_NAMESPACE = 200


def xml_parser(preset: str, read: Callable[[Any], Any]) -> Parser:
    """The parser of XML, which has no definitions of its own: a few bytes of them can stand for endless work.

    Args:
        preset: that needs it, for messages.
        read: from the root of a document to what it holds.

    Raises:
        SettingsError: the library is not installed.
    """
    try:
        from defusedxml import ElementTree  # noqa: PLC0415 - of the extra
    except ImportError:
        raise SettingsError([f"preset {preset} needs defusedxml; install quiltstream[formats]"]) from None

    def parse(payload: bytes) -> Any:
        parser: Any = ElementTree.XMLParser(target=TreeBuilder(), forbid_dtd=True)
        parser.parser.StartNamespaceDeclHandler = _namespace
        parser.feed(payload)
        return read(parser.close())

    return lambda payloads, numbers: parse_each(payloads, numbers, parse)


def _namespace(_prefix: str | None, name: str | None) -> None:
    if name is not None and len(name) > _LONGEST_NAMESPACE:
        raise ValueError("a long namespace")


def _decimal_fraction(value: Any, _immutable: bool) -> float:
    exponent, digits = value
    if not isinstance(exponent, int) or not isinstance(digits, int) or abs(exponent) > _HIGHEST_EXPONENT:
        raise ValueError("no decimal fraction")
    return float(f"{digits}e{exponent}")


__all__ = [
    "Apart",
    "Parsed",
    "Parser",
    "cbor_parser",
    "clamped",
    "collector_held_back",
    "parse_each",
    "parse_json",
    "parse_json_text",
    "xml_parser",
]
