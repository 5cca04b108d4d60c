"""From histories or released rows to a belief: counts, confidence, classes per series and drift.

``transition_counts``, ``diagnosis``
    a history's counts, the chain of them, and what speaks against one chain
``confidence``, ``per_series``, ``regimes``
    classes that hold for a history, for most of its series, or given the kind of each day
``private_counts``
    noisy counts, and a belief from them
``released_histograms``, ``drift``, ``belief_checks``
    stretches of released rows, with the noise of their sums; whether they contradict a belief in force, and the
    bounds that they allow; what richer beliefs would cost
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .confidence import ConfidenceClass as ConfidenceClass
    from .confidence import confidence_class as confidence_class
    from .diagnosis import Diagnostics as Diagnostics
    from .diagnosis import diagnose as diagnose
    from .diagnosis import outside as outside
    from .drift import Drift as Drift
    from .drift import drift_test as drift_test
    from .drift import spent_alpha as spent_alpha
    from .per_series import Contractions as Contractions
    from .per_series import contractions as contractions
    from .private_counts import NoisyCounts as NoisyCounts
    from .private_counts import release_counts as release_counts
    from .transition_counts import EstimationError as EstimationError
    from .transition_counts import TransitionCounts as TransitionCounts
    from .transition_counts import chain_from_counts as chain_from_counts
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
