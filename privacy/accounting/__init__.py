"""What all releases of a domain cost together: the forward-backward account.

``charges``, ``certificates``, ``recursion``, ``account``, ``ledger``, ``one_at_a_time``
    the running account of a domain: what sums to its density, what a constant density costs on an endless stream, what
    bounds a slot from the next one, the loss of any density slot by slot, and the budget; one ledger at a time
``schedules``, ``streams``, ``events``
    schedules of windows, and what those without an end lose; what an event of several slots loses
``forward_backward``, ``lower_bounds``
    the noise of a query by that account, and what is lost at least
``quilt_account``, ``theorems``
    the loss by Markov quilts, and the bounds of the sources' theorems
``habits``
    what a hidden habit tells beyond the account, and the loss of a finite life under a mixture of chains
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .certificates import Endless as Endless
    from .certificates import endless as endless
    from .charges import BudgetExceeded as BudgetExceeded
    from .charges import Charge as Charge
    from .habits import HabitLoss as HabitLoss
    from .habits import habit_loss as habit_loss
    from .habits import least_mixture_loss as least_mixture_loss
    from .habits import lifetime_sigma as lifetime_sigma
    from .habits import mixture_loss as mixture_loss
    from .ledger import Ledger as Ledger
    from .lower_bounds import lower_bound as lower_bound
    from .schedules import Schedule as Schedule
    from .theorems import TheoremBound as TheoremBound
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
