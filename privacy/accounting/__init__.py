"""What all releases of a domain cost together: the forward-backward account.

``couplings``
    the map L in its exact form, and the bound that any coupling proves
``directions``
    one direction of time under a belief: what a state tells about the releases ahead of it, or behind it
``forward_backward``
    the loss of an endless stream, its certificate, its calibration, and the least loss that is possible
``constant``
    what releases cost whose density no slot exceeds: the bound that a ledger takes
``calibration``
    the noise of a query by that bound
"""

from __future__ import annotations

from .directions import AnyStart, Direction, Kernel, MixingCurve, NotContracting
from .forward_backward import Certificate, Endless, certify, directions_of, endless, lower_bound

__all__ = [
    "AnyStart",
    "Certificate",
    "Direction",
    "Endless",
    "Kernel",
    "MixingCurve",
    "NotContracting",
    "certify",
    "directions_of",
    "endless",
    "lower_bound",
]
