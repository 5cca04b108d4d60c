"""What a belief answers: the two directions of time of each of its members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..accounting.directions import Pair


@runtime_checkable
class Directed(Protocol):
    """A belief that names its directions itself.

    The account of an endless stream reads nothing else: the largest loss over the members, F and B of the same member.
    """

    def directions(self) -> tuple[Pair, ...]:
        """Forward and backward of each member, at least one."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON, with its ``kind``."""
        ...
