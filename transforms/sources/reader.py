"""The live reader: an unbounded splittable DoFn over the partitions of a source.

It checkpoints itself after some rows or some time, because portable runners never request it, and requests another
call. What a runner keeps of a partition is its :class:`PartitionState`: offset and watermark. The watermark is the
latest reading less the allowed lateness, and a reading counts for no more than the instant at which it came (see
:meth:`.contract.SourceBatch.vote`). It moves only when nothing more was waiting, so a backlog of files may be in any
order. A partition that is silent for longer than ``idle`` no longer holds windows back. When a source ends, a schedule
with an end is complete up to now, as in a batch job; an endless one stays where its watermark is. A partition that
mixes several sources follows the slowest of them (see :mod:`.progress`).

Each batch says how far its partition had come before it, and each move of the watermark is declared by a punctuation
(see :mod:`..completeness`) *before* the watermark follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PBegin, TaggedOutput
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.shared import Shared
from apache_beam.utils.timestamp import Duration, Timestamp

from ...schemas.files import keep_memory_private
from ...schemas.readings import RejectReason
from ...store.codec import now_us
from ..common.batches import DECODED, METRICS, PASSED_OVER, counter_name, decoded_reject_batch, typed
from ..completeness import Arrived, FromSource, Punctuation, Steps
from .contract import BEGIN, PartitionedSource, Reader, SourceBatch, not_ahead
from .files import DecodedReadings
from .progress import (
    Heartbeat,
    PartitionState,
    PartitionTracker,
    Reach,
    Restriction,
    SpanCoder,
    activity_of,
    left_out,
    waited_for,
    watermark_of,
)

REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class PollingPolicy:
    """When a live reader closes windows and how often it looks."""

    begin_us: int  # windows that end by this instant are on record or before the schedule; nothing of them is read
    lateness_us: int = 0  # how far behind its latest reading a part's clock stays
    idle_us: int | None = None  # how long a silent part holds windows back; ``None``: for ever
    poll_s: float = 1.0  # seconds between two looks at a source that had nothing
    end_us: int | None = None  # end of the last window; the reader stops there. ``None``: never
    # seconds that a call goes on looking at a source that has nothing, before it hands the rest back. It costs nothing
    # but a checkpoint that waits so long, and pays where a runner keeps what is handed back
    stay_s: float = 0.0
    # seconds that the runner is to wait at least before the next call, which reads the longer for it. Flink forgets a
    # rest that it is to take up again at once
    rest_s: float = 0.0
    # whether all parts are read in one process, on a runner that would close a window by the watermark of one of them:
    # then none is ahead of what the runner keeps of the slowest
    together: bool = False
    steps: Steps | None = (
        None  # where the windows lie, so that readings of windows to come are rejected; ``None``: none
    )

    @property
    def look_us(self) -> int:
        """What counts as silence of the time between two looks at most: a quarter of ``idle``, unless looks are rarer.

        They may be twice as far apart as they are meant to be.
        """
        return max((self.idle_us or 0) // 4, round(2e6 * max(self.poll_s, self.rest_s)))


#: What one call reads before it hands the rest back.
_CALL_ROWS = 1 << 20
_CALL_S = 1.0

#: So many times more where the runner rests after each call.
_LONGER = 10.0

#: Added to the whole seconds of a pause: Beam takes off what passes until the runner hears of it.
_PAUSE_MARGIN_S = 0.1

#: Seconds that a reader lets pass at most without a sign of life, however rarely it looks at its source.
_BEAT_S = 10.0


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the source of a partition, and how far the partition has come by that."""

    policy: PollingPolicy
    part: int
    parts: int  # how many partitions there are
    now: int
    before: PartitionState
    batch: SourceBatch | None
    sources: Mapping[str, Reach] | None
    trouble: str | None
    ended: bool

    @property
    def nothing(self) -> bool:
        """Whether it has found nothing: no batch, or one that says only that nothing is known without an answer."""
        batch = self.batch
        if batch is None:
            return True
        return (
            self.trouble is not None and not (batch.rows or batch.rejected) and batch.position == self.before.position
        )

    @property
    def _reach(self) -> Mapping[str, Reach]:
        """How far the reader has come in each source; a partition that is one source has an empty name for it."""
        if self.sources is not None:
            return self.sources
        return {"": Reach.END if self.batch is None and self.trouble is None else Reach.UNKNOWN}

    def step(self) -> tuple[PartitionState, Punctuation | None]:
        """How far the partition has come, and what it declares by that."""
        policy, before, batch, now, reach = self.policy, self.before, self.batch, self.now, self._reach
        after, said, alone = before, None, self.sources is None
        if batch is not None:
            after, latest = replace(before, position=batch.position, lost_us=batch.lost_us), batch.vote(now)
            name = "" if alone else batch.source
            # where there is one source, a batch of nothing but rejects is no silence of it either
            if name is not None and (alone or latest is not None or batch.speaks(now)):
                said = name, latest
        heard = activity_of(before.sources, reach, now, said, idle_us=policy.idle_us, look_us=policy.look_us)
        settled = all(one is Reach.END for one in reach.values()) if batch is None else batch.settled
        come = watermark_of(heard, reach, now_us=now, lateness_us=policy.lateness_us, idle_us=policy.idle_us)
        # a backlog of files may be in any order; the readings of each of several sources are in theirs
        clock = before.clock_us if come is None or (alone and not settled) else max(before.clock_us, come)
        if self.ended and policy.end_us is not None:
            clock = max(clock, min(policy.end_us, now))
        if policy.end_us is not None:
            # what lies behind the end is another job's, though this one may have seen readings of it
            clock = max(before.clock_us, min(clock, policy.end_us))
        over = self.ended or (policy.end_us is not None and clock >= policy.end_us)
        after = replace(after, clock_us=clock, followed=before.followed or settled, over=over, sources=heard)
        if clock <= before.clock_us:
            return after, None
        silent = {} if self.ended else left_out(heard, reach, now_us=now, idle_us=policy.idle_us)
        # how far sources had come by themselves that are not waited for
        behind = [before.clock_us if at is None else min(at, now) - policy.lateness_us for at in silent.values()]
        silent_us = min(behind, default=None)
        lost_us = after.lost_us
        if lost_us is not None and policy.steps is not None:
            lost_us += (
                policy.steps.before_us
            )  # what is lost may be missed by windows that a reading moves after its own
        said = Punctuation(
            self.part,
            self.parts,
            before.clock_us,
            clock,
            replayed=not before.followed,
            lost_us=lost_us,
            silent_us=silent_us if silent_us is not None and silent_us < clock else None,
        )
        return after, said

    def left_out(self, state: PartitionState) -> tuple[str, ...]:
        """The sources that had readings and are silent, so that windows are closed without them."""
        found = left_out(state.sources, self._reach, now_us=self.now, idle_us=self.policy.idle_us)
        return tuple(name for name, latest_us in found.items() if name and latest_us is not None)

    def waited_for(self, state: PartitionState) -> tuple[str, ...]:
        """The sources without a reading that hold windows back."""
        found = waited_for(state.sources, self._reach, now_us=self.now, idle_us=self.policy.idle_us)
        return tuple(filter(None, found))


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of a reader: how much it reads at most, and what it has found so far."""

    seconds: float  # how long it reads
    rows_left: float
    deadline: float  # when it ends, in monotonic seconds
    stay: float  # until when it goes on looking where there was nothing, in monotonic seconds
    waited: bool = False  # whether a look has found nothing
    sent: bool = False  # whether something was sent, which goes on when the call ends

    @classmethod
    def of(cls, policy: PollingPolicy, parts: int, now: float) -> Turn:
        """One that begins now; parts of one worker wait for each other."""
        longer = max(1.0, _LONGER / parts) if policy.rest_s else 1.0
        return cls(_CALL_S * longer, _CALL_ROWS * longer, now + _CALL_S * longer, now + policy.stay_s / parts)

    def goes_on(self, now: float) -> bool:
        """Whether there is to be another look."""
        return self.rows_left > 0 and now < self.deadline

    def after(self, rows: int, *, nothing: bool, sent: bool) -> Turn:
        """After a look."""
        waited, sent = self.waited or nothing, self.sent or sent or not nothing
        return replace(self, rows_left=self.rows_left - rows, waited=waited, sent=sent)

    def may_wait(self, until: float) -> bool:
        """Whether it may wait for the next look until then."""
        return not self.sent and until <= self.stay


class PartitionRestrictions(RestrictionProvider):
    """Restrictions of the partitions that a DoFn reads, one without end for each."""

    def create_tracker(self, restriction: Restriction) -> PartitionTracker:
        """A tracker of a restriction."""
        return PartitionTracker(restriction)

    def restriction_size(self, element: int, restriction: Restriction) -> int:
        """One: how much will come is unknown."""
        return 1

    def restriction_coder(self) -> Coder:
        """JSON."""
        return SpanCoder()

    def split(self, element: int, restriction: Restriction) -> Generator[Restriction]:
        """Never: the order in a partition carries its watermark."""
        yield restriction

    def truncate(self, element: int, restriction: Restriction) -> None:
        """A drained job stops at once; what is not declared complete is not published."""


class ReadPart(beam.DoFn, PartitionRestrictions):
    """Numbers of partitions to record batches of readings and punctuations; rejects go to the output ``rejected``."""

    def __init__(
        self,
        source: PartitionedSource,
        policy: PollingPolicy,
        now: Callable[[], int] = now_us,
    ) -> None:
        self._source = source
        self._policy = policy
        self._now = now
        self._readers: dict[int, tuple[str, Reader]] = {}
        self._look_at: dict[int, float] = {}
        self._out: dict[int, frozenset[str]] = {}
        # of this job's readers of one process
        self._shared = Shared() if policy.together and source.parts > 1 else None

    def __getstate__(self) -> dict[str, Any]:
        """Readers, and when they look, belong to a worker and do not travel."""
        return {**self.__dict__, "_readers": {}, "_look_at": {}, "_out": {}}

    def setup(self) -> None:
        """Make the counters; they belong to the worker."""
        keep_memory_private()
        if self._shared is not None:
            self._kept: _Kept = self._shared.acquire(_Kept)
        self._decoded = Metrics.counter(METRICS, DECODED)
        self._ahead = Metrics.counter(METRICS, "readings-ahead")
        self._polls = Metrics.counter(METRICS, "polls")
        self._fell_silent = Metrics.counter(METRICS, "sources-left-out")
        self._behind = Metrics.distribution(METRICS, "watermark-behind-ms")

    def teardown(self) -> None:
        """Close the readers."""
        for _, reader in self._readers.values():
            reader.close()
        self._readers = {}

    # The restriction

    def initial_restriction(self, element: int) -> Restriction:
        """From the beginning, without end."""
        return Restriction(PartitionState(BEGIN, self._policy.begin_us))

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Read what is there of one part, then hand the rest back."""
        start: PartitionState = tracker.current_restriction().start
        self._noted(element, start)
        reader, kept = self._reader_at(element, start.position), False
        try:
            kept = self._waits(element, start, reader, tracker, estimator)
            if not kept:
                kept = yield from self._follow(element, start, reader, tracker, estimator)
        finally:
            # a reader that is never called again must not go on taking messages beside the next one
            if not kept:
                reader.close()

    def _waits(self, part: int, start: PartitionState, reader: Reader, tracker: Any, estimator: Any) -> bool:
        """Whether it is not time to look yet: then nothing is read, and the heartbeat of the worker goes on.

        A source that cannot be reached any more is looked at at once, so that the look reports it.
        """
        left = self._look_at.pop(part, 0.0) - time.monotonic()
        if left <= 0 or not reader.check():
            return False
        self._polls.inc()
        Heartbeat.of(part).live()
        self._advance(part, estimator, start)
        self._readers[part] = (start.position, reader)
        tracker.defer_remainder(self._pause(part, left))
        return True

    def _follow(
        self, element: int, start: PartitionState, reader: Reader, tracker: Any, estimator: Any
    ) -> Generator[Any, None, bool]:
        """Read for a while; whether the reader waits for the next call."""
        progress = start
        self._polls.inc()
        self._advance(element, estimator, progress)
        turn = Turn.of(self._policy, self._source.parts, time.monotonic())
        while turn.goes_on(time.monotonic()):
            look = self._look(element, progress, reader)
            after, punctuation = look.step()
            progress = self._ending(start, after)
            if not tracker.try_claim(progress):
                return False
            rows = 0 if look.batch is None else look.batch.rows
            turn = turn.after(rows, nothing=look.nothing, sent=punctuation is not None)
            yield from self._rows(look)
            if punctuation is not None:
                yield TimestampedValue(punctuation, _timestamp(look.before.clock_us))
            self._advance(element, estimator, progress)
            self._beat(progress, look)
            if progress.over:
                return False
            if after.over or (look.nothing and not turn.may_wait(time.monotonic() + self._policy.poll_s)):
                break
            if look.nothing:
                time.sleep(self._policy.poll_s)
                turn = replace(turn, deadline=time.monotonic() + turn.seconds)
        self._readers[element] = (progress.position, reader)
        wait_s, rest_s = self._policy.poll_s, self._policy.rest_s
        if reader.trouble is not None and not rest_s:
            # a source that cannot be read is tried again soon, however rare its looks are
            wait_s = min(wait_s, _BEAT_S)
        waits = turn.waited and not turn.sent
        tracker.defer_remainder(self._pause(element, wait_s) if waits else Duration(rest_s))
        return True

    def _look(self, part: int, progress: PartitionState, reader: Reader) -> Look:
        batch, now = reader.read(), self._now()
        ended, parts = batch is None and reader.ended, self._source.parts
        return Look(self._policy, part, parts, now, progress, batch, reader.sources, reader.trouble, ended)

    def _beat(self, state: PartitionState, look: Look) -> None:
        batch, left = look.batch, look.left_out(state)
        if fresh := len(set(left) - self._out.get(look.part, frozenset())):
            self._fell_silent.inc(fresh)
        self._out[look.part] = frozenset(left)
        known = (one.latest_us for one in state.sources.values() if one.latest_us is not None)
        Heartbeat.of(look.part).beat(
            max(known, default=None) if batch is None else batch.latest_us,
            state.clock_us,
            rows=0 if batch is None else batch.rows,
            trouble=look.trouble,
            waited_for=look.waited_for(state),
            left_out=left,
            behind=batch is not None and not batch.settled,
        )

    def _reader_at(self, part: int, position: str) -> Reader:
        """The part's reader of the last call if the runner goes on where it stopped, else a new one."""
        at, reader = self._readers.pop(part, (None, None))
        if reader is not None:
            if at == position:
                reader.kept()
                return reader
            reader.close()
        return self._source.reader(part, position)

    def _ending(self, start: PartitionState, progress: PartitionState) -> PartitionState:
        """A part that has come to its end says so with its next call only, where it matters.

        Where parts follow what the runner keeps of each other, the others must see this one's end there. And where
        Flink's runner ends a call for a checkpoint, it lets the watermark of a part that is over pass the rows of
        that call, which then are too late for their windows; it waits for them where something is handed back.
        """
        later = self._shared is not None or self._policy.rest_s > 0
        return replace(progress, over=False) if later and start.clock_us < progress.clock_us else progress

    def _pause(self, part: int, wait_s: float) -> Duration:
        """Wait until the next look: less than a second here, whole seconds by the runner.

        A long wait is cut, so that the watchdog sees a heartbeat; not where the runner keeps every call,
        and the watchdog waits for the next poll.
        Flink's portable runner leaves the fractions out and would call again at once, and every call leaves something
        in its state for ever (Beam's issue 27648).
        """
        if wait_s > _BEAT_S and not self._policy.rest_s:
            self._look_at[part], wait_s = time.monotonic() + wait_s, _BEAT_S
        whole = int(wait_s)
        if whole or not self._policy.rest_s:
            time.sleep(wait_s - whole)
        return Duration(seconds=max(whole + _PAUSE_MARGIN_S if whole else 0.0, self._policy.rest_s))

    def _rows(self, look: Look) -> Iterator[Any]:
        batch, before_us, at = look.batch, look.before.clock_us, _timestamp(look.before.clock_us)
        on_record_us = None if look.before.followed else self._policy.begin_us
        if batch is None:
            return
        for reason, count in batch.rejected.items():
            Metrics.counter(METRICS, counter_name(reason)).inc(count)
        for reject in batch.rejects:
            yield TaggedOutput(REJECTED, TimestampedValue(reject, at))
        self._decoded.inc(batch.rows)
        if batch.passed:
            Metrics.counter(METRICS, PASSED_OVER).inc(batch.passed)
        if ahead := batch.ahead(self._now()):
            self._ahead.inc(ahead)
        for whole in batch.batches:
            # the later one of two clocks, this machine's and the broker's: one clock that is behind loses nothing
            readings = not_ahead(whole, self._policy.steps, max(self._now(), batch.came_us or 0))
            if count := whole.num_rows - readings.num_rows:
                reason = RejectReason.AHEAD
                Metrics.counter(METRICS, counter_name(reason)).inc(count)
                rejected = decoded_reject_batch({reason: count})
                yield TaggedOutput(REJECTED, TimestampedValue(rejected, at))
            yield TimestampedValue(Arrived(readings, before_us, on_record_us), at)

    def _advance(self, part: int, estimator: Any, progress: PartitionState) -> None:
        clock, reached = _timestamp(self._joined(part, progress.clock_us)), estimator.current_watermark()
        if reached is None or clock > reached:
            estimator.set_watermark(clock)
        self._behind.update(max(0, self._now() - progress.clock_us) // 1_000)

    def _noted(self, part: int, start: PartitionState) -> None:
        """Note what the runner keeps of a part, by the state that it begins a call with."""
        if self._shared is not None:
            self._kept[part] = start.clock_us

    def _joined(self, part: int, clock_us: int) -> int:
        """How far the runner may think that a part has come: no further than the slowest, where it joins none."""
        if self._shared is None:
            return clock_us
        others = [self._kept.get(one, self._policy.begin_us) for one in range(self._source.parts) if one != part]
        return min([clock_us, *others])


class _Kept(dict[int, int]):
    """How far the parts of one job had come when their last calls began."""


def _timestamp(instant_us: int) -> Timestamp:
    return Timestamp(micros=instant_us // 1_000 * 1_000)


class ReadLive(beam.PTransform[Any, Any]):
    """Read a source as it comes."""

    def __init__(self, source: PartitionedSource, policy: PollingPolicy) -> None:
        super().__init__()
        self._source, self._policy = source, policy

    def expand(self, input_or_inputs: PBegin) -> DecodedReadings:
        """Read every part; the parts are spread over the workers."""
        parts = input_or_inputs | "Parts" >> beam.Create(list(range(self._source.parts)))
        return followed(parts, ReadPart(self._source, self._policy))


def followed(parts: Any, read: ReadPart) -> DecodedReadings:
    """What comes of a collection of parts: elements of the source, and rejects."""
    decoded: Any = parts | "Follow" >> beam.ParDo(read).with_outputs(REJECTED, main="readings")
    for output in (decoded.readings, decoded[REJECTED]):
        output.is_bounded = False
    return DecodedReadings(typed(decoded.readings, FromSource), typed(decoded[REJECTED], pa.RecordBatch))
