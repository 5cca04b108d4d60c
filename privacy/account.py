"""What an account is: its charges, what is believed, and what they cost. ``ledger`` is what is done with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from .accounting.constant import Rule
from .branches import Branch
from .charges import Span, outward
from .density import Density, Run, steps_of
from .entries import Entry, doubled
from .influence import Bound
from .models.belief import AnyBelief
from .running import Patch, Worst
from .states import AccountState


class Account:
    """An account that can be looked at."""

    def __init__(self, state: AccountState) -> None:
        """Open the account that a state describes."""
        self._open(state)

    @property
    def state(self) -> AccountState:
        """All that the account is, as a value."""
        return AccountState(
            worlds=tuple(branch.world for branch in self._branches),
            budget=self._budget,
            start=self._start,
            keep=self._keep,
            horizon=self._horizon,
            floor=self._line.floor,
            peak=self._peak,
            upper_bound=self._upper_bound,
            settled=tuple(branch.settled for branch in self._branches),
            lives=tuple(branch.live for branch in self._branches),
            forgotten=self._forgotten,
            rule=self._rule,
            entries=tuple(self._entries.values()),
            bound=self._bound,
        )

    @property
    def belief(self) -> AnyBelief:
        """What was believed first about the series; ``worlds`` has what joined or followed."""
        return self._branches[0].world.segments[0].belief

    @property
    def worlds(self) -> tuple[tuple[tuple[int | None, AnyBelief], ...], ...]:
        """What is believed: per world the beliefs in order, each with the slot from which on it holds (None: ever)."""
        return tuple(
            tuple((segment.start, segment.belief) for segment in branch.world.segments) for branch in self._branches
        )

    @property
    def budget(self) -> float | None:
        """The most the loss may reach; None for no limit."""
        return self._budget

    @property
    def loss(self) -> float:
        """Epsilon that all charges so far cost together."""
        return outward(self._worst.loss)

    @property
    def remaining(self) -> float:
        """Budget less loss, at least 0; infinite without a budget."""
        return math.inf if self._budget is None else max(0.0, self._budget - self.loss)

    @property
    def closed(self) -> bool:
        """Whether the loss is above the budget already, as it can be after a merge or a replay: nothing is admitted."""
        return self._budget is not None and self.loss > self._budget

    @property
    def upper_bound(self) -> bool:
        """Whether the loss is only a bound on what the rule gives, because something was priced from above."""
        return self._upper_bound

    @property
    def horizon(self) -> int | None:
        """The slot at or behind which charges begin; None where nothing is folded."""
        return self._horizon

    @property
    def runs(self) -> tuple[Run, ...]:
        """The density so far, in runs of equal density; of folded slots only those that are still kept."""
        return self._line.runs()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The charges, those forgotten behind the horizon left out."""
        return tuple(self._entries.values())

    @property
    def conflicts(self) -> tuple[Entry, ...]:
        """Charges of different content that came under one id in a merge: all are kept and count."""
        return tuple(entry for entry in self._entries.values() if entry.conflict)

    @property
    def doubled(self) -> tuple[tuple[Entry, ...], ...]:
        """Groups of charges with one key and window under different ids: each counts."""
        return doubled(self._entries.values())

    @property
    def basis(self) -> str:
        """What the loss rests on, one sentence for the record."""
        texts: list[str] = []
        for branch in self._branches:
            first, *others = branch.world.segments
            text = first.pricer.tables.basis
            for segment in others:
                text += f"; from slot {segment.start} on {segment.pricer.tables.basis}"
            texts.append(text)
        return "; or ".join(texts)

    def _open(self, state: AccountState) -> None:
        self._budget, self._start, self._keep = state.budget, state.start, state.keep
        self._horizon, self._peak, self._upper_bound = state.horizon, state.peak, state.upper_bound
        self._forgotten = state.forgotten
        self._bound: Bound = state.bound
        self._rule: Rule = state.rule
        self._entries = {entry.entry_id: entry for entry in state.entries}
        self._line = state.line()
        self._branches = tuple(
            Branch(world, self._line, settled=settled, live=live, rule=state.rule)
            for world, settled, live in zip(state.worlds, state.settled, state.lives, strict=True)
        )
        self._top = max([self._peak, *self._line.levels])
        self._worst = self._worst_of(None, self._top)

    def _quilts_of(self, charges: Iterable[Span]) -> Worst:
        """What charges lose alone by the quilts."""
        density = Density().with_steps(step for span in charges for step in steps_of(*span))
        worst = max((branch.alone(density) for branch in self._branches), key=lambda one: one.loss)
        return replace(worst, loss=outward(worst.loss))

    def _worst_of(self, patches: Sequence[Patch] | None, top: Fraction) -> Worst:
        """The worst over the worlds with patches and the largest density that they make; the first among equals."""
        found = [
            branch.with_patch(patch, top)
            for branch, patch in zip(self._branches, patches or [None] * len(self._branches), strict=True)
        ]
        return max(found, key=lambda worst: worst.loss)
