"""Windows that fire more often than the transform's own: what a runner may do to it, asked for."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.transforms import trigger
from apache_beam.transforms.window import GlobalWindows, WindowFn

_LONG_S = 30 * 86_400

T, Mode = trigger, trigger.AccumulationMode

#: Trigger, accumulation mode, allowed lateness in seconds.
Firing = tuple[Any, Any, int]

EACH: dict[str, Firing] = {
    "each-discarding": (T.Repeatedly(T.AfterCount(1)), Mode.DISCARDING, 0),
    "each-accumulating": (T.Repeatedly(T.AfterCount(1)), Mode.ACCUMULATING, 0),
}
EARLY: dict[str, Firing] = {
    "early-discarding": (T.AfterWatermark(early=T.AfterProcessingTime(1)), Mode.DISCARDING, 0),
    "early-accumulating": (T.AfterWatermark(early=T.AfterProcessingTime(1)), Mode.ACCUMULATING, 0),
}
LATE: dict[str, Firing] = {
    "late-discarding": (T.AfterWatermark(late=T.AfterCount(1)), Mode.DISCARDING, _LONG_S),
    "late-accumulating": (T.AfterWatermark(early=T.AfterCount(2), late=T.AfterCount(1)), Mode.ACCUMULATING, _LONG_S),
}
FIRINGS = EACH | EARLY | LATE

_WINDOW_INTO = beam.WindowInto


def firing_windows(name: str) -> Any:
    """``WindowInto`` that fires so, whatever it is told."""
    when, mode, lateness = FIRINGS[name]

    def into(windows: WindowFn, **_: Any) -> Any:
        if isinstance(windows, GlobalWindows):
            return _WINDOW_INTO(windows)
        return _WINDOW_INTO(windows, trigger=when, accumulation_mode=mode, allowed_lateness=lateness)

    return into
