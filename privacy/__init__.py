"""The mathematics of quiltstream: beliefs, noise, mechanisms, composition and the ledger; no Beam, no files.

What a calibration and its account need is here. The rest is in the folders:

``models``
    what is believed about the data
``quilts``
    the calibrations of the papers
``mechanisms``
    how values are randomised
``accounting``
    what all releases cost together
``estimation``
    from histories or released rows to a belief
``analysis``
    the calibrations by name, and planning
``papers``
    what the sources have and no job calls
``validation``
    checks of plain arguments, the base class of errors

A value of a wrong type is refused by a TypeError, one out of its range by a ValueError, each with its name and the
limit (``validation``). Docstrings list the other errors, and those that say more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .accounting.charges import BudgetExceeded as BudgetExceeded
    from .accounting.charges import Charge as Charge
    from .accounting.forward_backward import forward_backward as forward_backward
    from .accounting.ledger import Ledger as Ledger
    from .accounting.schedules import Schedule as Schedule
    from .analysis.planning import Purpose as Purpose
    from .analysis.planning import plan_release as plan_release
    from .mechanisms.histogram import LaplaceHistogram as LaplaceHistogram
    from .mechanisms.histogram import project_to_total as project_to_total
    from .models.classes import AnyInitial as AnyInitial
    from .models.classes import BinaryInterval as BinaryInterval
    from .models.classes import FiniteClass as FiniteClass
    from .models.classes import MixingBounds as MixingBounds
    from .models.dobrushin import DobrushinBounds as DobrushinBounds
    from .models.markov_chain import MarkovChain as MarkovChain
    from .models.periodic import PeriodicChain as PeriodicChain
    from .models.serialisation import belief_from_dict as belief_from_dict
    from .papers.audit import exact_loss as exact_loss
    from .quilts.calibration import Calibration as Calibration
    from .quilts.calibration import mqm_approx as mqm_approx
    from .quilts.calibration import mqm_exact as mqm_exact
    from .quilts.calibration import pairwise as pairwise
    from .quilts.influence import Quilt as Quilt
    from .validation import PrivacyError as PrivacyError
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
