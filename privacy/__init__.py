"""The mathematics of quiltstream: beliefs, noise, mechanisms, composition and the ledger; no Beam, no files.

What a job needs is imported at once, the rest when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .accounting.charges import BudgetExceeded, Charge
from .accounting.ledger import Ledger
from .accounting.schedules import Schedule
from .mechanisms.discrete_laplace import DiscreteLaplace
from .mechanisms.histogram import LaplaceHistogram
from .mechanisms.projection import project_to_total
from .models.classes import (
    AnyInitial,
    Belief,
    BinaryInterval,
    FiniteClass,
    MixingBounds,
    belief_from_dict,
    mixing_bounds,
)
from .models.markov_chain import ChainError, MarkovChain
from .quilts.calibration import Calibration, lemma_4_9_reach, mqm_approx, mqm_exact, pairwise
from .quilts.influence import (
    Quilt,
    SidedInfluence,
    chain_influence,
    lemma_4_8,
    mixing_influence,
    sided_influence,
    spectral_influence,
)

if TYPE_CHECKING:
    from .accounting.calibration import forward_backward
    from .accounting.theorems import (
        QuiltRelease,
        SeedsBound,
        TheoremDoesNotApply,
        distant_segments,
        joint_divergence,
        nearly_independent,
        same_quilts,
        sequential,
        two_segments,
    )
    from .analysis.audit import AuditRelease, ExactLoss, exact_loss
    from .analysis.baselines import Baseline, OutsideDomain, entry_dp, gk16, gk16_influence, group_dp
    from .analysis.close_adversaries import adversary_divergence, adversary_epsilon
    from .analysis.planning import (
        METHODS,
        NotApplicable,
        Plan,
        compare_methods,
        plan_release,
        plan_table,
        smallest_group,
        smallest_window,
    )
    from .estimation.confidence import ConfidenceClass, confidence_class
    from .estimation.diagnostics import Diagnostics, diagnose, outside
    from .estimation.drift import Drift, judge_drift, judge_transitions, spent_alpha
    from .estimation.hypothesis_tests import ChiSquare, TripleCounts, drift_test, order_test, reversibility_test
    from .estimation.per_series import covering_class, series_class
    from .estimation.private_counts import NoisyCounts, release_counts
    from .estimation.released_bounds import bounds_of_released
    from .estimation.transition_counts import EstimationError, TransitionCounts, chain_from_counts
    from .mechanisms.exponential import ExponentialTopK
    from .mechanisms.histogram import LaplaceCount
    from .mechanisms.randomised_response import RandomisedResponse
    from .mechanisms.wasserstein import (
        NotComposable,
        WassersteinDistance,
        WassersteinMechanism,
        clique_of_four,
        require_composable,
        wasserstein_infinity,
        wasserstein_of_count,
        wasserstein_of_table,
    )
    from .models.bayesian_network import BayesianNetwork, NetworkError
    from .models.joint_distribution import JointTable
    from .models.markov_chain import fill_zeros
    from .quilts.influence import slot_influence
    from .quilts.influence_curves import InfluenceCurve, binary_curve, composed_points, gaussian_curve, table_curve
    from .quilts.network import NetworkCalibration, NetworkQuilt, max_influence, network_mqm, network_quilts

__all__ = [
    "METHODS",
    "AnyInitial",
    "AuditRelease",
    "Baseline",
    "BayesianNetwork",
    "Belief",
    "BinaryInterval",
    "BudgetExceeded",
    "Calibration",
    "ChainError",
    "Charge",
    "ChiSquare",
    "ConfidenceClass",
    "Diagnostics",
    "DiscreteLaplace",
    "Drift",
    "EstimationError",
    "ExactLoss",
    "ExponentialTopK",
    "FiniteClass",
    "InfluenceCurve",
    "JointTable",
    "LaplaceCount",
    "LaplaceHistogram",
    "Ledger",
    "MarkovChain",
    "MixingBounds",
    "NetworkCalibration",
    "NetworkError",
    "NetworkQuilt",
    "NoisyCounts",
    "NotApplicable",
    "NotComposable",
    "OutsideDomain",
    "Plan",
    "Quilt",
    "QuiltRelease",
    "RandomisedResponse",
    "Schedule",
    "SeedsBound",
    "SidedInfluence",
    "TheoremDoesNotApply",
    "TransitionCounts",
    "TripleCounts",
    "WassersteinDistance",
    "WassersteinMechanism",
    "adversary_divergence",
    "adversary_epsilon",
    "belief_from_dict",
    "binary_curve",
    "bounds_of_released",
    "chain_from_counts",
    "chain_influence",
    "clique_of_four",
    "compare_methods",
    "composed_points",
    "confidence_class",
    "covering_class",
    "diagnose",
    "distant_segments",
    "drift_test",
    "entry_dp",
    "exact_loss",
    "fill_zeros",
    "forward_backward",
    "gaussian_curve",
    "gk16",
    "gk16_influence",
    "group_dp",
    "joint_divergence",
    "judge_drift",
    "judge_transitions",
    "lemma_4_8",
    "lemma_4_9_reach",
    "max_influence",
    "mixing_bounds",
    "mixing_influence",
    "mqm_approx",
    "mqm_exact",
    "nearly_independent",
    "network_mqm",
    "network_quilts",
    "order_test",
    "outside",
    "pairwise",
    "plan_release",
    "plan_table",
    "project_to_total",
    "release_counts",
    "require_composable",
    "reversibility_test",
    "same_quilts",
    "sequential",
    "series_class",
    "sided_influence",
    "slot_influence",
    "smallest_group",
    "smallest_window",
    "spectral_influence",
    "spent_alpha",
    "table_curve",
    "two_segments",
    "wasserstein_infinity",
    "wasserstein_of_count",
    "wasserstein_of_table",
]

_LATER = {
    "METHODS": "analysis.planning",
    "AuditRelease": "analysis.audit",
    "Baseline": "analysis.baselines",
    "BayesianNetwork": "models.bayesian_network",
    "ChiSquare": "estimation.hypothesis_tests",
    "ConfidenceClass": "estimation.confidence",
    "Diagnostics": "estimation.diagnostics",
    "Drift": "estimation.drift",
    "EstimationError": "estimation.transition_counts",
    "ExactLoss": "analysis.audit",
    "ExponentialTopK": "mechanisms.exponential",
    "InfluenceCurve": "quilts.influence_curves",
    "JointTable": "models.joint_distribution",
    "LaplaceCount": "mechanisms.histogram",
    "NetworkCalibration": "quilts.network",
    "NetworkError": "models.bayesian_network",
    "NetworkQuilt": "quilts.network",
    "NoisyCounts": "estimation.private_counts",
    "NotApplicable": "analysis.planning",
    "NotComposable": "mechanisms.wasserstein",
    "OutsideDomain": "analysis.baselines",
    "Plan": "analysis.planning",
    "QuiltRelease": "accounting.theorems",
    "RandomisedResponse": "mechanisms.randomised_response",
    "SeedsBound": "accounting.theorems",
    "TheoremDoesNotApply": "accounting.theorems",
    "TransitionCounts": "estimation.transition_counts",
    "TripleCounts": "estimation.hypothesis_tests",
    "WassersteinDistance": "mechanisms.wasserstein",
    "WassersteinMechanism": "mechanisms.wasserstein",
    "adversary_divergence": "analysis.close_adversaries",
    "adversary_epsilon": "analysis.close_adversaries",
    "binary_curve": "quilts.influence_curves",
    "bounds_of_released": "estimation.released_bounds",
    "chain_from_counts": "estimation.transition_counts",
    "clique_of_four": "mechanisms.wasserstein",
    "compare_methods": "analysis.planning",
    "composed_points": "quilts.influence_curves",
    "confidence_class": "estimation.confidence",
    "covering_class": "estimation.per_series",
    "diagnose": "estimation.diagnostics",
    "distant_segments": "accounting.theorems",
    "drift_test": "estimation.hypothesis_tests",
    "entry_dp": "analysis.baselines",
    "exact_loss": "analysis.audit",
    "fill_zeros": "models.markov_chain",
    "forward_backward": "accounting.calibration",
    "gaussian_curve": "quilts.influence_curves",
    "gk16": "analysis.baselines",
    "gk16_influence": "analysis.baselines",
    "group_dp": "analysis.baselines",
    "joint_divergence": "accounting.theorems",
    "judge_drift": "estimation.drift",
    "judge_transitions": "estimation.drift",
    "max_influence": "quilts.network",
    "nearly_independent": "accounting.theorems",
    "network_mqm": "quilts.network",
    "network_quilts": "quilts.network",
    "order_test": "estimation.hypothesis_tests",
    "outside": "estimation.diagnostics",
    "plan_release": "analysis.planning",
    "plan_table": "analysis.planning",
    "release_counts": "estimation.private_counts",
    "require_composable": "mechanisms.wasserstein",
    "reversibility_test": "estimation.hypothesis_tests",
    "same_quilts": "accounting.theorems",
    "sequential": "accounting.theorems",
    "series_class": "estimation.per_series",
    "slot_influence": "quilts.influence",
    "smallest_group": "analysis.planning",
    "smallest_window": "analysis.planning",
    "spent_alpha": "estimation.drift",
    "table_curve": "quilts.influence_curves",
    "two_segments": "accounting.theorems",
    "wasserstein_infinity": "mechanisms.wasserstein",
    "wasserstein_of_count": "mechanisms.wasserstein",
    "wasserstein_of_table": "mechanisms.wasserstein",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_LATER[name]}", __name__), name)
    # a function may have the name of its module: what is kept here is the function
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
