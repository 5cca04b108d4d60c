"""The contract of sources that never end: partitions, readers, and batches with an offset behind them.

A source has partitions, each with an offset (``position``) of its own. A reader of a partition returns batches of
readings with the offset behind them, which is all that a runner keeps; a reader made at that offset continues there.
Reading a batch twice is harmless, because cells take maxima; omitting one is not.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.backoff import Backoff
from ...schemas.errors import QuiltstreamError
from ...schemas.readings import RejectReason
from ...schemas.slots import DAY_US
from ..common.batches import Rejects, reject_batch
from ..formats.rows import Decoded
from .progress import Reach

if TYPE_CHECKING:
    from ..completeness import Steps
    from ..payloads.messages import MessageDecoder

#: Where a partition begins.
BEGIN = ""

#: Between attempts to reach a source that is away.
_BACKOFF = Backoff(0.5, 10.0)

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """What a reader read at once, from one partition."""

    position: str  # where to go on
    # whether nothing more was waiting behind it, so that the partition's watermark may move; where a partition mixes
    # several sources, whether all that was there when the reader began has been read
    settled: bool
    batches: tuple[pa.RecordBatch, ...] = ()  # readings
    rejects: tuple[pa.RecordBatch, ...] = ()  # batches of ``REJECT_SCHEMA``
    rejected: dict[RejectReason, int] = field(default_factory=dict)  # how many rows were rejected, by reason
    rows: int = 0  # readings in the batches
    latest_us: int | None = None  # instant of the latest reading, or ``None`` without any
    source: str | None = None  # which of the reader's sources it is from, where the reader mixes several
    # when the last of it came, by the clock of the broker that took it from the producers; ``None`` where it is
    # unknown. Nothing behind the batch came earlier, but for the allowed lateness
    came_us: int | None = None
    # when the last of it was sent, by the producers' own clocks, which may be wrong; used only where ``came_us`` is
    # unknown
    sent_us: int | None = None
    # of what came before this instant the part may have lost something for ever, so windows that start before it may
    # lack readings; by positions and stamps of the source, never by what readings hold. ``None`` where nothing is known
    # to be lost
    lost_us: int | None = None
    passed: int = 0  # messages that hold neither a reading nor a mistake

    def vote(self, now_us: int) -> int | None:
        """How far its readings say that their source has come; ``None`` without a reading that says so.

        A reading cannot have been taken after it came. One that says so comes from a clock that runs ahead, and counts
        for the instant at which it came; one that is stamped over a day after that has jumped, and does not count.
        Where only the producers say when they sent it, it came no earlier than that, nor than the middle one of its
        readings was taken: a producer whose clock is behind holds nothing back, and a few meters whose clocks are ahead
        count for no more than the others. Where both are unknown it counts as it is, up to the wall clock.
        """
        latest, cap = self.latest_us, self._cap()
        limit = self._limit(now_us, cap)
        if latest is not None and latest > limit:
            latest = max((int(one.max()) for one in self._times(limit)), default=None)
        return latest if latest is None or cap is None else min(latest, cap)

    def speaks(self, now_us: int) -> bool:
        """Whether it has a reading that is not stamped over a day after now, whatever is said of when it came.

        Its source is not silent then, though it may not be known how far it has come.
        """
        return self.latest_us is not None and bool(self._times(DAY_US + now_us))

    def ahead(self, now_us: int) -> int:
        """How many readings are stamped over a day after they came."""
        limit = self._limit(now_us, self._cap())
        if self.latest_us is None or self.latest_us <= limit:
            return 0
        return self.rows - sum(len(one) for one in self._times(limit))

    def _cap(self) -> int | None:
        """The instant at which it came, as far as it is known; ``None`` if not."""
        if self.came_us is not None or self.sent_us is None:
            return self.came_us
        if self.latest_us is None or self.latest_us <= self.sent_us or not self.batches:
            return self.sent_us
        times = np.concatenate(self._times(self.latest_us))
        middle = (len(times) - 1) // 2
        return max(self.sent_us, int(np.partition(times, middle)[middle]))

    @staticmethod
    def _limit(now_us: int, cap_us: int | None) -> int:
        return DAY_US + (now_us if cap_us is None else min(now_us, cap_us))

    def _times(self, limit_us: int) -> list[npt.NDArray[np.int64]]:
        """The times of each batch that are not after an instant, where there are any."""
        times = map(_times_of, self.batches)
        return [found for one in times if len(found := one[one <= limit_us])]


def _times_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    return batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)


def not_ahead(readings: pa.RecordBatch, steps: Steps | None, came_us: int) -> pa.RecordBatch:
    """The readings but those of a step that begins over a day after they came.

    A runner would keep the cells of such a step until its window ends.
    """
    if steps is None:
        return readings
    kept = _times_of(readings) < steps.last_us(came_us)
    return readings if kept.all() else readings.filter(pa.array(kept))


class Reader(ABC):
    """Reads one partition from an offset on; it belongs to one worker."""

    @abstractmethod
    def read(self) -> SourceBatch | None:
        """The next batch; ``None`` if nothing is there now."""

    @property
    def ended(self) -> bool:
        """Whether nothing will ever come again."""
        return False

    @property
    def sources(self) -> Mapping[str, Reach] | None:
        """The sources that the partition mixes now, whose watermarks are kept apart; ``None`` where it is one source.

        The readings of one source are in their order but for the allowed lateness, also in a backlog.
        """
        return None

    @property
    def trouble(self) -> str | None:
        """Why nothing can be read now, for the operator; ``None`` if nothing is in the way."""
        return None

    def check(self) -> bool:
        """Whether the source can be reached, checked every few seconds between two polls that are far apart.

        It reads nothing and is quick, also without an answer. ``False`` makes the reader poll at once, which finds what
        is wrong; where a check costs as much as a poll it is ``True``.
        """
        return True

    def kept(self) -> None:
        """The runner has kept all up to the last batch: reading goes on behind it."""
        return

    @abstractmethod
    def close(self) -> None:
        """Close clients and files."""


@dataclass(slots=True)
class Attempts:
    """Attempts of a reader to reach its source, with growing pauses while they fail."""

    trouble: str | None = None  # why the last one failed; ``None`` if it did not
    due: float = 0.0  # monotonic seconds of the next one
    pauses: Iterator[float] = field(default_factory=_BACKOFF.pauses)  # of the outage

    def failed(self, trouble: str) -> float:
        """Note that one failed; the seconds until the next."""
        pause = next(self.pauses)
        self.trouble, self.due = trouble, time.monotonic() + pause
        return pause

    def succeeded(self) -> bool:
        """Note that one succeeded; whether the one before it did not."""
        before, self.trouble, self.pauses = self.trouble, None, _BACKOFF.pauses()
        return before is not None


class PartitionedSource(ABC):
    """A source that never ends; a plain value that travels to any worker."""

    @property
    def parts(self) -> int:
        """How many partitions there are."""
        return 1

    @abstractmethod
    def reader(self, part: int, position: str) -> Reader:
        """A reader of a partition from an offset on."""


def source_batch_of(source: str, decoded: list[Decoded], position: str, *, settled: bool) -> SourceBatch:
    """Decoded rows as a batch of a source."""
    batches = tuple(one.readings for one in decoded if one.readings is not None)
    rejected: dict[RejectReason, int] = {}
    for one in decoded:
        for reject in one.rejects:
            rejected[reject.reason] = rejected.get(reject.reason, 0) + len(reject.positions)
    return SourceBatch(
        position=position,
        settled=settled,
        batches=batches,
        rejects=tuple(reject_batch(source, one.rejects) for one in decoded if one.rejects),
        rejected=rejected,
        rows=sum(one.num_rows for one in batches),
        latest_us=max((int(_times_of(one).max()) for one in batches), default=None),
        passed=sum(one.passed for one in decoded),
    )


def damaged(position: int) -> Decoded:
    """What says that something of a source is lost from a position on: one reject."""
    return Decoded(None, 0, (Rejects(RejectReason.DAMAGED_SOURCE, np.array([position], dtype=np.int64)),))


class WaitingDecoder:
    """The decoder of one reader of messages, which wait while it needs something that is away."""

    def __init__(self, decoder: MessageDecoder) -> None:
        self.decoder = decoder
        self.waiting: str | None = None  # why messages wait

    def decoded(self, decode: Callable[[MessageDecoder], _Found]) -> _Found | None:
        """What is made of messages; ``None`` while they wait: nothing is wrong with them, and they are given again."""
        from ..payloads.messages import SourceAwayError  # noqa: PLC0415 - a job over files imports no payloads

        try:
            found = decode(self.decoder)
        except SourceAwayError as error:
            self.waiting = str(error)
            return None
        self.waiting = None
        return found

    def batch(self, name: str, decoded: list[Decoded], position: str, *, settled: bool, **known: Any) -> SourceBatch:
        """Decoded messages as a batch, with what else is known of it."""
        return replace(source_batch_of(name, decoded, position, settled=settled), **known)


class BrokerUnavailableError(QuiltstreamError, RuntimeError):
    """A broker, or what is at it, cannot be used; the message says what is in the way.

    Attributes:
        passing: whether it may go away by itself, so that another attempt makes sense.
    """

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing
