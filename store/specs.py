"""What a job says about itself before it publishes anything, and what the store answers: plain values and their rows.

A *domain* fixes at first use what its account depends on; a *query* fixes what its numbers depend on. Both are frozen
by the first registration: the same name with other content is refused, naming the field (contracts 1 and 2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..privacy.mechanisms.histogram import ExactHistogram, FixedTotalHistogram, LaplaceHistogram
from ..schemas.calendars import Calendar
from ..schemas.digests import canonical_json, digest, stable_hashes
from ..schemas.errors import ArgumentError
from ..schemas.ledger import LedgerEntry
from ..schemas.roster import Roster
from ..schemas.slots import Schedule, SlotClasses, SlotGrid, Window, format_duration, format_instant
from ..schemas.states import StateSpace
from .codec import NoisyBlock, packed, scale_text, unpacked
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
            raise ArgumentError(
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

    def to_row(self) -> tuple[dict[str, Any], bytes]:
        """What is written of it, and its blob: hashes of series can be guessed from their names."""
        body = asdict(self)
        return body, packed({name: body.pop(name) for name in ("belief", "series_hashes")})

    @classmethod
    def of_row(cls, body: dict[str, Any], blob: bytes | None) -> BeliefChange:
        """The inverse of :meth:`to_row`."""
        hidden = unpacked(blob)
        return cls(**body, belief=hidden["belief"], series_hashes=tuple(hidden["series_hashes"]))


@dataclass(frozen=True, slots=True)
class DomainSpec:
    """The series that one budget protects, with the belief about them."""

    name: str
    grid: dict[str, Any]  # ``SlotGrid.to_dict()``
    states: dict[str, Any]  # ``StateSpace.to_dict()``
    belief: dict[str, Any]  # canonical form of the belief the ledger reads
    model_id: str  # digest of the model the belief comes from
    guarantee: str  # ``stream`` or ``window``
    budget: float  # epsilon
    missing: str  # the rule for cells without a reading
    # how a reading becomes a state: the columns, the factor, the zone of its time. Two ways of reading are two chains
    # even over the same bins, and their costs do not compose
    reading: dict[str, Any] = field(default_factory=dict)
    changes: tuple[BeliefChange, ...] = ()  # what joined the belief or followed it since, as on record
    # domains over other state processes whose series this one may have, as its job says
    shares_with: tuple[str, ...] = field(default=(), compare=False)
    # query of the domain whose values the readings have, as the job says that derives them otherwise
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

    def to_row(self) -> tuple[dict[str, Any], bytes]:
        """What is written of it, and its blob: the belief may hold statistics of a history."""
        body = self.frozen_fields | {"budget": self.budget}
        return body, packed(body.pop("belief"))

    @classmethod
    def of_row(cls, name: str, body: dict[str, Any], blob: bytes | None) -> DomainSpec:
        """The inverse of :meth:`to_row`."""
        alike = {field: body[field] for field in ("states", "model_id", "guarantee", "missing")}
        budget = float(body["budget"])
        return cls(name, body["slots"], belief=unpacked(blob), budget=budget, reading=body["readings"], **alike)

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
            "states": _without(self.states, "missing_state"),
            "model": self.belief,
            "model, by its digest,": self.model_id,
            "privacy.guarantee": self.guarantee,
            "readings": _without(self.reading, "timezone"),
        }

    @property
    def process(self) -> dict[str, Any]:
        """What makes the state process of a series: two domains with equal ones see the same states of a series.

        Units are words, and slots that begin at the same instants are the same, whichever of them is number 0.
        """
        interval, origin = int(self.grid["interval_us"]), int(self.grid["origin_us"])
        return {
            "slots": {"interval_us": interval, "origin_us": origin % interval},
            "states": _without(self.states, "unit"),
            "readings": _without(self.reading, "unit"),
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


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {field: value for field, value in values.items() if field != name}


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """A named statistic over a domain with its windows."""

    name: str
    domain: str  # the domain's name
    scale: Fraction  # of the noise in every count; where windows have noise by their length, the largest of all
    release_epsilon_dp: float  # loss per slot of one release with noise of that scale
    mechanism: str  # how the noise was calibrated, or ``none``
    schedule: Schedule  # the windows; an end is ``None`` only for an endless one
    schedule_given: bool  # whether the settings fixed both ends; if not, the ends of the first registration hold
    roster: Roster  # the series and groups
    roster_given: bool  # whether the settings named a roster; if not, that of the first registration holds
    shards: int  # parallel parts; frozen with the query
    # the columns that all released rows of the query share, kept for exports; under ``lengths`` those that rows of
    # windows of a length have in their place, by the slots of a window
    header: dict[str, Any] = field(default_factory=dict)
    given_model: bool = False  # whether the loss holds only given a model estimated from the protected series
    # in how many histograms of a window a cell counts at most, as the scale was calibrated for; that of the roster if
    # left out
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
            raise ArgumentError(f"no noise is on record for windows of {slots} slots, only for those of {known}")
        return replace(
            self,
            scale=Fraction(own["scale_exact"]),
            release_epsilon_dp=float(own["epsilon_dp"]),
            header=_without(self.header, LENGTHS) | own,
            multiplicity=self.most,
        )

    @property
    def scales(self) -> dict[int, str]:
        """The exact scale of each length of windows that has noise of its own."""
        return {slots: str(self.header[LENGTHS][str(slots)]["scale_exact"]) for slots in self.lengths}

    @property
    def losses(self) -> float | dict[int, float]:
        """What :attr:`epsilon_dp` is for every window, or by the slots of a window."""
        return {slots: self.of_length(slots).epsilon_dp for slots in self.lengths} or self.epsilon_dp

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
        schedule, calendar, scales = self.schedule, self.schedule.calendar, self.scales
        if calendar is not None:
            # of the lengths that windows have by any edition of the zone data
            scales = {slots: scales[slots] for slots in calendar.regular if slots in scales}
        different = {*scales.values()}
        if len(different) > 1:
            scale: dict[str, Any] = {"scales": {str(slots): one for slots, one in scales.items()}}
        else:
            scale = {"scale": different.pop() if different else scale_text(self.scale)}
        if calendar is not None:
            # the bounds are on record and compared by themselves: those that come may differ with the zone data
            windows: dict[str, Any] = {"windows.size": calendar.unit, "windows.timezone": calendar.timezone}
        else:
            anchor = schedule.anchor % schedule.every
            windows = {"windows.size": schedule.size, "windows.every": schedule.every, "windows.anchor": anchor}
        optional = {
            "noise_law": self.noise_law if self.noise_law == FixedTotalHistogram.name else None,
            "by": list(self.by) or None,
            "bins": None if self.bins is None else list(self.bins),
        }
        return {
            **domain.frozen_fields,
            **scale,
            "mechanism": self.mechanism,
            **{name: value for name, value in optional.items() if value is not None},
            **windows,
            "key_kind": self.roster.kind,
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

    def to_row(self) -> dict[str, Any]:
        """What is written of it, but for its roster."""
        schedule, calendar = self.schedule, self.schedule.calendar
        return {
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            **{name: getattr(schedule, name) for name in ("size", "every", "start", "stop", "anchor")},
            "calendar": None if calendar is None else calendar.to_dict(),
            "scale": scale_text(self.scale),
            "most": self.most,
            "kind": self.roster.kind,
        }

    @classmethod
    def of_row(cls, domain: str, name: str, body: dict[str, Any]) -> QuerySpec:
        """The inverse of :meth:`to_row`, with a roster without series; schedule and roster count as given."""
        calendar = None if body["calendar"] is None else Calendar.from_dict(body["calendar"])
        numbers = body["size"], body["every"], body["start"], body["stop"], body["anchor"]
        return cls(
            name,
            domain,
            scale=Fraction(body["scale"]),
            schedule=Schedule(*numbers, calendar),
            schedule_given=True,
            roster=Roster((), body["kind"]),
            roster_given=True,
            multiplicity=body["most"],
            **{name: body[name] for name in _AS_THEY_ARE},
        )


_AS_THEY_ARE = ("release_epsilon_dp", "mechanism", "given_model", "shards", "header")


@dataclass(frozen=True, slots=True)
class RosterVersion:
    """A roster that holds from the window that starts at a slot on, until the next version does."""

    start: int  # first slot of the window
    roster: Roster
    number: int = field(default=0, compare=False)  # how many versions were on record before it
    created_us: int = field(default=0, compare=False)  # when it was put on record


@dataclass(frozen=True, slots=True)
class Registration:
    """What is on record for a query: the values every worker uses, whatever its own settings said.

    Which roster a window has is settled for ever when the window is charged; until then it is the newest,
    ``query.roster``.
    """

    domain: DomainSpec  # of record, with the budget now in force
    query: QuerySpec  # of record, with the frozen schedule, roster and shards
    digest: str  # of the query
    # windows that end after this slot are refused, because the budget reserved for the query ends there; ``None`` if
    # all are admitted. It depends on schedules alone, not on what arrives first
    admitted_stop: int | None
    reserved_loss: float  # loss of the domain when everything reserved so far is published, epsilon
    fresh: bool  # whether this call created the query
    versions: tuple[RosterVersion, ...] = ()  # by start, the newest last; none where the roster was never changed
    joined: tuple[str, ...] = ()  # every series that was ever in the roster, in the order they joined; none likewise
    revision: int = 0  # how often the roster was changed
    # the versions as a job has them that began before them, from the window on that it counts by them: also those that
    # another replaced before a window was charged, but for such a job
    settling: tuple[RosterVersion, ...] = field(default=(), compare=False)
    belief: int = 0  # for which of the domain's beliefs the noise was calibrated

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
class BlockToPublish:
    """A block that wants to be published."""

    window: Window
    shard: int
    # makes the noisy block; called at most once, inside the transaction, and never when a block is on record
    draw: Callable[[], NoisyBlock]


@dataclass(frozen=True, slots=True)
class Record:
    """What is on record for one window and shard after :meth:`Store.publish`."""

    window: Window
    shard: int
    entry: LedgerEntry  # the charge or refusal of the window
    block: NoisyBlock | None  # the rows of record; ``None`` for a refused window
    fresh: bool  # whether this call put the block on record; otherwise an earlier one did and the draft was discarded


def group_by(kind: str) -> Words | None:
    """The setting ``group_by`` of histograms of a kind: on record is no column, but whether there is one."""
    return None if kind == "series" else Words("a column" if kind == "group" else kind)


def first_difference(recorded: Any, given: Any, field: str = "") -> tuple[str, Any, Any] | None:
    """The first field in which two plain values differ, named with its path: (field, recorded, given)."""
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        for name in dict.fromkeys([*recorded, *given]):
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
#: make one twice, nothing else. A job works on few rosters at once: that of the windows being published, and the next.
_remembered: tuple[Layout, ...] = ()
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
    try:
        return states if query.bins is None else states.merged(query.bins)
    except ValueError as error:
        check = "check this record with `quiltstream ledger verify`"
        raise StoreConflict(f"query {query.name!r}: {error}; {check}") from None


def total_is_public(registration: Registration) -> bool:
    """Whether the totals of a query's rows are public: those of histograms where `DomainSpec.total_is_public` holds.

    How many transitions leave a state is never public.
    """
    return registration.domain.total_is_public and registration.query.mechanism != TRANSITIONS
