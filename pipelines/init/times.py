"""How times are written in texts and numbers."""

from __future__ import annotations

import pyarrow as pa

from ...transforms.formats.times import TimePattern

#: Formats of days, of clocks, of digits alone, and of whole times, the usual first.
DAYS = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%Y/%m/%d", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d/%m/%y",
         "%m/%d/%y", "%d.%m.%y", "%Y%m%d", "%Y-%m-%d")  # fmt: skip
CLOCKS = ("%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p", "%H", "%H%M", "%H:%M:%S.%f")
DIGITS = ("%Y%m%d%H%M", "%Y%m%d%H%M%S", "%Y%m%d")
_BASIC = tuple(f"%Y%m%dT%H%M{end}" for end in ("", "%z", "%S", "%S%z", "%S.%f", "%S.%f%z"))
_BOTH = tuple(f"{day} {clock}" for clock in CLOCKS for day in DAYS)
FORMATS = (*DIGITS[:2], *_BASIC, *_BOTH, "%Y-%m-%d %H:%M:%S %z", *DAYS)
#: Units of counts since 1970, by the least that they are.
EPOCHS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))


def text_format(texts: list[str]) -> str | None:
    """The first format by which a run reads most of some times; an empty one is ISO 8601."""
    column = pa.array([text for text in texts if text], pa.utf8())
    for form in ("", *FORMATS):
        stamps = (TimePattern.compile(form) if form else TimePattern.iso()).read(column)
        if len(column) and int((stamps.good & (stamps.stamp_us >= 0)).sum()) * 10 >= len(column) * 9:
            return form
    return None
