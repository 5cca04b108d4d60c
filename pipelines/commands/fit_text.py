"""What ``quiltstream fit`` prints of a fitted model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from ...privacy.accounting.habits import PROMISE
from ...privacy.analysis.methods import METHODS
from ...privacy.models.serialisation import belief_from_dict
from ...privacy.quilts.calibration import mqm_approx
from ...schemas.model_file import Model
from ...schemas.settings.model import fitting, shipped_text
from ...schemas.slots import format_duration
from ...schemas.states import StateSpace
from ...transforms.checks import LEAST_ODDS
from ..console import facts, heading, notes, number, odds, shares
from .fit import Fitted

_KINDS = (
    "thirds estimate a label that is drawn first, the day then following its label's chain: the promise is given "
    "that label, and given the third itself a day is no Markov chain"
)


def show(console: Console, fitted: Fitted, *, every: bool = False) -> None:
    """Print a fitted model, or with the price of every cover."""
    origin = fitted.model.provenance
    heading(console, f"{fitted.path}: {origin.series:,} series, {origin.transitions:,} transitions")
    show_belief(console, fitted.model, every=every)
    notes(console, _notes(fitted))


def _notes(fitted: Fitted) -> Iterator[str]:
    model, origin = fitted.model, fitted.model.provenance
    yield from origin.notes
    if fitted.protected:
        yield (
            f"{fitted.protected} of its series are in the settings' roster: what is published about them would be "
            "'given the model', which is a function of their data; leave them out with --exclude"
        )
    if origin.series == 1:
        yield "of one series: if it is published itself, rows are 'given the model'; " + shipped_text(
            fitting("" if model.states is None else model.states.unit, model.interval_us or 1)
        )
    if origin.odds is not None and origin.odds < LEAST_ODDS:
        yield f"probability about {origin.odds:.2f} of a cover: `run` needs --accept-cover; more series help"
    has_quilts = model.bounds is not None or belief_from_dict(model.belief).has_quilts
    if METHODS[fitted.mechanism].reads != "directions" and not has_quilts:
        yield (
            f"the settings say privacy.mechanism: {fitted.mechanism}, which needs quilts, and this belief has none: "
            "set forward-backward, or fit with --belief pooled"
        )
    yield "all of this is exact: publishing it is a release that no ledger counts"
    if fitted.unnamed:
        yield fitted.unnamed


def show_belief(console: Console, model: Model, *, every: bool = False) -> None:
    """Print what a fitted belief costs, for whom it holds, and what was checked."""
    cover, rhythm = (model.diagnostics.get(name) for name in ("cover", "rhythm"))
    if not (found := cover or rhythm):
        console.print("  How often each state is visited in the long run")
        labels = () if model.states is None else model.states.labels
        for line in shares(labels, model.diagnostics["stationary"], width=console.width - 4):
            console.print("  ", line, sep="")
        facts(console, {"promise": PROMISE, **_of_chain(model)})
        return
    noise = f"sigma {number(found['sigma'])} at epsilon 1, endless"
    said = {"promise": PROMISE}
    if cover:
        given = f", given the kind of day ({cover['given']})" if cover["given"] else ""
        kept = "one of the kept chains" if cover["belief"] == "series" else "any chain that forgets so fast"
        said |= {"habits": habits_told(cover, model.states), "a new series": of_a_new_series(cover)}
        said |= {"noise": f"{noise}: {odds(1.0)}; {kept}{given}"}
        said |= {"kinds": _KINDS} if cover["given"].startswith("kinds") else {}
    else:
        said["chain"] = f"this one, for every series, with a kernel for each of the {found['slots']} slots of the day"
        said["noise"] = f"{noise}, by forward-backward"
    facts(console, said)
    if cover and every:
        _show_table(console, cover["table"], cover["rank"], cover["series"])
    checked, own = found["checked"], found.get("own")
    lines = [(_SAID[name], _said(name, one)) for name, one in found["checks"].items()]
    if "own" in checked:
        lines.insert(0, (_SAID["own"], _said("own", checked["own"])))
    elif checked["epsilon"] == 1 and own:
        # what it knows of own chains is the noise that they need, not what they lose
        slowest = "" if own["largest"] is None else f"; the slowest needs sigma {number(own['largest'])}"
        lines.insert(0, (_SAID["own"], f"{own['within']} of {found['series']} within epsilon{slowest}"))
    at = f"epsilon {checked['epsilon']:g} and sigma {number(checked['sigma'])}"
    at = "this noise" if checked["epsilon"] == 1 else at
    heading(console, f"Series under richer beliefs, at {at} (stretches by kind of day)")
    facts(console, lines)


def _of_chain(model: Model) -> dict[str, str]:
    origin, found, belief = model.provenance, model.diagnostics, belief_from_dict(model.belief)
    noise = mqm_approx(belief, epsilon=1.0)
    sigma = 1 / min((one.density for one in belief.certificates), default=1.0)
    certified = {"certified": f"forward-backward at epsilon 1, endless: sigma {sigma:.4f}, kept in the model"}
    return {
        "chain": "this one, for every series; what the habits of single series tell is not in it",
        "interval": "" if model.interval_us is None else format_duration(model.interval_us),
        "pi_min": f"{found['pi_min']:.6g}; the rarest state was visited {found['rarest_visits']:,} times",
        "gap": f"{found['gap']:.6g} of P P*",
        "noise": f"MQMApprox at epsilon 1, endless: sigma {noise.sigma:.4f}, quilt {noise.quilt}",
        **(certified if belief.certificates else {}),
        "outside": f"{origin.outside} of the {origin.series} series, by their own counts"
        + (": the loss is not proved for them" if origin.outside else ""),
        "model id": model.model_id,
    }


def habits_told(found: Mapping[str, Any], space: StateSpace | None) -> str:
    """What habits tell, in words; of one series nothing is known."""
    told = found.get("habits", {})
    if not told:
        return "not hidden; one series does not say how much they tell"
    if told["most"] is None:
        return "not hidden; one of them tells a state for certain, so nothing bounds what they tell"
    first, second = (str(one) if space is None else space.labels[one] for one in told["pair"])
    between = " to ".join(dict.fromkeys(f"{pick(told['neighbours']):.2f}" for pick in (min, max)))
    neighbours = f"; between neighbouring bands {between}" if space is None or not space.categories else ""
    return f"not hidden; habits tell at most {told['most']:.2f} more ({first} and {second}){neighbours}"


def of_a_new_series(found: Mapping[str, Any]) -> str:
    """For whom a covering belief holds, in words."""
    rank, n, (low, high) = found["rank"], found["series"], found["range"]
    return (
        f"like the history's loses at most epsilon by its own chain, a smoothed plug-in, with probability "
        f"about {rank}/{n + 1} = {found['probability']:.2f} (for this history {low:.2f} to {high:.2f})"
    )


def _show_table(console: Console, table: list[Any], rank: int, n: int) -> None:
    """Print what each cover of a history of n series costs, with a mark at the chosen rank."""
    console.print(
        "  series     probability of the cover  sigma of the class, of own chains (epsilon 1)", soft_wrap=True
    )
    for row in table:
        low, high = row["range"]
        mark = ">" if row["rank"] == rank else " "
        probability = f"{row['probability']:.3f} ({low:.2f} to {high:.2f})"
        kept = f"{row['rank']}/{n}"
        of_class, of_own = ("-" if row[one] is None else f"{row[one]:.2f}" for one in ("sigma", "series_sigma"))
        console.print(f"  {mark} {kept:<8} {probability:<24}{of_class:>20}{of_own:>16}", soft_wrap=True)


_SAID = {
    "own": "own chain",
    "rhythm": "daily rhythm",
    "memory": "two slots",
    "25 hours": "25 hours",
    "week": "a week",
}

#: Checks that count who loses more, because they bound the loss from below.
_FROM_BELOW = frozenset({"25 hours", "week"})


def _said(name: str, found: Mapping[str, Any]) -> str:
    if "skipped" in found:
        return f"not checked: {found['skipped']}"
    n, below = found["series"], name in _FROM_BELOW
    said = f"{n - found['within']} of {n} proved above epsilon" if below else f"{found['within']} of {n} within epsilon"
    if found["within"] == n:
        return f"{said}; a lower bound, so more may be" if below else said
    if found["largest"] is None:
        return f"{said}; of the others no bound is known"
    return f"{said}; the largest loss is at {'least' if below else 'most'} {found['largest']:.2f}"
