"""The Markov Quilt Mechanism of [SWC17].

``influence``, ``powers``
    how much a slot at some distance tells about the state now (Equation 5, Lemma 4.8)
``calibration``, ``search``, ``nodes``
    noise by MQMApprox, MQMExact and pairwise quilts

Source: Song, Wang and Chaudhuri, "Pufferfish Privacy Mechanisms for Correlated Data" (SIGMOD 2017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .calibration import Calibration as Calibration
    from .calibration import lemma_4_9_reach as lemma_4_9_reach
    from .calibration import mqm_approx as mqm_approx
    from .calibration import mqm_exact as mqm_exact
    from .calibration import pairwise as pairwise
    from .influence import Quilt as Quilt
    from .influence import SidedInfluence as SidedInfluence
    from .influence import chain_influence as chain_influence
    from .influence import lemma_4_8 as lemma_4_8
    from .influence import mixing_influence as mixing_influence
    from .influence import sided_influence as sided_influence
    from .influence import spectral_influence as spectral_influence
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
