"""The words everyone shares: readings, slots, states, models, releases, ledger entries and settings.

Plain frozen types without behaviour of the other portions; each has the Arrow and Avro forms that cross a boundary.
"""

from __future__ import annotations

from .digests import canonical_json, digest, stable_hash
from .ledger import LedgerEntry
from .models import Model, ModelError, Provenance
from .readings import READING_SCHEMA, RejectReason
from .releases import RELEASE_SCHEMA, Release, tidy
from .roster import Roster, RosterError
from .settings.base import SettingsError
from .settings.job import Settings, load_settings
from .slots import Schedule, SlotGrid, Window, format_duration, format_instant, parse_duration, parse_instant
from .states import StateSpace

__all__ = [
    "READING_SCHEMA",
    "RELEASE_SCHEMA",
    "LedgerEntry",
    "Model",
    "ModelError",
    "Provenance",
    "RejectReason",
    "Release",
    "Roster",
    "RosterError",
    "Schedule",
    "Settings",
    "SettingsError",
    "SlotGrid",
    "StateSpace",
    "Window",
    "canonical_json",
    "digest",
    "format_duration",
    "format_instant",
    "load_settings",
    "parse_duration",
    "parse_instant",
    "stable_hash",
    "tidy",
]
