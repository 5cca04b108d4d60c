"""A belief: the class Theta of [SWC17], and what it answers.

Calibrations, accounts, the store and the commands ask a belief by these methods and never for its type, so a new one is
a module of this folder and a line of ``serialisation.KINDS``. The forward-backward account reads ``pairs``, and
the tables of influence as caps. Quilts read ``members`` or, where there are none, ``bounds``; a class that has neither
has no quilts. What is computed of a belief is kept with it (:mod:`.memory`), and equal beliefs are one
(:func:`.serialisation.check_belief`).

*Certificates.* The exact map of a chain of many states takes half a minute to calibrate and seconds to check anew, so a
model file and a domain keep with a chain what was found for it, and the couplings that prove it, which are checked in a
fraction of a second. A certificate is checked once in each process, from couplings and with outward rounding, against
the directions of the very belief that it is kept with, before anything rests on it; nothing else of the file is
believed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..validation import PrivacyError
from .certificates import Certificate, certify
from .memory import Remembering

if TYPE_CHECKING:
    from .classes import MixingBounds
    from .couplings import FloatArray
    from .directions import Pair
    from .markov_chain import MarkovChain


class ChainError(PrivacyError):
    """A transition matrix or initial distribution that is not one, or a property the chain does not have."""


class Belief(Remembering, ABC):
    """What is believed about every series: a chain, or a class of chains whose worst member counts.

    Attributes:
        kept: Certificates that the belief carries, one for each of its members, as they were read; () for none.
    """

    kept: tuple[Certificate, ...] = ()
    #: The ``kind`` of its plain form; the form's fields, in the order of the constructor; those that may be left out.
    named: ClassVar[str]
    written: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def directions(self) -> tuple[Pair, ...]:
        """Forward and backward of each member, at least one.

        The account is the largest loss over the members, F and B of the same member.

        Raises:
            ChainError: A fixed start, which is true at one slot only, or a chain that does not mix.
        """

    def form(self) -> dict[str, Any]:
        """A plain form for JSON, without certificates; ``from_dict`` gives the same belief back, bit for bit."""
        return {"kind": self.named, **dict(zip(self.written, map(_plain, self.arguments), strict=True))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the form that ``form`` writes.

        Raises:
            ChainError: A field is missing or makes no such belief.
        """
        for name in cls.written:
            if name not in data and name not in cls.optional:
                raise ChainError(f"a belief of kind {cls.named} needs the field {name}: add it")
        return cls(*(data[name] for name in cls.written if name in data))

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON, with the certificates; reading gives the same back, bit for bit."""
        return {**self.form(), **({"certificates": [one.to_dict() for one in self.kept]} if self.kept else {})}

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the constructor makes an equal belief of, without certificates: the fields, of what is a dataclass."""
        return tuple(getattr(self, one.name) for one in fields(self))  # pyright: ignore[reportArgumentType]

    @cached_property
    def _key(self) -> tuple[object, ...]:
        plain = ((one.shape, one.tobytes()) if isinstance(one, np.ndarray) else one for one in self.arguments)
        return type(self), *plain, *(one.key for one in self.kept)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Belief) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[Callable[..., Belief], tuple[Any, ...]]:
        # rebuilt by the constructor: a pickled array comes back writable, and what was computed is computed anew
        return _made, (type(self), self.arguments, self.kept)

    def with_certificates(self, kept: Iterable[Certificate]) -> Self:
        """The same belief with certificates in the place of those it has."""
        return _made(type(self), self.arguments, kept)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """The ``directions``, made once."""
        return self.directions()

    @cached_property
    def certificates(self) -> tuple[Certificate, ...]:
        """Those that are kept, checked when they are first asked for; a ChainError where one does not hold."""
        if self.kept and not (len(self.kept) == len(self.pairs) and all(map(certify, self.pairs, self.kept))):
            raise ChainError(
                "a certificate does not hold for this belief, or belongs to another one: fit the model again, or take "
                "`certificates` out of the belief"
            )
        return self.kept

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
    def has_quilts(self) -> bool:
        """Whether the belief names chains, or bounds on pi_min and the gap."""
        return bool(self.members) or self.bounds is not None

    @property
    def starts_stationary(self) -> bool:
        """Whether every chain of the belief is named and starts in its stationary distribution."""
        return bool(self.members) and not self.any_start and not self.has_start

    @property
    def has_start(self) -> bool:
        """Whether some chain of the belief has a fixed initial distribution, which is true of one slot only."""
        return not self.any_start and any(chain.initial is not None for chain in self.members)

    @cached_property
    def everywhere(self) -> Belief:
        """The belief with a start that is true in every slot: a fixed one is replaced by any."""
        return self.from_any_start() if self.has_start else self

    def from_any_start(self) -> Belief:
        """The same chains with any initial distribution: what is known from a change of belief on.

        Raises:
            ChainError: The class names no chains, and rests on the marginals of its series.
        """
        if self.any_start:
            return self
        if not self.members:
            raise ChainError(
                f"a {type(self).__name__} rests on the marginals of its series, which are not known where the belief "
                "changes: switch to a chain, a list of chains or MixingBounds, let this belief join for the whole "
                "history, or begin a new domain"
            )
        from .classes import AnyInitial  # noqa: PLC0415 - a belief itself

        return AnyInitial(chain.transition for chain in self.members)

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

    def check_interval(self, interval_us: int) -> None:
        """Refuse slots that the belief cannot be about.

        Args:
            interval_us: Length of a slot in microseconds.

        Raises:
            ChainError: Then.
        """


def _plain(value: Any) -> Any:
    if isinstance(value, Belief):
        return value.form()
    return [_plain(one) for one in value] if isinstance(value, tuple) else getattr(value, "tolist", lambda: value)()


def _made(kind: type[Any], arguments: tuple[Any, ...], kept: Iterable[Certificate]) -> Any:
    found = kind(*arguments)
    for one in (certificates := tuple(kept)):
        one.forward.setflags(write=False)
        one.backward.setflags(write=False)
    object.__setattr__(found, "kept", certificates)
    return found
