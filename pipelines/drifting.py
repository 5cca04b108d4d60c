"""Drift of a live job: whether what it has released contradicts the belief that its noise rests on.

Judged from released rows alone (``privacy.drift``), so it costs nothing and may be told to anyone. One look for every
stretch of whole windows of a week or more, numbered from the first window of the schedule; a look that is made again
after a restart reads the same rows, and all looks for ever raise a false alarm with probability 0.001 at most.
"""

from __future__ import annotations

from ..privacy.classes import belief_from_dict
from ..privacy.drift import Drift, judge_drift
from ..schemas.slots import SlotGrid, Window, format_instant
from ..schemas.states import StateSpace
from ..store.records import Store
from ..store.specs import TRANSITIONS, Registration
from .published import published_between

#: Shortest stretch that is judged at once.
_STRETCH_US = 7 * 86_400_000_000

_ALPHA = 1e-3


class DriftWatch:
    """Looks at each stretch once, when all its windows are on record.

    Args:
        store: the ledger.
        registration: the query.
        first_missing: slot where its first missing window starts; what lies before has been looked at.
    """

    def __init__(self, store: Store, registration: Registration, first_missing: int | None) -> None:
        self._store = store
        self._held = registration
        self._grid = SlotGrid(**registration.domain.grid)
        size = registration.query.schedule.size
        self._slots = size * max(1, -(-_STRETCH_US // (size * self._grid.interval_us)))
        self._next = 1 if first_missing is None else self._whole(first_missing) + 1

    def _whole(self, slot: int) -> int:
        """How many stretches are over at a slot."""
        return max(0, (slot - self._held.query.schedule.first) // self._slots)

    def look(self, first_missing: int | None) -> list[str]:
        """What the stretches say that are complete now, if they contradict the belief.

        Raises:
            StoreError: the ledger cannot be read.
        """
        query = self._held.query
        if query.most > 1 or query.mechanism in ("none", TRANSITIONS):
            return []
        end = first_missing
        if end is None:
            end = query.schedule.covered.stop
        warnings: list[str] = []
        for number in range(self._next, self._whole(end) + 1):
            found = self.judge(number)
            if found is not None and found.drifted:
                warnings.append(self._text(number, found))
        self._next = max(self._next, self._whole(end) + 1)
        return warnings

    def judge(self, number: int) -> Drift | None:
        """One stretch against every belief that holds; ``None`` where rows are missing."""
        held = self._held
        start = held.query.schedule.first + (number - 1) * self._slots
        found = published_between(self._store, held, Window(start, start + self._slots))
        if found is None:
            return None
        joined = [change.belief for change in held.domain.changes if change.slot is None]
        judged = [
            judge_drift(
                belief_from_dict(belief),
                found.counts,
                held.query.scale,
                found.totals,
                members=found.members,
                slots=found.slots,
                windows=found.windows,
                before=start - held.query.schedule.first,
                alpha=_ALPHA,
                look=number,
            )
            for belief in (held.domain.beliefs[held.belief][0], *joined)
        ]
        # a class is contradicted only if all of it is
        return next((one for one in judged if not one.drifted), judged[0])

    def _text(self, number: int, found: Drift) -> str:
        start = self._held.query.schedule.first + (number - 1) * self._slots
        stretch = " to ".join(format_instant(self._grid.time_of(slot)) for slot in (start, start + self._slots))
        labels = StateSpace.from_dict(self._held.domain.states).labels
        state = "" if found.state is None else f" ({labels[found.state]})"
        return (
            f"the rows released for {stretch} contradict the belief in force: {found.reason}{state}; it has "
            f"{found.share:.3g} of the cells, and the belief allows {found.expected:.3g}. What the ledger says rests "
            "on that belief: fit a model anew, and see docs/streaming.md"
        )


__all__ = ["DriftWatch"]
