"""Beam transforms: decode, encode, collect, release, estimate; file sources and sinks."""

from __future__ import annotations

from .batches import ReadingsError
from .estimate import EstimateTransitions
from .histograms import Histograms, PrivateHistograms
from .plan import Plan, make_plan, model_of

__all__ = [
    "EstimateTransitions",
    "Histograms",
    "Plan",
    "PrivateHistograms",
    "ReadingsError",
    "make_plan",
    "model_of",
]
