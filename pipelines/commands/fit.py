"""``quiltstream fit``: a model from a history.

Transitions are counted exactly, per series, by a Beam pipeline. The belief is one of four: ``level``, the class of all
chains, also changing in time, that forget at least as fast as most series do; ``series``, the list of most series' own
chains; ``periodic``, the chain of all series together with a kernel for every slot of the day; ``pooled``, the chain of
all series together. The first two leave out the series that need most noise, by a rank that says how likely a further
series is to be covered (``privacy.estimation.per_series``).

With ``--regimes`` the class holds for someone who knows the kind of each day. Beside the belief stands what habits tell
(``privacy.accounting.habits``), and how many series of the history lose more where more is believed: a rhythm, a longer
memory, no chain (``privacy.estimation.belief_checks``). All of it is a function of the history and as secret as it is.
``fit_text`` prints it.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeAlias

import apache_beam as beam
import numpy as np
import pyarrow as pa

from ...privacy.accounting.certificates import certified, endless
from ...privacy.accounting.habits import habit_loss
from ...privacy.accounting.ledger import Ledger
from ...privacy.accounting.lower_bounds import lower_bound
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
from ...privacy.models.classes import FiniteClass, MixingBounds
from ...privacy.models.directions import NotContracting
from ...privacy.models.markov_chain import ChainError, FloatArray, MarkovChain
from ...privacy.models.periodic import PeriodicChain
from ...privacy.models.serialisation import belief_from_dict
from ...privacy.quilts.calibration import mqm_approx, mqm_exact
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
    # ``weekday``, ``kinds``, or a CSV file with the columns day and kind: for ``level``, the class given the kind of
    # day
    regimes: str | None = None
    certify: bool = False  # for ``pooled``: keep a certificate of the exact account at epsilon 1 with the chain
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
    """Fit from a settings file and write the model."""
    settings = read_settings(path)
    other = settings.model if isinstance(settings.model, str) and settings.model in (STAND_IN, *SHIPPED) else None
    if output is None:
        named = settings.path("model.json") if other is not None else settings.model_file
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
    file = os.path.relpath(output, path.parent)
    unnamed = "" if other is None else f"{path.name} names model: {other}; write `model: {file}`"
    return Fitted(model, output, protected, settings.privacy.mechanism, unnamed)


_ELSEWHERE = "choose another place with -o"


def _check_output(settings: Settings, output: Path, read: list[Path]) -> None:
    """Refuse to write the model over anything that the settings or the command name, or over what is no file."""
    with writing(output, _ELSEWHERE):
        check_replaceable(output)
    others = [path for path in job_paths(settings) if path.field != "model"]
    check_output(output, [*others, *read], "the model file (-o)", MODEL_BEGIN)


#: Options that are of some beliefs alone.
_OF_BELIEFS = {"cover": ("level", "series"), "regimes": ("level",), "certify": ("pooled",), "smoothing": ("pooled",)}


def _check_options(choice: Choice) -> None:
    """Refuse options of another belief than the chosen one."""
    for option, beliefs in _OF_BELIEFS.items():
        if getattr(choice, option) and choice.belief not in beliefs:
            raise CommandError(f"--{option}: it is for --belief {' or '.join(beliefs)}; give that, or leave it out")


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
            "the history is the one series that is left out; give a history of other series; "
            + shipped_text(fitting(settings.space.unit, settings.grid.interval_us))
            if len(counts.series) == 1
            else f"none of the {len(counts.series)} series of the history is left to fit on; check --only, --exclude, "
            "--start and --stop, and the columns; where the roster has all series, take out of it those that are not "
            "to be published (`quiltstream init --hold-out 0.5` does), or give a history of other series"
        )
    chosen = counts.subset(kept)
    model = model_from_counts(settings, chosen, smoothing=choice.smoothing, source=source)
    if choice.certify:  # jobs then account the chain by the exact map and need not compute it
        with _refused("--certify: "), working("certifying the exact account of the chain"):
            return replace(model, belief=certified(belief_from_dict(model.belief)).to_dict())
    if choice.belief == "pooled":
        return model
    epsilon = settings.privacy.epsilon
    kept_paths = None if paths is None else [paths[name] for name in chosen.series]
    kinds = None if kept_paths is None else kinds_of_days(settings, kept_paths, choice.regimes)
    if choice.belief == "periodic":
        with working("finding the noise of a kernel for every slot of the day, and what each series loses"):
            return periodic_model(model, kept_paths, epsilon, kinds)
    if choice.regimes is not None and (kinds is None or len(chosen.series) == 1):
        why = "one series" if kinds is not None else "too many series or states"
        raise CommandError(
            f"--regimes {choice.regimes}: a history of {why} has no chains by the kind of day to compare: give more "
            "series, at most 200 of 12 states, or leave --regimes out"
        )
    with working(f"finding the noise that each of {len(chosen.series):,} series needs"):
        history = None
        if kinds is not None and kept_paths is not None and choice.regimes is not None:
            with _refused(f"--regimes {choice.regimes}: "):
                history = contractions_by_kind(kept_paths, kinds.of, kinds.number, chosen.states, kinds.day)
        given = "" if kinds is None or choice.regimes is None else kinds.name
        made = covering_model(
            model, chosen, choice.belief, choice.cover or usual_cover(len(chosen.series)), epsilon, history, given
        )
    cover = made.diagnostics["cover"]
    sigma = cover["checked"]["sigma"]
    with working("checking the belief against a daily rhythm, a memory of two slots and long stretches"):
        checks = check(kept_paths, chosen.states, settings.grid.interval_us, sigma, epsilon, kinds, quick=choice.quick)
    return replace(made, diagnostics={**made.diagnostics, "cover": {**cover, "checks": checks}})


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
    labels = settings.space.labels
    with _refused(after=" (states.edges makes the bins; --belief pooled --smoothing 1 smooths)"):
        chain = chain_from_counts(pooled, smoothing, labels=labels)
        bounds = MixingBounds.of(chain)
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
    words = words_of(settings.readings, settings.slots.of)
    if words is None:
        decoded = pipeline | "Read" >> read
        readings = decoded.readings
    else:
        seed = pipeline | "Seed" >> beam.Create([read.tasks])
        readings = seed | "Slots" >> beam.FlatMap(slots_in, read.decoder, settings.grid, words)
    counted = readings | "Estimate" >> EstimateTransitions(
        settings.grid, settings.space, start=first, stop=last, series=series, most=settings.most_series
    )
    _ = counted | "Keep" >> beam.Map(_keep, (number, "counts"))
    if paths and settings.space.size <= MOST_STATES:
        states = readings | "States" >> SeriesPaths(settings.grid, settings.space, start=first, stop=last)
        _ = states | "Keep states" >> beam.Map(_keep, (number, "paths"))
    pipeline.run().wait_until_finish()
    return _RESULTS.pop((number, "counts")), _RESULTS.pop((number, "paths"), None)


def slots_in(tasks: list[FileTask], decoder: FileDecoder, grid: SlotGrid, words: Words) -> list[pa.RecordBatch]:
    """The readings of files as one a slot, which takes all of a series."""
    found = (decoded.readings for _, decoded in decoded_in(decoder, tasks))
    return slot_readings((one for one in found if one is not None), grid, words)


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


Believed: TypeAlias = Literal["level", "series", "periodic", "pooled"]

#: The usual cover.
USUAL = "0.9"


def usual_cover(series: int) -> str:
    """The usual cover, or the largest of a history of so few series that it is less."""
    return f"{min(float(USUAL), largest_cover(series)):g}"


#: Covers of the table, beside the one that is chosen and the largest that there is.
_COVERS = ("0.5", "0.8", "0.9", "0.95")

#: Series and states up to which every series' own chain is calibrated exactly.
_MOST_SERIES = 200
MOST_STATES = 12

#: Decimals of the chains of ``series``.
_CHAIN_DIGITS = 4


def covering_model(
    model: Model,
    counts: TransitionCounts,
    belief: Believed,
    cover: str,
    epsilon: float = 1.0,
    by_kind: Contractions | None = None,
    given: str = "",
) -> Model:
    """The model with a belief that covers most series in the place of the pooled chain.

    The numbers of the belief are rounded outward to few digits before anything is made of them; a list of chains has no
    outward, so there the rounded chains are what is believed, but for the slowest, which sets the noise.

    Args:
        model: With the pooled chain.
        counts: Of every series.
        belief: ``level`` or ``series``.
        cover: The share that is to be covered.
        epsilon: At which what the series lose is checked.
        by_kind: The curves given the kind of each day, where the class is to hold given it.
        given: What makes these kinds.
    """
    labels = None if model.states is None else model.states.labels
    rank = _rank(cover, len(counts.series))
    with _refused(after=": merge bins in states.edges, or fit with --belief pooled, one chain of all series together"):
        history = contractions(counts, labels=labels) if by_kind is None else by_kind
        exact = _exact(history)
        if belief == "level":
            made = history.envelope(rank)
            outside = len(counts.series) - history.inside(made)
        else:
            made, outside = _own_chains(history, exact, rank), len(counts.series) - rank
        sigma = 1 / endless(made, 1.0).density
        at = sigma if epsilon == 1 else 1 / endless(made, epsilon).density
        checked: dict[str, Any] = {"epsilon": epsilon, "sigma": at}
    if exact is not None and epsilon != 1:
        lost = _losses(history.chains, at).reshape(-1, history.kinds).max(axis=1)
        checked["own"] = tally(lambda: lost, epsilon, "")
    own = {} if exact is None else {"within": int((exact <= sigma).sum()), "largest": finite(float(exact.max()))}
    order = np.argsort(history.scores if belief == "level" or exact is None else exact, kind="stable")
    covered = [chain for at in order[:rank].tolist() for chain in history.chains_of(at)]
    around = None if belief != "level" or given else _around(covered)
    low, high = history.share_range(rank)
    method = f"contraction class, cover {cover}" if belief == "level" else f"chains of single series, cover {cover}"
    method += f", given the kind of day ({given})" if given else ""
    return replace(
        model,
        belief=made.to_dict(),
        bounds=None if around is None else around.to_dict(),
        provenance=replace(
            model.provenance,
            method=f"{method}, {PSEUDO_VISITS} pseudo-visits",
            outside=outside,
            odds=history.probability(rank),
        ),
        diagnostics={
            **model.diagnostics,
            "cover": {
                "belief": belief,
                "sigma": sigma,
                "rank": rank,
                "series": len(counts.series),
                "probability": history.probability(rank),
                "range": [low, high],
                "given": given,
                "habits": _habits(covered) if len(counts.series) > 1 else {},
                "own": own,
                "others": {} if exact is None else _others(history, exact, order[:rank].tolist()),
                "table": _table(history, exact, cover),
                "checked": checked,
                "chains": [] if exact is None or given else [rounded_rows(one.transition).tolist() for one in covered],
            },
        },
    )


#: Digits of the bounds beside a class.
_BOUND_DIGITS = 6


def _around(chains: Sequence[MarkovChain]) -> MixingBounds | None:
    """Bounds on pi_min and the gap that hold for some chains, rounded down; None where one of them has no gap."""
    try:
        found = MixingBounds.of(chains)
    except ChainError:
        return None
    pi_min, gap = (float(rounded_down(one, _BOUND_DIGITS)) for one in (found.pi_min, found.gap))
    return MixingBounds(pi_min, gap, found.kind)


def _habits(chains: Sequence[MarkovChain]) -> dict[str, Any]:
    """What is told by which of some chains a series follows, each held alike."""
    told = habit_loss(chains)
    return {"most": finite(told.most), "pair": list(told.pair), "neighbours": [finite(one) for one in told.neighbours]}


def _losses(chains: Iterable[MarkovChain], sigma: float) -> FloatArray:
    """What an endless stream of a noise loses by each chain, epsilon."""
    return np.array([Ledger(chain).ceiling(1 / sigma) for chain in chains])


def _rank(cover: str, series: int) -> int:
    """The rank of a cover."""
    advice = (
        f"; the largest for this history is --cover {largest_cover(series):g}; without a cover, --belief pooled takes "
        "one chain of all series together, whose promise holds for series that follow it"
    )
    with _refused("--", advice):
        return rank_of(cover, series)


def _others(history: Contractions, exact: FloatArray, chosen: list[int]) -> dict[str, float | None]:
    """What the kept series would need otherwise: by the quilts, and at least, by any Laplace noise.

    The least is that of the slowest kept series, whose chains are in the class and in the list, for counts of every
    slot (:func:`lower_bound`).
    """
    chains = [chain for at in chosen for chain in history.chains_of(at)]
    slowest = history.chains_of(max(chosen, key=lambda at: exact[at]))
    found = {"least": max(lower_bound(one, 1.0) for one in slowest), "own": float(exact[chosen].max())}
    try:
        found["mqm-exact"] = max(mqm_exact(chain, 1.0).sigma for chain in chains)
        found["mqm-approx"] = mqm_approx(MixingBounds.of(chains), 1.0).sigma
    except ValueError:  # a chain that no quilt cuts off, or no gap: then quilts have no answer
        pass
    return {name: finite(value) for name, value in found.items()}


def _exact(history: Contractions) -> FloatArray | None:
    """What each series' own chain needs, where that is cheap."""
    if len(history.chains) > _MOST_SERIES * history.kinds or history.chains[0].states > MOST_STATES:
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
    n = len(history.scores)
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


#: Pairs of rows of a day that are coupled within some seconds.
_MOST_RHYTHM_ROWS = 20_000


def periodic_model(model: Model, paths: Sequence[SeriesPath] | None, epsilon: float, kinds: Kinds | None) -> Model:
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
            "level, or fewer states.edges"
        )
    with _refused(after=": merge bins in states.edges, or use --belief level, which needs no kernel for each slot"):
        chain = PeriodicChain([rounded_rows(rows) for rows in pooled_rhythm(paths, k, day)])
        sigma = 1 / endless(chain, 1.0).density
        at = sigma if epsilon == 1 else 1 / endless(chain, epsilon).density
    checks = check(paths, k, model.interval_us, at, epsilon, kinds)
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
            "rhythm": {"sigma": sigma, "slots": day, "checked": {"epsilon": epsilon, "sigma": at}, "checks": checks},
        },
    )
