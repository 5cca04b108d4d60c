"""What is believed about the data: chains and classes of chains.

``belief``, ``serialisation``
    the protocol: what a belief answers; and every kind of belief, from its plain form, with the certificates that a
    model file keeps of what it costs at a density
``directions``, ``kernels``, ``couplings``
    one direction of time under a belief: what a state tells about the releases ahead of it, or behind it; and the
    couplings of rows that prove it
``markov_chain``, ``periodic``
    one chain, with one kernel or a kernel for every slot of the day or week
``classes``, ``dobrushin``
    classes of chains: finite, by mixing, by start, by intervals, by contraction
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .belief import Belief as Belief
    from .classes import AnyInitial as AnyInitial
    from .classes import BinaryInterval as BinaryInterval
    from .classes import FiniteClass as FiniteClass
    from .classes import MixingBounds as MixingBounds
    from .classes import mixing_bounds as mixing_bounds
    from .directions import AnyStart as AnyStart
    from .directions import Certificate as Certificate
    from .directions import Direction as Direction
    from .directions import MixingCurve as MixingCurve
    from .directions import NotContracting as NotContracting
    from .directions import certify as certify
    from .dobrushin import DobrushinBounds as DobrushinBounds
    from .kernels import Kernel as Kernel
    from .markov_chain import ChainError as ChainError
    from .markov_chain import MarkovChain as MarkovChain
    from .markov_chain import smooth_zeros as smooth_zeros
    from .periodic import PeriodicChain as PeriodicChain
    from .serialisation import Certified as Certified
    from .serialisation import belief_from_dict as belief_from_dict
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
