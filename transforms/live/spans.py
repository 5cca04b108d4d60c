"""Spans: what a runner keeps of a part of a live source between two calls, and hands back to it.

It is written as JSON: plain, deterministic, and readable in a savepoint of any version.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from apache_beam.coders import Coder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker

from ..tickets import Issued
from .clocks import Heard


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a part has come: all that a runner keeps of it.

    Attributes:
        position: where the feed goes on.
        clock_us: windows that end by this instant were declared complete.
        latest_us: how far the readings say that the source has come (:meth:`.feeds.Piece.vote`), or ``None``.
        heard_us: wall clock of the last reading, or of the start, and later by what passed while nobody looked.
        looked_us: wall clock of the last look that found nothing, where silence counts; 0 before the first.
        followed: whether everything that was there at the start has been read.
        over: whether the part will never be read again.
        sources: what was heard of each source that the part mixes; empty where it is one source.
        lost_us: windows that start before it may lack readings that the source had and has no longer; ``None``: none.
        issued: the tickets that were given; ``None`` where batches get none.
    """

    position: str
    clock_us: int
    latest_us: int | None = None
    heard_us: int = 0
    followed: bool = False
    over: bool = False
    sources: dict[str, Heard] = field(default_factory=dict[str, Heard])
    lost_us: int | None = None
    issued: Issued | None = None
    looked_us: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """The restriction: from one progress to another, or without end."""

    start: Progress
    stop: Progress | None = None


class SpanCoder(Coder):
    """Spans as JSON: plain, deterministic, and readable in a savepoint of any version."""

    def encode(self, value: Span) -> bytes:
        """Write a span."""
        return json.dumps(asdict(value)).encode()

    def decode(self, encoded: bytes) -> Span:
        """Read a span."""
        plain = json.loads(encoded)
        return Span(_progress(plain["start"]), None if plain["stop"] is None else _progress(plain["stop"]))

    def is_deterministic(self) -> bool:
        """It is."""
        return True

    def to_type_hint(self) -> Any:
        """The type of the values."""
        return Span


def _progress(plain: dict[str, Any]) -> Progress:
    # those of older savepoints tell no sources and no tickets
    sources = {name: Heard(**one) for name, one in plain.pop("sources", {}).items()}
    issued = plain.pop("issued", None)
    return Progress(**plain, sources=sources, issued=None if issued is None else Issued.from_plain(issued))


class SpanTracker(RestrictionTracker):
    """Claims progress, one after another; splitting means stopping after the last claim."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._claimed: Progress | None = None

    def current_restriction(self) -> Span:
        """The span."""
        return self._span

    def try_claim(self, position: Progress) -> bool:
        """Claim everything up to a progress; refused once the span has an end."""
        if self._span.stop is not None:
            return False
        self._claimed = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Span, Span] | None:
        """End the span after the last claim; the rest is another one's. It has no middle."""
        if self._span.stop is not None or fraction_of_remainder != 0:
            return None
        at = self._span.start if self._claimed is None else self._claimed
        if at.over:
            return None
        self._span = replace(self._span, stop=at)
        return self._span, Span(at)

    def check_done(self) -> None:
        """See that nothing of the span is left.

        Raises:
            ValueError: the reader returned in the middle.
        """
        if self._span.stop is None and (self._claimed is None or not self._claimed.over):
            raise ValueError("the live reader returned without handing the rest of its part back")

    def current_progress(self) -> RestrictionProgress:
        """Nobody knows how much will come.

        The fraction is given because Beam else divides by the bytes of the output so far, of which it has no estimate
        before the first: a split that Prism asks for then fails, and the job with it.
        """
        return RestrictionProgress(fraction=0.0, completed=0, remaining=1)

    def is_bounded(self) -> bool:
        """A live source ends never, or when nobody knows."""
        return self._span.stop is not None or (self._claimed is not None and self._claimed.over)


__all__ = ["Progress", "Span", "SpanCoder", "SpanTracker"]
