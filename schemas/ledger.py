"""Ledger entries: what a window of a query cost its domain, or why it was refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import pyarrow as pa

Decision = Literal["charged", "refused"]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One charge or refusal of record. It depends on the public schedule alone, so a list of them may be published.

    Attributes:
        entry_id: the first half of ``chain``: a name that no other entry has, in this ledger or another.
        sequence: position in the domain's account, from 1.
        domain: the series that one budget protects.
        query: the named statistic.
        query_digest: digest of everything that determines the query's numbers.
        window_start: first slot of the window.
        window_stop: first slot after the window.
        start_us: start of the window, microseconds since the epoch, UTC.
        stop_us: end of the window, microseconds since the epoch, UTC.
        decision: charged or refused.
        epsilon_dp: loss per slot of the release, times the most groups a series is in; epsilon per slot.
        loss_before: what the account had lost before, epsilon.
        loss_after: what it had lost after; for a refusal what it would have been.
        budget: the domain's budget at that time, epsilon.
        rule: the composition rule that gave ``loss_after``.
        mechanism: the mechanism that calibrated the noise; ``none`` for the tests' noise-free rows.
        model_id: digest of the belief.
        given_model: whether the loss holds only given a model estimated from the protected series.
        chain: digest of the ledger's log of the domain up to this entry, hexadecimal; empty for one that is on no
            record.
    """

    entry_id: str
    sequence: int
    domain: str
    query: str
    query_digest: str
    window_start: int
    window_stop: int
    start_us: int
    stop_us: int
    decision: Decision
    epsilon_dp: float
    loss_before: float
    loss_after: float
    budget: float
    rule: str
    mechanism: str
    model_id: str
    given_model: bool
    chain: str = ""

    @property
    def charged(self) -> bool:
        """Whether it was charged, not refused."""
        return self.decision == "charged"

    @property
    def span(self) -> tuple[int, int, float]:
        """First slot, first slot after the window and loss per slot: what a charge is to the account."""
        return self.window_start, self.window_stop, self.epsilon_dp

    def to_dict(self) -> dict[str, Any]:
        """Plain form, the row of every export."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> LedgerEntry:
        """The inverse of :meth:`to_dict`; columns of later versions are ignored."""
        return cls(**{f.name: row[f.name] for f in fields(cls)})


_ARROW: dict[str, pa.DataType] = {
    "str": pa.utf8(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "Decision": pa.utf8(),
    "tuple[str, ...]": pa.list_(pa.utf8()),
    "tuple[int, ...]": pa.list_(pa.int64()),
    "tuple[float, ...]": pa.list_(pa.float64()),
}


def arrow_schema(kind: type[Any], special: Mapping[str, pa.DataType], metadata: dict[str, str]) -> pa.Schema:
    """The Arrow form of a dataclass: a column a field, which may be null where the field may be ``None``."""
    columns = [
        pa.field(one.name, special.get(one.name) or _ARROW[text.removesuffix(" | None")], text.endswith(" | None"))
        for one in fields(kind)
        for text in (str(one.type),)
    ]
    return pa.schema(columns, metadata=metadata)


#: The Arrow form: one row an entry.
LEDGER_SCHEMA = arrow_schema(LedgerEntry, {}, {"quiltstream.schema": "ledger-entry", "quiltstream.version": "1"})
