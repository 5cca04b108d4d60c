"""Readings of several rows to one value a slot: what ``slots.of`` and the words of ``readings`` say.

Every function takes all readings of its series and sorts them first, so neither their order, nor the file that they
came in, nor a row that stands twice changes a value. Each word has a reach, which is public: no value of a slot depends
on a reading that begins over :attr:`Words.before_us` before the slot, or :attr:`Words.after_us` after its end. Of a
counter that is the gap: whether a stand was a bad reading is asked of its two neighbours, not further apart than that.

>>> words = Words(of="sum")
>>> hour = 3_600_000_000
>>> readings = Covering(*(np.array(one) for one in ([0], [0], [6.0], [2 * hour], [0])))
>>> [one.tolist() for one in slot_values(readings, SlotGrid(hour), words)]
[[0, 0], [0, 1], [3.0, 3.0]]
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.readings import GROUPED_READING_SCHEMA, LONGEST_US, READING_SCHEMA
from ...schemas.settings.readings import Readings
from ...schemas.slots import SlotGrid, Window, parse_duration

#: Decimal digits that every number of 64 bits holds.
_DIGITS = 15

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Meter:
    """A cumulative counter, in the unit of the values."""

    gap_us: int  # stands further apart are not compared
    most: float = math.inf  # a larger rise is none
    over_end: float = 0.0  # what the counter counts to before it begins at 0 again; 0: it does not
    net: bool = False  # whether it may fall


@dataclass(frozen=True, slots=True)
class Words:
    """How the readings of a series become the values of its slots."""

    of: Literal["last", "mean", "sum"] = "last"
    register: Meter | None = None
    hold_us: int | None = None
    rank: bool = False
    length_us: int = 0  # what a reading covers at most; 0 where that is not said
    fill_us: int = 0  # how long the value of a slot stands for those after it that have none; 0: it does not

    @property
    def before_us(self) -> int:
        """How far before a slot a reading may begin that its value depends on."""
        if self.register is not None:
            return self.register.gap_us + self.fill_us
        return max(self.hold_us or 0, 0 if self.of == "last" else self.length_us) + self.fill_us

    @property
    def after_us(self) -> int:
        """How far after the end of a slot a reading may begin that its value depends on."""
        return 0 if self.register is None else self.register.gap_us

    def moved_by(self, begin_us: Ints, length_us: Ints) -> tuple[Ints, Ints]:
        """The instants, first and last, between which lie all slots whose value readings may move."""
        if self.register is not None:
            return begin_us - self.register.gap_us, begin_us + self.register.gap_us + self.fill_us
        hold_us = self.hold_us or 1
        covers_us = np.maximum(length_us, hold_us) if self.of != "last" else hold_us
        return begin_us, begin_us + covers_us + self.fill_us - 1


@dataclass(frozen=True, slots=True)
class Covering:
    """Readings of some series, n of them."""

    codes: Ints  # the series of each, shape (n,)
    begin_us: Ints
    values: Floats  # NaN: nothing is known from here on, which ends a hold
    length_us: Ints  # what each covers; 0 where it is not known
    rank: Ints

    def take(self, rows: Ints | npt.NDArray[np.bool_]) -> Covering:
        """Some of them."""
        return Covering(self.codes[rows], self.begin_us[rows], self.values[rows], self.length_us[rows], self.rank[rows])

    @classmethod
    def joined(cls, parts: list[Covering]) -> Covering:
        """All of some parts."""
        return cls(*(np.concatenate([getattr(one, name) for one in parts]) for name in cls.__slots__))

    def follows(self) -> npt.NDArray[np.bool_]:
        """Which have the one before of the same series, shape (n,); they are sorted."""
        return np.concatenate(([False], self.codes[1:] == self.codes[:-1])) if len(self.codes) else np.zeros(0, bool)


def words_of(readings: Readings | None, of: str) -> Words | None:
    """What the settings say of several rows; ``None`` where the latest reading of a slot counts."""
    meter = None if readings is None else _meter_of(readings)
    hold = None if readings is None else readings.hold
    length_us = LONGEST_US if readings is None or readings.length_us is None else readings.length_us
    if (of == "last" and hold is None) or (readings is not None and readings.length is None):
        length_us = 0
    words = Words(
        of=cast("Any", of),
        register=meter,
        hold_us=None if hold is None else parse_duration(hold),
        rank=readings is not None and readings.cell == "rank",
        length_us=length_us,
        fill_us=0 if readings is None or readings.fill is None else LONGEST_US,
    )
    return None if words == Words() else words


def _meter_of(readings: Readings) -> Meter | None:
    """The counter of the settings, whose limits are in its own unit."""
    given, scale = readings.register_, abs(readings.scale)
    if given is None:
        return None
    most = math.inf if given.most is None else given.most * scale
    return Meter(parse_duration(given.gap), most, (given.over_end or 0.0) * scale, given.net)


def slot_readings(batches: Iterable[pa.RecordBatch], grid: SlotGrid, words: Words) -> list[pa.RecordBatch]:
    """All readings of some series as one reading a slot, at its beginning; no batch where no slot has a value."""
    batches = list(batches)
    if not batches:
        return []
    given = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
    codes = given.column("series").indices.to_numpy(zero_copy_only=False).astype(np.int64)
    begin = given.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
    none = np.zeros(len(codes), dtype=np.int64)

    def whole(name: str) -> Ints:
        if name not in given.schema.names:
            return none
        return given.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)

    values = given.column("value").to_numpy(zero_copy_only=False)
    readings = Covering(codes, begin, values, whole("length"), whole("rank"))
    of, slots, values = slot_values(readings, grid, words)
    if not len(of):
        return []
    # a series is of the group of its earliest reading
    first = np.zeros(int(codes.max()) + 1, dtype=np.int64)
    order = np.lexsort((begin, codes))[::-1]
    first[codes[order]] = order
    kept = ["series", *(name for name in ("group",) if name in given.schema.names)]
    rows = pa.array(first[of])
    columns = {name: given.column(name).take(rows) for name in kept}
    columns |= {
        "time": pa.array(grid.time_of(slots)).view(pa.timestamp("us", tz="UTC")),
        "value": pa.array(values),
    }
    schema = GROUPED_READING_SCHEMA if "group" in columns else READING_SCHEMA
    return [pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)]


def slot_values(
    readings: Covering, grid: SlotGrid, words: Words, within: Window | None = None
) -> tuple[Ints, Ints, Floats]:
    """The value of every slot that has one, or of those within a window.

    Returns:
        The series, the slot and the value of each, in this order, shape (m,) each; of a series and slot one at most.
    """
    if words.fill_us:
        back = words.fill_us // grid.interval_us
        wider = None if within is None else Window(within.start - back, within.stop)
        return _filled(*slot_values(readings, grid, replace(words, fill_us=0), wider), back, within)
    one = united(readings)
    if words.register is not None:
        one = _rises(one, words.register)
        return _shared(one, grid, within, mean=False)
    if words.hold_us is not None:
        known, until = one.length_us > 0, _until_next(one, words.hold_us)
        if words.of == "last":
            ends = np.where(known, np.minimum(one.length_us, until.length_us), until.length_us)
            return _in_force(replace(one, length_us=ends), grid, within)
        one = replace(one, length_us=np.where(known, one.length_us, until.length_us))
    one = one.take(np.isfinite(one.values))
    if words.of == "last":
        return _latest(one, grid, within, by_rank=words.rank)
    return _shared(one.take(one.length_us > 0), grid, within, mean=words.of == "mean")


def united(readings: Covering) -> Covering:
    """One reading of each series and begin: that of the highest rank, then of the highest value and length."""
    order = np.lexsort((readings.length_us, readings.values, readings.rank, readings.begin_us, readings.codes))
    one = readings.take(order)
    last = (
        np.concatenate(((one.codes[1:] != one.codes[:-1]) | (one.begin_us[1:] != one.begin_us[:-1]), [True]))
        if len(order)
        else np.zeros(0, bool)
    )
    return one.take(last)


def _rises(stands: Covering, meter: Meter) -> Covering:
    """The rises between stands that follow each other.

    A stand below the one before, to which the next one returns within the gap, was a bad reading; a fall that stays is
    a gap.
    """
    stands = stands.take(np.isfinite(stands.values))
    follows = stands.follows()
    before = np.where(follows, np.roll(stands.values, 1), -np.inf)
    after = np.where(np.roll(follows, -1), np.roll(stands.values, -1), -np.inf)
    if not meter.net:
        apart = np.roll(stands.begin_us, -1) - np.roll(stands.begin_us, 1)
        stands = stands.take(~((stands.values < before) & (after >= before) & (apart <= meter.gap_us)))
        follows = stands.follows()
    rows = np.flatnonzero(follows)
    rise = stands.values[rows] - stands.values[rows - 1]
    length = stands.begin_us[rows] - stands.begin_us[rows - 1]
    good = length <= meter.gap_us
    if not meter.net:
        rise = np.where((rise < 0) & (meter.over_end > 0), rise + meter.over_end, rise)
    rise = _as_decimals(rise, np.maximum(np.abs(stands.values[rows]), np.abs(stands.values[rows - 1])))
    if not meter.net:
        good &= (rise >= 0) & (rise <= meter.most)
    rows = rows[good]
    return Covering(stands.codes[rows], stands.begin_us[rows - 1], rise[good], length[good], stands.rank[rows])


def _as_decimals(rise: Floats, stand: Floats) -> Floats:
    """Differences of decimals as decimals: 523.397 less 523.377 is a little less than 0.02, which may be an edge.

    No digit of a difference behind the last one that a stand holds says anything.
    """
    shift = np.maximum(10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.maximum(stand, 1.0)))), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.rint(rise * shift) / shift
    return np.where(np.isfinite(rounded), rounded, rise)


def _until_next(readings: Covering, most_us: int) -> Covering:
    """Each reading with the time until the next one of its series, at most so long."""
    following = np.roll(readings.follows(), -1)
    length = np.where(following, np.roll(readings.begin_us, -1) - readings.begin_us, most_us)
    return replace(readings, length_us=np.minimum(length, most_us))


def _in_force(readings: Covering, grid: SlotGrid, within: Window | None) -> tuple[Ints, Ints, Floats]:
    """The value in force when each slot begins."""
    readings = readings.take(np.isfinite(readings.values))
    first = grid.slots_of(readings.begin_us + grid.interval_us - 1)
    last = grid.slots_of(readings.begin_us + readings.length_us - 1)
    rows, slots = expanded(first, last, within)
    return readings.codes[rows], slots, readings.values[rows]


def _latest(readings: Covering, grid: SlotGrid, within: Window | None, *, by_rank: bool) -> tuple[Ints, Ints, Floats]:
    slots = grid.slots_of(readings.begin_us)
    rows, slots = expanded(slots, slots, within)
    readings = readings.take(rows)
    rank = readings.rank if by_rank else np.zeros_like(readings.rank)
    order = np.lexsort((readings.begin_us, rank, slots, readings.codes))
    codes, slots = readings.codes[order], slots[order]
    ends = np.append(_heads(codes, slots)[1:], len(codes)) - 1 if len(codes) else np.zeros(0, np.int64)
    return codes[ends], slots[ends], readings.values[order][ends]


def _shared(readings: Covering, grid: SlotGrid, window: Window | None, *, mean: bool) -> tuple[Ints, Ints, Floats]:
    """Sums of what readings give to each slot by the share of their time, or means over the time that they cover."""
    ends = readings.begin_us + readings.length_us
    rows, slots = expanded(grid.slots_of(readings.begin_us), grid.slots_of(ends - 1), window)
    starts = grid.time_of(slots)
    within = np.minimum(starts + grid.interval_us, ends[rows]) - np.maximum(starts, readings.begin_us[rows])
    order = np.lexsort((readings.begin_us[rows], slots, readings.codes[rows]))
    rows, slots, within = rows[order], slots[order], within[order]
    heads = _heads(readings.codes[rows], slots)
    if not len(heads):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    parts = readings.values[rows] * (within if mean else within / readings.length_us[rows])
    bounds = [*heads.tolist(), len(rows)]
    listed = parts.tolist()
    # exact sums: a state does not depend on how a sum was rounded on its way
    sums = np.array([math.fsum(listed[at:stop]) for at, stop in pairwise(bounds)])
    if mean:
        sums /= np.add.reduceat(within, heads)
    return readings.codes[rows[heads]], slots[heads], sums


def _filled(codes: Ints, slots: Ints, values: Floats, most: int, within: Window | None) -> tuple[Ints, Ints, Floats]:
    """Each value in the slots after it that have none, so many of them at most."""
    follows = np.append(codes[1:] == codes[:-1], [False])[: len(codes)]
    until = np.where(follows, np.minimum(np.roll(slots, -1), slots + most + 1), slots + most + 1)
    rows, slots = expanded(slots, until - 1, within)
    return codes[rows], slots, values[rows]


def expanded(first: Ints, last: Ints, within: Window | None = None) -> tuple[Ints, Ints]:
    """Ranges of numbers one by one, as far as they are within a window: the place of each range, and the number."""
    if within is not None:
        first, last = np.maximum(first, within.start), np.minimum(last, within.stop - 1)
    widths = np.maximum(last - first + 1, 0)
    rows = np.repeat(np.arange(len(first)), widths)
    starts = np.cumsum(widths) - widths
    return rows, np.arange(len(rows)) - starts[rows] + first[rows]


def _heads(codes: Ints, slots: Ints) -> Ints:
    """Where each series and slot begins; they are sorted."""
    if not len(codes):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], (codes[1:] != codes[:-1]) | (slots[1:] != slots[:-1]))))
