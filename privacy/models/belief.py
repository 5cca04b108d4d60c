"""A belief: the class Theta of [SWC17], and what it answers.

Calibrations, accounts, the store and the commands ask a belief by these methods and never for its type, so a new one is
a module of this folder and a line of ``serialisation.KINDS``. The forward-backward account reads ``directions``, and
the tables of influence as caps. Quilts read ``members`` or, where there are none, ``bounds``; a class that has neither
has no quilts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .classes import MixingBounds
    from .directions import Certificate, Pair
    from .markov_chain import FloatArray, MarkovChain


class Belief(ABC):
    """What is believed about every series: a chain, or a class of chains whose worst member counts."""

    @abstractmethod
    def directions(self) -> tuple[Pair, ...]:
        """Forward and backward of each member, at least one.

        The account is the largest loss over the members, F and B of the same member.

        Raises:
            ChainError: A fixed start, which is true at one slot only, or a chain that does not mix.
        """

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON, with its ``kind``."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Belief:
        """Read the form that ``to_dict`` writes; every kind has its own.

        Raises:
            ChainError: A field is missing or makes no such belief.
        """
        raise NotImplementedError(f"{cls.__name__} has no plain form of its own, and {len(data)} fields are given")

    @property
    def states(self) -> int | None:
        """Number of states k; None where the belief holds for any number."""
        return None

    @property
    def members(self) -> tuple[MarkovChain, ...]:
        """Chains of which the worst decides every influence; () where the class is no list of chains."""
        return ()

    @property
    def any_start(self) -> bool:
        """Whether nothing rests on the marginals: each member's matrix is believed with every initial distribution."""
        return False

    @property
    def bounds(self) -> MixingBounds | None:
        """The least pi_min and gap of all chains of the class; None where they are those of the members, or unknown.

        Raises:
            ChainError: A chain of the class does not mix.
        """
        return None

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """Certificates that the belief carries, one for each of its directions and checked; () for none."""
        return ()

    @property
    def witnesses(self) -> tuple[MarkovChain, ...]:
        """Stationary chains of the class: it loses at least what they lose; () where none is known.

        Those of the members whose states all reach each other, unless a class says otherwise.
        """
        return tuple(
            chain if chain.initial is None else type(chain)(chain.transition)
            for chain in self.members
            if chain.is_irreducible and chain.states > 1
        )

    @property
    def words(self) -> str:
        """The class in words, for what a calibration assumes."""
        count = len(self.members)
        if not count:
            return f"every chain of the class {type(self).__name__}"
        named = "one transition matrix" if count == 1 else f"each of {count} transition matrices"
        return f"{named} of {self.states} states"

    def stationary_range(self, states: int) -> tuple[FloatArray, FloatArray] | None:  # noqa: ARG002 - for classes of any number
        """Least and largest stationary probability of each of k states, shape (k,) each; None: those of the members."""
        return None

    def check_interval(self, interval_us: int) -> None:  # noqa: B027 - most beliefs may be about slots of any length
        """Refuse slots that the belief cannot be about.

        Args:
            interval_us: Length of a slot in microseconds.

        Raises:
            ChainError: Then.
        """
