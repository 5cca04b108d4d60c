"""What all releases of a domain cost together: the forward-backward account.

``directions``
    one direction of time under a belief: what a state tells about the releases ahead of it, or behind it
``forward_backward``
    the loss of an endless stream with its certificate, of any schedule below its density, and of an event
``sweep``
    the loss of any schedule, slot by slot
``calibration``
    the noise of a query by that account
``quilt_account``, ``theorems``
    the loss by Markov quilts, and the bounds of the sources' theorems
``ledger``, ``charges``, ``density``, ``schedules``
    the running account of a domain, and what it is made of
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
