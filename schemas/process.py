"""The memory of a process that holds raw readings or noise: kept out of core files and away from other processes.

A core file has everything that the process held when it died, and outlives it on a disk. Linux writes none for a
process that is not dumpable, also where the system hands cores to a program of its own, which a limit of 0 bytes alone
does not prevent. Another process of the same user then cannot read its memory either.
"""

from __future__ import annotations

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4


def keep_memory_private() -> None:
    """See that this process leaves no core file; what a system does not offer is left as it is."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


__all__ = ["keep_memory_private"]
