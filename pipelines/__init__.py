"""Whole jobs and the command line ``quiltstream``.

``program``, ``cli``, ``click_types``, ``console``, ``errors``, ``forecast``
    arguments of every command, what they print, their exit codes, and the table of what a run will do or did
``commands``
    what each command does, and what all do; imported when it is called, so that help does not wait for Beam
``init``
    a look at files of readings, and the settings that it makes
``preflight``, ``crowded``, ``runners``
    all checks of a job in their order, that of several readings a slot, and Beam as the commands use it
``connectors``
    where a job reads and writes
    what the author of a connector or a payload format imports, and the tests that an author inherits
``live``
    jobs that do not end
``estimation``, ``drift``
    models that a job estimates itself, drift tests of released rows
``report``
    ``quiltstream report``: its contents, figures and page
``gateway``
    the process between an MQTT broker and the rest
``metrics_page``
    metrics as Prometheus' text, and the server of it
``on_record``, ``released_series``
    what the ledger has on record for a job and what is remembered of it between runs, released rows as series
``data``
    the sample data
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .errors import CommandError as CommandError
    from .errors import ExitCode as ExitCode
    from .errors import Failure as Failure
    from .errors import explain as explain
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
