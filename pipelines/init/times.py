"""The formats of times in texts, as a run reads them."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from ...transforms.formats.times import Stamps, TimePattern

TRIED = 2_000
#: Formats of texts: of digits alone by how many there are, of times, of days, and of times of the day.
_DIGIT_FORMATS = {12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_SLASHED = ("%d/%m/%Y", "%m/%d/%Y")
TIME_FORMATS = (
    *(f"{day} {clock}" for clock in ("%H:%M:%S", "%H:%M") for day in _SLASHED),
    *(f"%d.%m.%Y {clock}" for clock in ("%H:%M", "%H:%M:%S")),
    *(f"{day} {clock} %p" for clock in ("%I:%M:%S", "%I:%M") for day in _SLASHED),
    "%Y-%m-%d %I:%M:%S %p",
    *(f"{day} {clock}" for clock in ("%H:%M:%S", "%H:%M") for day in ("%d/%m/%y", "%m/%d/%y", "%d.%m.%y")),
    *(f"%d %b %Y {clock}" for clock in ("%H:%M", "%H:%M:%S")),
    *(f"%d-%m-%Y {clock}" for clock in ("%H:%M", "%H:%M:%S")),
    *(f"%Y/%m/%d {clock}" for clock in ("%H:%M:%S", "%H:%M")),
    *(f"{day} %H" for day in ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%Y-%m-%d")),
    *_DIGIT_FORMATS.values(),
    *(f"%Y%m%dT%H%M{end}" for end in ("", "%z", "%S", "%S%z", "%S.%f", "%S.%f%z")),
)
DAY_FORMATS = (
    *_SLASHED,
    "%d.%m.%Y",
    "%d-%m-%Y",
    "%Y/%m/%d",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%d %b %Y",
    "%d/%m/%y",
    "%m/%d/%y",
    "%d.%m.%y",
    "%Y%m%d",
)
CLOCK_FORMATS = ("%H", "%H:%M", "%H:%M:%S", "%H:%M:%S.%f")
#: Units of times that are counted since 1970, by the least that they are.
EPOCHS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))


def text_format(texts: list[str], formats: tuple[str, ...] = ("", *TIME_FORMATS)) -> str | None:
    """The first format that reads most of the texts; an empty one is ISO 8601.

    Where day and month may be exchanged, it is the order by which the times lie closer together: the days of two weeks,
    taken for months, are spread over the year.
    """
    tried = _tried(texts)
    first = next((format_ for format_ in formats if _reads(tried, format_)), None)
    other = None if first is None else other_order(first)
    if first is None or other not in formats or not _reads(tried, other):
        return first
    spans = [np.ptp(stamps.stamp_us[stamps.good]) for stamps in (_stamps(tried, first), _stamps(tried, other))]
    return other if spans[1] < spans[0] else first


def exchanged(texts: list[str], format_: str, formats: tuple[str, ...] = TIME_FORMATS) -> tuple[str, bool] | None:
    """The format with day and month exchanged, if no row tells which is which; and whether the spans tell nothing."""
    other, tried = other_order(format_), _tried(texts)
    if other == format_ or other not in formats or not _reads(tried, other):
        return None
    one, two = (np.ptp(stamps.stamp_us[stamps.good]) for stamps in (_stamps(tried, format_), _stamps(tried, other)))
    return other, bool(one * 2 >= two)


def has_offsets(texts: list[str], format_: str | None) -> bool:
    """Whether some times have an offset."""
    stamps = _stamps(_tried(texts), format_)
    return bool(stamps.zoned[stamps.good].any())


def other_order(format_: str) -> str:
    """A format with day and month exchanged."""
    return "".join({"%d": "%m", "%m": "%d"}.get(part, part) for part in re.split(r"(%[dm])", format_))


def _tried(texts: list[str]) -> list[str]:
    return [text for text in texts[:: max(1, len(texts) // TRIED)] if text]


def _reads(texts: list[str], format_: str) -> bool:
    stamps = _stamps(texts, format_)
    return bool(texts) and int((stamps.good & (stamps.stamp_us >= 0)).sum()) * 10 >= len(texts) * 9


def _stamps(texts: list[str], format_: str | None) -> Stamps:
    """What a run reads in texts by a format; ISO 8601 where there is none."""
    return (TimePattern.compile(format_) if format_ else TimePattern.iso()).read(pa.array(texts, pa.utf8()))
