"""What is believed about the data, each by the two directions of time that the account reads.

``belief``
    the protocol: what a belief answers
``dobrushin``
    every chain, also changing in time, whose kernels of m steps contract at least so fast
``neighbourhood``
    every chain near a given one, also one that changes in time
``periodic``
    a chain with a kernel for every slot of the day or week
"""

from __future__ import annotations

from .belief import Directed
from .dobrushin import DobrushinBounds
from .neighbourhood import Neighbourhood
from .periodic import PeriodicChain

__all__ = ["Directed", "DobrushinBounds", "Neighbourhood", "PeriodicChain"]
