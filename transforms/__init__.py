"""Beam transforms: decode, encode, collect, release, estimate; file sources and sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schemas.contents import contents

if TYPE_CHECKING:
    from .aggregate.transitions import EstimateTransitions as EstimateTransitions
    from .common.batches import ReadingsError as ReadingsError
    from .plan import Plan as Plan
    from .plan import make_plan as make_plan
    from .plan import model_of as model_of
    from .private_histograms import Histograms as Histograms
    from .private_histograms import PrivateHistograms as PrivateHistograms
else:
    __getattr__, __dir__, __all__ = contents(__name__)
