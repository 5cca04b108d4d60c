"""What the readings of a look show: their interval, counters, marks, ends; and what they leave open, as questions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...schemas.slots import DAY_US, HOUR_US, format_duration, time_zone
from ...transforms.common.batches import Floats, Ints
from ..console import listed, percent, plural
from ..errors import CommandError
from .parts import Measured, Query, Question, Times
from .rhythm import (
    COUNTER_RISES,
    are_counters,
    clock_changes,
    falls_of,
    is_doubled,
    most_frequent,
    runs_of,
    said_again,
    slot_of,
    usual_step,
)
from .words import POWER, STAMPS_END, TOTAL

#: Values that devices write for a missing one.
_MARKS = (-1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 9999.0, 99999.0, 999999.0, 9999999.0)
#: Rows go back in time so rarely where a clock is set back: at most once in so many times.
_RARE_FALLS = 10
#: Share of the slots from which values are said to be on change, and of readings at one time from which it is said.
_DENSE, _REGULAR, _MANY_AGAIN = 0.6, 0.75, 0.1
_ENERGY = ("MWh", "kWh", "Wh")


@dataclass(slots=True)
class Evidence:
    """The readings of the first rows, n of them."""

    times: Times
    zone: str
    value: str
    unit: str
    query: Query
    wide: bool
    codes: Ints  # the series of each, shape (n,)
    instants: Ints
    numbers: Floats
    ends: Ints | None  # the ends of their intervals
    files: Ints  # the file of each
    labels: bool = False
    said: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    questions: list[Question] = field(default_factory=list[Question])
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    is_select: bool = False  # whether plain columns do not do

    def measured(self) -> Measured:
        """What they show."""
        codes, instants, numbers = self.codes, self.instants, self.numbers
        order = np.lexsort((instants, codes))
        steps = np.diff(instants[order])[np.diff(codes[order]) == 0]
        interval = self._interval(steps[steps > 0])
        falls = falls_of(codes, instants)
        runs, rises = self._counter(falls)
        values = numbers
        if rises:
            steps_up = np.concatenate([np.diff(run) for run in runs])
            values = steps_up[steps_up >= 0]
        times = instants
        if self.ends is not None:
            times = np.concatenate([instants, np.maximum(self.ends - 1, instants)])
        local = clock_changes(codes, instants, len(np.unique(codes))) if self.times.naive else ()
        if not self.labels:
            self._marks()
            self._differing(rises=rises)
            if not rises and self.ends is None and "rounded(" not in self.query.time:
                self._stamps(interval)
                self._density(interval)
        in_order = self._is_in_order(falls, interval)
        again = said_again(codes, instants)
        if again >= _MANY_AGAIN and self.ends is None:
            self._again(again)
        return Measured(np.sort(times), interval, values[np.isfinite(values)], rises, in_order, tuple(local))

    def _again(self, share: float) -> None:
        what = f"{percent(share)} of the readings are at a time at which their series has another one"
        self.said.append(
            ("at once", f"{what}: see whether it is the series that is meant, and whether rows stand twice")
        )
        if not any(one.key in ("slots.of", "readings.select", "readings.series") for one in self.questions):
            answers = (
                ("last", "one of them counts"),
                ("sum", "they add up, as of several meters: see readings.length"),
            )
            self.questions.append(Question("slots.of", "rows of a series share a time: what has the slot?", answers))

    def _interval(self, steps: Ints) -> int:
        """The usual distance of readings; and of intervals with ends of many lengths a slot that most fill."""
        if self.ends is not None:
            lengths = self.ends - self.instants
            lengths = lengths[lengths > 0]
            if self.labels:
                return slot_of(lengths)
            if len(lengths) and np.mean(lengths == most_frequent(lengths)) < 0.9:
                return self._of_intervals(lengths)
        step = usual_step(steps)
        if step is None:
            raise CommandError(
                "no series has two readings at different times, so the interval cannot be seen; give a file that has "
                "more of them, and check that a column with the name of the meter or wearer is called so"
            )
        if step >= 60_000_000 and not self.labels:
            step = self._rounded(step)
        return step

    def _of_intervals(self, lengths: Ints) -> int:
        step = slot_of(lengths)
        begin, end = self.times.columns[0], self.times_end
        time, until = (f"try_cast({one} as timestamptz)" for one in (self.query.time, end))
        if self.times.sql is None and not self.times.format:
            time, until = f"instant({self.query.time})", f"instant({end})"
        self.query = replace(self.query, time=time, more=(*self.query.more, f"{until} - {time} as length"))
        self.more["length"], self.is_select = "length", True
        shortest, longest = (format_duration(int(one)) for one in (lengths.min(), lengths.max()))
        why = f"{end} is the end of the interval from {begin} on, {shortest} to {longest} long: what has a slot?"
        answers = (
            ("sum", "steps, energy: a reading that covers several slots is shared out over them by time"),
            ("mean", "a power: the mean over time"),
        )
        self.said.append(("length", f"from {begin} to {end}, {shortest} to {longest}: see readings.length"))
        self.questions.append(Question("slots.of", why, answers))
        return step

    times_end: str = ""

    def _rounded(self, step: int) -> int:
        """The step of the stamps, after stamps a moment before a boundary are rounded to the boundary."""
        usual = round(step / 60_000_000) * 60_000_000
        phase = self.instants % 60_000_000
        early, moved = np.mean(phase >= 59_900_000), np.mean((phase >= 59_900_000) | ((phase > 0) & (phase <= 100_000)))
        if early < 0.02 or moved < 0.05 or not np.mean((phase <= 100_000) | (phase >= 59_900_000)) > 0.99:
            return step
        stamp = self.query.time
        if self.times.sql is None:
            stamp = f"try_cast({stamp} as {'timestamp' if self.times.naive else 'timestamptz'})"
            if self.times.format:
                return step
        text = format_duration(usual)
        length = f"interval {usual // 1_000_000} seconds"
        self.query = replace(self.query, time=f"rounded({stamp}, {length}, interval 1 second)")
        self.is_select = True
        self.instants = (self.instants + 1_000_000) // usual * usual
        self.said.append(
            ("early", f"{percent(float(early))} of the stamps lie just before a boundary: rounded to {text}")
        )
        return usual

    def _counter(self, falls: Ints) -> tuple[list[Floats], bool]:
        """The values of each series by time, and whether they are stands of a counter."""
        runs = runs_of(self.codes, self.instants, self.numbers)
        if self.labels or self.unit in POWER or self.wide:
            may = bool(not self.labels and self.wide and self.unit not in POWER and are_counters(runs))
            if may:
                why = "the values rise and hardly fall: are they stands of counters?"
                answers = (("{gap: 2h}", "yes: a slot has what a counter rose"), ("null", "no"))
                self.questions.append(Question("readings.register", why, answers))
            return runs, False
        rises = are_counters(runs)
        few = 0 < _RARE_FALLS * falls.shape[1] <= len(np.unique(self.instants))
        if not rises and few and (falls[0] - falls[1] < HOUR_US).all():
            # a clock set back has an hour twice, and the rows alone tell which of two counts is the later one
            by_rows = runs_of(self.codes, np.arange(len(self.codes)), self.numbers)
            if rises := are_counters(by_rows):
                runs = by_rows
        if not rises:
            self._may_count(runs)
        return runs, rises

    def _may_count(self, runs: list[Floats]) -> None:
        """Ask about values that move as a counter does, by small steps, and fall now and then."""
        steps = np.concatenate(
            [np.diff(run) / np.maximum(np.abs(run[:-1]), 1e-9) for run in runs if len(run) > 1] or [[]]
        )
        steps = steps[steps != 0]
        if len(steps) < COUNTER_RISES or not (self.unit in (*_ENERGY, "m3") or TOTAL.search(self.value)):
            return
        up = float(np.mean(steps > 0))
        if float(np.mean(np.abs(steps) < 0.01)) < 0.9 or up < 0.5:
            return
        falls = int((steps < 0).sum())
        why = f"a counter that falls {plural(falls, 'time')}: is it net, or were these bad readings?"
        count = ("{gap: 2h}", "bad readings, or a new meter; most: is the largest rise that is one")
        net = ("net", "it falls where more is fed in than used")
        answers = (count, net) if up > 0.9 else (net, count)
        self.questions.append(Question("readings.register", why, (*answers, ("null", "no counter"))))

    def _marks(self) -> None:
        """Marks of a missing value among the numbers; and values below 0."""
        finite = self.numbers[np.isfinite(self.numbers)]
        if not len(finite):
            return
        found = {one: int((finite == one).sum()) for one in _MARKS}
        others = finite[~np.isin(finite, [one for one, count in found.items() if count > 1])]
        far = 3 * float(np.quantile(np.abs(others), 0.99)) + 1 if len(others) else 0.0
        marks = [one for one, count in found.items() if count > 1 and abs(one) > far]
        if marks:
            texts = [f"{one:.0f}" for one in marks]
            name = self.query.value_name
            absent = replace(self.query, where=(*self.query.where, f"{name} not in ({', '.join(map(repr, texts))})"))
            why = f"{listed(texts, 10)} come again and again: are they marks of a missing value?"
            answers = ((absent.text, "they are"), (self.query.text, "they are values"))
            self.questions.append(Question("readings.select", why, answers))

    def _differing(self, *, rises: bool) -> None:
        """Series, or files, whose intervals or units differ."""
        order = np.lexsort((self.instants, self.codes))
        codes, steps = self.codes[order], np.diff(self.instants[order])
        same = (np.diff(codes) == 0) & (steps > 0)
        of = [most_frequent(steps[same & (codes[1:] == code)]) for code in np.unique(codes)[:200]]
        lengths = sorted({one for one in of if one and of.count(one) * 10 >= len(of)})
        if self.ends is None and not rises and len(lengths) > 1 and lengths[-1] >= 2 * lengths[0]:
            texts = listed([format_duration(one) for one in lengths], 10)
            why = f"the intervals of the series differ: {texts}. Which factor makes each the unit of the edges?"
            key, answers = "slots.interval", tuple((format_duration(one), "of all series") for one in lengths)
            if self.unit in _ENERGY:
                key = "readings.scale"
                watts = {"MWh": 1e6, "kWh": 1e3, "Wh": 1.0}[self.unit]
                answers = tuple(
                    (
                        f"{watts * HOUR_US / one:.12g}",
                        f"if all cover {format_duration(one)}; else by a SELECT, num(x) / seconds",
                    )
                    for one in lengths
                )
            self.questions.append(Question(key, why, answers))
        usual = [float(np.nanmedian(np.abs(one))) for one in self._by_file()]
        usual = [one for one in usual if one > 0]
        if len(usual) > 1 and max(usual) > 50 * min(usual):
            why = "values of one file are 50 times those of another: has the file another unit, such as Wh and kWh?"
            answers = (
                (self.query.text, "no; else: case when filename like '%2024-02%' then 0.001 else 1 end *, in value"),
            )
            self.questions.append(Question("readings.select", why, answers))

    def _by_file(self) -> Iterator[Floats]:
        for one in np.unique(self.files):
            part = self.numbers[self.files == one]
            part = part[np.isfinite(part)]
            if len(part):
                yield part

    def _stamps(self, interval: int) -> None:
        """Ask whether stamps are ends, where a name or the first and last of the days say so."""
        if "- interval" in self.query.time or "elapsed(" in self.query.time or interval >= DAY_US:
            return
        shown = self.instants
        if not self.times.naive and self.zone != "UTC":
            zone = time_zone(self.zone)
            offset = dt.datetime.fromtimestamp(int(shown.min()) // 1_000_000, zone).utcoffset() or dt.timedelta()
            shown = shown + offset // dt.timedelta(microseconds=1)
        named = any(map(STAMPS_END.search, self.times.columns))
        first, last = int(shown.min()), int(shown.max())
        are_days = last - first >= DAY_US - interval and first % DAY_US == interval and last % DAY_US == 0
        if not named and not are_days:
            return
        why = "by its name" if named else "by the first and the last of them"
        why = f"{why} the stamps may be the ends of intervals: begin or end?"
        self.more["length"] = format_duration(interval)
        self.questions.append(
            Question("readings.stamps", why, (("end", "a reading is of what lies before it"), ("begin", "")))
        )

    def _density(self, interval: int) -> None:
        """Ask about slots without a reading: values on change, or zeros that are left out."""
        slots = np.unique(np.stack([self.codes, self.instants // interval]), axis=1)
        spans = [np.ptp(slots[1][slots[0] == code]) + 1 for code in np.unique(slots[0])[:200]]
        counts = [int((slots[0] == code).sum()) for code in np.unique(slots[0])[:200]]
        order = np.lexsort((self.instants, self.codes))
        steps = np.diff(self.instants[order])[np.diff(self.codes[order]) == 0]
        regular = float(np.mean(steps <= interval * 1.1)) if len(steps) else 1.0
        if sum(counts) >= _DENSE * sum(spans) or sum(counts) < COUNTER_RISES or regular > _REGULAR:
            return
        share = percent(sum(counts) / sum(spans))
        known = self.numbers[np.isfinite(self.numbers)]
        if len(known) and (known > 0).all() and not (known % 1).any() and len(known) == len(self.numbers):
            why = f"{share} of the slots have a reading, and none is 0: is a slot that is left out, absent, a zero?"
            state = ("state", "perhaps: a missing slot is a state of its own, protected as the others")
            self.questions.append(
                Question("missing", why, (state, ("public", "no: which are missing tells nothing of the values")))
            )
            return
        why = f"{share} of the slots have a reading: are they written on change, so that the last value holds?"
        held = ("2h", "until the next, at most so long; it needs missing: state")
        self.questions.append(Question("readings.hold", why, (held, ("null", "no: the others are missing"))))

    def _is_in_order(self, falls: Ints, interval: int) -> bool:
        """Whether times of a series fall in an hour that the zone's clock doubles, from row to row, and in no other."""
        if not self.times.naive or (self.labels and self.ends is not None):
            return False
        zone, found = time_zone(self.zone), False
        for pair in falls.T.tolist():
            shown = (dt.datetime.fromtimestamp(time // 1_000_000, dt.UTC).replace(tzinfo=zone) for time in pair)
            are_doubled = all(map(is_doubled, shown))
            down = pair[1] < pair[0] or interval >= HOUR_US
            if are_doubled != down:
                return False
            found = found or are_doubled
        return found
