"""Questions about releases, before and after them.

``methods``
    the calibration table: every mechanism that settings can name
``planning``
    what a release will be worth; for a purpose the mechanisms side by side, errors over windows and groups, the
    epsilon for an error, odds
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .methods import METHODS as METHODS
    from .methods import entry_dp as entry_dp
    from .methods import group_dp as group_dp
    from .planning import Purpose as Purpose
    from .planning import Utility as Utility
    from .planning import analyse_utility as analyse_utility
    from .planning import plan_release as plan_release
    from .planning import smallest_epsilon as smallest_epsilon
    from .planning import smallest_window as smallest_window
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
