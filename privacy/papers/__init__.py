"""What the sources have and no job calls: the audit, joint laws, networks, other mechanisms, curves, adversaries.

``audit``
    the loss of a small chain by enumeration, from the definition ([SWC17] Definition 2.1)
``joint``
    any small table, in exact fractions
``networks``
    Bayesian networks, their quilts, and the general Markov Quilt Mechanism ([SWC17] Algorithm 2)
``wasserstein``
    the Wasserstein Mechanism ([SWC17] Algorithm 1)
``exponential``
    the exponential mechanism ([BHGKM])
``curves``
    influence curves a(b) of chains and of Gaussian series ([BHGKM] section 5)
``weak_correlation``
    noise by an influence matrix ([GK16])
``adversaries``
    the loss to somebody who believes something near the class ([SWC17] section 2.4)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .adversaries import adversary_divergence as adversary_divergence
    from .adversaries import adversary_epsilon as adversary_epsilon
    from .audit import AuditRelease as AuditRelease
    from .audit import ExactLoss as ExactLoss
    from .audit import exact_loss as exact_loss
    from .curves import InfluenceCurve as InfluenceCurve
    from .curves import binary_curve as binary_curve
    from .curves import gaussian_curve as gaussian_curve
    from .curves import table_curve as table_curve
    from .exponential import ExponentialTopK as ExponentialTopK
    from .joint import JointTable as JointTable
    from .networks import BayesianNetwork as BayesianNetwork
    from .networks import NetworkError as NetworkError
    from .networks import max_influence as max_influence
    from .networks import network_mqm as network_mqm
    from .networks import network_quilts as network_quilts
    from .wasserstein import NotComposable as NotComposable
    from .wasserstein import WassersteinMechanism as WassersteinMechanism
    from .wasserstein import clique_of_four as clique_of_four
    from .wasserstein import wasserstein_infinity as wasserstein_infinity
    from .wasserstein import wasserstein_of_count as wasserstein_of_count
    from .wasserstein import wasserstein_of_table as wasserstein_of_table
    from .weak_correlation import OutsideDomain as OutsideDomain
    from .weak_correlation import gk16 as gk16
    from .weak_correlation import gk16_influence as gk16_influence
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
