"""Beliefs that ``fit`` offers beside the pooled chain, and checks of the fitted one against richer beliefs.

``level`` is the class of all chains, also changing in time, that forget at least as fast as the series that it was made
of; ``series`` is the list of the series' own chains. Both leave out the series that need most noise, by a rank that
says how likely a further series is to be covered (``privacy.estimation.per_series``).

What the series of a history lose at the chosen noise under richer beliefs: a rhythm, a longer memory, no chain.

The belief that is fitted knows how fast a chain forgets, and nothing else. So ``fit`` says beside it how many series of
the history lose more where more is believed (:mod:`quiltstream.privacy.estimation.belief_checks`): exact statistics of
the history, which no ledger counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from rich.console import Console

from ...privacy.accounting.forward_backward import endless, lower_bound
from ...privacy.accounting.ledger import Ledger
from ...privacy.analysis.methods import METHODS
from ...privacy.estimation.belief_checks import LEAST_STRETCHES, Path, memory, pooled_rhythm, rhythm, stretches
from ...privacy.estimation.per_series import DIGITS, PSEUDO_VISITS, Contractions, contractions, rank_of
from ...privacy.estimation.transition_counts import EstimationError, TransitionCounts
from ...privacy.models.classes import FiniteClass, MixingBounds
from ...privacy.models.directions import NotContracting
from ...privacy.models.markov_chain import ChainError, FloatArray, MarkovChain
from ...privacy.models.periodic import PeriodicChain
from ...privacy.quilts.calibration import mqm_approx, mqm_exact
from ...schemas.models import Model
from ...schemas.slots import DAY_US, HOUR_US, format_duration
from ..console import facts, heading, number
from ..errors import CommandError

__all__ = ["check", "said_of", "show_checks"]


#: Work up to which a check takes half a minute at most: pairs of rows that are coupled, and cells times sets of
#: states. A pair of a memory of two slots takes as long as five of a rhythm.
_MOST_ROWS, _RHYTHM_ROWS = 40_000, 5
_MOST_CELLS = 200_000_000


def check(
    paths: Sequence[Path] | None,
    states: int,
    interval_us: int,
    sigma: float,
    epsilon: float = 1.0,
    *,
    quick: bool = False,
) -> dict[str, dict[str, Any]]:
    """Check the series of a history.

    Args:
        paths: their states; None where they were too many to keep.
        states: number of states.
        interval_us: length of a slot in microseconds.
        sigma: noise at epsilon.
        epsilon: what a series is to lose at most.
        quick: leave out what takes more than a second.

    Returns:
        By name, ``within``, ``series`` and the ``largest`` loss, ``None`` where it has no bound, or why it was
        ``skipped``.
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
        found["rhythm"] = _counted(lambda: rhythm(paths, states, day, density, epsilon), epsilon, no_rhythm)
        found["memory"] = _counted(
            lambda: memory(paths, states, density, epsilon), epsilon, slow if n * states**4 > _MOST_ROWS else ""
        )
    for name, length in (("25 hours", 25 * HOUR_US), ("week", 7 * DAY_US)):
        half = length // interval_us // 2
        why = "it would take long for so many readings and states" if cells * 2**states > _MOST_CELLS else ""
        if half < 1:
            why = "a slot is longer"
        counted = _counted(lambda half=half: stretches(paths, states, density, half), epsilon, why)
        # The bound is from below: 0 everywhere says nothing of what the series lose.
        found[name] = {"skipped": _UNTOLD} if counted.get("largest") == 0 else counted
    return found


def _counted(losses: Callable[[], FloatArray], epsilon: float, why_not: str) -> dict[str, Any]:
    if why_not:
        return {"skipped": why_not}
    found = losses()
    return {"within": int((found <= epsilon).sum()), "series": len(found), "largest": _finite(float(found.max()))}


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
    """Print what was checked, and what it does not say.

    Args:
        console: where to.
        found: ``checks``, and where it was not epsilon 1 ``checked``, the epsilon and the sigma that they are about.
        own: what the series lose by their own chains at epsilon 1, which ``checked`` says for another; empty where that
            is not known.
    """
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

Floats: TypeAlias = npt.NDArray[np.float64]

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
    outward, so there the rounded chains are what is believed.

    Args:
        model: the model of the pooled chain.
        counts: what it was made of.
        belief: ``level`` or ``series``.
        cover: probability with which a further series is to be covered.
        epsilon: whose noise the checks under richer beliefs are about.

    Raises:
        CommandError: the history has too few series for the cover, or says nothing of a state.
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
        checked["own"] = _counted(lambda: _losses(history.chains, at), epsilon, "")
    own = {} if exact is None else {"within": int((exact <= sigma).sum()), "largest": _finite(float(exact.max()))}
    order = np.argsort(history.scores if belief == "level" or exact is None else exact, kind="stable")
    low, high = history.share_range(rank)
    form = made.to_dict()
    method = f"contraction class, cover {cover}" if belief == "level" else f"chains of single series, cover {cover}"
    return replace(
        model,
        belief=form,
        provenance=replace(
            model.provenance,
            method=f"{method}, {PSEUDO_VISITS} pseudo-visits",
            outside=outside,
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
                "own": own,
                "others": {} if exact is None else _others(history, exact, order[:rank].tolist()),
                "table": _table(history, exact, cover),
                "checked": checked,
            },
        },
    )


def _losses(chains: Iterable[MarkovChain], sigma: float) -> Floats:
    """What an endless stream of a noise loses by each chain, epsilon."""
    return np.array([Ledger(chain).ceiling(1 / sigma) for chain in chains])


def _rank(cover: str, series: int) -> int:
    """The rank of a cover.

    Raises:
        CommandError: the history has too few series for it, or it is no number.
    """
    try:
        return rank_of(cover, series)
    except EstimationError as error:
        most = math.floor(100 * series / (series + 1)) / 100
        raise CommandError(
            f"--{error}; the largest for this history is --cover {most:g}; without a cover, --belief pooled takes one "
            "chain of all series together, whose promise holds for series that follow it"
        ) from error


def _others(history: Contractions, exact: Floats, chosen: list[int]) -> dict[str, float | None]:
    """What the kept series would need otherwise: by the quilts, and at least, by any Laplace noise in every count.

    The least is that of the slowest kept chain, which is in the class and in the list (:func:`lower_bound`).
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
    return {name: _finite(value) for name, value in found.items()}


def _exact(history: Contractions) -> Floats | None:
    """What each series' own chain needs, where that is cheap."""
    if len(history.chains) > _MOST_SERIES or history.chains[0].states > MOST_STATES:
        return None
    return history.exact_scores()


def _own_chains(history: Contractions, exact: Floats | None, rank: int) -> FiniteClass:
    if exact is None:
        raise CommandError(
            f"--belief series: {len(history.chains)} series with {history.chains[0].states} states take too long; at "
            f"most {_MOST_SERIES} series and {MOST_STATES} states do not: use --belief level"
        )
    chosen = np.argsort(exact, kind="stable")[:rank]
    return FiniteClass(dict.fromkeys(_rounded(history.chains[at]) for at in sorted(chosen.tolist())))


def _rounded(chain: MarkovChain) -> MarkovChain:
    return MarkovChain(rounded_rows(chain.transition))


def rounded_rows(transition: Floats) -> Floats:
    """Rows of few decimals; what rounding leaves of 1 goes to the largest entry, and no entry falls to 0."""
    unit = 10**_CHAIN_DIGITS
    whole = np.where(transition > 0, np.maximum(np.rint(transition * unit), 1), 0).astype(np.int64)
    whole[np.arange(len(whole)), whole.argmax(axis=1)] += unit - whole.sum(axis=1)
    return whole / unit


def _table(history: Contractions, exact: Floats | None, cover: str) -> list[Any]:
    n = len(history.chains)
    ordered = None if exact is None else np.sort(exact)
    wanted = sorted({Fraction(one) for one in (*_COVERS, cover)} | {Fraction(n, n + 1)})
    ranks = dict.fromkeys(math.ceil(one * (n + 1)) for one in wanted if one <= Fraction(n, n + 1))
    found: list[Any] = []
    for rank in ranks:
        try:
            bounds = history.envelope(rank)
            sigma, inside = _finite(1 / endless(bounds, 1.0).density), history.inside(bounds)
        except (ChainError, NotContracting):
            sigma, inside = None, None
        found.append(
            {
                "rank": rank,
                "probability": history.probability(rank),
                "range": list(history.share_range(rank)),
                "sigma": sigma,
                "inside": inside,
                "series_sigma": None if ordered is None else _finite(float(ordered[rank - 1])),
            }
        )
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show_covers(console: Console, model: Model, interval: str) -> None:
    """Print what a belief that covers most series costs, and for whom it holds."""
    found = model.diagnostics["cover"]
    rank, n, table = found["rank"], found["series"], found["table"]
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
    bounds = model.belief
    if bounds["kind"] == "dobrushin-bounds":
        heading(console, "Largest total variation after so many slots")
        for name in ("forward", "backward"):
            points = "  ".join(f"{m}: {eta:g}" for m, eta in bounds[name])
            console.print(f"  {name:<9} {points}", soft_wrap=True)
    low, high = found["range"]
    said = [
        ("interval", interval),
        ("noise", f"forward-backward at epsilon 1, endless: sigma {number(found['sigma'])}"),
        (
            "promise",
            "against someone who believes a chain with these mixing rates, also one that changes in time"
            if found["belief"] == "level"
            else "against someone who believes one of these chains",
        ),
        (
            "a new series",
            f"exchangeable with the history's {n}: by its own chain, fitted in the same way, it loses at most epsilon "
            f"with probability at least {rank}/{n + 1} = {found['probability']:.2f}; for this history the share of "
            f"such series may be {low:.2f} to {high:.2f}",
        ),
    ]
    others = found.get("others", {})
    if others.get("least") is not None:
        said.append(
            (
                "at least",
                f"below sigma {number(others['least'])} the slowest of the {rank} chains would lose more; for the list "
                f"of them {_shown(others['own'])} is enough",
            )
        )
    whom = {"chains": "the list of these chains", "bounds": "bounds on pi_min and gap that hold them"}
    quilts = [
        f"{name} {number(others[name])} for {whom[METHODS[name].reads]}"
        for name in reversed([*METHODS])
        if others.get(name) is not None
    ]
    if quilts:
        said.append(("by quilts", ", ".join(quilts)))
    said.append(("model id", f"{model.model_id}, of the belief rounded to {DIGITS} decimals"))
    facts(console, said)
    own = found["own"]
    show_checks(
        console,
        found,
        f"{own['within']} of the {n} series lose at most epsilon by their own chains"
        + ("" if own["largest"] is None else f"; the slowest needs sigma {number(own['largest'])}")
        if own
        else "",
    )
    console.print(f"  {REGIMES[0].upper()}{REGIMES[1:]}.")


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


#: Pairs of rows of a day that are coupled within some seconds.
_MOST_RHYTHM_ROWS = 20_000


def periodic_model(model: Model, paths: Sequence[Path] | None) -> Model:
    """The model with a kernel for every slot of the day in the place of the pooled chain.

    The rows are rounded to few decimals, and the rounded chain is what is believed.

    Args:
        model: the model of the pooled chain; it knows its states and interval.
        paths: the states of the series it was made of; None where they were too many to keep.

    Raises:
        CommandError: the interval does not divide the day, or the history is too large or makes no such chain.
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
    except (ChainError, NotContracting) as error:
        raise CommandError(f"{error} (--edges make the bins; --belief level needs no kernel for each slot)") from error
    checks = check(paths, k, model.interval_us, sigma)
    own = checks["rhythm"]
    return replace(
        model,
        belief=chain.to_dict(),
        provenance=replace(
            model.provenance,
            method=f"pooled transition counts by the slot of the day, {PSEUDO_VISITS} pseudo-visits",
            outside=own["series"] - own["within"] if "within" in own else model.provenance.outside,
        ),
        diagnostics={**model.diagnostics, "rhythm": {"sigma": sigma, "slots": day, "checks": checks}},
    )


def show_rhythm(console: Console, model: Model, interval: str) -> None:
    """Print what such a belief costs, and for whom it holds."""
    found = model.diagnostics["rhythm"]
    facts(
        console,
        [
            ("interval", interval),
            ("noise", f"forward-backward at epsilon 1, endless: sigma {number(found['sigma'])}"),
            (
                "promise",
                f"against someone who believes that every series follows this chain, with a kernel for each of the "
                f"{found['slots']} slots of the day",
            ),
            ("model id", model.model_id),
        ],
    )
    show_checks(console, found, "")
    console.print("  Holidays and seasons are regimes that this chain does not know.")
