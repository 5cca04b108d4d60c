"""Beam transforms: decode, encode, collect, release, estimate; file sources and sinks."""

from __future__ import annotations

from .aggregate.transitions import EstimateTransitions
from .common.batches import ReadingsError
from .plan import Plan, make_plan, model_of
from .private_histograms import Histograms, PrivateHistograms

__all__ = [
    "EstimateTransitions",
    "Histograms",
    "Plan",
    "PrivateHistograms",
    "ReadingsError",
    "make_plan",
    "model_of",
]
