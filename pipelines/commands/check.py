"""``quiltstream check`` and ``quiltstream try``: what is in the data, and what the settings make of a message.

Every number is an exact statistic of the data, and readings are printed as they are, for the operator's eyes: nothing
is charged, no row is published, and no ledger is made or opened; of a topic nothing is committed. Files are decoded as
a run decodes them; all readings are in memory at once, 24 bytes each, and twice while they are sorted. Of topics the
last messages are looked at. Messages to try come from a file, from standard input, or from the end of the topics.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from rich.console import Console

from ...schemas.files import FileError, read_regular, reason
from ...schemas.readings import RejectReason
from ...schemas.roster import Roster
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings, read_roster, read_settings
from ...schemas.settings.mappings import Constant, Readings
from ...schemas.settings.secrets import located
from ...schemas.slots import Schedule, format_duration, format_instant, parse_instant, time_zone
from ...transforms.common.batches import Floats, Ints, reading_columns
from ...transforms.formats.rows import Decoded
from ...transforms.payloads.avro import SchemaLookup
from ...transforms.payloads.decoder import PayloadDecoder, Trial, Tried
from ...transforms.payloads.messages import Messages, SourceAwayError
from ...transforms.readings.slots import words_of
from ...transforms.sources.files import BySeries, FileTask, ReadReadings, SlotValues, are_messages
from ..console import facts, heading, listed, notes, paragraph, percent, plural, print_json, results, working
from ..crowded import refuse_crowded_stamps
from ..errors import CommandError, ExitCode
from ..init.rhythm import (
    COUNTER_RISES,
    NO_NUMBER,
    clock_changes,
    is_doubled,
    local_times,
    most_frequent,
    rises_in,
    usual_step,
)
from ..runners import read_source

#: Places that are shown for each reason of a reject, and names of series.
_SHOWN = 3

#: A series whose usual value is so many times that of the others is most likely in another unit; and the factor between
#: usual units.
_APART, _THOUSAND = 300.0, 1000.0

#: Times that a series has twice that are looked at.
_TRIED = 10_000

_CLOCK_SET_BACK = (
    "; some are of an hour that a clock set back doubles: if the times have no offset and the rows are in order, "
    "readings.ambiguous: in-order tells the two hours apart"
)

#: A step of the readings that differs from the slots by less is that of a clock that goes wrong.
_NEAR = 0.01

#: Share of the values that may be no number. Numbers that stand for a missing value; and how many readings, and what
#: share of them, have it where it is said.
_FEW_LOST = 0.01
_MISSING = (-1, -9, -99, -999, -9999, 9999, 99999)
_OFTEN, _SELDOM = 3, 0.001

#: What to do about states without a reading.
_OTHER_EDGES = "take edges out of states.edges so that each bin has readings, or fit with --belief pooled --smoothing 1"
_OTHER_LABELS = "take labels without readings out of states.categories, or fit with --belief pooled --smoothing 1"

#: Share of the readings in one bin at which the edges tell nothing of them.
_CROWDED = 0.99

#: Share of the last window that readings may lack at its end.
_ENDED = 0.1


@dataclass(frozen=True, slots=True)
class Rejected:
    """Rows that are no readings for one reason."""

    reason: str
    rows: int  # how many there are
    # the first of them, ``FILE:LINE``, or row of files without lines
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """What is in the data of a job; for the operator only."""

    files: int  # files that were read
    readings: int  # rows that are readings
    series: int  # distinct series among them
    # instant of the earliest reading, of a counter as it stands in the data; ``None`` without readings
    first: str | None
    last: str | None  # instant of the latest
    timezone: str  # zone of times without an offset
    fewest: int  # fewest readings of a series
    most: int  # most readings of a series
    # most frequent distance between two readings of a series, microseconds; ``None`` if there are no two
    step: int | None
    rejected: tuple[Rejected, ...]  # the other rows, by reason
    doubled: int  # readings in a cell that had one already
    contradicting: int  # those of them whose value differs from that of the reading before in the cell
    # series of many readings whose value rises and never falls, but for a counter that was cleared
    never_fall: tuple[str, ...]
    # other series whose usual value is hundreds of times that of the others, or a small part of it
    apart: tuple[str, ...]
    bins: dict[str, float]  # share of the readings in each bin
    not_in_roster: int  # readings of series that the roster does not have
    before: int  # readings before the first window
    after: int  # readings after the last window
    counts: int  # readings in a window of a series of the roster; those of one cell each count here
    # share of the cells of the schedule that have a reading; ``None`` where schedule or roster is not given
    filled: float | None
    silent: tuple[str, ...]  # series of the roster without a reading that counts
    last_counted: str | None  # of the readings that count
    # windows that end after it, where the last of them lacks more than a tenth of its slots
    unended: int
    remarks: tuple[str, ...]  # what to look at
    left_out: tuple[str, ...] = ()  # what matches the patterns and holds nothing, in a line
    fell: dict[str, int] = field(default_factory=dict[str, int])  # how often each register that did fell
    messages: int = 0  # the last messages of topics that were looked at; 0 where the source is files

    @property
    def code(self) -> ExitCode:
        """The exit code: that of a run, which publishes nothing where no reading counts."""
        return ExitCode.OK if self.counts or (self.messages and self.readings) else ExitCode.SOURCE


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

    def runs(self) -> Iterator[tuple[str, slice]]:
        """Each series with the place of its readings."""
        ends = np.searchsorted(self.series, np.arange(len(self.names)), side="right").tolist()
        begin = 0
        for name, end in zip(self.names, ends, strict=True):
            yield name, slice(begin, end)
            begin = end


@dataclass
class _Gathering:
    numbers: dict[str, int] = field(default_factory=dict)
    parts: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    rejects: dict[RejectReason, tuple[int, list[str]]] = field(default_factory=dict)
    groups: set[tuple[str, str]] = field(default_factory=set)  # what each series is in

    def add(self, path: str, decoded: Decoded) -> None:
        for one in decoded.rejects:
            count, places = self.rejects.setdefault(one.reason, (0, []))
            room = _SHOWN - len(places)
            places += [f"{path}:{position}" for position in one.positions[: max(room, 0)].tolist()]
            self.rejects[one.reason] = (count + len(one.positions), places)
        if decoded.readings is not None:
            self.take(decoded.readings)

    def take(self, readings: pa.RecordBatch) -> None:
        columns = reading_columns(readings, grouped="group" in readings.schema.names)
        names = cast("list[str]", columns.names.to_pylist())
        numbers = np.array([self.numbers.setdefault(name, len(self.numbers)) for name in names], dtype=np.int64)
        good = columns.good
        self.parts.append((numbers[columns.series[good]], columns.times[good], columns.values[good]))
        if columns.groups is not None and columns.group is not None:
            pairs = np.unique(np.stack([columns.series[good], columns.group[good]], axis=1), axis=0).tolist()
            self.groups |= {(names[at], columns.groups[group].as_py()) for at, group in pairs}


class TopicSample:
    """The last messages of a job's topics, as a source is read."""

    left_out: tuple[str, ...] = ()
    tasks: tuple[FileTask, ...] = ()

    def __init__(self, settings: Settings, group: str | None) -> None:
        self.messages = messages_of_topics(settings, _SAMPLE)
        if not len(self.messages):
            raise CommandError("source.kafka: its topics have no message to look at", ExitCode.SOURCE)
        self._decoder = PayloadDecoder.of(settings, group=group, schemas=_schemas_of(settings))

    def decoded(self) -> Iterator[tuple[str, Decoded]]:
        """Decode them; a place is a topic and an offset."""
        topics = np.array(self.messages.topics)
        for topic in np.unique(topics).tolist():
            for decoded in self._decoder.decode(self.messages.some(np.flatnonzero(topics == topic).tolist())):
                yield topic, decoded


def gather(source: ReadReadings | TopicSample, by_series: BySeries | None) -> Gathered:
    """Read every file of a source as a run does, without Beam; where rows of a series go together, as the slots."""
    found, held, some = _Gathering(), list[pa.RecordBatch](), set[str]()
    for path, decoded in source.decoded():
        some |= {path} if decoded.readings is not None or decoded.rejects or decoded.passed else set()
        if by_series is not None and decoded.readings is not None:
            held.append(decoded.readings)
            found.add(path, replace(decoded, readings=None))
        else:
            found.add(path, decoded)
    for one in [] if by_series is None else by_series.of(held):
        found.take(one)
    empty = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    series, times, values = (np.concatenate(column) for column in zip(empty, *found.parts, strict=True))
    # in the order of the names, so that two readings of the same files say the same
    numbers = set(np.unique(series).tolist())
    names = sorted(name for name, number in found.numbers.items() if number in numbers)
    rank = np.zeros(max(len(found.numbers), 1), dtype=np.int64)
    rank[[found.numbers[name] for name in names]] = np.arange(len(names))
    series = rank[series] if len(series) else series
    order = np.lexsort((times, series))
    # what a counter rises has times of its own
    is_register = isinstance(by_series, SlotValues) and by_series.words.register is not None
    as_held = (columns.times[columns.good] for columns in map(reading_columns, held))
    stamps = np.concatenate([times[:0], *as_held]) if is_register else times
    span = (int(stamps.min()), int(stamps.max())) if len(times) else None
    files = sorted({task.path for task in source.tasks})
    rowless = [path for path in files if path not in some]
    said = [f"no row is a reading or a reject in {listed(rowless, _SHOWN)}"] if rowless else []
    times_named = Counter(name for name, _ in found.groups)
    moving = tuple(sorted(name for name, count in times_named.items() if count > 1))
    return Gathered(
        tuple(names),
        series[order],
        times[order],
        values[order],
        found.rejects,
        len(files),
        (*source.left_out, *said),
        moving,
        span,
        _fell(held) if is_register else {},
    )


def _fell(held: Sequence[pa.RecordBatch]) -> dict[str, int]:
    """How often the registers of each series are lower than before; of readings of one time the lowest is first."""
    found = _Gathering()
    for one in held:
        found.take(one)
    if not found.parts:
        return {}
    series, times, values = (np.concatenate(column) for column in zip(*found.parts, strict=True))
    order = np.lexsort((values, times, series))
    series, values = series[order], values[order]
    falls = np.bincount(series[1:][(np.diff(series) == 0) & (np.diff(values) < 0)], minlength=len(found.numbers))
    return {name: int(falls[number]) for name, number in sorted(found.numbers.items()) if falls[number]}


def check(settings: Settings) -> Checked:
    """Look at the data of a job."""
    roster = read_roster(settings)
    only = None if settings.readings is None else settings.readings.series
    if roster is None and isinstance(only, Constant):
        roster = Roster.of([only.constant])
    group = settings.group_by if roster is None and isinstance(settings.group_by, str) else None
    words = words_of(settings.readings, settings.slots.of)
    if settings.source is not None and settings.source.kafka is not None:
        sample = TopicSample(settings, group)
        data = gather(sample, None)
        if words is None:
            refuse_crowded_stamps(settings, data.series, data.times)
        return replace(examine(settings, data, None), messages=len(sample.messages))
    source = read_source(settings, group, settings.schedule)
    by_series = source.by_series if words is None else SlotValues(words, settings.grid)
    data = gather(source, by_series)
    if by_series is None:
        refuse_crowded_stamps(settings, data.series, data.times)
    return examine(settings, data, roster)


def examine(settings: Settings, data: Gathered, roster: Roster | None) -> Checked:
    """What is to be said of readings."""
    grid, space, schedule = settings.grid, settings.space, settings.schedule
    slots = grid.slots_of(data.times)
    doubled = (np.diff(data.series) == 0) & (np.diff(slots) == 0)
    known = None if roster is None else set(roster.series)
    inside = np.ones(len(slots), dtype=np.bool_)
    if known is not None:
        inside = np.array([name in known for name in data.names], dtype=np.bool_)[data.series] if len(slots) else inside
    first = schedule.first if schedule.start is not None else None
    stop = schedule.covered.stop if schedule.bounded else schedule.stop
    early = np.zeros(len(slots), dtype=np.bool_) if first is None else slots < first
    late = np.zeros(len(slots), dtype=np.bool_) if stop is None else slots >= stop
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
    counters = () if is_register or space.categories else tuple(_counters(data))
    found = Checked(
        files=data.files,
        readings=len(slots),
        series=len(data.names),
        first=None if data.span is None else format_instant(data.span[0]),
        last=None if data.span is None else format_instant(data.span[1]),
        timezone=settings.slots.timezone,
        fewest=int(numbers.min()),
        most=int(numbers.max()),
        step=most_frequent(_steps(data)),
        rejected=tuple(
            Rejected(one.value, rows, tuple(places)) for one, (rows, places) in sorted(data.rejects.items())
        ),
        doubled=int(doubled.sum()),
        contradicting=int((doubled & (np.diff(data.values) != 0)).sum()),
        never_fall=counters,
        apart=() if space.categories else tuple(_apart(data, frozenset(counters))),
        bins=dict(zip(space.labels, shares.tolist(), strict=False)),
        not_in_roster=int((~inside).sum()),
        before=int((inside & early).sum()),
        after=int((inside & late).sum()),
        counts=int(counted.sum()),
        filled=filled,
        silent=() if roster is None else tuple(name for name in roster.series if name not in heard),
        last_counted=None if latest is None else format_instant(int(data.times[counted].max())),
        unended=0 if latest is None else _unended(schedule, latest),
        remarks=(),
        left_out=data.left_out,
        fell=data.fell,
    )
    # a sample of topics has no files, and nothing of it counts in a window
    counts = _of_counts(found, settings, data, roster) if data.files else ()
    return replace(found, remarks=(*_of_values(found, settings, data), *counts))


def _unended(schedule: Schedule, latest: int) -> int:
    """How many windows of a schedule that is given go on after a slot; 0 where the last one has nearly all of its."""
    if not schedule.bounded or not len(schedule):
        return 0
    covered = schedule.covered
    length = covered.stop - schedule.start_before(covered.stop)
    if covered.stop - 1 - latest <= length * _ENDED:
        return 0
    return len(schedule) - schedule.ended_by(latest + 1)


def _counters(data: Gathered) -> Iterator[str]:
    """Series of many readings whose value rises as that of a meter's counter."""
    for name, at in data.runs():
        values = data.values[at]
        if len(values) >= COUNTER_RISES and rises_in(values):
            yield name


def _apart(data: Gathered, counters: frozenset[str]) -> Iterator[str]:
    """Series whose usual value is far from that of the others, by orders of magnitude, but for counters."""
    usual: dict[str, float] = {}
    for name, at in data.runs():
        if name in counters:
            continue
        sizes = np.abs(data.values[at])
        sizes = sizes[sizes > 0]
        if len(sizes):
            usual[name] = float(np.median(sizes))
    middle = float(np.median(list(usual.values()))) if usual else 0.0
    yield from (name for name, size in usual.items() if not middle / _APART < size < middle * _APART)


def _of_values(found: Checked, settings: Settings, data: Gathered) -> Iterator[str]:
    """What to look at in the values and times: counters, units, edges, the interval."""
    interval = settings.grid.interval_us
    if found.never_fall:
        yield (
            f"{_named(found.never_fall)} never fall{'s' if len(found.never_fall) == 1 else ''}, or once to less than "
            "half, as a meter's counter does: if they count, set readings.register: {gap: 2h}, so that a slot has what "
            "the counter rose in it"
        )
    if found.fell:
        yield (
            f"the {'counter' if len(found.fell) == 1 else 'counters'} of {_named(tuple(found.fell))} fell, "
            f"{plural(sum(found.fell.values()), 'time')} in all: a fall that stays is a gap, unless "
            "readings.register.over_end says where it begins at 0 again; look whether the rows of two meters share a "
            "name"
        )
    lost = sum(one.rows for one in found.rejected if one.reason == RejectReason.NOT_A_NUMBER)
    share = lost / max(found.readings + sum(one.rows for one in found.rejected), 1)
    if share > _FEW_LOST:
        yield f"{percent(share)} of the values are no number, and are rejected: {NO_NUMBER}"
    yield from _clock_changes(settings, data)
    yield from _stand_ins(settings, data)
    if found.apart:
        yield (
            f"the usual value of {_named(found.apart)} is more than {_APART:g} times, or less than a {_APART:g}th of, "
            "that of the others: look whether they are in another unit, such as W and kW"
        )
    empty = [label for label, share in found.bins.items() if share == 0]
    if found.readings and empty:
        yield (
            f"no reading is in {', '.join(map(repr, empty))}: fit refuses a state that no history visits; "
            + (_OTHER_LABELS if settings.space.categories else _OTHER_EDGES)
        )
    label, share = max(found.bins.items(), key=lambda pair: pair[1])
    if found.readings and share >= _CROWDED and not settings.space.categories:
        text = f"{share:.1%} of the values are in the bin {label!r}"
        # a counter is beyond the edges whatever its unit
        for factor in () if found.never_fall else (_THOUSAND, 1 / _THOUSAND):
            other = np.bincount(settings.space.encode(data.values * factor), minlength=settings.space.bins)
            if other.max() < _CROWDED * found.readings:
                text += f"; times {factor:g} they would spread over the bins: look at readings.scale and the units"
                break
        yield text
    step = usual_step(_steps(data), interval) or interval
    lost = 1 - interval / max(step, interval)  # of the cells
    if lost >= _NEAR:
        yield (
            f"most readings of a series are {format_duration(step)} apart, and slots.interval is "
            f"{format_duration(interval)}: about {lost:.0%} of the cells stay empty"
        )


def _clock_changes(settings: Settings, data: Gathered) -> Iterator[str]:
    """An hour of a Sunday night that most series have twice, or not, as where times are of a clock that is set."""
    if _doubles_an_hour(settings, data):
        return
    for evidence in clock_changes(data.series, data.times, len(data.names)):
        yield f"{local_times(evidence, 'slots.timezone')}, not {settings.slots.timezone}"


def _stand_ins(settings: Settings, data: Gathered) -> Iterator[str]:
    """Values such as -999 that come again and again, and are further from all others than these from each other."""
    readings = settings.readings
    if settings.space.categories or (readings is not None and readings.register_ is not None):
        return
    with np.errstate(over="ignore", invalid="ignore"):
        values, counts = np.unique(data.values / (1.0 if readings is None else readings.scale), return_counts=True)
        found = {one: np.isclose(values, one, rtol=1e-9) for one in _MISSING}
        others = values[~np.logical_or.reduce(list(found.values()))]
        if not len(others):
            return
        usual = np.quantile(np.diff(others), _CROWDED) if len(others) > 1 else 0.0
    for one, at in found.items():
        count = int(counts[at].sum())
        is_far = one < others[0] - usual or one > others[-1] + usual
        if is_far and count >= _OFTEN and count > _SELDOM * len(data.values):
            yield (
                f"{plural(count, 'reading')} have the value {one}, far from all others: where it stands for a missing "
                "value, leave them out of the data"
            )


def _alike(names: Sequence[str]) -> int:
    """How many names are as another one without blanks around them and with composed letters (Unicode's form NFC)."""
    forms = Counter(unicodedata.normalize("NFC", name.strip()) for name in set(names))
    return sum(count for count in forms.values() if count > 1)


def _of_counts(found: Checked, settings: Settings, data: Gathered, roster: Roster | None) -> Iterator[str]:
    """What to look at in what counts: contradictions, and what no window, roster or group has."""
    if count := _alike([*data.names, *([] if roster is None else roster.series)]):
        yield (
            f"{count:,} names of series differ from another one by blanks around it, or by the Unicode form of a "
            "letter, alone: each is a series of its own, because names count by their characters; write each name in "
            "one way"
        )
    if data.moving:
        yield (
            f"{_named(data.moving)} name{'s' if len(data.moving) == 1 else ''} more than one group: a run takes that "
            "of the earliest reading and rejects the readings of others, which are counted above; correct the column, "
            "or give a roster"
        )
    if found.contradicting:
        which = (
            "the label that is later in states.categories" if settings.space.categories else "that in the higher bin"
        )
        yield (
            f"{plural(found.contradicting, 'reading')} {'is' if found.contradicting == 1 else 'are'} in a cell that "
            f"had another value: the latest counts, of equally late ones {which}"
            + (_CLOCK_SET_BACK if _doubles_an_hour(settings, data) else "")
        )
    if found.silent:
        yield f"no reading counts of {_named(found.silent)} of the roster: a typing error, or gone?"
    if found.not_in_roster:
        share = percent(found.not_in_roster / found.readings)
        yield f"{share} of the readings are of series that the roster does not have"
    if outside := found.before + found.after:
        yield f"{percent(outside / found.readings)} of the readings are before the first window or after the last"
    if found.unended and found.last_counted is not None:
        yield _goes_on(found.unended, found.last_counted, settings)
    if not found.counts:
        yield "no reading counts: a run stops before anything is charged, with exit code 5"


def _goes_on(unended: int, last: str, settings: Settings) -> str:
    """What to do about windows that end after the last reading, which a job over data that end publishes for ever."""
    schedule = settings.schedule
    ends, them = ("ends", "it as it is") if unended == 1 else ("end", "them as they are")
    text = (
        f"the last reading that counts is of {last}, and {unended:,} of the {plural(len(schedule), 'window')} {ends} "
        f"later: quiltstream run would publish {them} now, for ever; wait for their readings"
    )
    if (ended := len(schedule) - unended) > 0:
        (start,) = schedule.starts_ended(ended - 1, ended)
        stop = format_instant(settings.grid.time_of(schedule.window_at(start).stop))
        text += f", or set windows.stop to {stop}: a later run may have a later one"
    return text


def _doubles_an_hour(settings: Settings, data: Gathered) -> bool:
    """Whether a series has a time twice that two instants may be, which the settings take for the earlier or later."""
    if settings.readings is None or settings.readings.ambiguous == "in-order":
        return False
    zone = time_zone(settings.slots.timezone)
    same = (np.diff(data.series) == 0) & (np.diff(data.times) == 0)
    for stamp in np.unique(data.times[1:][same])[:_TRIED].tolist():
        if is_doubled(dt.datetime.fromtimestamp(stamp // 1_000_000, zone)):
            return True
    return False


def _steps(data: Gathered) -> Ints:
    """Distances between two readings of a series, microseconds, but those of none."""
    steps = np.diff(data.times)[np.diff(data.series) == 0]
    return steps[steps > 0]


def _named(names: tuple[str, ...]) -> str:
    return f"{len(names):,} series ({listed(names, _SHOWN)})"


def check_file(path: Path, *, as_json: bool) -> int:
    """Check the data of a settings file, print what was found, return the exit code."""
    settings = read_settings(path)
    with working(f"reading what {path.name} names"):
        found = check(settings)
    if as_json:
        print_json(asdict(found))
    else:
        show(results(), found)
    return found.code


def _on_clock(zone: str, first: str | None, last: str | None) -> str:
    """A span of instants as the clock of a zone shows them."""
    if first is None or last is None:
        return "none"
    if zone != "UTC":
        instants = (dt.datetime.fromisoformat(one) for one in (first, last))
        first, last = (instant.astimezone(time_zone(zone)).isoformat() for instant in instants)
    return f"{first} to {last}"


def show(console: Console, found: Checked) -> None:
    """Print what was found."""
    heading(console, "For the operator only, not to be published: exact statistics of the data")
    where = f"the last {plural(found.messages, 'message')}" if found.messages else plural(found.files, "file")
    rows: list[tuple[str, Any]] = [
        ("readings", f"{found.readings:,} in {where}, of {found.series:,} series"),
        *(("left out", line) for line in found.left_out),
        ("span", _on_clock(found.timezone, found.first, found.last)),
        ("zone", f"times without an offset are read in {found.timezone}"),
        ("a series", f"has {found.fewest:,} to {found.most:,} readings"),
        ("apart", "unknown" if found.step is None else f"{format_duration(found.step)}, most often"),
        ("in a bin", ", ".join(f"{label}: {percent(share)}" for label, share in found.bins.items())),
        ("cells", f"{plural(found.doubled, 'reading')} in a cell that had one, {found.contradicting:,} another value"),
        ("outside", f"{found.before:,} before the windows, {found.after:,} after, {found.not_in_roster:,} not in the "
                    "roster"),
        ("counts", f"{plural(found.counts, 'reading')}"
                   + ("" if found.filled is None else f"; {found.filled:.1%} of the cells have one")),
    ]  # fmt: skip
    for one in found.rejected:
        places = ", ".join(one.places) + (" and others" if one.rows > len(one.places) else "")
        rows.append(("rejected", f"{one.rows:,}: {RejectReason(one.reason).text} ({places})"))
    facts(console, rows if found.rejected else [*rows, ("rejected", "none")])
    if found.remarks:
        heading(console, "Look at this")
        notes(console, found.remarks)
    paragraph(console, "Nothing was charged or published, and no ledger was opened.")


#: Messages of topics that are looked at.
_SAMPLE = 1_000

#: Bytes of a file of messages, or of standard input.
_MOST = 1 << 26

_STDIN = "-"

#: Lines of a payload that are looked at for documents.
_TRIED_LINES = 10


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside the payload of messages from a file."""

    topic: str = ""  # of messages whose line does not say it
    key: str = ""  # the key; empty for none
    headers: tuple[str, ...] = ()  # each NAME=VALUE
    stamp: str = ""  # the broker's stamp as an instant; empty for now
    lines: bool = False  # whether each line is a message
    topics: bool = False  # whether each line is a topic, a blank and a payload, as ``mosquitto_sub -v`` prints them


def messages_of_file(given: str, beside: Beside) -> Messages:
    """The messages of a file, or of standard input."""
    body = _read(given)
    if not (beside.lines or beside.topics):
        payloads, topics = [body], [beside.topic]
    else:
        lines = [line for line in body.split(b"\n") if line.strip()]
        split = [line.partition(b" ") if beside.topics else (beside.topic.encode(), b"", line) for line in lines]
        payloads, topics = [one[2] for one in split], [one[0].decode("utf-8", "replace") for one in split]
    if not payloads or not body:
        raise CommandError(
            f"{given}: it holds no message; give a file with one, or lines with --lines", ExitCode.SOURCE
        )
    try:
        stamp = parse_instant(beside.stamp, "UTC") if beside.stamp else time.time_ns() // 1_000
    except ValueError as error:
        raise CommandError(f"--stamp: {error}") from None
    count = len(payloads)
    headers = tuple((name, value.encode()) for name, _, value in (one.partition("=") for one in beside.headers))
    return Messages(
        payloads=payloads,
        topics=topics,
        keys=[beside.key.encode() or None] * count,
        headers=[headers] * count,
        stamps_us=np.full(count, stamp, dtype=np.int64),
        positions=np.arange(count, dtype=np.int64),
    )


def _read(given: str) -> bytes:
    if given == _STDIN:
        body = sys.stdin.buffer.read(_MOST + 1)
        if len(body) > _MOST:
            raise CommandError(f"standard input has more than {_MOST:,} bytes; give fewer messages", ExitCode.SOURCE)
        return body
    try:
        return read_regular(Path(given), _MOST)
    except OSError as error:
        text = str(error) if isinstance(error, FileError) else f"{given}: cannot be read ({reason(error)})"
        raise CommandError(text, ExitCode.SOURCE) from None


def messages_of_topics(settings: Settings, count: int) -> Messages:
    """The last messages of the topics that the settings name; nothing is committed."""
    source = None if settings.source is None else settings.source.kafka
    if source is None:
        raise SettingsError(["--from-topic reads source.kafka, and the settings have none; give a FILE, or - "])
    from ...transforms.kafka.client import Cluster, KafkaUnavailableError  # noqa: PLC0415 - of an extra
    from ...transforms.kafka.source import last_messages  # noqa: PLC0415

    cluster = Cluster(source.servers, located(source.options, settings.path))
    try:
        return last_messages(cluster, source.all_topics, count)
    except KafkaUnavailableError as error:
        raise CommandError(f"source.kafka: {error}", ExitCode.SOURCE) from error


def trial_of(settings: Settings) -> Trial:
    """What tries messages as a job reads them."""
    readings = settings.readings
    if readings is None:
        raise SettingsError(["readings is missing: it says where the parts of a reading are in a message"])
    source = settings.source
    if source is not None and source.section is None and not are_messages(source.format, readings):
        readings.check_columns()  # as a run does
    group = settings.group_by if settings.roster is None and isinstance(settings.group_by, str) else None
    return Trial(readings, settings.slots.timezone, group, _schemas_of(settings))


def _schemas_of(settings: Settings) -> SchemaLookup | None:
    """Where the schemas of messages are; ``None`` where their payloads name none."""
    kafka = None if settings.source is None else settings.source.kafka
    if settings.readings is None or settings.readings.payload != "avro" or kafka is None or kafka.registry is None:
        return None
    from ...transforms.kafka.schema_registry import RegistrySchemas  # noqa: PLC0415 - of an extra

    return RegistrySchemas(kafka.registry.url, located(kafka.registry.options, settings.path))


def try_file(path: Path, given: str | None, beside: Beside, *, from_topic: int | None, as_json: bool) -> int:
    """Try messages by a settings file, print what became of each, return the exit code."""
    if (given is None) == (from_topic is None):
        raise CommandError("give a FILE of messages (- for standard input), or --from-topic N")
    settings = read_settings(path)
    trial = trial_of(settings)
    messages = messages_of_file(given, beside) if given is not None else messages_of_topics(settings, from_topic or 1)
    try:
        tried = [_with_lines(*pair) for pair in zip(trial.of(messages), messages.payloads, strict=True)]
    except SourceAwayError as error:
        raise CommandError(f"source.kafka.registry: {error}", ExitCode.SOURCE) from error
    if as_json:
        print_json([asdict(one) for one in tried])
    else:
        show_tried(results(), tried, settings)
    return ExitCode.OK if any(one.readings for one in tried) else ExitCode.SOURCE


def _with_lines(one: Tried, payload: bytes | None) -> Tried:
    """The same with what to do where a payload is malformed because it has a document in each line."""
    lines = [line for line in (payload or b"").splitlines() if line.strip()]
    is_malformed = (one.rejected or "").startswith(RejectReason.MALFORMED_ROW.value)
    if not is_malformed or not lines[1:] or not all(map(_is_document, lines[:_TRIED_LINES])):
        return one
    hint = "where a payload has a document in each, set readings.payload: ndjson; where each is a message, give --lines"
    return replace(one, rejected=f"{one.rejected}; it has {plural(len(lines), 'line')}: {hint}")


def _is_document(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except (ValueError, RecursionError):
        return False


#: Readings of one message that are printed.
_SHOWN_READINGS = 10


def show_tried(console: Console, tried: Sequence[Tried], settings: Settings) -> None:
    """Print what became of messages."""
    readings = settings.readings or Readings.model_construct()
    unit = settings.states.unit
    labels = settings.space.labels
    for number, one in enumerate(tried, 1):
        heading(
            console, f"Message {number}" + (f" of {one.topic}" if one.topic else "") + f", {plural(one.size, 'byte')}"
        )
        rows: list[tuple[str, str]] = []
        for series, instant, value in one.readings[:_SHOWN_READINGS]:
            bin_ = labels[int(settings.space.encode(np.array([value]))[0])]
            rows.append(("reading", f"{series}  {instant}  {value:g}{f' {unit}' if unit else ''}  (bin {bin_})"))
        if len(one.readings) > _SHOWN_READINGS:
            rows.append(("", f"and {len(one.readings) - _SHOWN_READINGS:,} more"))
        if one.passed is not None:
            rows.append(("passed over", one.passed))
        if one.rejected is not None:
            rows.append(("rejected", one.rejected))
        facts(console, rows)
    heading(console, "For the operator only, not to be published")
    found = sum(len(one.readings) for one in tried)
    passed, lost = sum(one.passed is not None for one in tried), sum(one.rejected is not None for one in tried)
    paragraph(
        console,
        f"{plural(len(tried), 'message')}: {plural(found, 'reading')}, {passed:,} passed over, {lost:,} rejected. "
        + ("Names become pseudonyms in a run. " if readings.pseudonyms is not None else "")
        + "A counter is shown as it stands; a run takes what it rises in a slot. "
        + "Nothing was charged or published, and no ledger was opened.",
    )
