"""What must hold of a ledger of record after any fault, counted: the one check that every test of a fault ends with.

The truth is the core's: ``quiltstream.privacy`` works the account out from the released rows alone. What left a job is
compared with what is on record, field by field and floats to the last bit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.schemas.ledger import LedgerEntry
from quiltstream.schemas.slots import SlotGrid
from quiltstream.store import Store

#: Slots of a window: the first, and the first after it.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found."""

    windows: int  # windows of the schedule
    missing: int  # those that are not whole on record, and not refused either
    rows: int  # rows on record
    again: int  # rows that left a job once more, the same
    # rows that left a job, or were on record earlier, and are not the row of record; and places with two
    differing: int
    ledger_equal: bool  # whether the account is the one that the core works out from the rows alone
    loss: float  # what the domain has lost, epsilon
    budget: float  # what it may
    retries: int = 0  # how often a test began a job anew because the runner had shown a known symptom

    @property
    def sound(self) -> bool:
        """Whether nothing was lost, changed, charged wrongly or overspent."""
        return not self.missing and not self.differing and self.ledger_equal and self.loss <= self.budget

    def __add__(self, other: Examined) -> Examined:
        """Of two domains: everything counted, the larger share of a budget."""
        worse = max(self, other, key=lambda one: one.loss / one.budget)
        return Examined(
            self.windows + other.windows,
            self.missing + other.missing,
            self.rows + other.rows,
            self.again + other.again,
            self.differing + other.differing,
            self.ledger_equal and other.ledger_equal,
            worse.loss,
            worse.budget,
            self.retries + other.retries,
        )


class Tally:
    """Takes the counts of a test's faults; they are a property of the test in its report, for ``benchmarks/faults``."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._test: Any = request.node
        self._taken: list[Examined] = []

    def take(self, found: Examined) -> None:
        """Add what was found after a fault, which must be sound."""
        assert found.sound, found
        self._taken.append(found)
        total = json.dumps(asdict(reduce(lambda one, other: one + other, self._taken)))
        kept = [one for one in self._test.user_properties if one[0] != "fault"]
        self._test.user_properties[:] = [*kept, ("fault", total)]


def examine(
    store: Store,
    domain: str,
    query: str,
    *,
    belief: MixingBounds,
    budget: float,
    windows: Iterable[Span],
    keys: Collection[str],
    left: Iterable[pa.RecordBatch] = (),
    earlier: Mapping[str, str] | None = None,
    retries: int = 0,
    ended: bool = True,
) -> Examined:
    """Look at the only query of a domain.

    Args:
        store: the ledger.
        domain: its name.
        query: its name.
        belief: the domain's.
        budget: the domain's.
        windows: every window of the schedule.
        keys: of every window.
        left: rows that left jobs, each time that they did.
        earlier: what was on record at some time before, as :func:`on_record` gave it.
        retries: how often a job was begun anew.
        ended: whether the jobs came to their end; one that did not may have charged a window that it had no time to
            draw, and the next one draws it.
    """
    registration = store.registered(domain, query)
    assert registration is not None
    grid = SlotGrid(**registration.domain.grid)
    entries = store.entries(domain)
    released = [row for batch in store.releases(domain, query) for row in batch.to_pylist()]
    spans = [_span(row, grid) for row in released]
    places = Counter((span, row["key"]) for span, row in zip(spans, released, strict=True))
    refused = {(one.window_start, one.window_stop) for one in entries if one.decision == "refused"}
    scheduled = list(windows)
    record = {row["release_id"]: repr(row) for row in released}
    gone = Counter((row["release_id"], repr(row)) for batch in left for row in batch.to_pylist())
    differing = sum(count - 1 for count in places.values())
    differing += sum(count for (name, row), count in gone.items() if record.get(name) != row)
    differing += sum(record.get(name) != row for name, row in (earlier or {}).items())
    loss = store.summary(domain).loss
    return Examined(
        windows=len(scheduled),
        missing=sum(span not in refused and any((span, key) not in places for key in keys) for span in scheduled),
        rows=len(released),
        again=sum(count - 1 for (name, row), count in gone.items() if record.get(name) == row),
        differing=differing,
        ledger_equal=_equal(entries, dict(zip(spans, released, strict=True)), loss, belief, ended=ended),
        loss=loss,
        budget=budget,
        retries=retries,
    )


def on_record(store: Store, domain: str, query: str) -> dict[str, str]:
    """Every released row, by the name of its release."""
    found = (row for batch in store.releases(domain, query) for row in batch.to_pylist())
    return {row["release_id"]: repr(row) for row in found}


def _equal(
    entries: list[LedgerEntry],
    rows: Mapping[Span, dict[str, Any]],
    loss: float,
    belief: MixingBounds,
    *,
    ended: bool,
) -> bool:
    """Whether charges, losses and total are those that the core gives for the windows that have rows."""
    core = Ledger(belief)
    charged = [one for one in entries if one.decision == "charged"]
    found = [(one.window_start, one.window_stop, one.epsilon_dp, one.loss_before, one.loss_after) for one in charged]
    paid = {span: float(row["epsilon_dp"]) for span, row in rows.items()}
    if not ended:
        paid = {(start, stop): epsilon for start, stop, epsilon, *_ in found} | paid
    expected = list[tuple[int, int, float, float, float]]()
    for (start, stop), epsilon in sorted(paid.items()):
        before = core.loss
        expected.append((start, stop, epsilon, before, core.charge(start, stop, epsilon).loss_after))
    said = {span: (row["loss_before"], row["loss_after"]) for span, row in rows.items()}
    return (
        found == expected
        and said == {(start, stop): tuple(losses) for start, stop, _, *losses in expected if (start, stop) in rows}
        and loss == core.loss
        and all(one.sequence + 1 == other.sequence for one, other in pairwise(entries))
        and len({one.entry_id for one in entries}) == len(entries)
    )


def _span(row: Mapping[str, Any], grid: SlotGrid) -> Span:
    start, stop = (round(row[name].timestamp() * 1e6) for name in ("window_start", "window_stop"))
    return grid.slots_of(start), grid.slots_of(stop)


def every(size: int, step: int, stop: int, start: int = 0) -> Iterator[Span]:
    """The windows of a schedule, in slots."""
    return ((at, at + size) for at in range(start, stop - size + 1, step))
