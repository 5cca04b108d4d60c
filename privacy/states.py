"""All that an account is, as a value: for records, merges, and changes that may still be refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from .accounting.constant import Rule
from .chains import MarkovChain
from .classes import FiniteClass
from .density import Density, steps_of
from .entries import Entry, Forgotten
from .influence import Bound
from .models.belief import AnyBelief
from .timeline import Timeline
from .worlds import World


@dataclass(frozen=True)
class AccountState:
    """An account.

    Attributes:
        worlds: What is believed; the loss is the largest over them.
        budget: The most the loss may reach; None for no limit.
        start: The slot at which a chain with a fixed initial distribution begins.
        keep: How many slots before the end of the latest charge stay open; None for all.
        horizon: Where charges may begin; None where nothing is folded.
        floor: The slot from which on the density is kept; None for all.
        peak: Largest density before the horizon, or a bound on it.
        upper_bound: Whether something was priced from above.
        settled: Per world, a bound on the loss of the slots before its ``lives``.
        lives: Per world, the first slot that is still priced; None for all.
        forgotten: What is kept of charges that end at or before the floor.
        entries: The other charges.
        bound: The closed form under mixing bounds.
        rule: Which account prices.
    """

    worlds: tuple[World, ...]
    budget: float | None = None
    start: int | None = None
    keep: int | None = None
    horizon: int | None = None
    floor: int | None = None
    peak: Fraction = Fraction(0)
    upper_bound: bool = False
    settled: tuple[float, ...] = (0.0,)
    lives: tuple[int | None, ...] = (None,)
    forgotten: Forgotten = field(default_factory=Forgotten)
    entries: tuple[Entry, ...] = ()
    bound: Bound = "lemma-4.8"
    rule: Rule = "forward-backward"

    def line(self, cuts: Iterable[int] = ()) -> Timeline:
        """The density that is kept, split where a run must begin.

        Args:
            cuts: More slots at which one must begin.
        """
        every = {*cuts, *(live for live in self.lives if live is not None)}
        every.update(cut for world in self.worlds for cut in world.cuts)
        folded, spans = self.forgotten.mass, list[tuple[int, int, float]]()
        for entry in self.entries:
            start = entry.start
            if self.floor is not None and start < self.floor:
                folded += Fraction(entry.epsilon_dp) * (min(entry.stop, self.floor) - start)
                start = self.floor
            if start < entry.stop:
                spans.append((start, entry.stop, entry.epsilon_dp))
        density = Density().with_steps(step for span in spans for step in steps_of(*span))
        return Timeline(density, folded=folded, cuts=every, floor=self.floor)

    def folded(
        self, horizon: int, floor: int, peak: Fraction, found: Sequence[tuple[float, int | None]]
    ) -> AccountState:
        """The account with everything before a floor forgotten.

        Args:
            horizon: Where later charges may begin.
            floor: The slot from which on the density is kept.
            peak: Largest density before the horizon.
            found: Per world, the bound on its settled slots and the first slot still priced.
        """
        floor = floor if self.floor is None else max(floor, self.floor)
        return replace(
            self,
            horizon=horizon,
            floor=floor,
            peak=peak,
            settled=tuple(bound for bound, _ in found),
            lives=tuple(live for _, live in found),
        ).without_old()

    def without_old(self) -> AccountState:
        """The account with the charges that end at or before the floor among the forgotten ones."""
        floor = self.floor
        if floor is None:
            return self
        gone = [entry for entry in self.entries if entry.stop <= floor]
        kept = tuple(entry for entry in self.entries if entry.stop > floor)
        return replace(self, forgotten=self.forgotten.plus(gone), entries=kept)

    def with_late(self, entry: Entry, peak: Fraction, settled: tuple[float, ...]) -> AccountState:
        """The account with a charge that begins before the horizon, priced from above."""
        return replace(self, entries=(*self.entries, entry), peak=peak, settled=settled, upper_bound=True).without_old()

    def with_world(self, world: World, settled: float, live: int | None) -> AccountState:
        """The account with one world more, its settled slots priced from above."""
        return replace(
            self,
            worlds=(*self.worlds, world),
            settled=(*self.settled, settled),
            lives=(*self.lives, live),
            upper_bound=self.upper_bound or settled > 0,
        )


def has_start(belief: AnyBelief) -> bool:
    """Whether some chain of a belief has a fixed initial distribution."""
    chains = belief.chains if isinstance(belief, FiniteClass) else (belief,)
    return any(isinstance(chain, MarkovChain) and chain.initial is not None for chain in chains)
