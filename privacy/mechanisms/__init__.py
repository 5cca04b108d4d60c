"""How values are randomised: exact discrete Laplace noise and the mechanisms on top of it.

``sampling``, ``discrete_laplace``
    draws by inversion, and the two laws of noise
``histogram``
    noisy counts, and their estimate with a known total
``exponential``, ``wasserstein``
    other mechanisms, which ``run`` does not use
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .discrete_laplace import DiscreteLaplace as DiscreteLaplace
    from .exponential import ExponentialTopK as ExponentialTopK
    from .histogram import LaplaceCount as LaplaceCount
    from .histogram import LaplaceHistogram as LaplaceHistogram
    from .histogram import project_to_total as project_to_total
    from .sampling import EntropyError as EntropyError
    from .wasserstein import NotComposable as NotComposable
    from .wasserstein import WassersteinDistance as WassersteinDistance
    from .wasserstein import WassersteinMechanism as WassersteinMechanism
    from .wasserstein import clique_of_four as clique_of_four
    from .wasserstein import require_composable as require_composable
    from .wasserstein import wasserstein_infinity as wasserstein_infinity
    from .wasserstein import wasserstein_of_count as wasserstein_of_count
    from .wasserstein import wasserstein_of_table as wasserstein_of_table
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
