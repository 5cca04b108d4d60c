"""The ledger of record: what was charged and what was published, in SQLite or PostgreSQL.

``Store`` registers queries, publishes blocks and answers what is on record; ``StoreAddress`` says where it is. The
values that go in and out are in :mod:`quiltstream.store.specs`.
"""

from __future__ import annotations

from .address import StoreAddress
from .errors import (
    AddressError,
    BudgetRefused,
    ChargeMismatch,
    DraftError,
    ExportError,
    MergeConflict,
    ModeError,
    NotDurableError,
    RegistrationConflict,
    RosterChanged,
    SchemaVersionError,
    SharedSeries,
    StoreAway,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
    StoreReplaced,
    StoreUnavailable,
    UnknownNameError,
)
from .queries import DomainSummary, QuerySummary
from .release_rows import rows_of
from .specs import BeliefChange, Block, DomainSpec, Draft, Noise, QuerySpec, Record, Registration, RosterVersion
from .store import Store
from .verification import Defect, Head, Verified

__all__ = [
    "AddressError",
    "BeliefChange",
    "Block",
    "BudgetRefused",
    "ChargeMismatch",
    "Defect",
    "DomainSpec",
    "DomainSummary",
    "Draft",
    "DraftError",
    "ExportError",
    "Head",
    "MergeConflict",
    "ModeError",
    "Noise",
    "NotDurableError",
    "QuerySpec",
    "QuerySummary",
    "Record",
    "Registration",
    "RegistrationConflict",
    "RosterChanged",
    "RosterVersion",
    "SchemaVersionError",
    "SharedSeries",
    "Store",
    "StoreAddress",
    "StoreAway",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreMissing",
    "StoreReadOnly",
    "StoreReplaced",
    "StoreUnavailable",
    "UnknownNameError",
    "Verified",
    "rows_of",
]
