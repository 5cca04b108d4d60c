"""Where a live job stands, as the ledger of record says."""

from __future__ import annotations

from dataclasses import dataclass

from ...schemas.slots import format_instant
from ...store.records import Store
from ...store.specs import Registration
from ...transforms.plan import Plan
from ..console import plural
from ..record import OnRecord, standing_in


@dataclass(frozen=True, slots=True)
class LiveStanding:
    """Where a live job stands.

    Attributes:
        state: of the job, as its runner says.
        until: end of the last window before the first that is missing; ``None`` if none is on record.
        first_missing: slot where the first missing window starts; ``None`` when the schedule is finished.
        refused: windows of the domain that were refused.
        loss: of the domain, epsilon.
        budget: of the domain.
    """

    state: str
    until: str | None
    first_missing: int | None
    refused: int
    loss: float
    budget: float | None

    @property
    def text(self) -> str:
        """It in words."""
        until = "no window is on record yet" if self.until is None else f"on record until {self.until}"
        refused = f", {plural(self.refused, 'window')} refused" if self.refused else ""
        budget = "" if self.budget is None else f" of {self.budget:g}"
        return f"{until}{refused}; loss {self.loss:.9g}{budget}"


class Follower:
    """Looks at what is on record for a live job, each time from where the last look stopped.

    Args:
        plan: the job.
        registration: what is on record for its query.
    """

    def __init__(self, plan: Plan, registration: Registration) -> None:
        self._plan = plan
        self._registration = registration
        self._store = Store(plan.address)
        self._start = registration.query.schedule.first

    @property
    def store(self) -> Store:
        """The ledger."""
        return self._store

    @property
    def registration(self) -> Registration:
        """The query on record."""
        return self._registration

    def first_missing(self) -> int | None:
        """Slot where the first missing window starts; ``None`` when the schedule is finished."""
        found = next(self._store.missing(self._registration, start=self._start), None)
        if found is None:
            return None
        self._start = found[0].start
        return self._start

    def begin_us(self) -> int:
        """Windows that end by this instant are on record or refused."""
        schedule, first = self._registration.query.schedule, self.first_missing()
        if first is None:
            return self._plan.grid.time_of(schedule.covered.stop)
        return self._plan.grid.time_of(first + schedule.size - 1)  # the window itself ends later

    def due_us(self, start: int) -> int:
        """End of the window that starts at a slot."""
        return self._plan.grid.time_of(start + self._registration.query.schedule.size)

    def look(self, state: str) -> LiveStanding:
        """Where the job stands now."""
        schedule, first = self._registration.query.schedule, self.first_missing()
        next_start = schedule.first + len(schedule) * schedule.every if first is None else first
        until = self._plan.grid.time_of(next_start - schedule.every + schedule.size)
        account = standing_in(self._store, self._plan.domain.name)
        return LiveStanding(
            state=state,
            until=format_instant(until) if next_start > schedule.first else None,
            first_missing=first,
            refused=account.refused,
            loss=account.loss,
            budget=account.budget,
        )

    def record(self) -> OnRecord:
        """All that is on record now, also of an endless schedule, by the rosters that are on record now."""
        return live_record(self._store, self._store.current(self._registration))

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def live_record(store: Store, registration: Registration) -> OnRecord:
    """What is on record for a query, up to the last window that has an entry."""
    name = registration.query.name
    entries = [entry for entry in store.entries(registration.domain.name) if entry.query == name]
    charged = {entry.window_start for entry in entries if entry.decision == "charged"}
    refused = frozenset(entry.window_start for entry in entries if entry.decision == "refused")
    last, missing = max(charged, default=None), set[int]()
    if last is not None:
        for window, _ in store.missing(registration):
            if window.start > last:
                break
            missing.add(window.start)
    account = standing_in(store, registration.domain.name)
    return OnRecord(account, registration, frozenset(charged - missing), refused, frozenset(charged))
