"""The values that every portion shares: readings, slots, states, models, releases, ledger entries and settings.

Plain frozen types with the Arrow and Avro forms that cross a boundary; they import no other portion.

``slots``, ``calendars``, ``clock``, ``states``, ``readings``, ``roster``
    public time and windows, also those of a calendar, the bins of a value, readings and rejects, which series exist
``model_file``
    the model file: a belief with its provenance
``releases``, ``ledger``, ``noise_laws``
    the published rows with their columns and their declaration in SQL, the entries of the ledger, the laws of the noise
``settings``
    the documents of a job and of the gateway
``files``, ``table_files``
    files opened and written whole, tables in four formats and back
``digests``, ``errors``, ``lazy_imports``, ``backoff``
    stable names, the base class of errors, names imported lazily, growing pauses
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .digests import canonical_json as canonical_json
    from .digests import digest as digest
    from .digests import stable_hash as stable_hash
    from .errors import QuiltstreamError as QuiltstreamError
    from .ledger import LedgerEntry as LedgerEntry
    from .model_file import Model as Model
    from .model_file import ModelError as ModelError
    from .model_file import Provenance as Provenance
    from .readings import READING_SCHEMA as READING_SCHEMA
    from .readings import RejectReason as RejectReason
    from .releases import RELEASE_SCHEMA as RELEASE_SCHEMA
    from .releases import Release as Release
    from .releases import tidy as tidy
    from .roster import Roster as Roster
    from .roster import RosterError as RosterError
    from .settings.base import SettingsError as SettingsError
    from .settings.job import Settings as Settings
    from .settings.job import load_settings as load_settings
    from .slots import Schedule as Schedule
    from .slots import SlotGrid as SlotGrid
    from .slots import Window as Window
    from .slots import format_duration as format_duration
    from .slots import format_instant as format_instant
    from .slots import parse_duration as parse_duration
    from .slots import parse_instant as parse_instant
    from .states import StateSpace as StateSpace
    from .table_files import read_releases as read_releases
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
