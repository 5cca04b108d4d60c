"""``quiltstream fit``: a model from a history.

Transitions are counted exactly, per series, by a Beam pipeline. The belief is one of four: ``level``, the class of all
chains, also changing in time, that forget at least as fast as most series do; ``series``, the list of most series' own
chains; ``periodic``, the chain of all series together with a kernel for every slot of the day; ``pooled``, the chain of
all series together. The first two leave out the series that need most noise, by a rank that says how likely a further
series is to be covered (``privacy.estimation.per_series``).

Beside the belief it says how many series of the history lose more where more is believed: a rhythm, a longer memory, no
chain (``privacy.estimation.belief_checks``). All of it is a function of the history and as secret as it is.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeAlias

import apache_beam as beam
import numpy as np
from rich.console import Console

from ...privacy.accounting.forward_backward import certified, endless, lower_bound
from ...privacy.accounting.ledger import Ledger
from ...privacy.analysis.methods import METHODS
from ...privacy.estimation.belief_checks import LEAST_STRETCHES, memory, pooled_rhythm, rhythm, stretches
from ...privacy.estimation.belief_checks import Path as SeriesPath
from ...privacy.estimation.diagnosis import diagnose, outside
from ...privacy.estimation.per_series import (
    DIGITS,
    ENOUGH,
    PSEUDO_VISITS,
    Contractions,
    contractions,
    largest_cover,
    rank_of,
)
from ...privacy.estimation.transition_counts import EstimationError, TransitionCounts, chain_from_counts
from ...privacy.models.belief import Belief
from ...privacy.models.classes import FiniteClass, MixingBounds, has_quilts
from ...privacy.models.directions import NotContracting
from ...privacy.models.markov_chain import ChainError, FloatArray, MarkovChain
from ...privacy.models.periodic import PeriodicChain
from ...privacy.models.serialisation import belief_from_dict
from ...privacy.quilts.calibration import mqm_approx, mqm_exact
from ...schemas.files import MOST_ROSTER_BYTES, check_replaceable, open_table, reason
from ...schemas.model_file import MODEL_BEGIN, Model, Provenance, hash_of_series
from ...schemas.settings.job import (
    Settings,
    read_roster,
    read_settings,
    under_pseudonyms,
)
from ...schemas.settings.model import STAND_IN
from ...schemas.slots import DAY_US, HOUR_US, format_duration, parse_instant
from ...transforms.aggregate.transitions import EstimateTransitions, SeriesPaths
from ...transforms.readings.slots import words_of
from ...transforms.sources.files import SlotValues
from ..connectors.files import SERIES_COLUMN, series_column, source_digests
from ..connectors.job_io import check_output, job_paths
from ..console import facts, finite, heading, notes, number, plural, shares, working
from ..errors import CommandError, writing
from ..runners import new_pipeline, options_of, read_source

#: Results of pipelines of this process, by a number of its own: counts never touch a disk.
_RESULTS: dict[tuple[int, str], Any] = {}
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a history to use."""

    only: Path | None = None  # CSV file with the series to use; all where left out
    only_column: str | None = None  # its column with the series; found by the settings' names where left out
    exclude: Path | None = None  # CSV file with the series to leave out
    exclude_column: str | None = None  # its column with the series, likewise
    start: str | None = None  # use readings from this instant on
    stop: str | None = None  # use readings before this instant
    smoothing: float = 0.0  # added to the count of every transition
    # ``level``, the class of chains that forget as fast as most series do; ``series``, the list of the chains of most
    # series; ``periodic``, the chain of all series together with a kernel for every slot of the day; ``pooled``, the
    # chain of all series together
    belief: Believed = "level"
    # probability with which a further series is to be covered, for ``level`` and ``series``; 0.9 if left out
    cover: str | None = None
    certify: bool = False  # for ``pooled``: keep a certificate of the exact account at epsilon 1 with the chain
    quick: bool = False  # leave out the checks under richer beliefs that take more than a second


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model that was written."""

    model: Model
    path: Path
    protected: int | None  # how many of its series the settings' roster protects; ``None`` without a roster
    mechanism: str  # of the settings


def fit_file(path: Path, choice: Choice, output: Path | None) -> Fitted:
    """Fit from a settings file and write the model."""
    settings = read_settings(path)
    if output is None:
        named = settings.path("model.json") if settings.model == STAND_IN else settings.model_file
        if named is None:
            raise CommandError("the settings give bounds by hand; say with -o where the model is to be written")
        output = Path(named)
    _check_output(settings, output, [path, *(one for one in (choice.only, choice.exclude) if one is not None)])
    # no name, which may be that of a household, and no digest of what is secret
    named = settings.source
    source = "" if named is None or named.broker is not None else f"a history in {named.format}"
    model = fit_settings(settings, choice, source=source)
    with writing(output, _ELSEWHERE):
        model.save(output)
    roster = read_roster(settings, grouped=False)
    protected = None if roster is None else model.provenance.used(roster.series)
    return Fitted(model, output, protected, settings.privacy.mechanism)


_ELSEWHERE = "choose another place with -o"


def _check_output(settings: Settings, output: Path, read: list[Path]) -> None:
    """Refuse to write the model over anything that the settings or the command name, or over what is no file."""
    with writing(output, _ELSEWHERE):
        check_replaceable(output)
    others = [path for path in job_paths(settings) if path.field != "model"]
    check_output(output, [*others, *read], "the model file (-o)", MODEL_BEGIN)


def _check_options(choice: Choice) -> None:
    """Refuse options of another belief than the chosen one."""
    if choice.belief in ("periodic", "pooled") and choice.cover is not None:
        raise CommandError(f"--cover {choice.cover}: it is for --belief level or series; give one, or leave it out")
    if choice.certify and choice.belief != "pooled":
        raise CommandError("--certify: it is for --belief pooled; give that, or leave it out")
    if choice.smoothing and choice.belief != "pooled":
        raise CommandError(
            f"--smoothing {choice.smoothing:g}: it is for --belief pooled; --belief {choice.belief} adds visits of the "
            "pooled row to each series: leave --smoothing out, or give --belief pooled"
        )


def fit_settings(settings: Settings, choice: Choice, *, source: str) -> Model:
    """Fit a model on the source of some settings; ``source`` is what it says about where it comes from."""
    _check_options(choice)
    wanted = _listed("only", choice.only, choice.only_column, settings)
    unwanted = _listed("exclude", choice.exclude, choice.exclude_column, settings)
    zone = settings.slots.timezone
    first, last = (
        None if text is None else settings.grid.slots_of(parse_instant(text, zone))
        for text in (choice.start, choice.stop)
    )
    with working("counting transitions"):
        counts, paths = _counted(settings, first, last, None, paths=choice.belief != "pooled")
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
    if choice.certify:
        try:  # jobs then account the chain by the exact map and need not compute it
            with working("certifying the exact account of the chain"):
                return replace(model, belief=certified(belief_from_dict(model.belief)).to_dict())
        except (ChainError, NotContracting) as error:
            raise CommandError(f"--certify: {error}") from error
    if choice.belief == "pooled":
        return model
    epsilon = settings.privacy.epsilon
    kept_paths = None if paths is None else [paths[name] for name in chosen.series]
    if choice.belief == "periodic":
        with working("finding the noise of a kernel for every slot of the day, and what each series loses"):
            return periodic_model(model, kept_paths, epsilon)
    with working(f"finding the noise that each of {len(chosen.series):,} series needs"):
        made = covering_model(model, chosen, choice.belief, choice.cover or USUAL, epsilon)
    cover = made.diagnostics["cover"]
    sigma = cover["checked"]["sigma"]
    with working("checking the belief against a daily rhythm, a memory of two slots and long stretches"):
        checks = check(kept_paths, chosen.states, settings.grid.interval_us, sigma, epsilon, quick=choice.quick)
    return replace(made, diagnostics={**made.diagnostics, "cover": {**cover, "checks": checks}})


def model_from_counts(settings: Settings, counts: TransitionCounts, *, smoothing: float, source: str) -> Model:
    """The model of pooled counts, with its diagnostics."""
    pooled, visits = counts.pooled(), counts.pooled_visits()
    labels = settings.space.labels
    try:
        chain = chain_from_counts(pooled, smoothing, labels=labels)
        bounds = MixingBounds.of(chain)
    except (EstimationError, ChainError) as error:
        raise CommandError(
            f"{error} (--smoothing smooths, with --belief pooled; states.edges makes the bins)"
        ) from error
    found = diagnose(pooled, visits)
    outsiders = len(outside(bounds, counts))
    warnings = found.warnings()
    return Model(
        belief=chain.to_dict(),
        states=settings.space,
        interval_us=settings.grid.interval_us,
        provenance=Provenance(
            method=f"pooled transition counts of {_series(len(counts.series))}"
            + (f", smoothing {smoothing:g}" if smoothing else ""),
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


def _series(count: int) -> str:
    return "one series" if count == 1 else f"{count:,} series"


def transitions_in(
    settings: Settings, first: int | None, last: int | None, series: Sequence[str] | None = None
) -> TransitionCounts:
    """Count the transitions of a source from a slot until before another, in this process.

    The series that are given are counted whether they have readings or not; without them all that turn up.
    """
    return _counted(settings, first, last, series)[0]


def _counted(
    settings: Settings, first: int | None, last: int | None, series: Sequence[str] | None, *, paths: bool = False
) -> tuple[TransitionCounts, dict[str, SeriesPath] | None]:
    """The transitions of every series, and its states; None where they are not wanted, or too many to keep."""
    read, number = read_source(settings), next(_NUMBERS)
    pipeline = new_pipeline(options_of(["--direct_running_mode=in_memory"]))
    decoded = pipeline | "Read" >> read
    words, readings = words_of(settings.readings, settings.slots.of), decoded.readings
    if words is not None:
        readings = readings | "Slots" >> SlotValues(words, settings.grid)
    counted = readings | "Estimate" >> EstimateTransitions(
        settings.grid, settings.space, start=first, stop=last, series=series, most=settings.most_series
    )
    _ = counted | "Keep" >> beam.Map(_keep, (number, "counts"))
    if paths and settings.space.size <= MOST_STATES:
        states = readings | "States" >> SeriesPaths(settings.grid, settings.space, start=first, stop=last)
        _ = states | "Keep states" >> beam.Map(_keep, (number, "paths"))
    pipeline.run().wait_until_finish()
    return _RESULTS.pop((number, "counts")), _RESULTS.pop((number, "paths"), None)


def _keep(found: Any, name: tuple[int, str]) -> None:
    _RESULTS[name] = found


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
    """The series a CSV file lists, in the first of some columns that it has."""
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


def show(console: Console, fitted: Fitted) -> None:
    """Print a fitted model."""
    model, origin, found = fitted.model, fitted.model.provenance, fitted.model.diagnostics
    belief = belief_from_dict(model.belief)
    heading(console, f"{fitted.path}: {origin.series:,} series, {origin.transitions:,} transitions")
    interval = "" if model.interval_us is None else format_duration(model.interval_us)
    if "rhythm" in found:
        _show_rhythm(console, model, interval)
    elif "cover" in found:
        _show_covers(console, model, interval)
    else:
        _show_pooled(console, model, belief, interval)
    said = [*origin.notes]
    if fitted.protected:
        said.append(
            f"{fitted.protected} of its series are in the settings' roster: what is published about them would be "
            "'given the model', which is a function of their data; leave them out with --exclude"
        )
    if METHODS[fitted.mechanism].reads != "directions" and not has_quilts(belief):
        said.append(
            f"the settings say privacy.mechanism: {fitted.mechanism}, which needs quilts, and this belief has none: "
            "set forward-backward, or fit with --belief pooled"
        )
    said.append("this file is an exact statistic of the history; publishing it is a release that no ledger counts")
    heading(console, "Remember")
    notes(console, said)


def _show_pooled(console: Console, model: Model, belief: Belief, interval: str) -> None:
    (chain,) = belief.members
    origin, found = model.provenance, model.diagnostics
    console.print("  How often each state is visited in the long run")
    labels = () if model.states is None else model.states.labels
    for line in shares(labels, chain.stationary.tolist(), width=console.width - 4):
        console.print("  ", line, sep="")
    noise = mqm_approx(belief, epsilon=1.0)
    kept: dict[str, str] = {}
    if belief.certificates:
        sigma = 1 / min(one.density for one in belief.certificates)
        kept["certified"] = f"forward-backward at epsilon 1, endless: sigma {sigma:.4f}, kept in the model"
    out = f"{origin.outside} of the {origin.series} series, by their own counts"
    out += ": the loss is not proved for them" if origin.outside else ""
    facts(
        console,
        {
            "interval": interval,
            "pi_min": f"{found['pi_min']:.6g}; the rarest state was visited {found['rarest_visits']:,} times",
            "gap": f"{found['gap']:.6g} of P P*",
            "noise": f"MQMApprox at epsilon 1, endless: sigma {noise.sigma:.4f}, quilt {noise.quilt}",
            **kept,
            "outside": out,
            "model id": model.model_id,
        },
    )


#: Work up to which a check takes half a minute at most: pairs of rows that are coupled, and cells times sets of
#: states. A pair of a memory of two slots takes as long as five of a rhythm.
_MOST_ROWS, _RHYTHM_ROWS = 40_000, 5
_MOST_CELLS = 200_000_000


def check(
    paths: Sequence[SeriesPath] | None,
    states: int,
    interval_us: int,
    sigma: float,
    epsilon: float = 1.0,
    *,
    quick: bool = False,
) -> dict[str, dict[str, Any]]:
    """Check the series of a history, whose states are None where they were too many to keep, at a noise for epsilon.

    By name, ``within``, ``series`` and the ``largest`` loss, ``None`` where it has no bound, or why it was ``skipped``.
    ``quick`` leaves out what takes more than a second.
    """
    density = 1 / sigma
    if paths is None:
        return {name: {"skipped": "the history has too many series or states, or too long series"} for name in _SAID}
    n, cells = len(paths), sum(len(path.states) for path in paths)
    found: dict[str, dict[str, Any]] = {}
    day, odd = divmod(DAY_US, interval_us)
    if not quick:
        slow = "it would take long for so many series, states and slots of a day; fit fewer series to have it checked"
        rows = n * day * states * (states - 1)
        no_rhythm = "the interval does not divide the day" if odd else slow if rows > _MOST_ROWS * _RHYTHM_ROWS else ""
        found["rhythm"] = _tally(lambda: rhythm(paths, states, day, density, epsilon), epsilon, no_rhythm)
        found["memory"] = _tally(
            lambda: memory(paths, states, density, epsilon), epsilon, slow if n * states**4 > _MOST_ROWS else ""
        )
    for name, length in (("25 hours", 25 * HOUR_US), ("week", 7 * DAY_US)):
        half = length // interval_us // 2
        why = "it would take long for so many readings and states" if cells * 2**states > _MOST_CELLS else ""
        if half < 1:
            why = "a slot is longer"
        counted = _tally(lambda half=half: stretches(paths, states, density, half), epsilon, why)
        # The bound is from below: 0 everywhere says nothing of what the series lose.
        found[name] = {"skipped": _UNTOLD} if counted.get("largest") == 0 else counted
    return found


def _tally(losses: Callable[[], FloatArray], epsilon: float, why_not: str) -> dict[str, Any]:
    if why_not:
        return {"skipped": why_not}
    found = losses()
    return {"within": int((found <= epsilon).sum()), "series": len(found), "largest": finite(float(found.max()))}


_UNTOLD = f"no series has {LEAST_STRETCHES} such stretches without gaps about each of two states, or all are alike"

_KNOWING = "someone who knows which stretches of {} the series had, and how often"

_SAID: Mapping[str, tuple[str, str]] = {
    "own": ("own chain", "lose at most epsilon by their own chains"),
    "rhythm": ("daily rhythm", "lose at most epsilon by their own chains with a kernel for every slot of the day"),
    "memory": ("two slots", "lose at most epsilon by their own chains with a memory of two slots"),
    "25 hours": ("25 hours", f"lose more against {_KNOWING.format('25 hours')}"),
    "week": ("a week", f"lose more against {_KNOWING.format('a week')}"),
}

#: Checks that count who loses more, because they bound the loss from below.
_FROM_BELOW = frozenset({"25 hours", "week"})


def said_of(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What the checks found, in words: the richer belief, and who loses more against it."""
    return [(_SAID[name][0], _said(name, one)) for name, one in found.items()]


def _said(name: str, found: Mapping[str, Any]) -> str:
    if "skipped" in found:
        return f"not checked: {found['skipped']}"
    many = found["series"] - found["within"] if name in _FROM_BELOW else found["within"]
    return f"{many} of the {found['series']} series {_SAID[name][1]}"


def show_checks(console: Console, found: Mapping[str, Any], own: str) -> None:
    """Print what was checked; ``own`` says what the series lose by their own chains at epsilon 1, if that is known."""
    checks, checked = found["checks"], found.get("checked", {"epsilon": 1.0})
    epsilon = checked["epsilon"]
    at = "this noise" if epsilon == 1 else f"epsilon {epsilon:g} and its noise, sigma {number(checked['sigma'])}"
    heading(console, f"The history under richer beliefs, at {at} (exact statistics, which no ledger counts)")
    if "own" in checked:
        own = f"{_said('own', checked['own'])}{_most('own', checked['own'])}"
    lines = [("own chain", own)] if own and (epsilon == 1 or "own" in checked) else []
    facts(console, [*lines, *((label, said + _most(name, checks[name])) for name, (label, said)
                              in zip(checks, said_of(checks), strict=True))])  # fmt: skip


def _most(name: str, found: Mapping[str, Any]) -> str:
    """The largest loss, where a series loses more than epsilon."""
    if "skipped" in found or found["within"] == found["series"]:
        return ""
    if found["largest"] is None:
        return "; of the others no bound is known"
    return f"; the largest loss is at {'least' if name in _FROM_BELOW else 'most'} {found['largest']:.2f}"


Believed: TypeAlias = Literal["level", "series", "periodic", "pooled"]

#: The usual cover.
USUAL = "0.9"

#: What a belief about how fast a chain forgets leaves out.
REGIMES = (
    "holidays and seasons are regimes that no chain of this class knows; the promise is against someone who believes a "
    "chain with these mixing rates"
)

#: Covers of the table, beside the one that is chosen and the largest that there is.
_COVERS = ("0.5", "0.8", "0.9", "0.95")

#: Series and states up to which every series' own chain is calibrated exactly.
_MOST_SERIES = 200
MOST_STATES = 12

#: Decimals of the chains of ``series``.
_CHAIN_DIGITS = 4


def covering_model(model: Model, counts: TransitionCounts, belief: Believed, cover: str, epsilon: float = 1.0) -> Model:
    """The model with a belief that covers most series in the place of the pooled chain.

    The numbers of the belief are rounded outward to few digits before anything is made of them; a list of chains has no
    outward, so there the rounded chains are what is believed, but for the slowest, which sets the noise.
    """
    labels = None if model.states is None else model.states.labels
    rank = _rank(cover, len(counts.series))
    try:
        history = contractions(counts, labels=labels)
        exact = _exact(history)
        if belief == "level":
            made = history.envelope(rank)
            outside = len(counts.series) - history.inside(made)
        else:
            made, outside = _own_chains(history, exact, rank), len(counts.series) - rank
        sigma = 1 / endless(made, 1.0).density
        at = sigma if epsilon == 1 else 1 / endless(made, epsilon).density
        checked: dict[str, Any] = {"epsilon": epsilon, "sigma": at}
    except (EstimationError, ChainError, NotContracting) as error:
        raise CommandError(
            f"{error} (--cover, --only and --exclude choose, --edges make the bins, and --belief pooled takes one "
            "chain of all series together)"
        ) from error
    if exact is not None and epsilon != 1:
        checked["own"] = _tally(lambda: _losses(history.chains, at), epsilon, "")
    own = {} if exact is None else {"within": int((exact <= sigma).sum()), "largest": finite(float(exact.max()))}
    order = np.argsort(history.scores if belief == "level" or exact is None else exact, kind="stable")
    low, high = history.share_range(rank)
    method = f"contraction class, cover {cover}" if belief == "level" else f"chains of single series, cover {cover}"
    return replace(
        model,
        belief=made.to_dict(),
        provenance=replace(model.provenance, method=f"{method}, {PSEUDO_VISITS} pseudo-visits", outside=outside),
        diagnostics={
            **model.diagnostics,
            "cover": {
                "belief": belief,
                "sigma": sigma,
                "rank": rank,
                "series": len(counts.series),
                "probability": history.probability(rank),
                "short": history.short,
                "range": [low, high],
                "own": own,
                "others": {} if exact is None else _others(history, exact, order[:rank].tolist()),
                "table": _table(history, exact, cover),
                "checked": checked,
            },
        },
    )


def _losses(chains: Iterable[MarkovChain], sigma: float) -> FloatArray:
    """What an endless stream of a noise loses by each chain, epsilon."""
    return np.array([Ledger(chain).ceiling(1 / sigma) for chain in chains])


def _rank(cover: str, series: int) -> int:
    """The rank of a cover."""
    try:
        return rank_of(cover, series)
    except EstimationError as error:
        raise CommandError(
            f"--{error}; the largest for this history is --cover {largest_cover(series):g}; without a cover, "
            "--belief pooled takes one chain of all series together, whose promise holds for series that follow it"
        ) from error


def _others(history: Contractions, exact: FloatArray, chosen: list[int]) -> dict[str, float | None]:
    """What the kept series would need otherwise: by the quilts, and at least, by any Laplace noise.

    The least is that of the slowest kept chain, which is in the class and in the list, for counts of every slot
    (:func:`lower_bound`).
    """
    chains = [history.chains[at] for at in chosen]
    slowest = history.chains[max(chosen, key=lambda at: exact[at])]
    found = {"least": lower_bound(slowest, 1.0), "own": float(exact[chosen].max())}
    try:
        found["mqm-exact"] = max(mqm_exact(chain, 1.0).sigma for chain in chains)
        bounds = [MixingBounds.of(chain) for chain in chains]
        around = MixingBounds(min(one.pi_min for one in bounds), min(one.gap for one in bounds))
        found["mqm-approx"] = mqm_approx(around, 1.0).sigma
    except ValueError:  # a chain that no quilt cuts off, or no gap: then quilts have no answer
        pass
    return {name: finite(value) for name, value in found.items()}


def _exact(history: Contractions) -> FloatArray | None:
    """What each series' own chain needs, where that is cheap."""
    if len(history.chains) > _MOST_SERIES or history.chains[0].states > MOST_STATES:
        return None
    return history.exact_scores()


def _own_chains(history: Contractions, exact: FloatArray | None, rank: int) -> FiniteClass:
    if exact is None:
        raise CommandError(
            f"--belief series: {len(history.chains)} series with {history.chains[0].states} states take too long; at "
            f"most {_MOST_SERIES} series and {MOST_STATES} states do not: use --belief level"
        )
    *chosen, slowest = np.argsort(exact, kind="stable")[:rank].tolist()
    chains = {at: MarkovChain(rounded_rows(history.chains[at].transition)) for at in chosen}
    # of the slowest the chain itself: a rounded one may need a little less noise, and whatever needs as much as this
    # one would lose more than epsilon
    chains[slowest] = history.chains[slowest]
    return FiniteClass(dict.fromkeys(chains[at] for at in sorted(chains)))


def rounded_rows(transition: FloatArray) -> FloatArray:
    """Rows of few decimals; what rounding leaves of 1 goes to the largest entry, and no entry falls to 0."""
    unit = 10**_CHAIN_DIGITS
    whole = np.where(transition > 0, np.maximum(np.rint(transition * unit), 1), 0).astype(np.int64)
    whole[np.arange(len(whole)), whole.argmax(axis=1)] += unit - whole.sum(axis=1)
    return whole / unit


def _table(history: Contractions, exact: FloatArray | None, cover: str) -> list[Any]:
    n = len(history.chains)
    ordered = None if exact is None else np.sort(exact)
    wanted = sorted({Fraction(one) for one in (*_COVERS, cover)} | {Fraction(n, n + 1)})
    ranks = dict.fromkeys(math.ceil(one * (n + 1)) for one in wanted if one <= Fraction(n, n + 1))
    found: list[Any] = []
    for rank in ranks:
        try:
            bounds = history.envelope(rank)
            sigma, inside = finite(1 / endless(bounds, 1.0).density), history.inside(bounds)
        except (ChainError, NotContracting):
            sigma, inside = None, None
        found.append(
            {
                "rank": rank,
                "probability": history.probability(rank),
                "range": list(history.share_range(rank)),
                "sigma": sigma,
                "inside": inside,
                "series_sigma": None if ordered is None else finite(float(ordered[rank - 1])),
            }
        )
    return found


def _show_covers(console: Console, model: Model, interval: str) -> None:
    """Print what a belief that covers most series costs, and for whom it holds."""
    found = model.diagnostics["cover"]
    rank, n, bounds = found["rank"], found["series"], model.belief
    _show_table(console, found["table"], rank, n)
    if bounds["kind"] == "dobrushin-bounds":
        heading(console, "Largest total variation after so many slots")
        for name in ("forward", "backward"):
            points = "  ".join(f"{m}: {eta:g}" for m, eta in bounds[name])
            console.print(f"  {name:<9} {points}", soft_wrap=True)
    low, high = found["range"]
    whom = "one of these chains"
    if found["belief"] == "level":
        whom = "a chain with these mixing rates, also one that changes in time"
    said = {
        "interval": interval,
        "noise": f"forward-backward at epsilon 1, endless: sigma {number(found['sigma'])}",
        "promise": f"against someone who believes {whom}",
        "a new series": f"exchangeable with the history's {n}: by its own chain, fitted in the same way, it loses at "
        f"most epsilon with probability {'about' if found['short'] else 'at least'} {rank}/{n + 1} = "
        f"{found['probability']:.2f}; for this history the share of such series may be {low:.2f} to {high:.2f}",
    }
    if found["short"]:
        added = PSEUDO_VISITS * (1 if model.states is None else model.states.size)
        said["why about"] = (
            f"{found['short']} of the {n} series have fewer than {ENOUGH * added:,} transitions, {ENOUGH} for each of "
            f"the {added} visits of the pooled rows that are added to theirs, and a new series is no part of these rows"
        )
    others = found.get("others", {})
    if others.get("least") is not None:
        said["at least"] = (
            f"below sigma {number(others['least'])} the slowest of the {rank} chains would lose more by counts of "
            f"every slot; for the list of them {_shown(others['own'])} is enough"
        )
    given = {"chains": "the list of these chains", "bounds": "bounds on pi_min and gap that hold them"}
    quilts = [
        f"{name} {number(others[name])} for {given[METHODS[name].reads]}"
        for name in reversed([*METHODS])
        if others.get(name) is not None
    ]
    if quilts:
        said["by quilts"] = ", ".join(quilts)
    unrounded = "" if found["belief"] == "level" else ", the slowest chain excepted"
    facts(console, said | {"model id": f"{model.model_id}, of the belief rounded to {DIGITS} decimals{unrounded}"})
    own = found["own"]
    chains = f"{own['within']} of the {n} series {_SAID['own'][1]}" if own else ""
    if own and own["largest"] is not None:
        chains += f"; the slowest needs sigma {number(own['largest'])}"
    show_checks(console, found, chains)
    console.print(f"  {REGIMES[0].upper()}{REGIMES[1:]}.")


def _show_table(console: Console, table: list[Any], rank: int, n: int) -> None:
    """Print what each cover of a history of n series costs, with a mark at the chosen rank."""
    console.print(
        "  Covers of this history: series, probability for a further one, noise (sigma at epsilon 1, endless)"
    )
    console.print("    series   probability  (range)        contraction class   inside   own chains", soft_wrap=True)
    for row in table:
        low, high = row["range"]
        mark = ">" if row["rank"] == rank else " "
        console.print(
            f"  {mark} {row['rank']:>3}/{n:<4}  {row['probability']:>10.3f}  ({low:.2f} to {high:.2f})"
            f"{_shown(row['sigma']):>16}{_shown(row['inside'], 0):>13}{_shown(row['series_sigma']):>13}",
            soft_wrap=True,
        )


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


#: Pairs of rows of a day that are coupled within some seconds.
_MOST_RHYTHM_ROWS = 20_000


def periodic_model(model: Model, paths: Sequence[SeriesPath] | None, epsilon: float) -> Model:
    """The model with a kernel for every slot of the day in the place of the pooled chain.

    The rows are rounded to few decimals, and the rounded chain is what is believed.
    """
    assert model.states is not None  # noqa: S101 - a model that was just fitted
    assert model.interval_us is not None  # noqa: S101 - likewise
    k, (day, odd) = model.states.size, divmod(DAY_US, model.interval_us)
    if odd:
        raise CommandError(
            f"--belief periodic: slots of {format_duration(model.interval_us)} do not divide the day; use --belief "
            "level"
        )
    if paths is None or day * k * (k - 1) > _MOST_RHYTHM_ROWS:
        raise CommandError(
            f"--belief periodic: {day} slots a day with {k} states, or so many series, take too long; use --belief "
            "level, or fewer --edges"
        )
    try:
        chain = PeriodicChain([rounded_rows(rows) for rows in pooled_rhythm(paths, k, day)])
        sigma = 1 / endless(chain, 1.0).density
        at = sigma if epsilon == 1 else 1 / endless(chain, epsilon).density
    except (ChainError, NotContracting) as error:
        raise CommandError(f"{error} (--edges make the bins; --belief level needs no kernel for each slot)") from error
    checks = check(paths, k, model.interval_us, at, epsilon)
    own = checks["rhythm"]
    return replace(
        model,
        belief=chain.to_dict(),
        provenance=replace(
            model.provenance,
            method=f"pooled transition counts of {_series(model.provenance.series)} by the slot of the day, "
            f"{PSEUDO_VISITS} pseudo-visits",
            outside=own["series"] - own["within"] if "within" in own else model.provenance.outside,
        ),
        diagnostics={
            **model.diagnostics,
            "rhythm": {
                "sigma": sigma,
                "slots": day,
                "checked": {"epsilon": epsilon, "sigma": at},
                "checks": checks,
            },
        },
    )


def _show_rhythm(console: Console, model: Model, interval: str) -> None:
    """Print what such a belief costs, and for whom it holds."""
    found = model.diagnostics["rhythm"]
    facts(
        console,
        {
            "interval": interval,
            "noise": f"forward-backward at epsilon 1, endless: sigma {number(found['sigma'])}",
            "promise": "against someone who believes that every series follows this chain, with a kernel for each of "
            f"the {found['slots']} slots of the day",
            "model id": model.model_id,
        },
    )
    show_checks(console, found, "")
    console.print("  Holidays and seasons are regimes that this chain does not know.")
