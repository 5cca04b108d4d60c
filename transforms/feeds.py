"""Feeds: sources that never end, as the live reader sees them.

A feed has parts, each with a position of its own. A reader of a part gives pieces: batches of readings, and the
position behind them, which is all that a runner keeps; a reader made at that position goes on there. Reading a piece
twice is harmless, because cells take maxima; leaving one out is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ..schemas.readings import RejectReason
from .clocks import Reach
from .decode_rows import Decoded
from .rejects import reject_batch

#: Where a part begins.
BEGIN = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a reader read at once.

    Attributes:
        position: where to go on.
        settled: whether nothing more was waiting behind it, so that the part's clock may move; where a part mixes
            several sources, whether all that was there when the reader began has been read.
        batches: readings.
        rejects: batches of ``REJECT_SCHEMA``.
        rejected: how many rows were rejected, by reason.
        rows: readings in the batches.
        latest_us: instant of the latest reading, or ``None`` without any.
        source: which of the reader's sources it is from, where the reader mixes several.
    """

    position: str
    settled: bool
    batches: tuple[pa.RecordBatch, ...] = ()
    rejects: tuple[pa.RecordBatch, ...] = ()
    rejected: dict[RejectReason, int] = field(default_factory=dict)
    rows: int = 0
    latest_us: int | None = None
    source: str | None = None


class Reader(ABC):
    """Reads one part from a position on; it belongs to one worker."""

    @abstractmethod
    def read(self) -> Piece | None:
        """The next piece; ``None`` if nothing is there now."""

    @property
    def ended(self) -> bool:
        """Whether nothing will ever come again."""
        return False

    @property
    def sources(self) -> Mapping[str, Reach] | None:
        """The sources that the part mixes now, whose clocks are kept apart; ``None`` where it is one source.

        The readings of one source are in their order but for the allowed lateness, also in a backlog.
        """
        return None

    @property
    def trouble(self) -> str | None:
        """Why nothing can be read now, for the operator; ``None`` if nothing is in the way."""
        return None

    def kept(self) -> None:
        """The runner asks for what comes after the last piece: it keeps all that came before."""
        return

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""


class Feed(ABC):
    """A source that never ends; a plain value that travels to any worker."""

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return 1

    @abstractmethod
    def reader(self, part: int, position: str) -> Reader:
        """A reader of a part from a position on."""


def piece_of(source: str, decoded: list[Decoded], position: str, *, settled: bool) -> Piece:
    """Decoded rows as a piece.

    Args:
        source: name of the source in rejects.
        decoded: the rows.
        position: where to go on.
        settled: whether nothing more was waiting.
    """
    batches = tuple(one.readings for one in decoded if one.readings is not None)
    rejected: dict[RejectReason, int] = {}
    for one in decoded:
        for reject in one.rejects:
            rejected[reject.reason] = rejected.get(reject.reason, 0) + len(reject.positions)
    return Piece(
        position=position,
        settled=settled,
        batches=batches,
        rejects=tuple(reject_batch(source, one.rejects) for one in decoded if one.rejects),
        rejected=rejected,
        rows=sum(one.num_rows for one in batches),
        latest_us=max((_latest(one) for one in batches), default=None),
    )


def _latest(batch: pa.RecordBatch) -> int:
    return int(batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False).max())


__all__ = ["BEGIN", "Feed", "Piece", "Reader", "piece_of"]
