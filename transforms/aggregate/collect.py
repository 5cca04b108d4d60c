"""Collect: one value per cell, for every shard and window, whatever the order and however often readings come.

Keyed by shard in Beam windows. The accumulator holds the cells of each step of the window; adding and merging take
maxima (see :mod:`.cells`), so lifting, retries and reordering cannot change the outcome. Beside them it holds which
partitions of the source declared the window complete (see :mod:`..completeness`): a set, so this is idempotent too.

*Panes.* The trigger is explicit: one pane when the watermark passes the end of the window, which is then closed.
Runners do otherwise, too: they fire early when a job is drained or a source ends, admit late data with the cells gone,
and repeat panes. So a window is on record only if its pane on time, united with the panes before it, holds a
declaration by every partition of the source that it has read the window to its end. A pane that comes late is of a
window that is over, and is published never: the watermark has promised that everything was there.

What a runner has lost leaves the window missing; the next job publishes it. The panes of a window wait in the state of
its key until one comes on time, or until the runner drops that state when the window is over. A first pane that is
complete by itself, as all are with this trigger, is counted where it is (:class:`SortPanes`): to move its cells to the
state of a key costs a tenth of a job. The store keeps the first row, whatever a second value computes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms import trigger
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import FixedWindows, IntervalWindow, SlidingWindows, WindowFn
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming, WindowedValue

from ...schemas.calendars import Calendar
from ...schemas.releases import LIVE, least_complete
from ...schemas.slots import Schedule, SlotGrid, Window
from ..completeness import WindowEnd
from .cells import Cells
from .coders import PartCoder
from .encode import CellBlock, ReadingBlock
from .gathered import Gathered


@dataclass(slots=True)
class Collected:
    """What came of one shard in one window."""

    # the cells of each step that had readings, or with a word about several rows the readings that may move them
    steps: dict[int, Cells | Gathered] = field(default_factory=dict)
    # first slot of a window -> bits of the parts that declared it complete
    closed: dict[int, int] = field(default_factory=dict)
    parts: int = 1  # how many parts there are
    read: dict[int, str] = field(default_factory=dict)  # first slot of a window -> the worst that a part says of it

    def close(self, start: int, parts_bits: int) -> None:
        """Note that parts declared the window that starts at a slot complete."""
        self.closed[start] = self.closed.get(start, 0) | parts_bits

    def declare(self, end: WindowEnd) -> None:
        """Note what a part says of a window."""
        self.parts = end.parts
        self.close(end.start, 1 << end.part)
        self.worsen(end.start, end.completeness)

    def completeness(self, start: int) -> str:
        """How the source was read for the window that starts at a slot, as rows say it."""
        return self.read.get(start, LIVE)

    def worsen(self, start: int, completeness: str) -> None:
        """Note how a part was read for the window that starts at a slot."""
        self.read[start] = least_complete(self.completeness(start), completeness)

    def complete(self, start: int) -> bool:
        """Whether every part declared the window that starts at a slot complete."""
        return self.closed.get(start, 0) == (1 << self.parts) - 1

    def take(self, other: Collected) -> None:
        """Take everything but the cells of another one in."""
        self.parts = max(self.parts, other.parts)
        for start, completeness in other.read.items():
            self.worsen(start, completeness)
        for start, bits in other.closed.items():
            self.close(start, bits)


class CollectCells(beam.CombineFn):
    """``CellBlock``, ``ReadingBlock`` and ``WindowEnd`` elements to one :class:`Collected`."""

    def get_accumulator_coder(self) -> PartCoder:
        """No pickle."""
        return PartCoder()

    def create_accumulator(self) -> Collected:
        """Nothing yet."""
        return Collected()

    def add_input(self, mutable_accumulator: Collected, element: CellBlock | ReadingBlock | WindowEnd) -> Collected:
        """Put a block's readings into the cells of its step, or note a declaration."""
        if isinstance(element, WindowEnd):
            mutable_accumulator.declare(element)
            return mutable_accumulator
        steps, step = mutable_accumulator.steps, element.step
        if isinstance(element, ReadingBlock):
            if len(element.readings.codes):
                _take_in(steps, step, Gathered(element.readings, readings=element.count))
        elif element.index is None:
            whole = Cells(element.packed.reshape(element.rows, element.width), element.readings, owned=False)
            _take_in(steps, step, whole)
        elif len(element.packed):
            held: Any = steps.get(step) or Cells.empty(0, element.width)
            cells = steps[step] = held.taller(element.rows)
            cells.put(element.index, element.packed)
            cells.readings += element.readings - len(element.packed)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Collected]) -> Collected:
        """Take maxima step by step, and unite the declarations."""
        merged = Collected()
        for one in accumulators:
            merged.take(one)
            for step, cells in one.steps.items():
                _take_in(merged.steps, step, cells.shared())
        return merged

    def extract_output(self, accumulator: Collected) -> Collected:
        """What was collected."""
        return accumulator


def both(one: Collected, other: Collected) -> Collected:
    """What came of a shard in a window in two panes, of which either may repeat what the other has.

    The number of readings of a cell is then unknown; the larger one is taken.
    """
    found = Collected()
    found.take(one)
    found.take(other)
    for step in one.steps.keys() | other.steps.keys():
        found_of = [cells.shared() for held in (one, other) if (cells := held.steps.get(step)) is not None]
        readings = max(cells.readings for cells in found_of)
        for cells in found_of:
            _take_in(found.steps, step, cells)
        found.steps[step].readings = readings
    return found


def _take_in(steps: dict[int, Cells | Gathered], step: int, more: Cells | Gathered) -> None:
    """Put what is known of a step to what is there of it."""
    held: Any = steps.setdefault(step, more)
    if held is not more:
        held.merge(more)


#: Where panes go that are not the whole of their window by themselves.
PIECES = "pieces"


def window_into(grid: SlotGrid, schedule: Schedule) -> beam.PTransform[Any, Any]:
    """Blocks and declarations into the windows of a schedule, one pane each."""
    into = beam.WindowInto(
        windows_of(grid, schedule),
        trigger=trigger.AfterWatermark(),
        accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
        allowed_lateness=0,  # the source's own clock says what is late
    )
    return into if schedule.calendar is None else CalendarWindows(into, grid, schedule.calendar)


def windows_of(grid: SlotGrid, schedule: Schedule) -> WindowFn:
    """Beam's windows of a schedule; with a calendar, ones of the same kind, see :class:`CalendarWindows`."""
    size = Duration(micros=schedule.size * grid.interval_us)
    period = Duration(micros=schedule.every * grid.interval_us)
    anchor = Timestamp(micros=grid.time_of(schedule.anchor))
    return FixedWindows(size, anchor) if schedule.overlap == 1 else SlidingWindows(size, period, anchor)


class CalendarWindows(beam.PTransform[Any, Any]):
    """Elements into the days, weeks or months of a calendar.

    Runners in Java know no function of Python's that assigns windows. They know fixed windows, which are intervals, and
    they group, fire and forget by the interval that an element has, whichever it is. So elements are put into fixed
    windows, for trigger and coder, and then each into its interval. The calendar travels with the step, so no worker's
    zone data decide.
    """

    def __init__(self, into: beam.WindowInto, grid: SlotGrid, calendar: Calendar) -> None:
        super().__init__()
        self._into, self._place = into, _ByCalendar(grid, calendar)

    def expand(self, input_or_inputs: PCollection[Any]) -> Any:
        """The same elements in other windows."""
        return input_or_inputs | "Fixed" >> self._into | "Calendar" >> beam.ParDo(self._place)


class _ByCalendar(beam.DoFn):
    def __init__(self, grid: SlotGrid, calendar: Calendar) -> None:
        self._grid, self._calendar = grid, calendar

    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[WindowedValue]:
        number = self._calendar.number_of(self._grid.slots_of(int(timestamp.micros)))
        bounds = self._calendar.start_of(number), self._calendar.stop_of(number)
        start, stop = (Timestamp(micros=self._grid.time_of(slot)) for slot in bounds)
        yield WindowedValue(element, timestamp, (IntervalWindow(start, stop),))


def slots_of(grid: SlotGrid, window: IntervalWindow) -> Window:
    """The slots of a Beam window."""
    start = grid.slots_of(int(window.start.micros))
    return Window(start, start + (int(window.end.micros) - int(window.start.micros)) // grid.interval_us)


def is_whole(collected: Collected, start: int, pane: Any) -> bool:
    """Whether a shard may be published in the window that starts at a slot."""
    # a runner may say nothing of a pane that comes when its window is over
    return collected.complete(start) and pane.timing in (PaneInfoTiming.ON_TIME, PaneInfoTiming.UNKNOWN)


class SortPanes(beam.DoFn):
    """``(shard, Collected)`` of a pane that is the whole of its window goes on; the rest to the output ``pieces``.

    A pane that comes after another of its window goes there too, however complete it is: pieces may wait for it.
    """

    def __init__(self, grid: SlotGrid) -> None:
        self._grid = grid

    def process(
        self, element: tuple[int, Collected], window: Any = beam.DoFn.WindowParam, pane: Any = beam.DoFn.PaneInfoParam
    ) -> Iterator[Any]:
        """Look at one pane of a shard."""
        if pane.is_first and is_whole(element[1], slots_of(self._grid, window).start, pane):
            yield element
        else:
            yield TaggedOutput(PIECES, element)


class Gather(beam.DoFn, ABC):
    """Unites the panes of a key until they are complete; what is complete by itself passes untouched.

    What is incomplete when a runner calls the window over is emitted too: the step that publishes counts it.
    """

    HELD = ReadModifyWriteStateSpec("held", PartCoder())

    def process(
        self,
        element: tuple[int, Any],
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
        held: Any = beam.DoFn.StateParam(HELD),  # noqa: B008 - Beam's way
    ) -> Iterator[tuple[int, Any]]:
        """Take one pane of a key in a window."""
        key, found = element
        # a first pane has nothing held before it; to say so to a runner for each would cost a message
        before = None if pane.is_first else held.read()
        if before is not None:
            found = self.united(before, found)
        if self.is_whole(found, window, pane):
            if before is not None:
                held.clear()
        elif before is None and self.is_empty(found):
            return
        else:
            held.write(found)
            if pane.timing == PaneInfoTiming.EARLY:
                return
        yield key, found

    @abstractmethod
    def is_empty(self, found: Any) -> bool:
        """Whether a pane holds nothing."""

    @abstractmethod
    def is_whole(self, found: Any, window: Any, pane: Any) -> bool:
        """Whether it may be published."""

    @abstractmethod
    def united(self, one: Any, other: Any) -> Any:
        """Both in one; neither is changed."""


class GatherPanes(Gather):
    """``(shard, Collected)`` of each pane to the same of all of them."""

    def __init__(self, grid: SlotGrid) -> None:
        self._grid = grid

    def is_empty(self, found: Collected) -> bool:
        """Whether nothing was collected."""
        return not (found.steps or found.closed)

    def is_whole(self, found: Collected, window: Any, pane: Any) -> bool:
        """Whether it is the whole of the window."""
        return is_whole(found, slots_of(self._grid, window).start, pane)

    def united(self, one: Collected, other: Collected) -> Collected:
        """What came in either."""
        return both(one, other)
