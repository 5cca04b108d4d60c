"""How values are randomised: exact discrete Laplace noise and the mechanisms on top of it.

``sampling``, ``discrete_laplace``
    draws by inversion, and the two laws of noise
``histogram``
    noisy counts, and their estimate with a known total
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .discrete_laplace import DiscreteLaplace as DiscreteLaplace
    from .histogram import LaplaceHistogram as LaplaceHistogram
    from .histogram import project_to_total as project_to_total
    from .sampling import EntropyError as EntropyError
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
