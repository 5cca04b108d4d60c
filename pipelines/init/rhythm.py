"""The rhythm of readings: their step, counters, hours that a clock doubles."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

import numpy as np

from ...schemas.slots import DAY_US, HOUR_US, format_instant
from ...transforms.common.batches import Floats, Ints

#: Rises from which a value that does not fall is said to be a counter; rises of a series that may be by chance; the
#: part of the series that may fall; and what part of its value may be left of a counter that was cleared.
COUNTER_RISES, _CHANCE_RISES, _MAY_FALL, _CLEARED = 24, 2, 0.1, 100
#: Values that devices write for a missing one.
_MARKS = (-1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 9999.0, 99999.0, 999999.0, 9999999.0)
#: Series that are looked at for that.
_SERIES_TRIED = 1_000
#: Microseconds of a week; when the first Sunday since 1970 begins; and how long after that clocks are set.
_WEEK, _SUNDAY, _NIGHT = 7 * DAY_US, 3 * DAY_US, 4 * HOUR_US
#: Months in which they are, north and south of the equator.
_SET_IN = (3, 4, 9, 10, 11)
#: Lengths of slots that people use: 1 s to 1 h. All divide the day, as do the further ones that devices send at.
_USUAL_SLOTS = tuple(1_000_000 * seconds for seconds in (1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600))
_DEVICE_SLOTS = tuple(
    1_000_000 * seconds for seconds in (2, 15, 20, 120, 180, 1200, 7200, 10800, 14400, 21600, 28800, 43200, 86400)
)
#: Stamps that vary make intervals shorter by no more than that.
_VARIED = 1.05


def clock_changes(codes: Ints, instants: Ints, count: int) -> Iterator[str]:
    """An hour of a Sunday night that most of ``count`` series have twice, or not, as of a clock that is set."""
    order = np.lexsort((instants, codes))
    codes, instants = codes[order], instants[order]
    mine, steps = np.diff(codes) == 0, np.diff(instants)
    usual = most_frequent(steps[mine & (steps > 0)]) or 0
    for longer, behind, what in (
        (0, 0, "has times twice, as where a clock is set back"),
        (usual + HOUR_US, usual, "has no times, as where a clock is set forward"),
    ):
        # of stamps that are further apart, as of days, none is doubled
        at = np.flatnonzero(mine & (steps == longer) & (longer > 0 or 0 < usual <= HOUR_US))
        pairs = np.unique(np.stack([(instants[at] + behind) // HOUR_US * HOUR_US, codes[at]]), axis=1)
        hours, counts = np.unique(pairs[0], return_counts=True)
        hours, counts = hours[2 * counts > count], counts[2 * counts > count]
        months = hours.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64) % 12 + 1
        is_night = ((hours - _SUNDAY) % _WEEK < _NIGHT) & np.isin(months, _SET_IN)
        # one hour in a hundred is of such a night: where few of these are, any hour is so
        if is_night.any() and 10 * is_night.sum() > len(hours):
            most = np.argmax(np.where(is_night, counts, 0))
            hour = format_instant(int(hours[most]))
            yield f"the hour from {hour} of a Sunday {what}, in {counts[most]:,} of {count:,} series"


def is_doubled(shown: dt.datetime) -> bool:
    """Whether the clock of a zone shows a time twice, because it is set back."""
    first, second = (shown.replace(fold=fold).utcoffset() for fold in (0, 1))
    return first is not None and second is not None and first > second


def runs_of(codes: Ints, instants: Ints, numbers: Floats) -> list[Floats]:
    """The values of each series in the order of their times."""
    are_known = np.isfinite(numbers)
    codes, instants, numbers = codes[are_known], instants[are_known], numbers[are_known]
    order = np.lexsort((instants, codes))
    return np.split(numbers[order], np.flatnonzero(np.diff(codes[order])) + 1)


def rises_in(values: Floats) -> int:
    """How often the values of a series rise, which is 0 where they fall.

    One fall among many rises, to less than half the value, is that of a counter that was cleared, where no more is left
    than the largest rise or a small part.
    """
    steps = np.diff(values)
    rises, falls = steps[steps > 0], np.flatnonzero(steps < 0)
    if len(falls) == 1 and len(rises) >= COUNTER_RISES:
        before, after = values[falls[0] : falls[0] + 2].tolist()
        return len(rises) if 0 <= after < before / 2 and after <= max(rises.max(), before / _CLEARED) else 0
    return 0 if len(falls) else len(rises)


def are_counters(runs: Sequence[Floats], fewest: int = COUNTER_RISES) -> bool:
    """Whether nearly all series that change are a meter's counter, not what it counts, by so many rises of all.

    A series that rises a few times alone, in less than half of its steps, says nothing. Of very many series some are
    looked at.
    """
    tried = runs[:: max(1, len(runs) // _SERIES_TRIED)]
    rises = [(rises_in(run), len(run) - 1) for run in tried if len(run) and np.ptp(run) > 0]
    counters = [count for count, steps in rises if count > min(_CHANCE_RISES, steps / 2)]
    falling = sum(count == 0 for count, _ in rises)
    return sum(counters) >= fewest and falling <= _MAY_FALL * len(rises)


def marks_in(values: Floats) -> list[tuple[float, int]]:
    """Marks of a missing value, which come again and lie far from all other values; how often each does."""
    finite = values[np.isfinite(values)]
    found = {one: int(np.isclose(finite, one, rtol=1e-9).sum()) for one in _MARKS}
    often = [one for one, count in found.items() if count > 1]
    others = np.abs(finite[~np.isin(np.round(finite), often)])
    far = 3 * float(np.quantile(others, 0.99)) + 1 if len(others) else 0.0
    return [(one, found[one]) for one in often if abs(one) > far]


def usual_step(steps: Ints, *lengths: int) -> int | None:
    """The most frequent of some distances; where they vary, the usual length, or that of ``lengths``, nearest to them.

    Distances vary where most are no multiple of the most frequent one, as of stamps that are late by some seconds.
    """
    step = most_frequent(steps)
    # stamps that are rounded to a microsecond are apart by one more or less
    if step is None or ((steps + 1) % step <= 2).mean() >= 1 / 2:
        return step
    middle = float(np.median(steps))
    return min((*lengths, *_USUAL_SLOTS, *_DEVICE_SLOTS), key=lambda length: abs(np.log(length / middle)))


def most_frequent(steps: Ints) -> int | None:
    """The most frequent of some distances; ``None`` where there is none."""
    lengths, counts = np.unique(steps, return_counts=True)
    return int(lengths[np.argmax(counts)]) if len(lengths) else None


def slot_of(lengths: Ints) -> int:
    """A usual length of a slot that most intervals fill, but for what stamps vary by."""
    short = float(np.quantile(lengths, 0.25)) * _VARIED if len(lengths) else 0.0
    return max((slot for slot in _USUAL_SLOTS if slot <= short), default=_USUAL_SLOTS[0])
