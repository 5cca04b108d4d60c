"""``quiltstream fit``: a model from a history.

1. The transitions of every chosen series, between two instants, are counted exactly by a Beam pipeline.
2. The belief is ``level``, the class of all chains, also changing in time, that forget at least as fast as most series
   do; ``series``, the list of most series' own chains; ``periodic``, the chain of all series together with a kernel for
   every slot of the day; or ``pooled``, the chain of all series together. The first two leave out the series that need
   most noise, by a rank that says how likely a further series is covered (``privacy.estimation.per_series``).
3. With ``--regimes`` the class holds for someone who knows the kind of each day. Beside the belief stands what habits
   tell (``privacy.accounting.habits``), and how many series lose more where more is believed (``fit_checks``).
4. A refusal writes no model, and no error quotes a series.
5. All of it is a function of the history and as secret as it is. ``fit_text`` prints it.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from ...privacy.accounting.certificates import certified, endless
from ...privacy.accounting.habits import habit_loss
from ...privacy.accounting.ledger import Ledger
from ...privacy.estimation.belief_checks import pooled_rhythm
from ...privacy.estimation.per_series import (
    PSEUDO_VISITS,
    Contractions,
    contractions,
    contractions_by_kind,
    largest_cover,
    rank_of,
)
from ...privacy.estimation.per_series import Path as SeriesPath
from ...privacy.estimation.transition_counts import (
    EstimationError,
    TransitionCounts,
    chain_from_counts,
    diagnose,
    outside,
)
from ...privacy.models.belief import Belief
from ...privacy.models.classes import FiniteClass, MixingBounds
from ...privacy.models.directions import NotContracting
from ...privacy.models.markov_chain import ChainError, FloatArray, MarkovChain
from ...privacy.models.periodic import PeriodicChain
from ...privacy.models.serialisation import belief_from_dict
from ...privacy.validation import rounded_down
from ...schemas.files import MOST_ROSTER_BYTES, check_replaceable, open_table, reason
from ...schemas.model_file import MODEL_BEGIN, Model, Provenance, hash_of_series
from ...schemas.settings.job import Settings, read_roster, read_settings, under_pseudonyms
from ...schemas.settings.model import SHIPPED, STAND_IN, fitting, shipped_text
from ...schemas.slots import DAY_US, SlotGrid, format_duration, parse_instant
from ...transforms.aggregate.transitions import EstimateTransitions, SeriesPaths
from ...transforms.readings.slots import Words, slot_readings, words_of
from ...transforms.sources.files import FileDecoder, FileTask, decoded_in
from ..connectors.files import SERIES_COLUMN, series_column, source_digests
from ..connectors.job_io import check_output, job_paths
from ..console import finite, plural, working
from ..errors import CommandError, writing
from ..runners import new_pipeline, options_of, read_source
from .fit_checks import Kinds, check, kinds_of_days, tally

#: Results of pipelines of this process, by a number of its own: counts never touch a disk.
_RESULTS: dict[tuple[int, str], Any] = {}
_NUMBERS = itertools.count()

#: The usual cover, and those of the table beside the one that is chosen and the largest that there is.
USUAL = "0.9"
_COVERS = ("0.5", "0.8", "0.9", "0.95")

#: Series and states up to which every series' own chain is calibrated exactly; and pairs of rows of a day that are
#: coupled within some seconds.
_MOST_SERIES, _MOST_STATES = 200, 12
_MOST_RHYTHM_ROWS = 20_000

#: Decimals of the chains that are believed, and digits of the bounds beside a class.
_CHAIN_DIGITS, _BOUND_DIGITS = 4, 6

#: Options that are of some beliefs alone.
_OF_BELIEFS = {"cover": ("level", "series"), "regimes": ("level",), "certify": ("pooled",), "smoothing": ("pooled",)}


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a history to use, and what to believe of it."""

    only: Path | None = None  # CSV file with the series to use; all where left out
    exclude: Path | None = None  # CSV file with the series to leave out
    start: str | None = None  # use readings from this instant on
    stop: str | None = None  # use readings before this instant
    smoothing: float = 0.0  # added to the count of every transition
    belief: str = "level"
    cover: str | None = None  # probability with which a further series is to be covered; the usual one if left out
    regimes: str | None = None  # ``weekday``, ``kinds``, or a CSV file with the columns day and kind
    certify: bool = False  # keep a certificate of the exact account at epsilon 1 with the chain
    quick: bool = False  # leave out the checks under richer beliefs that take more than a second


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model that was written."""

    model: Model
    path: Path
    protected: int | None  # how many of its series the settings' roster protects; ``None`` without a roster
    mechanism: str  # of the settings
    unnamed: str  # that the settings name a stand-in, or a belief of the package, instead; empty where they name it


def fit_file(path: Path, choice: Choice, output: Path | None) -> Fitted:
    """Fit from a settings file and write the model, over nothing that the settings or the command name."""
    settings = read_settings(path)
    other = settings.model if isinstance(settings.model, str) and settings.model in (STAND_IN, *SHIPPED) else None
    named = output or (settings.model_file if other is None else settings.path("model.json"))
    if named is None:
        raise CommandError("the settings give bounds by hand; say with -o where the model is to be written")
    output, elsewhere = Path(named), "choose another place with -o"
    with writing(output, elsewhere):
        check_replaceable(output)
    kept = [*(one for one in job_paths(settings) if one.field != "model"), path]
    lists = [one for one in (choice.only, choice.exclude) if one is not None]
    check_output(output, [*kept, *lists], "the model file (-o)", MODEL_BEGIN)
    source = settings.source
    # no name, which may be that of a household, and no digest of what is secret
    text = "" if source is None or source.broker is not None else f"a history in {source.format}"
    model = fit_settings(settings, choice, source=text)
    with writing(output, elsewhere):
        model.save(output)
    roster = read_roster(settings, grouped=False)
    return Fitted(
        model,
        output,
        None if roster is None else model.provenance.used(roster.series),
        settings.privacy.mechanism,
        f"{path.name} names model: {other}; write `model: {os.path.relpath(output, path.parent)}`" if other else "",
    )


def fit_settings(settings: Settings, choice: Choice, *, source: str) -> Model:
    """Fit a model on the source of some settings; ``source`` is what it says about where it comes from."""
    for option, beliefs in _OF_BELIEFS.items():
        if getattr(choice, option) and choice.belief not in beliefs:
            raise CommandError(f"--{option}: it is for --belief {' or '.join(beliefs)}; give that, or leave it out")
    lists = {option: _listed(option, getattr(choice, option), settings) for option in ("only", "exclude")}
    zone, grid = settings.slots.timezone, settings.grid
    first, last = (
        None if one is None else grid.slots_of(parse_instant(one, zone)) for one in (choice.start, choice.stop)
    )
    with working("counting transitions"):
        every, paths = _counted(settings, first, last, None, paths=choice.belief != "pooled")
    counts = every.subset(_kept(settings, every.series, **lists))
    model = model_from_counts(settings, counts, smoothing=choice.smoothing, source=source)
    if choice.certify:  # jobs then account the chain by the exact map and need not compute it
        with _refused("--certify: "), working("certifying the exact account of the chain"):
            return replace(model, belief=certified(belief_from_dict(model.belief)).to_dict())
    if choice.belief == "pooled":
        return model
    kept = None if paths is None else [paths[name] for name in counts.series]
    kinds = None if kept is None else kinds_of_days(settings, kept, choice.regimes)
    if choice.belief == "periodic":
        with working("finding the noise of a kernel for every slot of the day, and what each series loses"):
            return _periodic(settings, model, kept, kinds)
    return _covering(settings, model, counts, choice, kept, kinds)


def _listed(option: str, path: Path | None, settings: Settings) -> frozenset[str] | None:
    """The series that the file of an option lists, in the column that the roster or the data have, or ``series``."""
    if path is None:
        return None
    roster = None if settings.roster_file is None else settings.roster_file.series
    columns = list(dict.fromkeys(one for one in (roster, "series", series_column(settings)) if one is not None))
    try:
        with open_table(path, MOST_ROSTER_BYTES) as file:
            rows = csv.reader(file)
            header = next(rows, [])
            place = next((header.index(one) for one in columns if one in header), None)
            if place is not None:
                return frozenset(under_pseudonyms(settings, frozenset(row[place] for row in rows if len(row) > place)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{path}: cannot be read as a CSV file of series ({reason(error)})") from error
    raise CommandError(  # the first line is not shown: without a header it is data
        f"--{option} {path}: its first line must be a header; it has {plural(len(header), 'column')}, none of them "
        f"{' or '.join(map(repr, columns))}: name the one with the series so"
    )


def _kept(
    settings: Settings, series: Sequence[str], only: frozenset[str] | None, exclude: frozenset[str] | None
) -> list[str]:
    """The series of a history that two lists leave."""
    for option, names in (("only", only), ("exclude", exclude)):
        if names is not None and names.isdisjoint(series):
            raise CommandError(
                f"--{option}: none of the {len(names):,} series it lists is among the {len(series):,} of the "
                f"history, so it chooses nothing; check its column, --start and --stop, or leave --{option} out"
            )
    kept = [name for name in series if (only is None or name in only) and name not in (exclude or ())]
    if kept:
        return kept
    raise CommandError(
        "the history is the one series that is left out; give a history of other series; "
        + shipped_text(fitting(settings.space.unit, settings.grid.interval_us))
        if len(series) == 1
        else f"none of the {len(series)} series of the history is left to fit on; check --only, --exclude, "
        "--start and --stop, and the columns; where the roster has all series, take out of it those that are not "
        "to be published (`quiltstream init --hold-out 0.5` does), or give a history of other series"
    )


@contextmanager
def _refused(before: str = "", after: str = "") -> Generator[None]:
    """Say of a history that makes no belief what to do about it."""
    try:
        yield
    except (EstimationError, ChainError, NotContracting) as error:
        raise CommandError(f"{before}{error}{after}") from error


def model_from_counts(settings: Settings, counts: TransitionCounts, *, smoothing: float, source: str) -> Model:
    """The model of pooled counts, with its diagnostics."""
    pooled, visits = counts.pooled(), counts.pooled_visits()
    with _refused(after=" (states.edges makes the bins; --belief pooled --smoothing 1 smooths)"):
        chain = chain_from_counts(pooled, smoothing, labels=settings.space.labels)
        bounds = MixingBounds.of(chain)
    found = diagnose(pooled, visits)
    warnings = found.warnings()
    smoothed = f", smoothing {smoothing:g}" if smoothing else ""
    return Model(
        belief=chain.to_dict(),
        states=settings.space,
        interval_us=settings.grid.interval_us,
        provenance=Provenance(
            method=f"{_pooled(len(counts.series))}{smoothed}",
            source=source,
            series=len(counts.series),
            transitions=int(pooled.sum()),
            outside=len(outside(bounds, counts)),
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


def _pooled(count: int) -> str:
    return f"pooled transition counts of {'one' if count == 1 else f'{count:,}'} series"


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
    words, grid, space = words_of(settings.readings, settings.slots.of), settings.grid, settings.space
    if words is None:
        readings = (pipeline | "Read" >> read).readings
    else:
        seed = pipeline | "Seed" >> beam.Create([read.tasks])
        readings = seed | "Slots" >> beam.FlatMap(_slots_in, read.decoder, grid, words)
    counted = readings | "Estimate" >> EstimateTransitions(
        grid, space, start=first, stop=last, series=series, most=settings.most_series
    )
    _ = counted | "Keep" >> beam.Map(_keep, (number, "counts"))
    if paths and space.size <= _MOST_STATES:
        states = readings | "States" >> SeriesPaths(grid, space, start=first, stop=last)
        _ = states | "Keep states" >> beam.Map(_keep, (number, "paths"))
    pipeline.run().wait_until_finish()
    return _RESULTS.pop((number, "counts")), _RESULTS.pop((number, "paths"), None)


def _slots_in(tasks: list[FileTask], decoder: FileDecoder, grid: SlotGrid, words: Words) -> list[pa.RecordBatch]:
    """The readings of files as one a slot, which takes all of a series."""
    found = (decoded.readings for _, decoded in decoded_in(decoder, tasks))
    return slot_readings((one for one in found if one is not None), grid, words)


def _keep(found: Any, name: tuple[int, str]) -> None:
    _RESULTS[name] = found


def usual_cover(series: int) -> str:
    """The usual cover, or the largest of a history of so few series that it is less."""
    return f"{min(float(USUAL), largest_cover(series)):g}"


def _covering(
    settings: Settings,
    model: Model,
    counts: TransitionCounts,
    choice: Choice,
    paths: Sequence[SeriesPath] | None,
    kinds: Kinds | None,
) -> Model:
    """The model with a belief that covers most series in the place of the pooled chain.

    The numbers of the belief are rounded outward to few digits before anything is made of them; a list of chains has no
    outward, so there the rounded chains are what is believed, but for the slowest, which sets the noise.
    """
    epsilon, n, given, history = settings.privacy.epsilon, len(counts.series), "", None
    cover, is_class = choice.cover or usual_cover(n), choice.belief == "level"
    if choice.regimes is not None:
        if paths is None or kinds is None or n == 1:
            why = "one series" if kinds is not None else "too many series or states"
            raise CommandError(
                f"--regimes {choice.regimes}: a history of {why} has no chains by the kind of day to compare: give "
                "more series, at most 200 of 12 states, or leave --regimes out"
            )
        with _refused(f"--regimes {choice.regimes}: "), working("comparing the kinds of days"):
            history = contractions_by_kind(paths, kinds.of, kinds.number, counts.states, kinds.day)
        given = kinds.name
    largest = (
        f"; the largest for this history is --cover {largest_cover(n):g}; without a cover, --belief pooled takes "
        "one chain of all series together, whose promise holds for series that follow it"
    )
    with _refused("--", largest):
        rank = rank_of(cover, n)
    merge = ": merge bins in states.edges, or fit with --belief pooled, one chain of all series together"
    with working(f"finding the noise that each of {n:,} series needs"), _refused(after=merge):
        history = history or contractions(counts, labels=settings.space.labels)
        exact = _exact(history)
        made = history.envelope(rank) if is_class else _own_chains(history, exact, rank)
        sigma, at = _sigmas(made, epsilon)
    order = np.argsort(history.scores if is_class or exact is None else exact, kind="stable")[:rank].tolist()
    covered = [chain for one in order for chain in history.chains_of(one)]
    checked: dict[str, Any] = {"epsilon": epsilon, "sigma": at}
    if exact is not None and epsilon != 1:
        # what an endless stream of this noise loses by each series' own chains
        lost = np.array([Ledger(chain).ceiling(1 / at) for chain in history.chains])
        checked["own"] = tally(lambda: lost.reshape(-1, history.kinds).max(axis=1), epsilon, "")
    own = {} if exact is None else {"within": int((exact <= sigma).sum()), "largest": finite(float(exact.max()))}
    with working("checking the belief against a daily rhythm, a memory of two slots and long stretches"):
        checks = check(paths, counts.states, settings.grid.interval_us, at, epsilon, kinds, quick=choice.quick)
    probability = history.probability(rank)
    kind = "contraction class" if is_class else "chains of single series"
    said = f", given the kind of day ({given})" if given else ""
    return replace(
        model,
        belief=made.to_dict(),
        bounds=_around(covered) if is_class and not given else None,
        provenance=replace(
            model.provenance,
            method=f"{kind}, cover {cover}{said}, {PSEUDO_VISITS} pseudo-visits",
            outside=n - (rank if isinstance(made, FiniteClass) else history.inside(made)),
            odds=probability,
        ),
        diagnostics={
            **model.diagnostics,
            "cover": {
                "belief": choice.belief,
                "sigma": sigma,
                "rank": rank,
                "series": n,
                "probability": probability,
                "range": list(history.share_range(rank)),
                "given": given,
                "habits": _habits(covered) if n > 1 else {},
                "own": own,
                "table": _table(history, exact, cover),
                "checked": checked,
                "chains": [] if exact is None or given else [_rounded(one.transition).tolist() for one in covered],
                "checks": checks,
            },
        },
    )


def _sigmas(belief: Belief, epsilon: float) -> tuple[float, float]:
    """The noise of an endless stream at epsilon 1, and at another epsilon."""
    sigma = 1 / endless(belief, 1.0).density
    return sigma, sigma if epsilon == 1 else 1 / endless(belief, epsilon).density


def _around(chains: Sequence[MarkovChain]) -> dict[str, Any] | None:
    """Bounds on pi_min and the gap that hold for some chains, rounded down; None where one of them has no gap."""
    try:
        found = MixingBounds.of(chains)
    except ChainError:
        return None
    pi_min, gap = (float(rounded_down(one, _BOUND_DIGITS)) for one in (found.pi_min, found.gap))
    return MixingBounds(pi_min, gap, found.kind).to_dict()


def _habits(chains: Sequence[MarkovChain]) -> dict[str, Any]:
    """What is told by which of some chains a series follows, each held alike."""
    told = habit_loss(chains)
    return {"most": finite(told.most), "pair": list(told.pair), "neighbours": finite(told.neighbours)}


def _exact(history: Contractions) -> FloatArray | None:
    """What each series' own chain needs, where that is cheap."""
    if len(history.chains) > _MOST_SERIES * history.kinds or history.chains[0].states > _MOST_STATES:
        return None
    return history.exact_scores()


def _own_chains(history: Contractions, exact: FloatArray | None, rank: int) -> FiniteClass:
    if exact is None:
        raise CommandError(
            f"--belief series: {len(history.chains)} series with {history.chains[0].states} states take too long; at "
            f"most {_MOST_SERIES} series and {_MOST_STATES} states do not: use --belief level"
        )
    *kept, slowest = np.argsort(exact, kind="stable")[:rank].tolist()
    chains = {at: MarkovChain(_rounded(history.chains[at].transition)) for at in kept}
    # of the slowest the chain itself: a rounded one may need a little less noise, and whatever needs as much as this
    # one would lose more than epsilon
    chains[slowest] = history.chains[slowest]
    return FiniteClass(dict.fromkeys(chains[at] for at in sorted(chains)))


def _rounded(transition: FloatArray) -> FloatArray:
    """Rows of few decimals; what rounding leaves of 1 goes to the largest entry, and no entry falls to 0."""
    unit = 10**_CHAIN_DIGITS
    whole = np.where(transition > 0, np.maximum(np.rint(transition * unit), 1), 0).astype(np.int64)
    whole[np.arange(len(whole)), whole.argmax(axis=1)] += unit - whole.sum(axis=1)
    return whole / unit


def _table(history: Contractions, exact: FloatArray | None, cover: str) -> list[dict[str, Any]]:
    """What each cover costs."""
    n, ordered = len(history.scores), None if exact is None else np.sort(exact)
    covers = sorted({Fraction(one) for one in (*_COVERS, cover)} | {Fraction(n, n + 1)})
    found: list[dict[str, Any]] = []
    for rank in dict.fromkeys(math.ceil(one * (n + 1)) for one in covers if one <= Fraction(n, n + 1)):
        try:
            sigma = finite(1 / endless(history.envelope(rank), 1.0).density)
        except (ChainError, NotContracting):
            sigma = None
        row = {"rank": rank, "probability": history.probability(rank), "range": list(history.share_range(rank))}
        of_own = None if ordered is None else finite(float(ordered[rank - 1]))
        found.append({**row, "sigma": sigma, "series_sigma": of_own})
    return found


def _periodic(settings: Settings, model: Model, paths: Sequence[SeriesPath] | None, kinds: Kinds | None) -> Model:
    """The model with a kernel for every slot of the day, its rows rounded, in the place of the pooled chain."""
    k, interval, epsilon = settings.space.size, settings.grid.interval_us, settings.privacy.epsilon
    day, odd = divmod(DAY_US, interval)
    if odd:
        raise CommandError(
            f"--belief periodic: slots of {format_duration(interval)} do not divide the day; use --belief level"
        )
    if paths is None or day * k * (k - 1) > _MOST_RHYTHM_ROWS:
        raise CommandError(
            f"--belief periodic: {day} slots a day with {k} states, or so many series, take too long; use --belief "
            "level, or fewer states.edges"
        )
    with _refused(after=": merge bins in states.edges, or use --belief level, which needs no kernel for each slot"):
        chain = PeriodicChain([_rounded(rows) for rows in pooled_rhythm(paths, k, day)])
        sigma, at = _sigmas(chain, epsilon)
    checks, origin = check(paths, k, interval, at, epsilon, kinds), model.provenance
    own = checks["rhythm"]
    method = f"{_pooled(origin.series)} by the slot of the day, {PSEUDO_VISITS} pseudo-visits"
    beyond = own["series"] - own["within"] if "within" in own else origin.outside
    rhythm = {"sigma": sigma, "slots": day, "checked": {"epsilon": epsilon, "sigma": at}, "checks": checks}
    return replace(
        model,
        belief=chain.to_dict(),
        provenance=replace(origin, method=method, outside=beyond),
        diagnostics={**model.diagnostics, "rhythm": rhythm},
    )
