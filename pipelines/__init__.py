"""Whole jobs and the command line ``quiltstream``.

The command line is ``cli``; what all commands share lies beside it. ``commands`` has what each of them does, ``live``
the jobs that do not end, ``gateway`` the process between an MQTT broker and the rest, ``connectors`` where a job reads
and writes, ``estimation`` the models that jobs estimate themselves, ``data`` the shipped samples.

The commands' modules are imported when they are called, so that asking for help does not wait for Beam.
"""

from __future__ import annotations

from .errors import CommandError, ExitCode, Failure, explain

__all__ = ["CommandError", "ExitCode", "Failure", "explain"]
