"""What a belief answers: the two directions of time of each of its members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from ..accounting.directions import Pair
    from .classes import Belief

AnyBelief: TypeAlias = "Belief | Directed"
"""What an account may be kept under: a belief with quilts, or one that names its directions."""


@runtime_checkable
class Directed(Protocol):
    """A belief that names its directions itself.

    The account of an endless stream reads nothing else: the largest loss over the members, F and B of the same member.
    """

    def directions(self) -> tuple[Pair, ...]:
        """Forward and backward of each member, at least one."""
        ...

    def check_interval(self, interval_us: int) -> None:
        """Refuse slots that the belief cannot be about.

        Args:
            interval_us: Length of a slot in microseconds.

        Raises:
            ChainError: Then.
        """
        ...

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON, with its ``kind``."""
        ...
