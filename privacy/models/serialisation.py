"""The kinds of beliefs, and a belief from its plain form, with the certificates that a model file and a domain keep.

>>> from quiltstream.privacy.accounting.certificates import certified, constant_loss
>>> from quiltstream.privacy.accounting.forward_backward import grid_density
>>> from quiltstream.privacy.models import MarkovChain, belief_from_dict
>>> kept = certified(MarkovChain([[0.8, 0.2], [0.3, 0.7]]), epsilon=1.0)
>>> belief_from_dict(kept.to_dict()) == kept
True
>>> density = grid_density(kept, 1.0)
>>> round(1 / density, 2), constant_loss(kept, density) <= 1
(3.02, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from .belief import Belief, ChainError
from .certificates import Certificate
from .classes import AnyInitial, BinaryInterval, FiniteClass, MixingBounds
from .dobrushin import DobrushinBounds
from .markov_chain import MarkovChain
from .periodic import PeriodicChain

_ALL = (MarkovChain, FiniteClass, MixingBounds, AnyInitial, BinaryInterval, DobrushinBounds, PeriodicChain)

KINDS: Mapping[str, type[Belief]] = MappingProxyType({kind.named: kind for kind in _ALL})
"""Every belief by the ``kind`` of its plain form."""


def belief_from_dict(data: Any) -> Belief:
    """Read any belief by its ``kind``, with the certificates that its form may have.

    Raises:
        ChainError: If the kind is not known, or the fields do not make such a belief.
    """
    if not isinstance(data, Mapping):
        raise ChainError(f"belief is a {type(data).__name__}, but must be an object with a kind: see to_dict() of one")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ChainError(f"belief kind is {kind!r:.40}, but must be one of {', '.join(KINDS)}")
    try:
        found = KINDS[kind].from_dict(data)
        unknown = {str(name) for name, value in data.items() if value is not None} - {*found.form(), "certificates"}
        if "certificates" in data:
            found = found.with_certificates([Certificate.from_dict(one) for one in data["certificates"]])
    except ChainError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        raise ChainError(
            f"belief of kind {kind} has a field that is missing or of another type ({type(error).__name__}); "
            "make it with to_dict() of a belief"
        ) from error
    if unknown:  # a field that is passed over, by a slip of the pen, would make another belief
        raise ChainError(f"belief of kind {kind} has an unknown field, {min(unknown)!r:.40}: take it out")
    return found


def check_belief(belief: object) -> Belief:
    """The belief, or an equal one that was met before, with what is known of it; a TypeError for what is none."""
    if not isinstance(belief, Belief):
        names = ", ".join(kind.__name__ for kind in KINDS.values())
        raise TypeError(f"belief is a {type(belief).__name__}, but must be one of {names}: make one of it first")
    return _one_of_equals(belief)


@lru_cache(maxsize=64)
def _one_of_equals(belief: Belief) -> Belief:
    return belief
