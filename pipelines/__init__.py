"""Whole jobs and the command line ``quiltstream``.

The commands' modules are imported when they are called, so that asking for help does not wait for Beam.
"""

from __future__ import annotations

from .exits import ExitCode
from .failures import CommandError, Failure, explain

__all__ = ["CommandError", "ExitCode", "Failure", "explain"]
