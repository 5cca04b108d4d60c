"""The plan of a job, from its settings alone: belief, noise, charges, and what is put on record.

A plan needs no data. Where the settings leave the windows' ends or the roster to the data, :meth:`Plan.resolve`
completes it; either way :meth:`Plan.query` is what the store keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..privacy.analysis.methods import METHODS
from ..privacy.mechanisms.histogram import (
    ExactHistogram,
    FixedTotalHistogram,
    HistogramMechanism,
    LaplaceHistogram,
    noisy_histogram,
)
from ..privacy.quilts.calibration import Calibration, Quilt
from ..privacy.validation import LEAST_EPSILON
from ..schemas.model_file import Model, ModelError
from ..schemas.roster import MOST_SERIES, Roster
from ..schemas.settings.base import SettingsError
from ..schemas.settings.job import MOST_ERROR, MOST_WINDOWS, Accepted, Settings, label_model, read_roster
from ..schemas.settings.model import fitting, init_with
from ..schemas.settings.readings import Constant
from ..schemas.slots import Schedule, SlotClasses, SlotGrid, format_duration, parse_duration
from ..schemas.states import StateSpace
from ..store.address import StoreAddress
from ..store.errors import StoreConflict
from ..store.specs import LENGTHS, DomainSpec, Noise, QuerySpec, Registration, bins_of, classes_of, total_is_public
from .calibrating import Chosen, Lengths, choose, model_of, not_a_model
from .readings.slots import Words, words_of

if TYPE_CHECKING:
    # none of them is needed to plan, and SQLAlchemy takes as long as all the rest
    from ..store.changes import Estimated
    from ..store.store import Store
    from .aggregate.memory import Memory

_MILLISECOND_US = 1_000

#: Bits of a packed cell: the offset inside the slot above the state, in a non-negative int64.
_PACKED_BITS = 62


@dataclass(frozen=True)
class Plan:
    """Everything a worker needs to know about a query; plain values that travel to any machine.

    Attributes:
        histogram: the bins of the query: the states, or unions of them.
        schedule: the windows; its ends may still be open.
        roster: the series and groups; ``None`` while they are to come from the data.
        group_column: column of the readings that names the group; ``None`` if no column does.
        domain: what is on record for the domain.
        calibration: how the noise was calibrated for ``epsilon``; of the window that needs most.
        lengths: the same for each length of windows that has noise of its own; nothing where all have this one.
        share: how many releases share the calibrated density in every slot: windows that overlap times groups of a
            series.
        scale: exact scale of the noise; the largest.
        noise: ``private``, or ``none`` for the tests' noise-free rows.
        by: what distinguishes the classes of slots that have a histogram each; empty for one histogram of all slots.
        estimated: the model, where the job estimated it: it is put on record with the query.
        memory: what remembers the ledger outside of it; nothing if left out.
        lost: how many releases are not on record, where a domain that is registered is to be marked as one that charges
            are missing from, before any window is charged.
        words: what is said of several readings of a series; ``None`` where the latest one of a slot counts.
        lateness_us: how long a window of a source that never ends waits for readings that are late, microseconds.
        most_error: expected error of a count, as a share of an evenly filled bin, up to which a job goes on unasked.
    """

    grid: SlotGrid
    space: StateSpace
    histogram: StateSpace
    schedule: Schedule
    roster: Roster | None
    group_column: str | None
    domain: DomainSpec
    query_name: str
    calibration: Calibration
    share: int
    scale: Fraction
    epsilon: float
    shards: int
    model: Model
    noise: Noise
    address: StoreAddress
    by: tuple[str, ...] = ()
    estimated: Estimated | None = None
    most_series: int = MOST_SERIES
    most_windows: int = MOST_WINDOWS
    memory: Memory | None = None
    lost: int | None = None
    mechanism: str = "mqm-approx"
    most_error: float = MOST_ERROR
    accepted: Accepted = field(default_factory=Accepted)
    lengths: Lengths = ()
    words: Words | None = None
    lateness_us: int = 0

    def opened(self) -> Plan:
        """The plan with the name of its ledger, as :func:`open_ledger` finds or makes it."""
        return replace(self, address=open_ledger(self.address))

    @property
    def resolved(self) -> bool:
        """Whether nothing is left to come from the data."""
        return self.roster is not None and self.schedule.start is not None

    @property
    def grouped(self) -> bool:
        """Whether histograms are summed over groups of series."""
        return self.group_column is not None or (self.roster is not None and self.roster.kind == "group")

    @property
    def classes(self) -> SlotClasses:
        """The classes of slots that have a histogram each; one where the query has none."""
        return SlotClasses(self.by, self.domain.reading["timezone"])

    @property
    def noise_law(self) -> str:
        """Name of the law of the noise in the histogram of a class."""
        return FixedTotalHistogram.name if self.domain.total_is_public else LaplaceHistogram.name

    @property
    def noisy(self) -> HistogramMechanism:
        """The mechanism that makes noisy counts: it keeps totals where, and only where, they are public."""
        return noisy_histogram(self.noise_law, self.histogram.size, self.scale, len(self.classes))

    def histogram_of(self, registration: Registration, slots: int) -> HistogramMechanism:
        """The mechanism of a query of record, by the law and the scale that are on record with it.

        Raises:
            StoreError: its law keeps totals that are not public, or is none.
            ValueError: windows of that length have no noise on record.
        """
        query = registration.query.of_length(slots)
        number, bins = len(classes_of(registration)), bins_of(registration).size
        if self.noise == "none":
            return ExactHistogram(bins, classes=number)
        if query.noise_law == FixedTotalHistogram.name and not total_is_public(registration):
            raise StoreConflict(
                f"query {query.name!r}: noise_law is {query.noise_law}, which publishes totals, and under the rule "
                f"missing: {registration.domain.missing} they are not public. Nothing is drawn; check this record with "
                "`quiltstream ledger verify`"
            )
        try:
            return noisy_histogram(query.noise_law, bins, query.scale, number)
        except ValueError as error:
            raise StoreConflict(f"query {query.name!r}: {error}") from None

    def with_multiplicity(self, most: int) -> Plan:
        """The plan of a query whose noise is calibrated for series in so many groups.

        It is this plan where the roster has series in as many now.
        """
        now = 1 if self.roster is None else self.roster.multiplicity
        if most <= now:
            return self
        return self.with_share(self.share // now * most)

    def with_share(self, share: int) -> Plan:
        """The plan where so many histograms share the density in a slot."""
        return replace(self, share=share, scale=_scale_of(self.space, self.calibration.sigma * share))

    def calibrated(self, calibration: Calibration, lengths: Lengths = ()) -> Plan:
        """The plan with another noise."""
        return replace(self, calibration=calibration, lengths=lengths).with_share(self.share)

    def with_sigma(self, sigma: float) -> Plan:
        """The plan with another noise than the mechanism needs for this query alone, in all windows.

        The account of an endless stream may want more.
        """
        if sigma == self.calibration.sigma:
            return self
        return self.calibrated(replace(self.calibration, sigma=sigma))

    def of_length(self, slots: int) -> Plan:
        """The plan of windows of a length alone."""
        return self.calibrated(dict(self.lengths)[slots]) if self.lengths else self

    def losses(self, most: int) -> float | dict[int, float]:
        """Loss per slot charged for a window, one number or by its slots, where cells count in so many histograms."""
        if not self.lengths:
            return self.noisy.epsilon_dp * most
        return {slots: self.of_length(slots).noisy.epsilon_dp * most for slots, _ in self.lengths}

    @property
    def stand_in(self) -> bool:
        """Whether the belief stands in for one."""
        return self.model.provenance.stand_in

    def given_model(self, roster: Roster) -> bool:
        """Whether the belief was estimated from series that it is to protect."""
        origin = self.model.provenance
        return origin.from_protected or origin.used(roster.series) > 0

    def resolve(self, schedule: Schedule, roster: Roster) -> Plan:
        """The plan with the ends of its windows and its roster known."""
        return replace(self, schedule=schedule, roster=roster)

    def header(
        self,
        *,
        epsilon: float,
        sigma: float,
        half_width_95: int,
        quilt: Quilt = Quilt(None, None),  # noqa: B008 - frozen
    ) -> dict[str, Any]:
        """The columns of a query's rows that its domain, its windows and their charges do not say.

        Args:
            epsilon: what its noise was calibrated for.
            sigma: its noise per unit of sensitivity.
            half_width_95: a count is within so many cells of the true one with probability 0.95.
            quilt: the quilt that decided.
        """
        return {
            "epsilon": epsilon,
            "sigma": sigma,
            "half_width_95": half_width_95,
            "quilt": [quilt.left, quilt.right],
            "model_provenance": self.model.provenance.text,
        }

    @property
    def _noise_columns(self) -> dict[str, Any]:
        half = 0 if self.noise == "none" else int(self.noisy.half_width(0.95))
        sigma, quilt = self.calibration.sigma, self.calibration.quilt
        return self.header(epsilon=self.epsilon, sigma=sigma, half_width_95=half, quilt=quilt) | {
            "scale": float(self.scale),
            "scale_exact": f"{self.scale.numerator}/{self.scale.denominator}",
            "epsilon_dp": self.noisy.epsilon_dp,
        }

    def query(self, schedule: Schedule, roster: Roster, *, schedule_given: bool, roster_given: bool) -> QuerySpec:
        """What is put on record for the query."""
        given_model = self.given_model(roster)
        name = "none" if self.noise == "none" else self.calibration.method
        own = {str(slots): self.of_length(slots)._noise_columns for slots, _ in self.lengths}  # noqa: SLF001 - a plan
        if len({one["scale_exact"] for one in own.values()}) == 1:
            own = {}
        header = {
            **self._noise_columns,
            "edges": None if self.space.categories else list(self.histogram.edges),
            "noise_law": ExactHistogram.name if self.noise == "none" else self.noise_law,
            **({LENGTHS: own} if own else {}),
            **({"by": list(self.by)} if self.by else {}),
            **({"bins": list(self.histogram.edges)} if self.histogram != self.space else {}),
            **({"labels": list(self.space.labels)} if self.space.categories else {}),
        }
        return QuerySpec(
            name=self.query_name,
            domain=self.domain.name,
            scale=self.scale,
            release_epsilon_dp=self.noisy.epsilon_dp,
            mechanism=name,
            schedule=schedule,
            schedule_given=schedule_given,
            roster=roster,
            roster_given=roster_given,
            shards=self.shards,
            header=header,
            given_model=given_model,
        )


def ledger_address(settings: Settings) -> StoreAddress:
    """Where the settings have the ledger of record; with its name, where they or the command know it."""
    return StoreAddress(settings.ledger_url, settings.ledger_id)


def ledger_at(address: StoreAddress, *, create: bool = False, over: bool = False) -> Store:
    """The ledger of record at an address; with SQLAlchemy, which takes as long to import as all of the rest."""
    from ..store.store import Store  # noqa: PLC0415 - a graph is built without it

    return Store(address, create=create, over=over)


def open_ledger(address: StoreAddress, *, over: bool = False) -> StoreAddress:
    """The address with the name of its ledger, which is made if none is known or there. Nothing else ever makes one.

    From here on the ledger is known: each opening of the address, on any machine, insists on it.

    Raises:
        StoreReplaced: one was there, and is not.
        StoreError: the ledger cannot be used.
    """
    if address.store_id is not None:
        return address
    with ledger_at(address, create=True, over=over) as store:
        return address.pinned(store.store_id)


def make_plan(settings: Settings, model: Model | None = None, *, noise: Noise = "private") -> Plan:
    """Calibrate a query and check everything that can be checked without data.

    Args:
        settings: the job.
        model: the belief; read from the settings if left out.
        noise: a hook of the tests, which no setting reaches.

    Raises:
        SettingsError: a setting does not fit another.
        ModelError: the model cannot be used, or is about other states or slots.
        ChainError: the mechanism has no noise for the belief, for example because P P* is reducible.
    """
    model = model_of(settings) if model is None else model
    if why := not_a_model(model):
        raise SettingsError(why)
    grid, space, schedule, privacy = settings.grid, settings.space, settings.schedule, settings.privacy
    try:
        model.check_fits(space, grid.interval_us)
    except ModelError as error:
        if not isinstance(settings.model, str) or settings.model not in fitting(space.unit, grid.interval_us):
            raise
        raise ModelError(f"{error}, or write settings with its slots: {init_with(settings.model)}") from None
    _check_widths(grid, space, schedule)
    if space.size < 2:  # noqa: PLR2004 - a single bin holds every value
        raise SettingsError("states.edges is empty: a single bin says nothing about the values; give at least one edge")
    roster = read_roster(settings)
    if roster is None and settings.group_by is None:
        roster = constant_roster(settings)
    model = label_model(settings, model)
    chosen = _chosen(settings, model)
    share = (schedule.overlap if privacy.guarantee == "stream" else 1) * (1 if roster is None else roster.multiplicity)
    return Plan(
        grid=grid,
        space=space,
        histogram=settings.histogram,
        schedule=schedule,
        roster=roster,
        group_column=settings.group_by if roster is None and isinstance(settings.group_by, str) else None,
        domain=_domain(settings, model, chosen.belief),
        query_name=settings.query,
        calibration=chosen.calibration,
        share=share,
        scale=_drawable_scale(space, chosen.calibration.sigma * share, privacy.epsilon),
        epsilon=privacy.epsilon,
        shards=settings.shards,
        model=model,
        noise=noise,
        address=ledger_address(settings),
        by=settings.classes.by,
        most_series=settings.most_series,
        most_windows=settings.windows.most,
        mechanism=privacy.mechanism,
        most_error=settings.most_error,
        accepted=settings.accepted,
        lengths=chosen.lengths,
        words=words_of(settings.readings, settings.slots.of),
        lateness_us=0 if settings.windows.lateness is None else parse_duration(settings.windows.lateness),
    )


#: An epsilon that promises nothing any more. Near the largest numbers there are mechanisms have no answer.
_MOST_EPSILON = 1e6


def constant_roster(settings: Settings) -> Roster | None:
    """The roster of a source that is one series: its name is in the settings."""
    series = None if settings.readings is None else settings.readings.series
    return Roster.of([series.constant]) if isinstance(series, Constant) else None


def _chosen(settings: Settings, model: Model) -> Chosen:
    """What the mechanism of the settings makes of a model."""
    privacy = settings.privacy
    if privacy.epsilon < LEAST_EPSILON:
        raise SettingsError(
            f"privacy.epsilon is {privacy.epsilon:g}, but must be at least {LEAST_EPSILON:.3g}, for which noise can "
            "still be drawn; write a larger epsilon, for example 1.0"
        )
    if privacy.epsilon > _MOST_EPSILON:
        raise SettingsError(
            f"privacy.epsilon is {privacy.epsilon:g}, but must be at most {_MOST_EPSILON:g}, which promises nothing "
            "any more; write a smaller epsilon, for example 1.0"
        )
    return choose(
        privacy.mechanism,
        model.read_as(METHODS[privacy.mechanism].reads),
        states=settings.space.size,
        epsilon=privacy.epsilon,
        window=settings.schedule.lengths,
        guarantee=privacy.guarantee,
        interval_us=settings.grid.interval_us,
    )


def _drawable_scale(space: StateSpace, sigma: float, epsilon: float) -> Fraction:
    """The exact scale of noise that can be drawn."""
    try:
        return _scale_of(space, sigma)
    except ValueError:
        fit = "smaller" if sigma < 1 else "larger"
        raise SettingsError(
            f"privacy.epsilon is {epsilon:g}: the noise for it has no whole numbers of 64 bits; "
            f"write a {fit} epsilon, for example 1.0"
        ) from None


def _domain(settings: Settings, model: Model, belief: dict[str, Any]) -> DomainSpec:
    """What goes on record for the domain, under the belief of its account."""
    return DomainSpec(
        name=settings.domain,
        grid=settings.grid.to_dict(),
        states=settings.space.to_dict(),
        belief=belief,
        model_id=model.model_id,
        guarantee=settings.privacy.guarantee,
        budget=settings.budget,
        missing=settings.missing_rule,
        reading=_reading(settings),
        shares_with=tuple(settings.shares_series_with),
        same_values_as=settings.same_values_as or "",
    )


def _scale_of(space: StateSpace, sigma: float) -> Fraction:
    return LaplaceHistogram.from_sigma(space.size, sigma).scale


def _reading(settings: Settings) -> dict[str, Any]:
    """How a reading becomes a state; where the readings come from a pipeline, only the zone is said here."""
    reading: dict[str, Any] = {"timezone": settings.slots.timezone}
    if settings.slots.of != "last":
        reading["of"] = settings.slots.of
    if settings.readings is not None:
        reading |= settings.readings.canonical()
        if settings.readings.select is not None:
            from .readings.select import digest  # noqa: PLC0415 - DuckDB, which plain columns do without

            reading["macros"] = digest()
        if settings.readings.each is not None:
            from .payloads import expressions  # noqa: PLC0415 - JMESPath, which plain places do without

            reading["expressions"] = expressions.digest(settings.readings)
    return reading


def _check_widths(grid: SlotGrid, space: StateSpace, schedule: Schedule) -> None:
    step = schedule.every * grid.interval_us
    anchor = grid.time_of(schedule.anchor)
    # local midnights are whole seconds
    if schedule.calendar is None and (step % _MILLISECOND_US or anchor % _MILLISECOND_US):
        raise SettingsError(
            f"windows: one every {format_duration(step)} does not begin on whole milliseconds, and runners tell "
            "windows apart no finer; use a multiple of 1ms"
        )
    if (grid.interval_us << (space.size - 1).bit_length()) >> _PACKED_BITS:
        raise SettingsError(
            f"slots.interval {format_duration(grid.interval_us)} with {space.size} states does not fit 64 bits; "
            "use a shorter interval or fewer states"
        )
