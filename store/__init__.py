"""The ledger of record: what was charged and what was published, in SQLite or PostgreSQL.

``Store`` registers queries, publishes blocks and answers what is on record; ``StoreAddress`` says where it is.

``store``, ``address``, ``specs``, ``errors``
    the facade, the URL, the plain values that go in and out, and what can go wrong
``log``, ``domain``
    two tables and the chain of their rows; a domain, folded from its rows
``database``, ``engines``, ``files``
    transactions and what a process knows; engines and their drivers' errors; the SQLite file
``registration``, ``publishing``, ``changes``
    what writes: a query with its budget and roster, a block with its charge, a belief or a budget that changes
``accounts``, ``answers``, ``codec``, ``exports``, ``verification``
    what things cost, and short; blobs as bytes; released rows and files for publication; a whole ledger checked
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .address import StoreAddress as StoreAddress
    from .codec import NoisyBlock as NoisyBlock
    from .errors import BudgetRefused as BudgetRefused
    from .errors import StoreConflict as StoreConflict
    from .errors import StoreDamaged as StoreDamaged
    from .errors import StoreError as StoreError
    from .specs import BlockToPublish as BlockToPublish
    from .specs import DomainSpec as DomainSpec
    from .specs import Noise as Noise
    from .specs import QuerySpec as QuerySpec
    from .specs import Record as Record
    from .specs import Registration as Registration
    from .store import Store as Store
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
