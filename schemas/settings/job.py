"""The settings of a job, with what an estimated model needs of them, and the roster that they name.

A roster's file holds the real names, which only the machine that submits a job sees; everything after it has the
pseudonyms of the readings.

>>> settings = load_settings(EXAMPLE)
>>> settings.grid.interval_us, settings.space.size, len(settings.schedule)
(1800000000, 5, 52)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from ..calendars import UNITS, Unit, local_calendar
from ..errors import ArgumentError
from ..model_file import Model
from ..roster import MOST_SERIES, Roster
from ..slots import (
    NoWholeWindowError,
    Schedule,
    SlotClass,
    SlotClasses,
    SlotGrid,
    parse_duration,
    parse_instant,
    time_zone,
)
from ..states import StateSpace
from .base import Document, Duration, Instant, Length, Name, Number, Positive, Section
from .base import SettingsError as SettingsError  # noqa: PLC0414 - everyone finds it beside the settings
from .connectors import FileSink, FileSource
from .model import SHIPPED, STAND_IN, Estimate, EstimatedModel, shipped
from .model import Bounds as Bounds  # noqa: PLC0414 - everyone finds it beside the settings
from .readings import Constant as Constant  # noqa: PLC0414 - everyone finds it beside the settings
from .readings import Readings as Readings  # noqa: PLC0414 - everyone finds it beside the settings
from .readings import RecipeName

#: Endings by which a settings file is told from other files.
SETTINGS_ENDINGS = (".json", ".yaml", ".yml")


def check_estimate(settings: Settings) -> None:
    """See that a model can be estimated as the settings say.

    Raises:
        ValueError: it cannot; the message names the setting.
    """
    estimate = settings.estimate
    if estimate is None:
        return
    if estimate.origin == "outside" and settings.roster_file is None:
        raise ArgumentError(
            "model.estimate.from names files of other series, and without a roster file nobody knows which series are "
            "others: name one in roster"
        )
    source = settings.source
    if estimate.origin in ("counts", "readings") and (source is None or not source.patterns):
        raise ArgumentError(
            f"model.estimate.from is {estimate.origin}, for which the readings are read once more, and only files can "
            "be: write the readings to files, or estimate from files of other series"
        )
    if estimate.slots(settings.grid) is not None:
        _check_counting(settings)


def _check_counting(settings: Settings) -> None:
    """Which series and slots are counted must be public before they are, and the belief may change where they end."""
    if settings.roster_file is None:
        raise ArgumentError(
            "model.estimate.from is counts: which series are counted must be public before they are; name a roster file"
        )
    if settings.schedule.start is None:
        raise ArgumentError("model.estimate.over are the slots before windows.start: set it")
    if settings.privacy.mechanism != "mqm-approx" or settings.privacy.guarantee != "stream":
        raise ArgumentError(
            "model.estimate.from is counts, which needs privacy.mechanism mqm-approx and privacy.guarantee stream: "
            "bounds hold for every chain that mixes so fast, but a chain that is read off noisy counts is not the truth"
        )


EXAMPLE = """\
source:   {parquet: data/feeder.parquet}
readings: {series: household, time: ts, value: kwh, unit: kWh, scale: 2000}
slots:    {interval: 30min, origin: 2013-01-01, timezone: UTC}
states:   {edges: [250, 500, 1000, 2000], unit: W}
missing:  public
model:    model.json
group_by: feeder
windows:  {size: 7d, start: 2013-01-01, stop: 2013-12-31}
privacy:  {epsilon: 1.0, mechanism: forward-backward, guarantee: stream, budget: 2.0}
sink:     {parquet: out/releases.parquet}
query:    weekly-load
domain:   london-feeder
roster:   roster.csv
ledger:   sqlite:///out/ledger.db
"""

#: Windows of a schedule that ends unless its settings say otherwise: eleven years of windows of an hour.
MOST_WINDOWS = 100_000

#: Slots of a window, more than a year has seconds: a worker holds each of them for each of its series.
MOST_SLOTS = 32_000_000

#: Expected error of a count, as a share of an evenly filled bin, above which a job stops unless its settings say
#: otherwise.
MOST_ERROR = 0.5


@dataclass(frozen=True, slots=True)
class Accepted:
    """What an operator accepts, for one run: it stands in no settings file."""

    noise: bool = False  # noise that drowns the counts
    stand_in: bool = False  # a model that is a stand-in
    cover: bool = False  # a belief that covers a further series with probability below 0.8


Mechanism = Literal["mqm-approx", "mqm-exact", "pairwise", "forward-backward", "group-dp", "entry-dp"]
"""How the noise may be calibrated."""


#: How long the windows of a calendar are at least.
_SHORTEST: dict[Unit, str] = {"day": "23h", "week": "167h", "month": "671h"}


def _zone(name: str) -> str:
    time_zone(name)
    return name


def _classes(given: Any) -> Any:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            f"by is a name or a list of names: write one of {', '.join(get_args(SlotClass))}, or several in a list; "
            "what is in the data tells no slots apart"
        )
    SlotClasses(tuple(names))
    return given


class Slots(Section):
    """The public grid of sampling intervals."""

    interval: Duration = Field(description="length of a slot; a slot is floor((t - origin) / interval)")
    origin: Instant = Field(default="1970-01-01", description="start of slot 0")
    timezone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC", description="zone of stamps without an offset, in the data and in these settings"
    )
    of: Literal["last", "mean", "sum"] = Field(
        default="last",
        description="readings of a slot: the latest counts, their mean over time (power), or their sum, shared out by "
        "time where one covers several slots (energy, steps)",
    )


class States(Section):
    """The bins of a value, or categories; each is a state of the model."""

    edges: list[Number] = Field(
        default_factory=list[float], description="inner edges, increasing; values beyond the ends go to the end bins"
    )
    unit: str = Field(default="", description="unit of the edges, for people")
    labels: list[str] = Field(default_factory=list, description="names of the bins, for people")
    categories: list[Name] = Field(
        default_factory=list[str],
        description="instead of edges: the labels that readings hold, each a state; public, and in every released row",
    )
    other: Name | None = Field(
        default=None,
        description="the state of every label that is none of the categories; left out: a reading with such a label is "
        "rejected",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> States:
        if not self.categories and "edges" not in self.model_fields_set:
            raise ArgumentError("states.edges is missing: the inner edges of the bins; or states.categories, of labels")
        if len(self.categories) == 1 and self.other in (None, self.categories[0]):
            raise ArgumentError(
                "states.categories is one label, and every cell would be in it; name another one, or other"
            )
        return self

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Categories are left out where there are none."""
        hidden = () if self.categories else ("categories", "other")
        return {name: value for name, value in handler(self).items() if name not in hidden}


class Break(Section):
    """Gaps longer than this cut a series into independent chains."""

    break_: Duration = Field(alias="break", description="the longest gap that does not cut")


class Windows(Section):
    """Which windows are published."""

    size: Length = Field(description="length of a window; or day, week or month of slots.timezone")
    every: Duration | None = Field(default=None, description="from one start to the next; left out: size, tumbling")
    start: Instant | None = Field(default=None, description="start of the first window; left out: from the data")
    stop: Instant | None = Field(
        default=None,
        description="end of the last window; left out: from the data, never where live",
    )
    lateness: Duration | None = Field(
        default=None, description="how long a live window waits after its end for readings that come late"
    )
    most: int = Field(
        default=MOST_WINDOWS,
        ge=1,
        le=100_000_000,
        description="most windows of a schedule that ends: a wrong year shows before anything is on record",
    )


class Live(Section):
    """How a live run (``quiltstream run --live``) follows its source."""

    poll: Duration = Field(default="1s", description="interval of polling a source without new readings")
    idle: Duration | None = Field(
        default=None, description="how long a silent source holds its windows back; left out: until its next reading"
    )
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="port of the loopback address for the watchdog's metrics"
    )


class Privacy(Section):
    """What is promised."""

    epsilon: Positive = Field(description="what the query is to cost")
    mechanism: Mechanism = Field(
        default="mqm-approx", description="how the noise is calibrated, and with it what is believed of the model"
    )
    guarantee: Literal["stream", "window"] = Field(
        default="stream", description="one calibration for all windows together, or for each window alone"
    )
    budget: Positive | None = Field(default=None, description="of the domain; left out: epsilon")

    @model_validator(mode="after")
    def _bounded(self) -> Privacy:
        if self.mechanism == "group-dp" and self.guarantee == "stream":
            raise ArgumentError(
                "privacy.mechanism is group-dp, whose noise grows with the window and has no limit for an endless "
                "stream; set privacy.guarantee to window, or use a quilt mechanism"
            )
        return self


class RosterFile(Section):
    """A CSV file that lists the series, and the group of each."""

    file: str = Field(description="path of the file")
    series: str = Field(default="series", description="its column with the series")
    group: str | None = Field(default=None, description="its column with the group; left out: group_by, or no groups")


class MappingFile(Section):
    """A CSV file that says which groups the series are in; its series are the roster."""

    file: str = Field(description="path of the file")
    series: str = Field(default="series", description="its column with the series")
    group: str = Field(default="group", description="its column with the group")


class RosterColumn(Section):
    """The series of the source's own column: first sight, which takes the existence of a series as public."""

    column: str = Field(description="must be that of readings.series")


def _or_text(form: dict[str, Any]) -> None:
    """A section ``readings`` may be a text."""
    form["anyOf"].append({"type": "string", "description": "a row-wise SELECT over `files`"})


class Settings(Document):
    """A whole job. See ``docs/settings.md``; ``quiltstream schema`` prints the JSON Schema for editors."""

    filled: ClassVar[frozenset[str]] = frozenset({"ledger"})

    source: FileSource | None = Field(default=None, description="left out where the readings come from a Beam pipeline")
    readings: Readings | None = Field(default=None, json_schema_extra=_or_text)
    recipe: RecipeName | None = Field(default=None, description="the same as readings.recipe")
    slots: Slots
    states: States
    missing: Literal["public", "state"] | Break = "public"
    model: str | Bounds | EstimatedModel = Field(
        description="a model file; london or nhanes, which come with the package; bounds given by hand; how the job "
        "estimates one; or stand-in: bounds set by the interval, which no data were used for"
    )
    group_by: str | MappingFile | None = Field(
        default=None, description="column of the roster file, or of the source, with the group; or a mapping file"
    )
    windows: Windows
    bins: list[Number] | None = Field(
        default=None,
        description="inner edges of the bins of this query's histograms, some of states.edges: a coarser view of the "
        "same domain; left out: a bin for each state",
    )
    by: Annotated[SlotClass | list[SlotClass], BeforeValidator(_classes)] = Field(
        default_factory=list,
        description="a histogram for each class of slots by the clock of slots.timezone, or for each combination",
    )
    live: Live = Field(default_factory=Live)
    privacy: Privacy
    sink: FileSink | None = None
    rejects: FileSink | None = Field(
        default=None, description="where rejected rows go: reason, source, position and size only"
    )
    query: Name = Field(description="name of the statistic; its noise and schedule are frozen under it")
    domain: Name = Field(description="name of the series that one budget protects, with the belief about them")
    shares_series_with: list[Name] = Field(
        default_factory=list,
        description="other domains of the ledger, over other states, slots or readings, that may have series of this "
        "one; what two domains tell together is in no account",
    )
    same_values_as: Name | None = Field(
        default=None,
        description="query of the domain whose values these readings have, though derived otherwise, as a history in "
        "files that goes on in Kafka; kept on record",
    )
    roster: str | RosterFile | RosterColumn | None = Field(
        default=None, description="left out: first sight, which takes existence as public"
    )
    ledger: str = Field(
        default="sqlite:///quiltstream-ledger.db", repr=False, description="SQLAlchemy URL of the ledger of record"
    )
    ledger_id: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{32}$",
        description="random name of the ledger; given, no other ledger is used and none is made",
    )
    memory: str | None = Field(
        default=None,
        description="file by which the next run notices a ledger that was lost; left out: beside a local sink; "
        "required for topics and remote sinks, on a disk that all workers share",
    )
    shards: int = Field(default=8, ge=1, le=4096, description="parallel parts of the work; frozen with the query")
    most_series: int = Field(
        default=MOST_SERIES,
        ge=1,
        le=100_000_000,
        description="series of the roster, or taken from the data; with more a job ends, a live job rejects them",
    )
    most_error: Positive = Field(
        default=MOST_ERROR,
        description="largest expected error of a count, as a share of an evenly filled bin",
    )
    _accepted: Accepted = PrivateAttr(default_factory=Accepted)

    @cached_property
    def grid(self) -> SlotGrid:
        """The slot grid."""
        return SlotGrid(parse_duration(self.slots.interval), self._time(self.slots.origin, "slots.origin"))

    @cached_property
    def space(self) -> StateSpace:
        """The state space."""
        states = self.states
        return StateSpace(
            tuple(states.edges),
            states.unit,
            self.missing == "state",
            tuple(states.labels),
            tuple(states.categories),
            states.other,
            None if self.readings is None else self.readings.absent,
        )

    @cached_property
    def histogram(self) -> StateSpace:
        """The bins of the query's histograms: the states, or unions of them."""
        return self.space if self.bins is None else self.space.merged(tuple(self.bins))

    @cached_property
    def classes(self) -> SlotClasses:
        """The classes of slots; one of all slots where there are none."""
        return SlotClasses((self.by,) if isinstance(self.by, str) else tuple(self.by), self.slots.timezone)

    @cached_property
    def schedule(self) -> Schedule:
        """The windows; start and stop stay ``None`` where they are to come from the data."""
        grid, windows = self.grid, self.windows
        unit: Unit | None = next((one for one in UNITS if one == windows.size), None)
        length_us = parse_duration(windows.size if unit is None else _SHORTEST[unit])
        if (slots := length_us // grid.interval_us) > MOST_SLOTS:
            raise ArgumentError(
                f"windows.size is {windows.size}, {slots:,} slots{' or more' if unit else ''} of "
                f"{self.slots.interval}, and {MOST_SLOTS:,} are the limit, because a worker holds each slot of every "
                "series; set slots.interval to that of the readings, or windows.size to less"
            )
        try:
            return self._of_slots(grid) if unit is None else self._by_calendar(unit)
        except NoWholeWindowError as error:
            raise ArgumentError(f"windows.start {windows.start} and windows.stop {windows.stop}: {error}") from None

    def _of_slots(self, grid: SlotGrid) -> Schedule:
        windows = self.windows
        size = grid.slots_in(parse_duration(windows.size), "windows.size")
        every = size if windows.every is None else grid.slots_in(parse_duration(windows.every), "windows.every")
        start, stop = self._ends()
        return Schedule(size=size, every=every, start=start, stop=stop, anchor=0 if start is None else start)

    def _by_calendar(self, unit: Unit) -> Schedule:
        grid, windows = self.grid, self.windows
        if "timezone" not in self.slots.model_fields_set:
            raise ArgumentError(
                f"windows.size is {unit}, and where a {unit} begins depends on the zone: name that in slots.timezone, "
                "for example Europe/London, or UTC"
            )
        if windows.every is not None:
            raise ArgumentError(
                f"windows.every is {windows.every}, and a {unit} follows the one before: leave every out, or write "
                "windows.size as a duration such as 7d"
            )
        start, stop = self._ends()
        calendar = local_calendar(unit, self.slots.timezone, grid.interval_us, grid.origin_us)
        return Schedule.of_calendar(calendar, start, stop)

    def _ends(self) -> tuple[int | None, int | None]:
        """The slots of ``windows.start`` and ``windows.stop``; ``None`` for one that is to come from the data."""
        windows = self.windows
        start = None if windows.start is None else self._slot(windows.start, "windows.start")
        stop = None if windows.stop is None else self._slot(windows.stop, "windows.stop")
        if start is not None and stop is not None and stop <= start:
            raise ArgumentError(
                f"windows.stop {windows.stop} is not after windows.start {windows.start}; exchange or correct them"
            )
        return start, stop

    def _slot(self, instant: str, name: str) -> int:
        return self.grid.slot_at(self._time(instant, name), name)

    def _time(self, instant: str, name: str) -> int:
        try:
            return parse_instant(instant, self.slots.timezone)
        except ValueError as error:
            raise ArgumentError(f"{name}: {error}") from None

    @property
    def accepted(self) -> Accepted:
        """What the operator accepts; nothing, unless :meth:`accepting` says so."""
        return self._accepted

    def accepting(self, accepted: Accepted) -> Settings:
        """The settings of an operator who accepts something."""
        made = self.model_copy()
        made._accepted = accepted  # noqa: SLF001 - of its own class
        return made

    @property
    def model_file(self) -> str | None:
        """The model's file, as seen from here; ``None`` where the model is none."""
        given = self.model
        return None if not isinstance(given, str) or given == STAND_IN else self.path_of_model(given)

    def path_of_model(self, given: str) -> str:
        """The file of a model that these settings name: of the package, or as seen from here."""
        return shipped(given) if given in SHIPPED else self.path(given)

    @property
    def missing_rule(self) -> str:
        """The rule for cells without a reading, as text: ``public``, ``state`` or ``break 2h``."""
        return f"break {self.missing.break_}" if isinstance(self.missing, Break) else self.missing

    @property
    def budget(self) -> float:
        """The domain's budget, epsilon; left out, it is what the query costs, and the counting for its model."""
        if self.privacy.budget is not None:
            return self.privacy.budget
        counting = None if self.estimate is None else self.estimate.epsilon
        return self.privacy.epsilon + (counting or 0.0)

    @property
    def estimate(self) -> Estimate | None:
        """How the job estimates its model; ``None`` where it is given."""
        return self.model.estimate if isinstance(self.model, EstimatedModel) else None

    @property
    def roster_file(self) -> RosterFile | None:
        """The roster's file and columns, with ``group_by`` as the group's column."""
        if isinstance(self.group_by, MappingFile):
            return RosterFile(**self.group_by.model_dump())
        if self.roster is None or isinstance(self.roster, RosterColumn):
            return None
        given = RosterFile(file=self.roster) if isinstance(self.roster, str) else self.roster
        if given.group is None and self.group_by is not None:
            return given.model_copy(update={"group": self.group_by})
        return given

    def path(self, text: str) -> str:
        """A path of the settings as seen from here: relative ones start at the settings file's folder."""
        if "://" in text or Path(text).is_absolute():
            return text
        return str(self._folder / text)

    @property
    def ledger_url(self) -> str:
        """The ledger's URL, with a relative SQLite file placed beside the settings file."""
        match = re.fullmatch(r"(sqlite(?:\+pysqlite)?:///)([^/$].*)", self.ledger, re.DOTALL)
        if match is None or match[2].startswith(":memory:"):
            return self.ledger
        return f"{match[1]}{self.path(match[2])}"

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("recipe") is None:
            return given
        whole = cast("dict[str, Any]", given)
        readings = whole.get("readings") or {}
        if not isinstance(readings, dict) or "recipe" in readings:
            raise ArgumentError("recipe is beside readings that say all themselves; leave one of them out")
        return whole | {"recipe": None, "readings": {"recipe": whole["recipe"], **readings}}

    @model_validator(mode="after")
    def _whole(self) -> Settings:
        if self.source is not None and self.readings is None:
            raise ArgumentError(
                "readings is missing: it names the columns of the source, e.g. {series: id, time: ts, value: kwh}"
            )
        if isinstance(self.group_by, MappingFile) and isinstance(self.roster, (str, RosterFile)):
            raise ArgumentError(
                "group_by and roster both name a file; name the group's column in roster: {file, series, group}"
            )
        column = self.readings.series if self.readings is not None else None
        if isinstance(self.roster, RosterColumn) and column is not None and self.roster.column != column:
            raise ArgumentError(
                f"roster.column is {self.roster.column!r}, and readings.series is {column!r}; name that one"
            )
        if self.domain in self.shares_series_with:
            raise ArgumentError(
                f"shares_series_with names {self.domain!r}, which is this domain; name others or leave it out"
            )
        if self.readings is not None:
            _check_words(self, self.readings)
        if self.states.categories:
            _check_categories(self)
        # evaluated here so that every mistake in them is found before anything runs
        grid, schedule = self.grid, self.schedule
        self.classes.check_fits(
            grid,
            self.histogram.size,
            None if schedule.start is None else grid.time_of(schedule.start),
            None if schedule.stop is None else grid.time_of(schedule.stop),
        )
        check_estimate(self)
        return self

    def changed(self, values: dict[str, Any]) -> Settings:
        """The settings with other values, which are taken as checked."""
        made = super(Document, self).model_copy(update=values)  # pydantic's own, which checks nothing
        for name in ("grid", "space", "histogram", "classes", "schedule"):  # made anew of what they are made of
            vars(made).pop(name, None)
        return made


def _check_words(settings: Settings, readings: Readings) -> None:
    """See that the words about several rows fit each other, and the missing rule."""
    of, register, hold = settings.slots.of, readings.register_, readings.hold
    if register is not None and (of != "last" or hold is not None or readings.length is not None):
        raise ArgumentError(
            "readings.register says what its rises cover and how they are shared out; leave out slots.of, "
            "readings.length and readings.hold"
        )
    if of == "sum" and (readings.length is None or hold is not None):
        raise ArgumentError(
            "slots.of is sum, which needs readings.length, what each reading covers, and has no hold: set length, "
            "such as 30min, or the column with it"
        )
    if of == "mean" and readings.length is None and hold is None:
        raise ArgumentError(
            "slots.of is mean, which needs readings.length, what each reading covers, or readings.hold, how long a "
            "reading stands at most until the next one"
        )
    if readings.stamps == "end" and readings.length is None:
        raise ArgumentError("readings.stamps is end, which needs readings.length, what each reading covers")
    if readings.fill is not None and readings.absent is None:
        raise ArgumentError(
            "readings.fill leaves no cell without a value, and needs readings.absent for the first ones"
        )
    if readings.absent is not None and settings.missing != "public":
        raise ArgumentError("readings.absent leaves no cell without a value, so missing is left out")
    if (register is not None or hold is not None) and settings.missing != "state" and readings.absent is None:
        word = "hold" if register is None else "register"
        raise ArgumentError(
            f"readings.{word} makes it depend on values which cells are missing, so missing: {settings.missing_rule} "
            "would publish what is hidden; set missing: state, a bin of its own, or readings.absent"
        )
    if settings.states.categories and (of != "last" or register is not None or readings.absent is not None):
        raise ArgumentError(
            "slots.of, readings.register and absent are of numbers, and states.categories are labels; leave them out"
        )


def _check_categories(settings: Settings) -> None:
    """See that the readings may be labels."""
    readings = settings.readings
    if settings.source is not None and settings.source.broker is not None:
        raise ArgumentError(
            f"states.categories are read from files, and the source is {settings.source.broker}: write its messages to "
            "files, or give the states edges"
        )
    if readings is None:
        return
    for name, usual in (("scale", 1.0), ("unit", "")):
        if getattr(readings, name) != usual:
            raise ArgumentError(f"readings.{name} is of numbers, and states.categories are labels; leave it out")


def load_settings(text: str, *, folder: Path | None = None) -> Settings:
    """Read the text of a settings file, YAML or JSON.

    Raises:
        SettingsError: it is not a mapping, or a setting is wrong; one line for every mistake.
    """
    return Settings.load(text, folder=folder)


def is_settings(path: Path) -> bool:
    """Whether a path is that of a settings file, by its ending."""
    return path.suffix.lower() in SETTINGS_ENDINGS


def read_settings(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        SettingsError: the file cannot be read, or a setting is wrong.
    """
    return Settings.read(path)


def read_roster(settings: Settings, *, grouped: bool = True) -> Roster | None:
    """Read the roster's file, and the groups too where it is ``grouped``.

    Returns:
        The roster, or ``None`` if the settings name no file.

    Raises:
        RosterError: the file cannot be read, or lacks a column or a name.
        SettingsError: the key of the pseudonyms is not where the settings say.
    """
    roster = _as_written(settings, grouped=grouped)
    if roster is None or settings.readings is None or settings.readings.pseudonyms is None:
        return roster
    names = under_pseudonyms(settings, [series for series, _ in roster.entries])
    return Roster(tuple(zip(names, (group for _, group in roster.entries), strict=True)), roster.awaits)


def _as_written(settings: Settings, *, grouped: bool) -> Roster | None:
    file = settings.roster_file
    if file is None:
        return None
    path = Path(settings.path(file.file))
    return Roster.read(path, series=file.series, group=file.group if grouped else None, most=settings.most_series)


def label_model(settings: Settings, model: Model) -> Model:
    """The model of a job with pseudonyms, marked if it may have been estimated from the series that it protects.

    A model that was fitted before there were pseudonyms knows real names. These are compared where a roster's file has
    them; without one nobody can tell, and the model is marked.

    Raises:
        RosterError: the roster's file cannot be read.
    """
    readings, origin = settings.readings, model.provenance
    if readings is None or readings.pseudonyms is None or origin.from_protected or not origin.series_hashes:
        return model
    roster = _as_written(settings, grouped=False)
    if roster is not None and origin.used(roster.series) == 0:
        return model
    return replace(model, provenance=replace(origin, from_protected=True))


def under_pseudonyms(settings: Settings, names: Iterable[str]) -> list[str]:
    """Names as the readings of a job have them.

    Raises:
        SettingsError: the key of the pseudonyms is not where the settings say.
    """
    readings = settings.readings
    if readings is None or readings.pseudonyms is None:
        return list(names)
    key = readings.pseudonyms.key()
    return [key.name(one) for one in names]
