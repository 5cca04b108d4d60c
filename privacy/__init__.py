"""The mathematics of quiltstream: beliefs, noise calibration and the quilt ledger. No Beam, no input or output."""

from __future__ import annotations

from .chains import ChainError, MarkovChain
from .classes import Belief, FiniteClass, MixingBounds, belief_from_dict
from .influence import SidedInfluence, lemma_4_8, sided_influence
from .ledger import BudgetExceeded, Charge, Ledger
from .quilts import Calibration, Quilt, lemma_4_9_reach, mqm_approx
from .schedules import Schedule

__all__ = [
    "Belief",
    "BudgetExceeded",
    "Calibration",
    "ChainError",
    "Charge",
    "FiniteClass",
    "Ledger",
    "MarkovChain",
    "MixingBounds",
    "Quilt",
    "Schedule",
    "SidedInfluence",
    "belief_from_dict",
    "lemma_4_8",
    "lemma_4_9_reach",
    "mqm_approx",
    "sided_influence",
]
