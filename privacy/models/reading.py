"""The kinds of beliefs, and a belief from its plain form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .belief import Belief
from .certified import Certified
from .classes import AnyInitial, BinaryInterval, FiniteClass, MixingBounds
from .dobrushin import DobrushinBounds, Neighbourhood
from .markov_chain import ChainError, MarkovChain
from .periodic import PeriodicChain

KINDS: Mapping[str, type[Belief]] = MappingProxyType(
    {
        "markov-chain": MarkovChain,
        "finite-class": FiniteClass,
        "mixing-bounds": MixingBounds,
        "any-initial": AnyInitial,
        "binary-interval": BinaryInterval,
        "dobrushin-bounds": DobrushinBounds,
        "neighbourhood": Neighbourhood,
        "periodic-chain": PeriodicChain,
    }
)
"""Every belief by the ``kind`` of its plain form."""


def belief_from_dict(data: Mapping[str, Any]) -> Belief:
    """Read any belief by its ``kind``, with the certificates that its form may have.

    Raises:
        ChainError: If the kind is not known, or the fields do not make such a belief.
    """
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ChainError(f"belief kind is {kind!r:.40}, but must be one of {', '.join(KINDS)}")
    try:
        found = KINDS[kind].from_dict(data)
        return Certified.of(found, data["certificates"]) if "certificates" in data else found
    except ChainError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        raise ChainError(
            f"belief of kind {kind} has a field that is missing or of another type ({type(error).__name__}); "
            "make it with to_dict() of a belief"
        ) from error


def check_belief(belief: object) -> None:
    """Refuse what is none of the beliefs.

    Raises:
        TypeError: Then.
    """
    if not isinstance(belief, Belief):
        names = ", ".join(kind.__name__ for kind in KINDS.values())
        raise TypeError(f"belief is a {type(belief).__name__}, but must be one of {names}: make one of it first")
