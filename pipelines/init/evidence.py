"""What the readings of a look show: their interval, counters, marks, ends; and what they leave open, as questions."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.slots import DAY_US, HOUR_US, MINUTE_US, format_duration, time_zone
from ...transforms.common.batches import Floats, Ints
from ..console import listed, percent, plural
from ..errors import CommandError
from .rhythm import COUNTER_RISES, are_counters, marks_in, most_frequent, slot_of, usual_step
from .words import ELECTRIC, ENERGY, POWER, STAMPS_END, TOTAL, WATTS

if TYPE_CHECKING:
    from .look import Look

#: Steps from which values that nearly always rise may be a counter's.
_FEW = 8
#: Share of the slots with a reading below which values may be on change.
_DENSE, _REGULAR = 0.6, 0.75


@dataclass(slots=True)
class Found:
    """The readings of the first rows, n of each."""

    codes: Ints  # the series
    instants: Ints
    numbers: Floats  # NaN where there is none
    files: Ints
    ends: Ints | None  # the ends of their intervals
    # whether times fall from row to row in hours alone that the zone's clock doubles, and whether one comes twice
    falls: tuple[bool | None, bool | None] = (False, False)


def weigh(look: Look, found: Found, end: str, end_name: str) -> None:
    """Set the interval and what readings show, and ask what they leave open; ``end`` is a second time as SQL."""
    order = np.argsort(found.codes, kind="stable") if found.falls[0] else np.lexsort((found.instants, found.codes))
    codes, instants, numbers = found.codes[order], found.instants[order], found.numbers[order]
    steps, mine = np.diff(instants), np.diff(codes) == 0
    lengths = None if found.ends is None else (found.ends - found.instants)[found.ends > found.instants]
    step = usual_step(steps[mine & (steps > 0)])
    if lengths is not None and len(lengths):
        varied = np.mean(lengths == most_frequent(lengths)) < 0.9
        step = slot_of(lengths) if look.labels or varied else step
        if look.labels:
            _cover(look, end)
            look.more["hold"] = "26h"
        elif varied:
            _cover(look, end)
            _sums(look, lengths, end_name)
    if step is None:
        what = "give a file that has more, and check that a column with the name of the meter or wearer is called so"
        raise CommandError(f"no series has two readings at different times, so the interval cannot be seen; {what}")
    look.interval = step
    again = float(np.mean(mine & (steps == 0))) if len(steps) else 0.0
    if look.labels:
        return
    look.below = bool((numbers < 0).any())
    if found.falls[0] and (not found.falls[1] or step >= HOUR_US):
        look.more["ambiguous"] = "in-order"
    runs = np.split(numbers, np.flatnonzero(~mine) + 1)
    runs = [one[np.isfinite(one)] for one in runs]
    _counters(look, runs)
    _marks(look, numbers)
    _units(look, codes, steps, mine, found)
    if look.below and not look.rises:
        look.said.append(
            ("below 0", f"{percent(float(np.mean(numbers < 0)))} of the values are below 0, such as export")
        )
    if found.ends is None and not look.rises and not look.asks("readings.register"):
        _early(look, instants)
        _stamps(look, instants)
        _density(look, codes, instants, numbers)
    if again >= 0.1 and found.ends is None and not look.asks("slots.of", "readings.select", "readings.register"):
        share = f"{percent(again)} of the readings are at a time at which their series has another one"
        look.said.append(
            ("at once", f"{share}: see whether it is the series that is meant, and whether rows stand twice")
        )
        sums = "they add up, as of several meters: see readings.length"
        look.ask(
            "slots.of",
            "rows of a series share a time: what has the slot?",
            ("last", "one of them counts"),
            ("sum", sums),
        )


def _cover(look: Look, end: str) -> None:
    """Readings with the intervals that they cover."""
    time = look.times.instant or look.times.sql
    look.query = replace(look.query, time=time, more=(f"{end} - {time} as length",))
    look.more["length"], look.is_select = "length", True


def _sums(look: Look, lengths: Ints, name: str) -> None:
    """Readings of intervals of many lengths."""
    shortest, longest = (format_duration(int(one)) for one in (lengths.min(), lengths.max()))
    why = f"{name} ends the interval from {look.times.columns[0]} on, {shortest} to {longest} long: what has a slot?"
    sums = "steps, energy: a reading that covers several slots is shared out over them by time"
    look.ask("slots.of", why, ("sum", sums), ("mean", "a power: the mean over time"))


def _counters(look: Look, runs: list[Floats]) -> None:
    """Values that rise and hardly fall, and those that may be stands of a counter."""
    if look.unit in POWER:
        return
    look.rises = are_counters(runs)
    if look.rises and look.wide:
        look.rises = False
        why = "the values rise and hardly fall: are they stands of counters?"
        look.ask("readings.register", why, ("{gap: 2h}", "yes: a slot has what a counter rose"), ("null", "no"))
    if look.rises or look.wide or not (look.unit in (*ENERGY, "m3") or TOTAL.search(look.value)):
        return
    steps = np.concatenate([np.diff(one) / np.maximum(np.abs(one[:-1]), 1e-9) for one in runs if len(one) > 1] or [[]])
    steps = steps[steps != 0]
    up = float(np.mean(steps > 0)) if len(steps) >= _FEW else 0.0
    is_small = len(steps) >= COUNTER_RISES and float(np.mean(np.abs(steps) < 0.01)) >= 0.9
    if up > 0.9 or (up >= 0.5 and is_small):
        why = f"a counter that falls {plural(int((steps < 0).sum()), 'time')}: is it net, or were these bad readings?"
        count = "{gap: 2h}", "bad readings, or a new meter; most: is the largest rise that is one"
        net = "net", "it falls where more is fed in than used"
        look.ask("readings.register", why, *((count, net) if up > 0.9 else (net, count)), ("null", "no counter"))


def _marks(look: Look, numbers: Floats) -> None:
    """Marks of a missing value among the numbers."""
    if marks := [f"{one:.0f}" for one, _ in marks_in(numbers)]:
        where = f"{look.query.column} not in ({', '.join(map(repr, marks))})"
        absent = replace(look.query, where=(*look.query.where, where)).text
        why = f"{listed(marks, 10)} come again and again: are they marks of a missing value?"
        look.ask("readings.select", why, (absent, "they are"), (look.query.text, "they are values"))


def _units(look: Look, codes: Ints, steps: Ints, mine: Ints, found: Found) -> None:
    """Series whose intervals differ, files whose units do, and a unit that nothing says."""
    of = [most_frequent(steps[mine & (steps > 0) & (codes[1:] == code)]) for code in np.unique(codes)[:200]]
    lengths = sorted({one for one in of if one and of.count(one) * 10 >= len(of)})
    differ = found.ends is None and not look.rises and len(lengths) > 1 and lengths[-1] >= 2 * lengths[0]
    watts = WATTS.get(look.unit, 0) * HOUR_US / WATTS["Wh"] if look.unit in ENERGY else 0.0
    if differ:
        why = f"the intervals of the series differ: {listed([format_duration(one) for one in lengths], 10)}. "
        if watts:
            why += "Which factor makes each the unit of the edges?"
            answers = [
                (f"{watts / one:.12g}", f"if all cover {format_duration(one)}; else by a SELECT") for one in lengths
            ]
            look.ask("readings.scale", why, *answers)
        else:
            look.ask("slots.interval", why, *((format_duration(one), "of all series") for one in lengths))
    files = [np.abs(found.numbers[found.files == one]) for one in np.unique(found.files)]
    usual = [float(np.nanmedian(one)) for one in files if np.isfinite(one).any()]
    usual = [one for one in usual if one > 0]
    if len(usual) > 1 and max(usual) > 50 * min(usual):
        why = "values of one file are 50 times those of another: has the file another unit, such as Wh and kWh?"
        other = "no; else: case when filename like '%2024-02%' then 0.001 else 1 end *, in value"
        look.ask("readings.select", why, (look.query.text, other))
    if (ELECTRIC.search(look.value) or look.wide) and not look.unit and not look.rises:
        hours, of_ = look.interval / HOUR_US, format_duration(look.interval)
        answers = (
            ("1000", "kW"),
            (f"{1000 / hours:.12g}", f"kWh in {of_}"),
            ("1", "W, or no power"),
            (f"{1 / hours:.12g}", f"Wh in {of_}"),
        )
        which = f"are the {look.cells}" if look.wide else f"is {look.value}"
        look.ask("readings.scale", f"of which unit {which}? The factor from it to W", *answers)


def _early(look: Look, instants: Ints) -> None:
    """Round stamps a moment before a boundary to the boundary."""
    usual, phase = round(look.interval / MINUTE_US) * MINUTE_US, instants % MINUTE_US
    early = float(np.mean(phase >= MINUTE_US - 100_000))
    if usual and early >= 0.02 and np.mean((phase <= 100_000) | (phase >= MINUTE_US - 100_000)) > 0.99:
        kind = "timestamp" if look.times.naive else "timestamptz"
        stamp = f"try_cast({look.query.time} as {kind})" if look.times.plain == {} else look.query.time
        time = f"rounded({stamp}, interval {usual // 1_000_000} seconds, interval 1 second)"
        look.query, look.is_select, look.interval = replace(look.query, time=time), True, usual
        look.said.append(("early", f"{percent(early)} of the stamps lie just before a boundary: rounded to it"))


def _stamps(look: Look, instants: Ints) -> None:
    """Ask whether stamps are ends, where a name or the first and last of the days say so."""
    if "- interval" in look.query.time or "elapsed(" in look.query.time or look.interval >= DAY_US:
        return
    first, last = int(instants.min()), int(instants.max())
    if not look.times.naive and look.zone != "UTC":
        at = dt.datetime.fromtimestamp(first // 1_000_000, time_zone(look.zone))
        offset = (at.utcoffset() or dt.timedelta()) // dt.timedelta(microseconds=1)
        first, last = first + offset, last + offset
    named = any(map(STAMPS_END.search, look.times.columns))
    if named or (last - first >= DAY_US - look.interval and first % DAY_US == look.interval and last % DAY_US == 0):
        evidence = "the name" if named else "the first and last of them"
        why = f"by {evidence} the stamps may be the ends of intervals: begin or end?"
        look.more["length"] = format_duration(look.interval)
        look.ask("readings.stamps", why, ("end", "a reading is of what lies before it"), ("begin", ""))


def _density(look: Look, codes: Ints, instants: Ints, numbers: Floats) -> None:
    """Ask about slots without a reading: values on change, or zeros that are left out."""
    slots = np.unique(np.stack([codes, instants // look.interval]), axis=1)
    each = [slots[1][slots[0] == code] for code in np.unique(codes)[:200]]
    share = sum(map(len, each)) / sum(int(np.ptp(one)) + 1 for one in each)
    steps = np.diff(instants)[np.diff(codes) == 0]
    if share >= _DENSE or len(codes) < COUNTER_RISES or float(np.mean(steps <= look.interval * 1.1)) > _REGULAR:
        return
    if np.isfinite(numbers).all() and (numbers > 0).all() and not (numbers % 1).any():
        why = (
            f"{percent(share)} of the slots have a reading, and none is 0: is a slot that is left out, absent, a zero?"
        )
        look.ask("missing", why, ("state", "perhaps: a missing slot is a state of its own, protected as the others"),
                 ("public", "no: which are missing tells nothing of the values"))  # fmt: skip
        return
    why = f"{percent(share)} of the slots have a reading: are they written on change, so that the last value holds?"
    held = "2h", "until the next, at most so long; it needs missing: state"
    look.ask("readings.hold", why, held, ("null", "no: the others are missing"))
