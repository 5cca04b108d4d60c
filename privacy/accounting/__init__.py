"""What all releases of a domain cost together: the forward-backward account.

``certificates``, ``forward_backward``, ``lower_bounds``
    the loss of an endless stream with its certificate, of any schedule below its density, and of an event;
    the noise of a query by that account
``recursion``, ``account``
    what bounds a slot from the next one, and the loss of any schedule, slot by slot
``quilt_account``, ``theorems``
    the loss by Markov quilts, and the bounds of the sources' theorems
``habits``
    what a hidden habit tells beyond the account, and the loss of a finite life under a mixture of chains
``ledger``, ``charges``, ``schedules``
    the running account of a domain, and what it is made of
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
