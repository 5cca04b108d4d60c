"""The ledger of record: what was charged and what was published, in SQLite or PostgreSQL.

``Store`` registers queries, publishes blocks and answers what is on record; ``StoreAddress`` says where it is. The
values that go in and out are in :mod:`quiltstream.store.specs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schemas.contents import contents

if TYPE_CHECKING:
    from .address import StoreAddress as StoreAddress
    from .errors import BudgetRefused as BudgetRefused
    from .errors import StoreDamaged as StoreDamaged
    from .errors import StoreError as StoreError
    from .errors import StoreMissing as StoreMissing
    from .specs import Block as Block
    from .specs import DomainSpec as DomainSpec
    from .specs import Draft as Draft
    from .specs import Noise as Noise
    from .specs import QuerySpec as QuerySpec
    from .specs import Record as Record
    from .specs import Registration as Registration
    from .store import Store as Store
else:
    __getattr__, __dir__, __all__ = contents(__name__)
