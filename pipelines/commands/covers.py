"""Beliefs that hold for most series of a history: what each costs, and for whom it holds.

``level`` is the class of all chains, also changing in time, that forget at least as fast as the series that it was made
of; ``series`` is the list of the series' own chains. Both leave out the series that need most noise, by a rank that
says how likely a further series is to be covered (``privacy.contraction``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from rich.console import Console

from ...privacy.accounting.directions import NotContracting
from ...privacy.accounting.forward_backward import endless, lower_bound
from ...privacy.chains import ChainError, MarkovChain
from ...privacy.classes import FiniteClass, MixingBounds
from ...privacy.contraction import DIGITS, PSEUDO_VISITS, Contractions, contractions, rank_of
from ...privacy.estimation import EstimationError, TransitionCounts
from ...privacy.models.dobrushin import DobrushinBounds
from ...privacy.quilts import mqm_approx, mqm_exact
from ...schemas.models import Model
from ..console import facts, heading, number
from ..failures import CommandError
from .richer import show_checks

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


def covering_model(model: Model, counts: TransitionCounts, belief: Believed, cover: str) -> Model:
    """The model with a belief that covers most series in the place of the pooled chain.

    The numbers of the belief are rounded outward to few digits before anything is made of them; a list of chains has no
    outward, so there the rounded chains are what is believed.

    Args:
        model: the model of the pooled chain.
        counts: what it was made of.
        belief: ``level`` or ``series``.
        cover: probability with which a further series is to be covered.

    Raises:
        CommandError: the history has too few series for the cover, or says nothing of a state.
    """
    labels = None if model.states is None else model.states.labels
    rank = _rank(cover, len(counts.series))
    try:
        history = contractions(counts, labels=labels)
        exact = _exact(history)
        made = history.envelope(rank) if belief == "level" else _own_chains(history, exact, rank)
        sigma = 1 / endless(made, 1.0).density
    except (EstimationError, ChainError, NotContracting) as error:
        raise CommandError(
            f"{error} (--cover, --only and --exclude choose, --edges make the bins, and --belief pooled takes one "
            "chain of all series together)"
        ) from error
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
            outside=len(counts.series) - (history.inside(made) if isinstance(made, DobrushinBounds) else rank),
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
            },
        },
    )


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
    quilts = [f"{name} {number(others[name])}" for name in ("mqm-exact", "mqm-approx") if others.get(name) is not None]
    if quilts:
        said.append(
            (
                "by quilts",
                f"{' for the list of these chains, '.join(quilts)} for bounds on pi_min and gap that hold them",
            )
        )
    said.append(("model id", f"{model.model_id}, of the belief rounded to {DIGITS} decimals"))
    facts(console, said)
    own = found["own"]
    show_checks(
        console,
        found["checks"],
        f"{own['within']} of the {n} series lose at most epsilon by their own chains"
        + ("" if own["largest"] is None else f"; the slowest needs sigma {number(own['largest'])}")
        if own
        else "",
    )
    console.print(f"  {REGIMES[0].upper()}{REGIMES[1:]}.")


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
