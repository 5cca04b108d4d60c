"""What is believed about the data: chains and classes of chains.

``belief``, ``serialisation``, ``memory``
    the protocol: what a belief answers; every kind of belief, from its plain form, with the certificates that a model
    file keeps of what it costs at a density; and what was computed of a belief, kept with it
``directions``, ``kernels``, ``couplings``, ``certificates``
    one direction of time under a belief: what a state tells about the releases ahead of it, or behind it; the
    couplings of rows that prove it; and the one road to a certificate
``periodic``, ``markov_chain``
    one chain, with a kernel for every slot of the day or week, and the chain of period 1, with one kernel
``classes``, ``dobrushin``
    classes of chains: finite, by mixing, by start, by intervals, by contraction
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .belief import Belief as Belief
    from .belief import ChainError as ChainError
    from .certificates import Certificate as Certificate
    from .certificates import certify as certify
    from .classes import AnyInitial as AnyInitial
    from .classes import BinaryInterval as BinaryInterval
    from .classes import FiniteClass as FiniteClass
    from .classes import MixingBounds as MixingBounds
    from .classes import mixing_bounds as mixing_bounds
    from .directions import AnyStart as AnyStart
    from .directions import Direction as Direction
    from .directions import MixingCurve as MixingCurve
    from .directions import NotContracting as NotContracting
    from .dobrushin import DobrushinBounds as DobrushinBounds
    from .kernels import Kernel as Kernel
    from .markov_chain import MarkovChain as MarkovChain
    from .markov_chain import smooth_zeros as smooth_zeros
    from .periodic import PeriodicChain as PeriodicChain
    from .serialisation import belief_from_dict as belief_from_dict
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
