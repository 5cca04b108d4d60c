"""The kinds of beliefs, a belief from its plain form, and the certificates that a model file and a domain keep with it.

The exact map of a chain of many states takes half a minute to calibrate and seconds to check anew, so what was found
for such a chain is kept with it, and with the couplings that prove it, which are checked in a fraction of a second. A
certificate holds for its density and, less the difference, for every smaller one. It is checked once in each process,
from couplings and with outward rounding, against the directions of the very belief that it is kept with, before
anything rests on it; nothing else of the file is believed. The couplings need not be believed: whatever they are, they
prove a bound (:mod:`.couplings`), and where it is above the certificate, that is refused. Where none are kept, they
are found anew.

>>> from quiltstream.privacy.accounting.certificates import certified
>>> from quiltstream.privacy.accounting.certificates import constant_loss, grid_density
>>> from quiltstream.privacy.models import MarkovChain, belief_from_dict
>>> kept = certified(MarkovChain([[0.8, 0.2], [0.3, 0.7]]), epsilon=1.0)
>>> belief_from_dict(kept.to_dict()) == kept
True
>>> density = grid_density(kept, 1.0)
>>> round(1 / density, 2), constant_loss(kept, density) <= 1
(3.02, True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from .belief import Belief
from .classes import AnyInitial, BinaryInterval, FiniteClass, MixingBounds
from .couplings import Couplings
from .directions import Certificate, Direction, Pair, certify
from .dobrushin import DobrushinBounds
from .markov_chain import ChainError, FloatArray, MarkovChain, frozen
from .periodic import PeriodicChain

_ADVICE = "fit the model again, or take `certificates` out of the belief"


@dataclass(frozen=True, eq=False, init=False)
class Certified(Belief):
    """A belief, and a certificate for each of its members.

    Attributes:
        belief: What is believed; it answers everything but ``certificates``.
        kept: The certificates, in the order of its directions.
        proofs: For each certificate the texts of the couplings that prove its matrices, forward and backward; None for
            those that are to be found anew.
    """

    belief: Belief
    kept: tuple[Certificate, ...]
    proofs: tuple[Proof, ...]

    def __init__(self, belief: Belief, kept: Iterable[Certificate], proofs: Iterable[Proof] | None = None) -> None:
        certificates = tuple(Certificate(one.density, frozen(one.forward), frozen(one.backward)) for one in kept)
        object.__setattr__(self, "belief", belief)
        object.__setattr__(self, "kept", certificates)
        object.__setattr__(self, "proofs", (_NONE,) * len(certificates) if proofs is None else tuple(proofs))

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Certified) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Certified({self.belief!r})"

    def __reduce__(self) -> tuple[Callable[..., Certified], tuple[Belief, tuple[Certificate, ...], tuple[Proof, ...]]]:
        # rebuilt by the constructor: a pickled array comes back writable
        return Certified, (self.belief, self.kept, self.proofs)

    @cached_property
    def _key(self) -> tuple[object, ...]:
        # by the shape too: the same numbers in another one are other matrices
        kept = (
            (one.density, *((matrix.shape, matrix.tobytes()) for matrix in (one.forward, one.backward)))
            for one in self.kept
        )
        return self.belief, *kept, self.proofs

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """Those that are kept, checked when they are first asked for; a ChainError where one does not hold."""
        if not _holds(self):
            raise ChainError(f"a certificate does not hold for this belief, or belongs to another one: {_ADVICE}")
        return self.kept

    def directions(self) -> tuple[Pair, ...]:
        """Those of the belief."""
        return self.belief.directions()

    @property
    def states(self) -> int | None:
        """Those of the belief."""
        return self.belief.states

    @property
    def members(self) -> tuple[MarkovChain, ...]:
        """Those of the belief."""
        return self.belief.members

    @property
    def any_start(self) -> bool:
        """Whether the belief holds from any start."""
        return self.belief.any_start

    @property
    def bounds(self) -> MixingBounds | None:
        """Those of the belief."""
        return self.belief.bounds

    @property
    def witnesses(self) -> tuple[MarkovChain, ...]:
        """Those of the belief."""
        return self.belief.witnesses

    @property
    def words(self) -> str:
        """Those of the belief."""
        return self.belief.words

    def stationary_range(self, states: int) -> tuple[FloatArray, FloatArray] | None:
        """That of the belief."""
        return self.belief.stationary_range(states)

    def check_interval(self, interval_us: int) -> None:
        """Refuse slots that the belief cannot be about."""
        self.belief.check_interval(interval_us)

    def to_dict(self) -> dict[str, Any]:
        """The belief's own form and its ``certificates``; reading gives the same back, bit for bit."""
        kept = [
            {"density": one.density, "forward": one.forward.tolist(), "backward": one.backward.tolist()}
            | ({} if proof == _NONE else {"couplings": list(proof)})
            for one, proof in zip(self.kept, self.proofs, strict=True)
        ]
        return {**self.belief.to_dict(), "certificates": kept}

    @classmethod
    def of(cls, belief: Belief, forms: Any) -> Certified:
        """A belief with the certificates of a plain form; an error of many types where it is none."""
        proofs = [_proof(one.get("couplings", _NONE)) for one in forms]
        return cls(
            belief,
            [
                Certificate(
                    float(one["density"]),
                    np.array(one["forward"], dtype=np.float64),
                    np.array(one["backward"], dtype=np.float64),
                )
                for one in forms
            ],
            proofs,
        )


Proof: TypeAlias = tuple[str | None, str | None]

_NONE: Proof = (None, None)


def _proof(form: Any) -> Proof:
    forward, backward = form
    for text in (forward, backward):
        if text is not None and not isinstance(text, str):
            raise TypeError("couplings")
    return forward, backward


@lru_cache(maxsize=32)
def _holds(belief: Certified) -> bool:
    """Whether each certificate holds for its member by the couplings kept, or else by those of one step of the map."""
    pairs = belief.belief.directions()
    if belief.belief.certificates or not len(pairs) == len(belief.kept) == len(belief.proofs):
        return False
    try:
        return all(
            certify(pair, one, [_couplings(*both) for both in zip(pair, proof, strict=True)])
            for pair, one, proof in zip(pairs, belief.kept, belief.proofs, strict=True)
        )
    except ValueError:  # couplings that are none, or of other pairs
        return False


def _couplings(direction: Direction, text: str | None) -> Couplings | None:
    return None if text is None else Couplings.from_text(text, *direction.coupled)


KINDS: Mapping[str, type[Belief]] = MappingProxyType(
    {
        "markov-chain": MarkovChain,
        "finite-class": FiniteClass,
        "mixing-bounds": MixingBounds,
        "any-initial": AnyInitial,
        "binary-interval": BinaryInterval,
        "dobrushin-bounds": DobrushinBounds,
        "periodic-chain": PeriodicChain,
    }
)
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
        _check_fields(data, found)
        return Certified.of(found, data["certificates"]) if "certificates" in data else found
    except ChainError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        raise ChainError(
            f"belief of kind {kind} has a field that is missing or of another type ({type(error).__name__}); "
            "make it with to_dict() of a belief"
        ) from error


def _check_fields(data: Mapping[str, Any], found: Belief) -> None:
    """Refuse a field that is passed over: a slip of the pen would make another belief."""
    unknown = {str(name) for name, value in data.items() if value is not None} - {*found.to_dict(), "certificates"}
    if unknown:
        raise ChainError(f"belief of kind {data['kind']} has an unknown field, {min(unknown)!r:.40}: take it out")


def check_belief(belief: object) -> None:
    """Refuse what is none of the beliefs by a TypeError."""
    if not isinstance(belief, Belief):
        names = ", ".join(kind.__name__ for kind in KINDS.values())
        raise TypeError(f"belief is a {type(belief).__name__}, but must be one of {names}: make one of it first")
