"""What makes a window complete: punctuation (Tucker et al. 2003).

A runner's watermark says when a window may fire, not whether the source was read up to its end: runners fire early when
a job is drained, when a source ends, or when they lose a part of one. So each partition of a live source declares every
window that it has read completely, and a window is published only with the declarations of all partitions. A window
that fires without them is dropped and stays missing.

Two kinds of elements come from such a source: readings with the partition's watermark before them, because readings of
windows that the partition has declared complete are late, on every runner alike; and punctuations. A punctuation comes
after the readings that it is about, from the same partition, and reaches a shard after them: what a runner hands on
from one step to the next under one key is in its order, or all of it is there before the watermark passes. Elements and
what they changed are committed together or not at all, so a runner that goes back has neither.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from ..schemas.calendars import Calendar
from ..schemas.errors import QuiltstreamError
from ..schemas.releases import LIVE, REPLAYED, SILENT, UNAVAILABLE
from ..schemas.slots import DAY_US, Schedule, SlotGrid, SlotsT
from .common.batches import RecordBatchCoder
from .readings.slots import Words

#: Beam's runners tell instants apart no finer.
MILLISECOND_US = 1_000


class StateError(QuiltstreamError, ValueError):
    """Bytes of a runner's state that this version does not read."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Where the steps of the windows lie in time."""

    anchor_us: int  # start of step 0; with a calendar, of slot 0
    every_us: int  # length of a step; with a calendar, of a slot
    calendar: Calendar | None = None  # the days, weeks or months that are the steps; ``None`` for steps of one length
    before_us: int = 0  # how long before a step a reading may lie that moves a slot of it

    @classmethod
    def of(cls, grid: SlotGrid, schedule: Schedule, words: Words | None = None) -> Steps:
        """Of a schedule, and of what says which steps a reading may move slots of."""
        before_us = 0 if words is None else words.before_us
        if schedule.calendar is not None:
            return cls(grid.origin_us, grid.interval_us, schedule.calendar, before_us)
        return cls(grid.time_of(schedule.anchor), schedule.every * grid.interval_us, None, before_us)

    def number_of(self, times_us: SlotsT) -> SlotsT:
        """The number of the step that each instant is in."""
        found: SlotsT = (times_us - self.anchor_us) // self.every_us  # pyright: ignore[reportAssignmentType] - numpy's stubs
        return found if self.calendar is None else self.calendar.number_of(found)

    def last_us(self, came_us: int) -> int:
        """When the last step ends that readings may be of which came at an instant.

        Those of one that begins over a day later are rejected: wrong stamps must not fill the memory.
        """
        step = self.number_of(came_us + DAY_US)
        until = step + 1 if self.calendar is None else self.calendar.stop_of(step)
        return self.anchor_us + until * self.every_us


class FromSource:
    """What a source that never ends sends: its type says Beam which coder it has."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Arrived(FromSource):
    """Readings, and how far their partition had come before them."""

    batch: pa.RecordBatch
    horizon_us: int  # windows that end by this instant had been declared complete
    # of readings that were there when the job began, the instant up to which windows were on record then: readings of
    # these are read again, and only those of later windows are late. ``None`` of readings that came since
    on_record_us: int | None = None


@dataclass(frozen=True, slots=True)
class Punctuation(FromSource):
    """A partition of a source has read everything up to an instant."""

    part: int
    parts: int
    after_us: int  # the instant of the partition's last punctuation; windows that end by then were declared before
    until_us: int  # windows that end by this instant are complete
    replayed: bool = False  # whether the readings were there when the job began, and are read again or late
    lost_us: int | None = None  # windows that start before may lack readings that the source has lost; ``None``: none
    silent_us: int | None = None  # windows that end after this instant closed without a silent source; ``None``: none

    def __post_init__(self) -> None:
        if not 0 <= self.part < self.parts:
            raise ValueError(f"part {self.part} is not one of the {self.parts} parts of the source")
        if self.until_us < self.after_us:
            raise ValueError(f"a punctuation cannot go back from {self.after_us} to {self.until_us}")


#: Of the form in which they are written; another one gets another number.
VERSION = 1

#: Version and kind; then what Arrow does not hold, and the batch, or all of a punctuation.
_HEAD, _ARRIVED, _PUNCTUATION = struct.Struct("<BB"), struct.Struct("<qq"), struct.Struct("<IIqq?qq")
_KINDS = (Arrived, Punctuation)

#: Stands for no instant.
_NEVER = -(1 << 63)


def _or_never(instant: int | None) -> int:
    return _NEVER if instant is None else instant


def _or_none(instant: int) -> int | None:
    return None if instant == _NEVER else instant


class FromSourceCoder(Coder):
    """Readings as Arrow's stream, and instants beside them; punctuations as numbers."""

    def encode(self, value: FromSource) -> bytes:
        """Write an element."""
        if isinstance(value, Arrived):
            numbers = _ARRIVED.pack(value.horizon_us, _or_never(value.on_record_us))
            return b"".join([_HEAD.pack(VERSION, 0), numbers, RecordBatchCoder().encode(value.batch)])
        if not isinstance(value, Punctuation):
            raise TypeError(f"a source sends no {type(value).__name__}")
        instants = _or_never(value.lost_us), _or_never(value.silent_us)
        places = value.part, value.parts, value.after_us, value.until_us, value.replayed
        return _HEAD.pack(VERSION, 1) + _PUNCTUATION.pack(*places, *instants)

    def decode(self, encoded: bytes) -> FromSource:
        """Read an element.

        Raises:
            StateError: it is of another version.
        """
        version, kind = _HEAD.unpack_from(encoded)
        check_version(version, VERSION)
        if _KINDS[kind] is Arrived:
            horizon_us, on_record_us = _ARRIVED.unpack_from(encoded, _HEAD.size)
            batch = RecordBatchCoder().decode(encoded[_HEAD.size + _ARRIVED.size :])
            return Arrived(batch, horizon_us, _or_none(on_record_us))
        *places, lost_us, silent_us = _PUNCTUATION.unpack_from(encoded, _HEAD.size)
        return Punctuation(*places, lost_us=_or_none(lost_us), silent_us=_or_none(silent_us))

    def estimate_size(self, value: FromSource) -> int:
        """Size for Beam's byte counters, without encoding."""
        batch = RecordBatchCoder().estimate_size(value.batch) if isinstance(value, Arrived) else 0
        return batch + _HEAD.size + _PUNCTUATION.size

    def to_type_hint(self) -> Any:
        """What the coder is registered for."""
        return FromSource


registry.register_coder(FromSource, FromSourceCoder)


def check_version(found: int, known: int) -> None:
    """Refuse state of another form.

    Raises:
        StateError: it is.
    """
    if found != known:
        raise StateError(f"the state of this job is of version {found}, and this one reads {known}: begin anew")


@dataclass(frozen=True, slots=True)
class WindowEnd:
    """A partition of the source declares a window complete, for one shard."""

    start: int
    part: int = 0
    parts: int = 1
    completeness: str = LIVE  # how the partition was read for the window, as rows say it


def window_ends_by(punctuation: Punctuation, schedule: Schedule, grid: SlotGrid) -> Iterator[WindowEnd]:
    """The windows that a punctuation declares: those that end after the last one and by this one."""
    for start in closed_starts(schedule, grid, punctuation.after_us, punctuation.until_us):
        lost = punctuation.lost_us is not None and grid.time_of(start) < punctuation.lost_us
        end_us = grid.time_of(schedule.window_at(start).stop)
        silent = punctuation.silent_us is not None and end_us > punctuation.silent_us
        completeness = UNAVAILABLE if lost else SILENT if silent else REPLAYED if punctuation.replayed else LIVE
        yield WindowEnd(start, punctuation.part, punctuation.parts, completeness)


def closed_starts(schedule: Schedule, grid: SlotGrid, after_us: int, until_us: int) -> Sequence[int]:
    """First slots of the schedule's windows that end after one instant and not after another."""

    def ended(instant: int) -> int:
        return schedule.ended_by((instant - grid.origin_us) // grid.interval_us)  # whole slots that are over

    begin, end = ended(after_us), ended(until_us)
    if schedule.stop is not None:
        begin, end = min(begin, len(schedule)), min(end, len(schedule))
    return schedule.starts_ended(begin, end)


def window_end_of(grid: SlotGrid, schedule: Schedule, shard: int, end: WindowEnd) -> WindowedValue:
    """A declaration for a shard, just before the end of its window's first step."""
    instant = grid.time_of(schedule.start_after(end.start)) - MILLISECOND_US
    return WindowedValue((shard, end), Timestamp(micros=instant), (GlobalWindow(),))
