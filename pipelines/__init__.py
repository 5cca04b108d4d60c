"""Whole jobs and the command line ``quiltstream``.

The command line is ``cli``; what all commands share lies beside it. ``commands`` has what each of them does, ``live``
the jobs that do not end, ``gateway`` the process between an MQTT broker and the rest, ``connectors`` where a job reads
and writes, ``estimation`` the models that jobs estimate themselves, ``data`` the shipped samples.

The commands' modules are imported when they are called, so that asking for help does not wait for Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schemas.contents import contents

if TYPE_CHECKING:
    from .errors import CommandError as CommandError
    from .errors import ExitCode as ExitCode
    from .errors import Failure as Failure
    from .errors import explain as explain
else:
    __getattr__, __dir__, __all__ = contents(__name__)
