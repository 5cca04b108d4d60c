"""``quiltstream fit``: a model from a history.

Transitions are counted exactly, per series, by a Beam pipeline. The belief is a class that holds for most series, the
list of most series' own chains, or the chain of all series together. What comes out is a function of the history and as
secret as it is.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from rich.console import Console

from ...privacy.accounting.calibration import certified
from ...privacy.analysis.methods import METHODS
from ...privacy.estimation.belief_checks import Path as SeriesPath
from ...privacy.estimation.diagnostics import diagnose, outside
from ...privacy.estimation.transition_counts import EstimationError, TransitionCounts, chain_from_counts
from ...privacy.models.belief import Belief
from ...privacy.models.classes import MixingBounds, has_quilts
from ...privacy.models.directions import NotContracting
from ...privacy.models.markov_chain import ChainError
from ...privacy.models.reading import belief_from_dict
from ...privacy.quilts.calibration import mqm_approx
from ...schemas.files import MOST_ROSTER_BYTES, check_replaceable, open_table, reason
from ...schemas.models import Model, Provenance, hash_of_series
from ...schemas.settings.job import (
    SETTINGS_ENDINGS,
    Settings,
    is_settings,
    read_roster,
    read_settings,
    under_pseudonyms,
)
from ...schemas.settings.model import STAND_IN
from ...schemas.slots import format_duration, parse_instant
from ...transforms.aggregate.transitions import EstimateTransitions, SeriesPaths
from ..connectors.files import SERIES_COLUMN, series_column, source_digests
from ..connectors.places import Place, check_places, places_of
from ..console import facts, heading, notes, plural, working
from ..errors import CommandError
from ..runners import new_pipeline, options_of, read_source
from .charts import shares
from .data_preview import FORMATS, format_of
from .fit_beliefs import MOST_STATES, USUAL, Believed, check, covering_model, periodic_model, show_covers, show_rhythm

#: Results of pipelines of this process, by a number of its own: counts never touch a disk.
_RESULTS: dict[int, TransitionCounts] = {}
_PATHS: dict[int, dict[str, SeriesPath] | None] = {}
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a history to use.

    Attributes:
        only: CSV file with the series to use; all where left out.
        only_column: its column with the series; found by the settings' names where left out.
        exclude: CSV file with the series to leave out.
        exclude_column: its column with the series, likewise.
        start: use readings from this instant on.
        stop: use readings before this instant.
        smoothing: added to the count of every transition.
        belief: ``level``, the class of chains that forget as fast as most series do; ``series``, the list of the chains
            of most series; ``periodic``, the chain of all series together with a kernel for every slot of the day;
            ``pooled``, the chain of all series together.
        cover: probability with which a further series is to be covered, for ``level`` and ``series``; 0.9 if left out.
        certify: for ``pooled``: keep a certificate of the exact account at epsilon 1 with the chain.
        quick: leave out the checks under richer beliefs that take more than a second.
    """

    only: Path | None = None
    only_column: str | None = None
    exclude: Path | None = None
    exclude_column: str | None = None
    start: str | None = None
    stop: str | None = None
    smoothing: float = 0.0
    belief: Believed = "level"
    cover: str | None = None
    certify: bool = False
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model that was written.

    Attributes:
        model: the model.
        path: where it is.
        protected: how many of its series the settings' roster protects; ``None`` without a roster.
        mechanism: the mechanism of the settings; ``None`` where a data file was fitted on.
    """

    model: Model
    path: Path
    protected: int | None
    mechanism: str | None = None


def fit_file(path: Path, choice: Choice, columns: Mapping[str, Any], output: Path | None) -> Fitted:
    """Fit from a settings file or a data file and write the model.

    Raises:
        SettingsError: the settings, or what stands for them, are wrong.
        CommandError: nothing can be fitted.
    """
    mechanism = None
    if is_settings(path):
        given = [name for name, value in columns.items() if value not in (None, "", 1.0, "UTC", "public")]
        if given:
            raise CommandError(
                f"--{given[0].replace('_', '-')} is for data files; {path} is a settings file, so set it there"
            )
        settings = read_settings(path)
        mechanism = settings.privacy.mechanism
        if output is None:
            named = settings.path("model.json") if settings.model == STAND_IN else settings.model_file
            if named is None:
                raise CommandError("the settings give bounds by hand; say with -o where the model is to be written")
            output = Path(named)
    elif path.suffix.lower() in FORMATS:
        settings = _settings_for(path, columns)
        output = Path("model.json") if output is None else output
    else:
        raise CommandError(
            f"{path}: neither a settings file ({', '.join(SETTINGS_ENDINGS)}) "
            f"nor a data file ({', '.join(FORMATS)}) by its ending"
        )
    _check_output(settings, output, [path, *(one for one in (choice.only, choice.exclude) if one is not None)])
    with working(f"counting transitions in {path.name}"):
        model = fit_settings(settings, choice, source=_kind_of(settings))
    try:
        model.save(output)
    except OSError as error:
        raise _not_written(output, error) from error
    roster = read_roster(settings, grouped=False)
    protected = None if roster is None else model.provenance.used(roster.series)
    return Fitted(model, output, protected, mechanism)


def _not_written(output: Path, error: OSError) -> CommandError:
    return CommandError(f"{output}: cannot be written ({reason(error)}); choose another place with -o")


def _kind_of(settings: Settings) -> str:
    """What a model says of its history: no name, which may be that of a household, and no digest of what is secret."""
    source = settings.source
    return "" if source is None else f"a history in {source.format}"


def _check_output(settings: Settings, output: Path, read: list[Path]) -> None:
    """Refuse to write the model over anything that the settings or the command name, or over what is no file.

    Raises:
        SettingsError: it is one of those.
        CommandError: something else than a regular file is there.
    """
    try:
        check_replaceable(output)
    except OSError as error:
        raise _not_written(output, error) from error
    others = [place for place in places_of(settings) if place.field != "model"]
    others += [Place("the command", str(path)) for path in read]
    for other in others:
        check_places([other, Place("the model file (-o)", str(output), written=True)])


def fit_settings(settings: Settings, choice: Choice, *, source: str) -> Model:
    """Fit a model on the source of some settings.

    Args:
        settings: source, readings, slots, states and missing rule are used.
        choice: what of the history to use.
        source: what the model is to say about where it comes from.

    Raises:
        SettingsError: the source cannot be found.
        CommandError: the counts make no belief.
    """
    wanted = _listed("only", choice.only, choice.only_column, settings)
    unwanted = _listed("exclude", choice.exclude, choice.exclude_column, settings)
    counts, paths = _history(settings, choice)
    for option, names in (("only", wanted), ("exclude", unwanted)):
        if names is not None and names.isdisjoint(counts.series):
            raise CommandError(
                f"--{option}: none of the {len(names):,} series it lists is among the {len(counts.series):,} of the "
                f"history, so it chooses nothing; check its column (--{option}-column), --start and --stop, or leave "
                f"--{option} out"
            )
    kept = [n for n in counts.series if (wanted is None or n in wanted) and (unwanted is None or n not in unwanted)]
    if not kept:
        raise CommandError(
            f"none of the {len(counts.series)} series of the history is left to fit on; check --only, --exclude, "
            "--start and --stop, and the columns; where the roster has all series, take out of it those that are not "
            "to be published (`quiltstream init --hold-out 0.5` does), or give a history of other series"
        )
    chosen = counts.subset(kept)
    model = model_from_counts(settings, chosen, smoothing=choice.smoothing, source=source)
    if choice.belief in ("periodic", "pooled") and choice.cover is not None:
        raise CommandError(f"--cover {choice.cover}: it is for --belief level or series; give one, or leave it out")
    if choice.certify and choice.belief != "pooled":
        raise CommandError("--certify: it is for --belief pooled; give that, or leave it out")
    if choice.belief == "pooled":
        return _certified(model) if choice.certify else model
    if choice.smoothing:
        raise CommandError(
            f"--smoothing {choice.smoothing:g}: it is for --belief pooled; --belief {choice.belief} adds visits of the "
            "pooled row to each series: leave --smoothing out, or give --belief pooled"
        )
    kept_paths = None if paths is None else [paths[name] for name in chosen.series]
    if choice.belief == "periodic":
        return periodic_model(model, kept_paths)
    epsilon = settings.privacy.epsilon
    made = covering_model(model, chosen, choice.belief, choice.cover or USUAL, epsilon)
    cover = made.diagnostics["cover"]
    sigma = cover["checked"]["sigma"]
    with working("checking the belief against richer ones"):
        checks = check(kept_paths, chosen.states, settings.grid.interval_us, sigma, epsilon, quick=choice.quick)
    return replace(made, diagnostics={**made.diagnostics, "cover": {**cover, "checks": checks}})


def _certified(model: Model) -> Model:
    """A model whose chain carries a certificate, so that jobs account it by the exact map and need not compute it.

    Raises:
        CommandError: the chain mixes too slowly for one.
    """
    try:
        return replace(model, belief=certified(belief_from_dict(model.belief)).to_dict())
    except (ChainError, NotContracting) as error:
        raise CommandError(f"--certify: {error}") from error


def model_from_counts(settings: Settings, counts: TransitionCounts, *, smoothing: float, source: str) -> Model:
    """The model of pooled counts, with its diagnostics.

    Raises:
        CommandError: a state was never visited, or the chain does not mix.
    """
    pooled, visits = counts.pooled(), counts.pooled_visits()
    labels = settings.space.labels
    try:
        chain = chain_from_counts(pooled, smoothing, labels=labels)
        bounds = MixingBounds.of(chain)
    except (EstimationError, ChainError) as error:
        raise CommandError(
            f"{error} (--smoothing smooths, with --belief pooled; states.edges or --edges make the bins)"
        ) from error
    found = diagnose(pooled, visits)
    outsiders = len(outside(bounds, counts))
    warnings = found.warnings()
    return Model(
        belief=chain.to_dict(),
        states=settings.space,
        interval_us=settings.grid.interval_us,
        provenance=Provenance(
            method="pooled transition counts" + (f", smoothing {smoothing:g}" if smoothing else ""),
            source=source,
            series=len(counts.series),
            transitions=int(pooled.sum()),
            outside=outsiders,
            smoothing=smoothing,
            series_hashes=tuple(sorted(hash_of_series(name) for name in counts.series)),
            source_digests=source_digests(settings),
            notes=warnings,
        ),
        diagnostics={
            **asdict(found),
            "visits": visits.tolist(),
            "stationary": chain.stationary.tolist(),
            "pi_min": chain.pi_min,
            "gap": chain.gap,
            "multiplicity": chain.gap_multiplicity,
            "period": chain.period,
            "warnings": list(warnings),
            SERIES_COLUMN: series_column(settings),
        },
    )


def _history(settings: Settings, choice: Choice) -> tuple[TransitionCounts, dict[str, SeriesPath] | None]:
    """The transitions of every series of a source and its states, in this process.

    The states are None where they are not needed, or too many to keep.
    """
    zone = settings.slots.timezone
    first, last = (
        None if text is None else settings.grid.slots_of(parse_instant(text, zone))
        for text in (choice.start, choice.stop)
    )
    return _counted(settings, first, last, None, paths=choice.belief != "pooled")


def transitions_in(
    settings: Settings, first: int | None, last: int | None, series: Sequence[str] | None = None
) -> TransitionCounts:
    """Count the transitions of a source between two slots, in this process.

    Args:
        settings: source, readings, slots, states and missing rule are used.
        first: first slot; all if left out.
        last: first slot that is not counted.
        series: those to count, whether they have readings or not; all that turn up if left out.

    Raises:
        SettingsError: the source cannot be found.
    """
    return _counted(settings, first, last, series)[0]


def _counted(
    settings: Settings, first: int | None, last: int | None, series: Sequence[str] | None, *, paths: bool = False
) -> tuple[TransitionCounts, dict[str, SeriesPath] | None]:
    read = read_source(settings)
    number = next(_NUMBERS)
    pipeline = new_pipeline(options_of(["--direct_running_mode=in_memory"]))
    decoded = pipeline | "Read" >> read
    counted = decoded.readings | "Estimate" >> EstimateTransitions(
        settings.grid, settings.space, start=first, stop=last, series=series, most=settings.most_series
    )
    _ = counted | "Keep" >> beam.Map(_keep, number)
    if paths and settings.space.size <= MOST_STATES:
        states = decoded.readings | "States" >> SeriesPaths(settings.grid, settings.space, start=first, stop=last)
        _ = states | "Keep states" >> beam.Map(_keep_paths, number)
    pipeline.run().wait_until_finish()
    return _RESULTS.pop(number), _PATHS.pop(number, None)


def _keep(counts: TransitionCounts, number: int) -> None:
    _RESULTS[number] = counts


def _keep_paths(paths: dict[str, SeriesPath] | None, number: int) -> None:
    _PATHS[number] = paths


def _listed(option: str, path: Path | None, column: str | None, settings: Settings) -> frozenset[str] | None:
    """The series that the file of an option lists: in the column that is named, or in one that the settings name."""
    if path is None:
        if column is not None:
            raise CommandError(f"--{option}-column {column!r}: it names a column of the file of --{option}; give that")
        return None
    if column is not None:
        columns = [column]
    else:
        roster, own = settings.roster_file, series_column(settings)
        columns = [*([] if roster is None else [roster.series]), "series", *([] if own is None else [own])]
    return frozenset(under_pseudonyms(settings, names_in(path, list(dict.fromkeys(columns)), option)))


def names_in(path: Path, columns: Sequence[str], option: str) -> frozenset[str]:
    """The series a CSV file lists, in the first of some columns that it has.

    Raises:
        CommandError: the file cannot be read, or has none of the columns.
    """
    try:
        with open_table(path, MOST_ROSTER_BYTES) as file:
            rows = csv.reader(file)
            header = next(rows, [])
            found = next((column for column in columns if column in header), None)
            if found is not None:
                place = header.index(found)
                return frozenset(row[place] for row in rows if len(row) > place)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{path}: cannot be read as a CSV file of series ({reason(error)})") from error
    raise CommandError(  # the first line is not shown: without a header it is data
        f"--{option} {path}: its first line must be a header; it has {plural(len(header), 'column')}, none of them "
        f"{' or '.join(map(repr, columns))}: name the one with the series by --{option}-column"
    )


def _settings_for(path: Path, columns: Mapping[str, Any]) -> Settings:
    """Settings that say what the options of a data file say; what a fit does not use stands for nothing."""
    needed = {name: columns[name] for name in ("time", "value", "interval", "edges")}
    absent = [f"--{name}" for name, value in needed.items() if value is None]
    if absent:
        raise CommandError(
            f"{', '.join(absent)}: needed to read {path.name}; give them, or let `quiltstream init` write settings"
        )
    if bool(columns["series"]) == bool(columns["series_name"]):
        raise CommandError(
            f"--series, --series-name: give one of them to read {path.name}: --series COLUMN where a column names the "
            "series; --series-name NAME where the file is one series, with the name that the settings of its releases "
            "give it (readings.series: {constant: NAME})"
        )
    try:
        edges = [float(edge) for edge in str(columns["edges"]).split(",")]
    except ValueError:
        raise CommandError(f"--edges {columns['edges']!r}: write numbers with commas, for example 250,500") from None
    missing = columns["missing"]
    times = str(columns["time"]).split(",")
    readings = {
        "series": columns["series"] or {"constant": columns["series_name"]},
        "time": times[0] if len(times) == 1 else times,
        "value": columns["value"],
        "scale": columns["scale"],
        "time_format": columns["time_format"],
    }
    return Settings.parse(
        {
            "source": {format_of(path): str(path.resolve())},
            "readings": readings,
            "slots": {"interval": columns["interval"], "timezone": columns["timezone"]},
            "states": {"edges": edges, "unit": columns["unit"]},
            "missing": missing if missing in ("public", "state") else {"break": missing},
            "model": "model.json",
            "windows": {"size": columns["interval"]},
            "privacy": {"epsilon": 1.0},
            "query": "fit",
            "domain": "fit",
        }
    )


def show(console: Console, fitted: Fitted) -> None:
    """Print a model for whoever fitted it."""
    model, origin, found = fitted.model, fitted.model.provenance, fitted.model.diagnostics
    belief = belief_from_dict(model.belief)
    labels = () if model.states is None else model.states.labels
    heading(console, f"{fitted.path}: {origin.series:,} series, {origin.transitions:,} transitions")
    pooled = "rhythm" not in found and "cover" not in found
    if pooled:
        (chain,) = belief.members
        console.print("  How often each state is visited in the long run")
        for line in shares(labels, chain.stationary.tolist(), width=console.width - 4):
            console.print("  ", line, sep="")
    interval = "" if model.interval_us is None else format_duration(model.interval_us)
    if not pooled:
        shown = show_rhythm if "rhythm" in found else show_covers
        shown(console, model, interval)
        _remember(console, fitted)
        return
    noise = mqm_approx(belief, epsilon=1.0)
    facts(
        console,
        [
            ("interval", interval),
            ("pi_min", f"{found['pi_min']:.6g}; the rarest state was visited {found['rarest_visits']:,} times"),
            ("gap", f"{found['gap']:.6g} of P P*"),
            ("noise", f"MQMApprox at epsilon 1, endless: sigma {noise.sigma:.4f}, quilt {noise.quilt}"),
            *_kept(belief),
            (
                "outside",
                f"{origin.outside} of the {origin.series} series, by their own counts: the loss does not hold for them",
            ),
            ("model id", model.model_id),
        ],
    )
    _remember(console, fitted)


def _kept(belief: Belief) -> list[tuple[str, str]]:
    """The noise that the certificates of a belief prove to be enough; nothing where it carries none."""
    if not belief.certificates:
        return []
    sigma = 1 / min(one.density for one in belief.certificates)
    return [("certified", f"forward-backward at epsilon 1, endless: sigma {sigma:.4f}, kept in the model")]


def _remember(console: Console, fitted: Fitted) -> None:
    origin = fitted.model.provenance
    said = [*origin.notes]
    if fitted.protected:
        said.append(
            f"{fitted.protected} of its series are in the settings' roster: what is published about them would be "
            "'given the model', which is a function of their data; leave them out with --exclude"
        )
    quilts = fitted.mechanism is not None and METHODS[fitted.mechanism].reads != "directions"
    if quilts and not has_quilts(belief_from_dict(fitted.model.belief)):
        said.append(
            f"the settings say privacy.mechanism: {fitted.mechanism}, which needs quilts, and this belief has none: "
            "set forward-backward, or fit with --belief pooled"
        )
    said.append("this file is an exact statistic of the history; publishing it is a release that no ledger counts")
    heading(console, "Remember")
    notes(console, said)
