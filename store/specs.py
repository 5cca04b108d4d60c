"""What a job says about itself before it publishes anything, and what the store answers: plain values.

A *domain* fixes at first use what its account depends on; a *query* fixes what its numbers depend on. Both are frozen
by the first registration: the same name with other content is refused, naming the field (contracts 1 and 2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..privacy.mechanisms.histogram import ExactHistogram, FixedTotalHistogram, LaplaceHistogram
from ..schemas.digests import canonical_json, digest, stable_hashes
from ..schemas.ledger import LedgerEntry
from ..schemas.roster import Roster
from ..schemas.slots import Schedule, SlotClasses, SlotGrid, Window, format_duration, format_instant
from ..schemas.states import StateSpace
from .errors import StoreConflict, Words

#: How long after a change of a roster a window begins that a running job counts by it, microseconds: its workers look
#: for a newer one every few seconds, and clocks differ.
SETTLING_US = 60_000_000

#: Whether a store holds noisy rows, or the noise-free rows of tests; one store never holds both.
Noise = Literal["private", "none"]


BlockKey = tuple[int, int]
"""A window's first slot, and a shard."""

#: Name of what a query's header says of windows by their length, where lengths have noise of their own.
LENGTHS = "lengths"

#: Mechanism of a query whose histograms are the rows of a noisy table of transitions.
TRANSITIONS = "transition-counts"


@dataclass(frozen=True, slots=True)
class BeliefChange:
    """Another belief about a domain (theory section 4, item 5)."""

    # ``joined``: held beside the others for the whole history; ``switched``: from a slot on in their place
    kind: Literal["joined", "switched"]
    belief: dict[str, Any]  # its canonical form
    model_id: str  # digest of the model it comes from
    slot: int | None = None  # of a switch, the first slot whose transitions follow it
    # whether it was estimated from series that the domain protects, as far as is known: such a series may join later,
    # and two changes that differ in this alone are the same
    given_model: bool = field(default=False, compare=False)
    source: str = ""  # where it comes from, in words
    # a stable hash of each series that it was estimated from, where that is known
    series_hashes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in ("joined", "switched") or (self.kind == "switched") != (self.slot is not None):
            raise ValueError(
                f"a belief of kind {self.kind!r} with slot {self.slot}: one that joins has no slot, one that is "
                "switched to has the first slot whose transitions follow it"
            )

    def protecting(self, hashes: Collection[str]) -> BeliefChange:
        """The same in a domain that protects series with these hashes."""
        return self if self.given_model else replace(self, given_model=not set(self.series_hashes).isdisjoint(hashes))

    def agreed(self, other: BeliefChange) -> BeliefChange:
        """The same with what is known of it elsewhere: it holds given the model as soon as one says so."""
        hashes = tuple(sorted({*self.series_hashes, *other.series_hashes}))
        return replace(self, given_model=self.given_model or other.given_model, series_hashes=hashes)


@dataclass(frozen=True, slots=True)
class DomainSpec:
    """The series that one budget protects, with the belief about them.

    Attributes:
        name: the domain's name.
        grid: ``SlotGrid.to_dict()``.
        states: ``StateSpace.to_dict()``.
        belief: canonical form of the belief the ledger reads.
        model_id: digest of the model the belief comes from.
        guarantee: ``stream`` or ``window``.
        budget: epsilon.
        missing: the rule for cells without a reading.
        reading: how a reading becomes a state: the columns, the factor, the zone of its time. Two ways of reading are
            two chains even over the same bins, and their costs do not compose.
        changes: what joined the belief or followed it since, as on record.
        shares_with: domains over other state processes whose series this one may have, as its job says.
        same_values_as: query of the domain whose values the readings have, as the job says that derives them otherwise.
    """

    name: str
    grid: dict[str, Any]
    states: dict[str, Any]
    belief: dict[str, Any]
    model_id: str
    guarantee: str
    budget: float
    missing: str
    reading: dict[str, Any] = field(default_factory=dict)
    changes: tuple[BeliefChange, ...] = ()
    shares_with: tuple[str, ...] = field(default=(), compare=False)
    same_values_as: str = field(default="", compare=False)

    @property
    def total_is_public(self) -> bool:
        """Whether the number of cells that a histogram counts is public, under the rule for cells without a reading.

        If it is, rows publish it, and their noise may leave it as it is; a wrong answer here is a leak. The cells of a
        histogram are those of the members of its key in the slots of its window: settings, roster and schedule, all
        public. Under ``state`` all of them are counted: a cell without a reading is in the missing state, one of the
        bins. Under ``public`` and ``break`` those with a reading whose value is a number: both rules state that it is
        public, and independent of the values, which cells these are. The promise compares states of a cell that is
        counted, so a histogram and its neighbour have the same total. Under any other rule, also one of a later
        version, it is not public.
        """
        return self.missing in ("public", "state") or self.missing.startswith("break ")

    @property
    def as_set(self) -> dict[str, Any]:
        """The frozen fields by the names that they have in the settings, and in the words of a settings file."""
        grid = SlotGrid(**self.grid)
        rule, _, longest = self.missing.partition(" ")
        return {
            # the zone first: an origin without an offset moves with it
            "slots.timezone": self.reading.get("timezone"),
            "slots.interval": format_duration(grid.interval_us),
            "slots.origin": format_instant(grid.origin_us),
            "missing": {rule: longest} if longest else rule,
            "states": {name: value for name, value in self.states.items() if name != "missing_state"},
            "model": self.belief,
            "model, by its digest,": self.model_id,
            "privacy.guarantee": self.guarantee,
            "readings": {name: value for name, value in self.reading.items() if name != "timezone"},
        }

    @property
    def process(self) -> dict[str, Any]:
        """What makes the state process of a series: two domains with equal ones see the same states of a series.

        Units are words, and slots that begin at the same instants are the same, whichever of them is number 0.
        """
        interval, origin = int(self.grid["interval_us"]), int(self.grid["origin_us"])
        return {
            "slots": {"interval_us": interval, "origin_us": origin % interval},
            "states": {name: value for name, value in self.states.items() if name != "unit"},
            "readings": {name: value for name, value in self.reading.items() if name != "unit"},
        }

    def instant(self, slot: int | None) -> str | None:
        """The beginning of a slot, ISO 8601 in UTC."""
        return None if slot is None else format_instant(SlotGrid(**self.grid).time_of(slot))

    @property
    def beliefs(self) -> tuple[tuple[dict[str, Any], str], ...]:
        """Every belief of record with its model's digest, the first one first."""
        return ((self.belief, self.model_id), *((one.belief, one.model_id) for one in self.changes))

    @property
    def histories(self) -> tuple[tuple[tuple[int | None, dict[str, Any]], ...], ...]:
        """What is believed side by side, as the account has it: beliefs, each from a slot on, the first from ever on.

        An added belief is one for the whole history; what is switched to follows each of those held until then.
        """
        found: list[list[tuple[int | None, dict[str, Any]]]] = [[(None, self.belief)]]
        for change in self.changes:
            if change.slot is None:
                found.append([(None, change.belief)])
            else:
                for one in found:
                    one.append((change.slot, change.belief))
        return tuple(map(tuple, found))

    def holds(self, change: BeliefChange) -> bool:
        """Whether a change is on record already; a belief that was only switched to, or from, was not added."""
        if change.slot is not None:
            return change in self.changes
        return ((None, change.belief),) in self.histories and (change.belief, change.model_id) in self.beliefs

    def under(self, number: int) -> DomainSpec:
        """The domain as a query sees it whose noise was calibrated for one of the beliefs."""
        belief, model_id = self.beliefs[number]
        return replace(self, belief=belief, model_id=model_id) if number else self

    def frozen_fields(self) -> dict[str, Any]:
        """What may never change under this name; the budget may, by an explicit command of record."""
        return {
            "slots": self.grid,
            "states": self.states,
            "belief": self.belief,
            "model_id": self.model_id,
            "guarantee": self.guarantee,
            "missing": self.missing,
            "readings": self.reading,
        }


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """A named statistic over a domain with its windows.

    Attributes:
        name: the query's name.
        domain: the domain's name.
        scale: exact scale of the noise in every count; where windows have noise by their length, the largest of all.
        release_epsilon_dp: loss per slot of one release with noise of that scale.
        mechanism: how the noise was calibrated, or ``none``.
        schedule: the windows; ``start`` or ``stop`` are ``None`` only for an endless one.
        schedule_given: whether the settings fixed both ends; if not, the ends of the first registration hold.
        roster: the series and groups.
        roster_given: whether the settings named a roster; if not, the roster of the first registration holds.
        shards: parallel parts; frozen with the query.
        header: the columns that all released rows of the query share, kept for exports; under ``lengths`` those that
            rows of windows of a length have in their place, by the slots of a window.
        given_model: whether the loss holds only given a model estimated from the protected series.
        multiplicity: in how many histograms of a window a cell counts at most, as the scale was calibrated for; that of
            the roster if left out.
    """

    name: str
    domain: str
    scale: Fraction
    release_epsilon_dp: float
    mechanism: str
    schedule: Schedule
    schedule_given: bool
    roster: Roster
    roster_given: bool
    shards: int
    header: dict[str, Any] = field(default_factory=dict)
    given_model: bool = False
    multiplicity: int | None = None

    @property
    def most(self) -> int:
        """In how many histograms of a window a cell counts at most, as is charged."""
        return self.roster.multiplicity if self.multiplicity is None else self.multiplicity

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot charged for a window: the release's times the most histograms one cell counts in.

        It does not depend on which series there are: a roster that comes later may have fewer groups for a series,
        never more.
        """
        return self.release_epsilon_dp * self.most

    @property
    def lengths(self) -> tuple[int, ...]:
        """The slots of the windows that have noise of their own; nothing where all windows have the same."""
        return tuple(sorted(map(int, self.header.get(LENGTHS, ()))))

    def of_length(self, slots: int) -> QuerySpec:
        """The query as windows of a length have it: with their noise alone."""
        if LENGTHS not in self.header:
            return self
        own = self.header[LENGTHS].get(str(slots))
        if own is None:
            known = ", ".join(map(str, self.lengths))
            raise ValueError(f"no noise is on record for windows of {slots} slots, only for those of {known}")
        return replace(
            self,
            scale=Fraction(own["scale_exact"]),
            release_epsilon_dp=float(own["epsilon_dp"]),
            header={name: value for name, value in self.header.items() if name != LENGTHS} | own,
            multiplicity=self.most,
        )

    @property
    def scales(self) -> dict[int, str]:
        """The exact scale of each length of windows that has noise of its own."""
        return {slots: str(self.header[LENGTHS][str(slots)]["scale_exact"]) for slots in self.lengths}

    @property
    def losses(self) -> float | dict[int, float]:
        """What :attr:`epsilon_dp` is for every window, or by the slots of a window."""
        if not self.lengths:
            return self.epsilon_dp
        return {slots: self.of_length(slots).epsilon_dp for slots in self.lengths}

    @property
    def noise_law(self) -> str:
        """Name of the law of the noise in a histogram; queries on record without a name have independent noise."""
        plain = ExactHistogram.name if self.noise == "none" else LaplaceHistogram.name
        return str(self.header.get("noise_law", plain))

    @property
    def by(self) -> tuple[str, ...]:
        """What tells the classes of slots apart for which there are histograms; empty for one histogram of all."""
        return tuple(self.header.get("by", ()))

    @property
    def bins(self) -> tuple[float, ...] | None:
        """Inner edges of its bins, each a union of states; ``None`` where each state is a bin."""
        edges = self.header.get("bins")
        return None if edges is None else tuple(edges)

    @property
    def noise(self) -> Noise:
        """Whether its rows are noisy, or the noise-free rows of tests."""
        return "none" if self.mechanism == "none" else "private"

    def frozen_fields(self, domain: DomainSpec) -> dict[str, Any]:
        """What determines the numbers; the digest of these names the query's rows."""
        return {
            **domain.frozen_fields(),
            **self._frozen_scales(),
            "mechanism": self.mechanism,
            # queries on record with independent noise keep their digests
            **({"noise_law": self.noise_law} if self.noise_law == FixedTotalHistogram.name else {}),
            # likewise those without classes of slots; the zone of the classes is that of the readings
            **({"by": list(self.by)} if self.by else {}),
            **({"bins": list(self.bins)} if self.bins is not None else {}),
            **self._frozen_windows(),
            "key_kind": self.roster.kind,
        }

    def _frozen_scales(self) -> dict[str, Any]:
        """The scale; or those of the lengths that windows have by any edition of the zone data, where they differ."""
        scales, calendar = self.scales, self.schedule.calendar
        if calendar is not None and scales:
            scales = {slots: scales[slots] for slots in calendar.regular if slots in scales}
        if len({*scales.values()}) > 1:
            return {"scales": {str(slots): scale for slots, scale in scales.items()}}
        (only,) = {*scales.values()} or {f"{self.scale.numerator}/{self.scale.denominator}"}
        return {"scale": only}

    def _frozen_windows(self) -> dict[str, Any]:
        schedule, calendar = self.schedule, self.schedule.calendar
        if calendar is not None:
            # the bounds are on record and compared by themselves: those that come may differ with the zone data
            return {"windows.size": calendar.unit, "windows.timezone": calendar.timezone}
        return {
            "windows.size": schedule.size,
            "windows.every": schedule.every,
            "windows.anchor": schedule.anchor % schedule.every,
        }

    def as_set(self, domain: DomainSpec) -> dict[str, Any]:
        """The settings that its frozen fields are made from, by their names and in the words of a settings file."""
        schedule, interval_us = self.schedule, int(domain.grid["interval_us"])
        return {
            **domain.as_set,
            "windows.size": schedule.said_length(interval_us),
            "windows.every": None if schedule.calendar else format_duration(schedule.every * interval_us),
            "privacy.epsilon": self.header.get("epsilon"),
            "privacy.mechanism": self.mechanism.partition(" (")[0],
            "by": self.by[0] if len(self.by) == 1 else list(self.by) or None,
            "bins": None if self.bins is None else list(self.bins),
            "group_by": group_by(self.roster.kind),
        }

    def digest(self, domain: DomainSpec) -> str:
        """Digest of :meth:`frozen_fields`."""
        return digest(self.frozen_fields(domain))


@dataclass(frozen=True, slots=True)
class RosterVersion:
    """A roster that holds from the window that starts at a slot on, until the next version does."""

    start: int  # first slot of the window
    roster: Roster  # the roster
    number: int = field(default=0, compare=False)  # how many versions were on record before it
    created_us: int = field(default=0, compare=False)  # when it was put on record


@dataclass(frozen=True, slots=True)
class Registration:
    """What is on record for a query: the values every worker uses, whatever its own settings said.

    Which roster a window has is settled for ever when the window is charged; until then it is the newest,
    ``query.roster``.

    Attributes:
        domain: the domain of record (with the budget now in force).
        query: the query of record, with the frozen schedule, roster and shards.
        digest: digest of the query.
        admitted_stop: windows that end after this slot are refused, because the budget reserved for the query ends
            there; ``None`` if all are admitted. It depends on schedules alone, not on what arrives first.
        reserved_loss: loss of the domain when everything reserved so far is published, epsilon.
        fresh: whether this call created the query.
        versions: the rosters by start, the newest last; none where the roster was never changed.
        joined: every series that was ever in the roster, in the order in which they joined; none likewise.
        revision: how often the roster was changed.
        settling: the versions as a job has them that began before them, from the window on that it counts by them: also
            those that another replaced before a window was charged, but for such a job.
        belief: for which of the domain's beliefs the noise was calibrated.
    """

    domain: DomainSpec
    query: QuerySpec
    digest: str
    admitted_stop: int | None
    reserved_loss: float
    fresh: bool
    versions: tuple[RosterVersion, ...] = ()
    joined: tuple[str, ...] = ()
    revision: int = 0
    settling: tuple[RosterVersion, ...] = field(default=(), compare=False)
    belief: int = 0

    def roster_of(self, window: Window) -> Roster:
        """The roster of a window: as it was charged, or the newest."""
        at = bisect_right(self.versions, window.start, key=lambda version: version.start)
        return self.versions[at - 1].roster if at else self.query.roster

    def as_begun(self, begun: Registration) -> Registration:
        """The same with the rosters by which a job counts that began when another registration was on record.

        Until its workers know a roster they reject the readings of the series that it adds. So a roster that was put on
        record since holds from the first window on that begins :data:`SETTLING_US` later, and windows before that have
        the roster before it. This is a function of what is on record, never of readings.
        """
        if self.revision <= begun.revision:
            return self
        held = list(begun.versions) or [RosterVersion(self.query.schedule.first, begun.query.roster)]
        for version in self.settling:
            if version.number > begun.revision:
                while held and held[-1].start >= version.start:
                    held.pop()
                held.append(version)
        return replace(self, versions=tuple(held))

    def settled_from(self, changed_us: int) -> int:
        """First slot of the first window that a running job counts by a roster put on record at an instant."""
        grid = SlotGrid(**self.domain.grid)
        slots = -(-(changed_us + SETTLING_US - grid.origin_us) // grid.interval_us)
        return self.query.schedule.first_from(slots)

    @property
    def series(self) -> tuple[str, ...]:
        """Every series that was ever in the roster. The order never changes, so a place in it is a number for ever."""
        return self.joined or self.query.roster.series


@dataclass(frozen=True, slots=True)
class NoisyBlock:
    """The noisy histograms of one shard in one window.

    Attributes:
        keys: names of the n series or groups.
        totals: cells counted per key, int64, shape (n,); meaningful only where that number is public.
        counts: noisy counts, int64, shape (n, k).
        completeness: ``live``, ``replayed``, ``silent`` or ``unavailable``.
    """

    keys: tuple[str, ...]
    totals: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    completeness: str = "live"


@dataclass(frozen=True, slots=True)
class BlockToPublish:
    """A block that wants to be published.

    Attributes:
        window: the window.
        shard: the shard.
        draw: makes the noisy block; called at most once, inside the transaction, and never when a block is on record.
    """

    window: Window
    shard: int
    draw: Callable[[], NoisyBlock]


@dataclass(frozen=True, slots=True)
class Record:
    """What is on record for one window and shard after :meth:`Store.publish`.

    Attributes:
        window: the window.
        shard: the shard.
        entry: the charge or refusal of the window.
        block: the rows of record; ``None`` for a refused window.
        fresh: whether this call put the block on record; otherwise an earlier one did and the draft was discarded.
    """

    window: Window
    shard: int
    entry: LedgerEntry
    block: NoisyBlock | None
    fresh: bool


def roster_text(roster: Roster) -> str:
    """A roster in a message: names of series are data."""
    return f"{len(roster.series)} series in {len(roster.keys)} {roster.kind} histograms, digest {roster.digest[:8]}"


def group_by(kind: str) -> Words | None:
    """The setting ``group_by`` of histograms of a kind: on record is no column, but whether there is one."""
    return None if kind == "series" else Words("a column" if kind == "group" else kind)


def first_difference(recorded: Any, given: Any, field: str = "") -> tuple[str, Any, Any] | None:
    """The first field in which two plain values differ, named with its path: (field, recorded, given)."""
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        for name in [*recorded, *(name for name in given if name not in recorded)]:
            path = f"{field}.{name}" if field else str(name)
            found = first_difference(recorded.get(name), given.get(name), path)
            if found is not None:
                return found
        return None
    return None if canonical_json(recorded) == canonical_json(given) else (field, recorded, given)


@dataclass
class Layout:
    """A roster cut into shards by the frozen hash, and the columns of its histograms: bins, for each class of slots."""

    roster: Roster
    shards: int
    columns: int
    _parts: list[tuple[tuple[str, ...], npt.NDArray[np.int64]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        keys, members = self.roster.keys, self.roster.members
        shard = stable_hashes(keys) % np.uint64(self.shards)
        cuts = [np.flatnonzero(shard == number) for number in range(self.shards)]
        self._parts = [(tuple(keys[row] for row in rows.tolist()), members[rows]) for rows in cuts]

    def keys(self, shard: int) -> tuple[str, ...]:
        """The keys of a shard, sorted: ``Roster.shard_keys``."""
        return self._parts[shard][0]

    def members(self, shard: int) -> npt.NDArray[np.int64]:
        """How many series each of them sums over."""
        return self._parts[shard][1]

    @property
    def occupied(self) -> tuple[int, ...]:
        """The shards that hold a key."""
        return tuple(number for number, (keys, _) in enumerate(self._parts) if keys)


#: The last cuts, newest first, for to hash all names for every block would cost more than the block; threads that race
#: make one twice, nothing else.
_remembered: tuple[Layout, ...] = ()

#: A job works on few rosters at once: that of the windows being published, and the next one.
_MOST = 4


def layout_of(registration: Registration, window: Window) -> Layout:
    """The layout of a window of a query of record."""
    global _remembered  # noqa: PLW0603 - remembered values
    roster, shards = registration.roster_of(window), registration.query.shards
    columns = bins_of(registration).size * len(classes_of(registration))
    held = _remembered
    for layout in held:
        if (layout.shards, layout.columns) == (shards, columns) and layout.roster == roster:
            return layout
    layout = Layout(roster, shards, columns)
    _remembered = (layout, *held[: _MOST - 1])
    return layout


def classes_of(registration: Registration) -> SlotClasses:
    """The classes of slots for which a query of record has histograms, by the wall clock of its domain's readings."""
    query = registration.query
    try:
        return SlotClasses(query.by, registration.domain.reading.get("timezone", "UTC"))
    except ValueError as error:
        raise StoreConflict(f"query {query.name!r}: {error}; a later version may know it") from None


def bins_of(registration: Registration) -> StateSpace:
    """The bins of a query of record: the states of its domain, or unions of them."""
    query, states = registration.query, StateSpace.from_dict(registration.domain.states)
    if query.bins is None:
        return states
    try:
        return states.merged(query.bins)
    except ValueError as error:
        raise StoreConflict(
            f"query {query.name!r}: {error}; check this record with `quiltstream ledger verify`"
        ) from None


def total_is_public(registration: Registration) -> bool:
    """Whether the totals of a query's rows are public: those of histograms where `DomainSpec.total_is_public` holds.

    How many transitions leave a state is never public.
    """
    return registration.domain.total_is_public and registration.query.mechanism != TRANSITIONS
