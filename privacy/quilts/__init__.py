"""The Markov Quilt Mechanism of [SWC17], and the influence curves of [BHGKM].

``influence``
    how much a slot at some distance tells about the state now (Equation 5, Lemma 4.8)
``calibration``
    noise by MQMApprox, MQMExact and pairwise quilts
``network``
    quilts of a Bayesian network (Algorithm 2)
``influence_curves``
    a(b) of chains and of Gaussian series

Sources: Song, Wang and Chaudhuri, "Pufferfish Privacy Mechanisms for Correlated Data" (SIGMOD 2017); Bai et al.,
"Composition for Pufferfish Privacy".
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
    from .influence import slot_influence as slot_influence
    from .influence import spectral_influence as spectral_influence
    from .influence_curves import InfluenceCurve as InfluenceCurve
    from .influence_curves import binary_curve as binary_curve
    from .influence_curves import composed_points as composed_points
    from .influence_curves import gaussian_curve as gaussian_curve
    from .influence_curves import table_curve as table_curve
    from .network import NetworkCalibration as NetworkCalibration
    from .network import NetworkQuilt as NetworkQuilt
    from .network import max_influence as max_influence
    from .network import network_mqm as network_mqm
    from .network import network_quilts as network_quilts
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
