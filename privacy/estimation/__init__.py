"""From histories or released rows to a belief: counts, confidence, classes per series and drift.

``transition_counts``
    a history's counts, the chain of them, and what speaks against one chain
``confidence``, ``per_series``
    classes that hold for a history or a noisy count of one, for most of its series, or given the kind of each day
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
    from .confidence import noisy_class as noisy_class
    from .confidence import release_counts as release_counts
    from .drift import Drift as Drift
    from .drift import drift_test as drift_test
    from .per_series import Contractions as Contractions
    from .per_series import contractions as contractions
    from .transition_counts import Diagnostics as Diagnostics
    from .transition_counts import EstimationError as EstimationError
    from .transition_counts import TransitionCounts as TransitionCounts
    from .transition_counts import chain_from_counts as chain_from_counts
    from .transition_counts import diagnose as diagnose
    from .transition_counts import outside as outside
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
