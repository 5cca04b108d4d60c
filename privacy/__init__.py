"""The mathematics of quiltstream: beliefs, noise, mechanisms, composition and the ledger; no Beam, no files.

What a job needs is imported at once, the rest when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .chains import ChainError, MarkovChain
from .charges import BudgetExceeded, Charge
from .classes import AnyInitial, Belief, BinaryInterval, FiniteClass, MixingBounds, belief_from_dict, mixing_bounds
from .influence import (
    SidedInfluence,
    chain_influence,
    lemma_4_8,
    mixing_influence,
    sided_influence,
    spectral_influence,
)
from .ledger import Ledger
from .mechanisms import LaplaceHistogram
from .noise import DiscreteLaplace
from .projection import project_to_total
from .quilts import Calibration, Quilt, lemma_4_9_reach, mqm_approx, mqm_exact, pairwise
from .schedules import Schedule

if TYPE_CHECKING:
    from .accounting.calibration import forward_backward
    from .adversaries import adversary_divergence, adversary_epsilon
    from .audit import AuditRelease, ExactLoss, exact_loss
    from .baselines import Baseline, OutsideDomain, entry_dp, gk16, gk16_influence, group_dp
    from .chain_tests import ChiSquare, TripleCounts, drift_test, order_test, reversibility_test
    from .choices import ExponentialTopK
    from .composition import (
        QuiltRelease,
        TheoremDoesNotApply,
        distant_segments,
        joint_divergence,
        nearly_independent,
        same_quilts,
        sequential,
        two_segments,
    )
    from .confidence import ConfidenceClass, confidence_class
    from .counts import LaplaceCount
    from .coverage import covering_class, series_class
    from .curves import InfluenceCurve, binary_curve, composed_points, table_curve
    from .diagnostics import Diagnostics, diagnose, outside
    from .drift import Drift, judge_drift, spent_alpha
    from .estimation import EstimationError, TransitionCounts, chain_from_counts
    from .gaussian_curves import gaussian_curve
    from .joint import JointTable
    from .network_search import NetworkCalibration, NetworkQuilt, max_influence, network_mqm, network_quilts
    from .networks import BayesianNetwork, NetworkError
    from .noisy_counts import NoisyCounts, release_counts
    from .planning import (
        METHODS,
        NotApplicable,
        Plan,
        compare_methods,
        plan_release,
        plan_table,
        smallest_group,
        smallest_window,
    )
    from .released_bounds import bounds_of_released
    from .responses import RandomisedResponse
    from .seeds import SeedsBound
    from .single_slots import slot_influence
    from .transition_drift import judge_transitions
    from .wasserstein import (
        NotComposable,
        WassersteinDistance,
        WassersteinMechanism,
        clique_of_four,
        require_composable,
        wasserstein_infinity,
        wasserstein_of_count,
        wasserstein_of_table,
    )
    from .zeros import fill_zeros

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
    "METHODS": "planning",
    "AuditRelease": "audit",
    "Baseline": "baselines",
    "BayesianNetwork": "networks",
    "ChiSquare": "chain_tests",
    "ConfidenceClass": "confidence",
    "Diagnostics": "diagnostics",
    "Drift": "drift",
    "EstimationError": "estimation",
    "ExactLoss": "audit",
    "ExponentialTopK": "choices",
    "InfluenceCurve": "curves",
    "JointTable": "joint",
    "LaplaceCount": "counts",
    "NetworkCalibration": "network_search",
    "NetworkError": "networks",
    "NetworkQuilt": "network_search",
    "NoisyCounts": "noisy_counts",
    "NotApplicable": "planning",
    "NotComposable": "wasserstein",
    "OutsideDomain": "baselines",
    "Plan": "planning",
    "QuiltRelease": "composition",
    "RandomisedResponse": "responses",
    "SeedsBound": "seeds",
    "TheoremDoesNotApply": "composition",
    "TransitionCounts": "estimation",
    "TripleCounts": "chain_tests",
    "WassersteinDistance": "wasserstein",
    "WassersteinMechanism": "wasserstein",
    "adversary_divergence": "adversaries",
    "adversary_epsilon": "adversaries",
    "binary_curve": "curves",
    "bounds_of_released": "released_bounds",
    "chain_from_counts": "estimation",
    "clique_of_four": "wasserstein",
    "compare_methods": "planning",
    "composed_points": "curves",
    "confidence_class": "confidence",
    "covering_class": "coverage",
    "diagnose": "diagnostics",
    "distant_segments": "composition",
    "drift_test": "chain_tests",
    "entry_dp": "baselines",
    "exact_loss": "audit",
    "fill_zeros": "zeros",
    "forward_backward": "accounting.calibration",
    "gaussian_curve": "gaussian_curves",
    "gk16": "baselines",
    "gk16_influence": "baselines",
    "group_dp": "baselines",
    "joint_divergence": "composition",
    "judge_drift": "drift",
    "judge_transitions": "transition_drift",
    "max_influence": "network_search",
    "nearly_independent": "composition",
    "network_mqm": "network_search",
    "network_quilts": "network_search",
    "order_test": "chain_tests",
    "outside": "diagnostics",
    "plan_release": "planning",
    "plan_table": "planning",
    "release_counts": "noisy_counts",
    "require_composable": "wasserstein",
    "reversibility_test": "chain_tests",
    "same_quilts": "composition",
    "sequential": "composition",
    "series_class": "coverage",
    "slot_influence": "single_slots",
    "smallest_group": "planning",
    "smallest_window": "planning",
    "spent_alpha": "drift",
    "table_curve": "curves",
    "two_segments": "composition",
    "wasserstein_infinity": "wasserstein",
    "wasserstein_of_count": "wasserstein",
    "wasserstein_of_table": "wasserstein",
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
