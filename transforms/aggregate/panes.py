"""Panes: when a runner hands a window over, and why no sequence of panes can publish a part of one.

The trigger is said, not left to Beam's default: one pane when the watermark passes the end of the window, after which
the window is closed; should a runner fire more often, a pane holds all that the ones before it held. Python's Beam
says to every runner that a window closes with a last pane even if that is empty, and such a pane changes nothing here.

None of this is relied upon. Runners fire early when a job is drained or a source ends, admit late data with the cells
gone, hand panes over in another order than they made them in, and repeat them. A window is on record only if *one*
value is taken for complete that holds

1. a declaration by every part of the source that it has read the window to its end (:mod:`..completeness.punctuation`),
and
2. for every part that declared so, each of the sequence numbers that its declaration names
(:mod:`..completeness.sequence_numbers`).

An element carries the sequence numbers of the readings that it holds (:class:`.encode.EncodeCells`); elements are
united whole (:class:`.collect.CollectCells`), and so are the panes of a window (:class:`GatherPanes`). So a value with
all sequence numbers holds all readings, in whatever order it was united: a pane without some of them is not published,
whatever its timing, and because maxima and sets are idempotent, every complete value is the same one (where windows
overlap, but for readings that are late for one of them, in time for the next, and come before the one has fired).
The store keeps the first row, whatever a second value computes.

What a runner has lost (cells, sequence numbers, declarations) leaves the window missing; the next job publishes it. An
extra pane loses nothing: the panes of a window wait in the state of its key until they are complete, or until the
runner drops that state when the window is over. A first pane that is complete by itself, as all are with the trigger of
this transform, is counted where it is (:class:`SortPanes`): to move its cells to the state of a key costs a tenth of a
job. So memory holds the cells of a window once, and no longer than until it closes.

A source without sequence numbers, such as a pipeline of the user's own or the closings of a batch job, is published by
what a runner says of a pane: by the one that it calls on time, never by an early or a late one. The watermark's
promise, that all which was sent before is there, is then the runner's.

The histograms of groups are summed over shards by another grouping, whose panes may come as they like as well: a sum
keeps what it has of each shard by itself, so a shard that comes twice counts once, and says which shards it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms import trigger
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import FixedWindows, IntervalWindow, SlidingWindows, WindowFn
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming, WindowedValue

from ...schemas.calendars import Calendar
from ...schemas.slots import Schedule, SlotGrid, Window
from .collect import Collected, both

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

    Args:
        into: fixed windows.
        grid: the slots.
        calendar: of these slots.
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
        """Put one element into the window of its instant."""
        number = self._calendar.number_of(self._grid.slots_of(int(timestamp.micros)))
        bounds = self._calendar.start_of(number), self._calendar.stop_of(number)
        start, stop = (Timestamp(micros=self._grid.time_of(slot)) for slot in bounds)
        yield WindowedValue(element, timestamp, (IntervalWindow(start, stop),))


def slots_of(grid: SlotGrid, window: IntervalWindow) -> Window:
    """The slots of a Beam window."""
    start = grid.slots_of(int(window.start.micros))
    return Window(start, start + (int(window.end.micros) - int(window.start.micros)) // grid.interval_us)


def is_early(pane: Any) -> bool:
    """Whether a runner says of a pane that its window was not over."""
    return pane.timing == PaneInfoTiming.EARLY


def is_on_time(pane: Any) -> bool:
    """Whether a runner says of a pane that it came when its window was over, or says nothing."""
    return pane.timing in (PaneInfoTiming.ON_TIME, PaneInfoTiming.UNKNOWN)


def is_whole(collected: Collected, start: int, pane: Any) -> bool:
    """Whether a shard may be published in the window that starts at a slot."""
    return collected.whole(start) and (collected.ticketed(start) or is_on_time(pane))


class SortPanes(beam.DoFn):
    """``(shard, Collected)`` of a pane that is the whole of its window goes on; the rest to the output ``pieces``.

    A pane that comes after another of its window goes there too, however complete it is: pieces may wait for it.
    """

    def __init__(self, grid: SlotGrid) -> None:
        self._grid = grid

    def process(
        self,
        element: tuple[int, Collected],
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[Any]:
        """Look at one pane of a shard."""
        if pane.is_first and is_whole(element[1], slots_of(self._grid, window).start, pane):
            yield element
        else:
            yield TaggedOutput(PIECES, element)


class Gather(beam.DoFn):
    """Unites the panes of a key until they are complete; what is complete by itself passes untouched.

    A runner that calls a window over has what is incomplete passed on too, for whoever counts it.
    """

    HELD = ReadModifyWriteStateSpec("held", FastPrimitivesCoder())

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
        waiting = not pane.is_first
        if not self.is_whole(found, window, pane):
            before = held.read()
            waiting = before is not None
            if before is None and self.is_empty(found):
                return
            # an empty pane may still be the one that says that the window is over
            found = found if before is None else self.united(before, found)
            if not self.is_whole(found, window, pane):
                held.write(found)
                if not is_early(pane):
                    yield key, found
                return
        if waiting:
            held.clear()
        yield key, found

    def is_empty(self, found: Any) -> bool:
        """Whether a pane holds nothing."""
        raise NotImplementedError

    def is_whole(self, found: Any, window: Any, pane: Any) -> bool:
        """Whether it may be published."""
        raise NotImplementedError

    def united(self, one: Any, other: Any) -> Any:
        """Both in one; neither is changed."""
        raise NotImplementedError


class GatherPanes(Gather):
    """``(shard, Collected)`` of each pane to the same of all of them."""

    def __init__(self, grid: SlotGrid) -> None:
        self._grid = grid

    def is_empty(self, found: Collected) -> bool:
        """Whether nothing was collected."""
        return not (found.steps or found.closed or found.tickets)

    def is_whole(self, found: Collected, window: Any, pane: Any) -> bool:
        """Whether it is the whole of the window."""
        return is_whole(found, slots_of(self._grid, window).start, pane)

    def united(self, one: Collected, other: Collected) -> Collected:
        """What came in either."""
        return both(one, other)


__all__ = [
    "PIECES",
    "Gather",
    "GatherPanes",
    "SortPanes",
    "is_early",
    "is_on_time",
    "is_whole",
    "slots_of",
    "window_into",
    "windows_of",
]
