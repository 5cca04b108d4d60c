"""``quiltstream check``: what is in the data.

Every number is an exact statistic of the data, and readings are printed as they are, for the operator's eyes: nothing
is charged, no row is published, and no ledger is made or opened; of a topic nothing is committed. Files are decoded as
a run decodes them; all readings are in memory at once, 24 bytes each, and twice while they are sorted. Of topics the
last messages are looked at.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa

from ...schemas.readings import RejectReason
from ...schemas.roster import Roster
from ...schemas.settings.job import Settings, read_roster, read_settings
from ...schemas.settings.readings import Constant
from ...schemas.slots import Schedule, SlotGrid, format_duration, format_instant, time_zone
from ...transforms.common.batches import Floats, Ints, ReadingColumns, reading_columns
from ...transforms.formats.rows import Decoded
from ...transforms.payloads.decoder import PayloadDecoder
from ...transforms.readings.slots import Words, slot_readings, words_of
from ...transforms.sources.files import FileTask, ReadReadings
from ..console import listed, percent, plural, print_json, results, working
from ..crowded import refuse_crowded_stamps
from ..errors import CommandError, ExitCode
from ..forecast import Block, Row, Table
from ..init.rhythm import COUNTER_RISES, most_frequent, rises_in
from ..runners import read_source
from .check_messages import messages_of_topics, schemas_of
from .remarks import APART, far, of_counts, of_values, usual_size

#: Places that are shown for each reason of a reject, and names of series; reasons that are shown; messages of topics
#: that are looked at.
_SHOWN, _REASONS, _SAMPLE = 3, 5, 1_000

#: Files of which the usual values are compared.
_FILES = 1_000

#: Share of the last window that readings may lack at its end.
_ENDED = 0.1


@dataclass(frozen=True)
class Gathered:
    """All readings in the order of their series and times, and the rejects."""

    names: tuple[str, ...]
    series: Ints  # position of each reading's series in ``names``, shape (n,)
    times: Ints  # microseconds since the epoch, shape (n,)
    values: Floats  # in the unit of the edges, shape (n,)
    rejects: dict[RejectReason, tuple[int, list[str]]]  # rows and first places by reason
    files: int  # files that were read
    left_out: tuple[str, ...] = ()  # what matches the patterns and holds nothing, in a line
    moving: tuple[str, ...] = ()  # series that name more than one group
    span: tuple[int, int] | None = None  # the earliest and latest time of the readings; ``None`` without readings
    fell: dict[str, int] = field(default_factory=dict[str, int])  # how often each register that did fell
    usual: dict[str, float] = field(default_factory=dict[str, float])  # the usual size of the values of each file

    def runs(self) -> Iterator[tuple[str, slice]]:
        """Each series with the place of its readings."""
        ends = np.searchsorted(self.series, np.arange(len(self.names)), side="right").tolist()
        yield from zip(self.names, starmap(slice, pairwise([0, *ends])), strict=True)

    def steps(self) -> Ints:
        """Distances between two readings of a series, microseconds, but those of none."""
        steps = np.diff(self.times)[np.diff(self.series) == 0]
        return steps[steps > 0]


def _columns(readings: pa.RecordBatch) -> ReadingColumns:
    return reading_columns(readings, grouped="group" in readings.schema.names)


class _Readings:
    """Readings that come batch by batch."""

    def __init__(self, batches: Iterable[ReadingColumns] = ()) -> None:
        self.numbers: dict[str, int] = {}
        self.groups: set[tuple[str, str]] = set()  # what each series is in
        self._parts: list[tuple[Ints, Ints, Floats]] = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        for one in batches:
            self.add(one)

    def add(self, columns: ReadingColumns) -> None:
        names, good = cast("list[str]", columns.names.to_pylist()), columns.good
        numbers = np.array([self.numbers.setdefault(name, len(self.numbers)) for name in names], dtype=np.int64)
        self._parts.append((numbers[columns.series[good]], columns.times[good], columns.values[good]))
        if columns.groups is not None and columns.group is not None:
            pairs = np.unique(np.stack([columns.series[good], columns.group[good]], axis=1), axis=0).tolist()
            self.groups |= {(names[at], columns.groups[group].as_py()) for at, group in pairs}

    def ordered(self, *, rising: bool = False) -> tuple[tuple[str, ...], Ints, Ints, Floats]:
        """Names, and by name and time each reading's series, time and value; of one time the lowest first, if asked."""
        series, times, values = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        # in the order of the names, so that two readings of the same files say the same
        heard = set(np.unique(series).tolist())
        names = sorted(name for name, number in self.numbers.items() if number in heard)
        rank = np.zeros(len(self.numbers), dtype=np.int64)
        rank[[self.numbers[name] for name in names]] = np.arange(len(names))
        series = rank[series]
        order = np.lexsort((values, times, series) if rising else (times, series))
        return tuple(names), series[order], times[order], values[order]


class TopicSample:
    """The last messages of a job's topics, as a source is read."""

    left_out: tuple[str, ...] = ()
    tasks: tuple[FileTask, ...] = ()

    def __init__(self, settings: Settings, group: str | None) -> None:
        self.messages = messages_of_topics(settings, _SAMPLE)
        if not len(self.messages):
            raise CommandError("source.kafka: its topics have no message to look at", ExitCode.SOURCE)
        self._decoder = PayloadDecoder.of(settings, group=group, schemas=schemas_of(settings))

    def decoded(self) -> Iterator[tuple[str, Decoded]]:
        """Decode them; a place is a topic and an offset."""
        topics = np.array(self.messages.topics)
        for topic in np.unique(topics).tolist():
            for decoded in self._decoder.decode(self.messages.some(np.flatnonzero(topics == topic).tolist())):
                yield topic, decoded


def gather(source: ReadReadings | TopicSample, grid: SlotGrid, words: Words | None) -> Gathered:
    """Read every file of a source as a run does, without Beam; with a word about several rows, as the slots."""
    found, held, some, usual = _Readings(), list[pa.RecordBatch](), set[str](), dict[str, float]()
    rejects: dict[RejectReason, tuple[int, list[str]]] = {}
    for path, decoded in source.decoded():
        some |= {path} if decoded.readings is not None or decoded.rejects or decoded.passed else set()
        for one in decoded.rejects:
            count, places = rejects.get(one.reason, (0, []))
            shown = [*places, *(f"{path}:{position}" for position in one.positions[:_SHOWN].tolist())][:_SHOWN]
            rejects[one.reason] = (count + len(one.positions), shown)
        if decoded.readings is None:
            continue
        columns = _columns(decoded.readings)
        size = usual_size(columns.values[columns.good]) if path not in usual and len(usual) < _FILES else None
        usual |= {} if size is None else {path: size}
        if words is None:
            found.add(columns)
        else:
            held.append(decoded.readings)
    for one in [] if words is None else slot_readings(held, grid, words):
        found.add(_columns(one))
    names, series, times, values = found.ordered()
    stamps, fell = times, dict[str, int]()
    if words is not None and words.register is not None:  # what a counter rises has times of its own
        known, of, stamps, registers = _Readings(map(_columns, held)).ordered(rising=True)
        falls = np.bincount(of[1:][(np.diff(of) == 0) & (np.diff(registers) < 0)], minlength=len(known)).tolist()
        fell = {name: count for name, count in zip(known, falls, strict=True) if count}
    files = sorted({task.path for task in source.tasks})
    rowless = [path for path in files if path not in some]
    said = [f"no row is a reading or a reject in {listed(rowless, _SHOWN)}"] if rowless else []
    moving = sorted(name for name, count in Counter(name for name, _ in found.groups).items() if count > 1)
    span = (int(stamps.min()), int(stamps.max())) if len(times) else None
    left_out = (*source.left_out, *said)
    return Gathered(names, series, times, values, rejects, len(files), left_out, tuple(moving), span, fell, usual)


def check(settings: Settings) -> Table:
    """Look at the data of a job."""
    roster = read_roster(settings)
    only = None if settings.readings is None else settings.readings.series
    if roster is None and isinstance(only, Constant):
        roster = Roster.of([only.constant])
    group = settings.group_by if roster is None and isinstance(settings.group_by, str) else None
    words = words_of(settings.readings, settings.slots.of)
    topics = settings.source is not None and settings.source.kafka is not None
    sample = TopicSample(settings, group) if topics else None
    data = gather(read_source(settings, group) if sample is None else sample, settings.grid, words)
    if words is None:
        refuse_crowded_stamps(settings, data.series, data.times)
    return examine(settings, data, None if topics else roster, 0 if sample is None else len(sample.messages))


def examine(settings: Settings, data: Gathered, roster: Roster | None, messages: int = 0) -> Table:
    """What is to be said of readings, from files or from so many messages."""
    grid, space, schedule = settings.grid, settings.space, settings.schedule
    slots = grid.slots_of(data.times)
    doubled = (np.diff(data.series) == 0) & (np.diff(slots) == 0)
    known = set(data.names if roster is None else roster.series)
    inside = np.array([name in known for name in data.names], dtype=np.bool_)[data.series]
    first = schedule.first if schedule.start is not None else None
    stop = schedule.covered.stop if schedule.bounded else schedule.stop
    early, late = slots < (-math.inf if first is None else first), slots >= (math.inf if stop is None else stop)
    counted = inside & ~early & ~late
    # the readings of a cell follow one another, and count together or not at all
    cells = int(counted.sum() - (doubled & counted[1:]).sum())
    heard = {data.names[at] for at in np.unique(data.series[counted]).tolist()}
    filled = None
    if roster is not None and first is not None and stop is not None:
        filled = cells / (len(roster.series) * (stop - first))
    latest = int(slots[counted].max()) if counted.any() else None
    shares = np.bincount(space.encode(data.values), minlength=space.bins) / max(len(slots), 1)
    numbers = np.bincount(data.series, minlength=max(len(data.names), 1))
    is_register = settings.readings is not None and settings.readings.register_ is not None
    of = {} if space.categories else {name: data.values[at] for name, at in data.runs()}
    rising = (name for name, one in of.items() if len(one) >= COUNTER_RISES and rises_in(one))
    counters = () if is_register else tuple(rising)
    others = {name: usual_size(of[name]) for name in sorted(of.keys() - set(counters))}
    usual = {name: size for name, size in others.items() if size is not None}
    rejects = sorted(data.rejects.items(), key=lambda item: (-item[1][0], item[0]))
    found = SimpleNamespace(
        files=data.files,  # that were read
        readings=len(slots),  # rows that are readings
        series=len(data.names),
        # instants of the earliest and the latest reading, of a counter as it stands in the data; None without readings
        first=None if data.span is None else format_instant(data.span[0]),
        last=None if data.span is None else format_instant(data.span[1]),
        timezone=settings.slots.timezone,
        fewest=int(numbers.min()),  # readings of a series
        most=int(numbers.max()),
        step=most_frequent(data.steps()),  # microseconds, most frequent between two readings of a series
        # the other rows, by reason, with the first places: ``FILE:LINE``, or row of files without lines
        rejected=[{"reason": one.value, "rows": rows, "places": list(places)} for one, (rows, places) in rejects],
        doubled=int(doubled.sum()),  # readings in a cell that had one already
        contradicting=int((doubled & (np.diff(data.values) != 0)).sum()),  # those of another value
        never_fall=counters,  # series whose value rises and never falls, but for a counter that was cleared
        # other series whose usual value is hundreds of times that of the others, or a small part of it
        apart=far(usual, APART),
        bins=dict(zip(space.labels, shares.tolist(), strict=False)),  # share of the readings in each
        not_in_roster=int((~inside).sum()),  # readings of series that the roster does not have
        before=int((inside & early).sum()),  # readings before the first window
        after=int((inside & late).sum()),  # and after the last
        counts=int(counted.sum()),  # readings in a window of a series of the roster
        # share of the cells of the schedule that have a reading; None where schedule or roster is not given
        filled=filled,
        silent=() if roster is None else tuple(name for name in roster.series if name not in heard),
        last_counted=None if latest is None else format_instant(int(data.times[counted].max())),
        unended=0 if latest is None else _unended(schedule, latest),  # windows that end after it
        left_out=data.left_out,  # what matches the patterns and holds nothing
        fell=data.fell,  # how often each register that did fell
        messages=messages,  # that were looked at
    )
    # a sample of topics has no files, and nothing of it counts in a window
    counts = of_counts(found, settings, data, roster) if data.files else ()
    remarks = (*of_values(found, settings, data), *counts)
    where = f"the last {plural(messages, 'message')}" if messages else plural(found.files, "file")
    cells_filled = "" if found.filled is None else f"; {found.filled:.1%} of the cells have one"
    said: list[tuple[str, str]] = [
        ("readings", f"{found.readings:,} in {where}, of {found.series:,} series"),
        *(("left out", line) for line in found.left_out),
        ("span", _on_clock(found.timezone, found.first, found.last)),
        ("zone", f"times without an offset are read in {found.timezone}"),
        ("a series", f"has {found.fewest:,} to {found.most:,} readings"),
        ("apart", "unknown" if found.step is None else f"{format_duration(found.step)}, most often"),
        ("in a bin", ", ".join(f"{label}: {percent(share)}" for label, share in found.bins.items())),
        ("cells", f"{plural(found.doubled, 'duplicate reading')}, {found.contradicting:,} of them with a different "
                  "value"),
        ("outside", f"{found.before:,} before the windows, {found.after:,} after, {found.not_in_roster:,} not in the "
                    "roster"),
        ("counts", f"{plural(found.counts, 'reading')}{cells_filled}"),
        *(("rejected", f"{rows:,}: {one.text} ({', '.join(places)}{' and others' if rows > len(places) else ''})")
          for one, (rows, places) in rejects[:_REASONS]),
        *([] if rejects else [("rejected", "none")]),
    ]  # fmt: skip
    end = "Nothing was charged or published, and no ledger was opened."
    return Table(
        "For the operator only, not to be published: exact statistics of the data",
        (*starmap(Row, vars(found).items()), *(Row(label=label, words=text) for label, text in said)),
        (Block("remarks", "Look at this", remarks), Block("", "", (end,), prose=True)),
        ExitCode.OK if found.counts or (messages and found.readings) else ExitCode.SOURCE,
    )


def _unended(schedule: Schedule, latest: int) -> int:
    """How many windows of a schedule that is given go on after a slot; 0 where the last one has nearly all of its."""
    if not schedule.bounded or not len(schedule):
        return 0
    covered = schedule.covered
    length = covered.stop - schedule.start_before(covered.stop)
    if covered.stop - 1 - latest <= length * _ENDED:
        return 0
    return len(schedule) - schedule.ended_by(latest + 1)


def check_file(path: Path, *, as_json: bool) -> int:
    """Check the data of a settings file, print what was found, return the exit code."""
    settings = read_settings(path)
    with working(f"reading what {path.name} names"):
        found = check(settings)
    if as_json:
        print_json(found.to_dict())
    else:
        found.show(results(), every=True)
    return found.code


def _on_clock(zone: str, first: str | None, last: str | None) -> str:
    """A span of instants as the clock of a zone shows them."""
    if first is None or last is None:
        return "none"
    if zone != "UTC":
        instants = (dt.datetime.fromisoformat(one) for one in (first, last))
        first, last = (instant.astimezone(time_zone(zone)).isoformat() for instant in instants)
    return f"{first} to {last}"
