"""What ``quiltstream fit`` prints of a fitted model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from ...privacy.accounting.habits import PROMISE
from ...privacy.analysis.methods import METHODS
from ...privacy.models.belief import Belief
from ...privacy.models.classes import has_quilts
from ...privacy.models.serialisation import belief_from_dict
from ...privacy.quilts.calibration import mqm_approx
from ...schemas.model_file import Model
from ...schemas.slots import format_duration
from ...schemas.states import StateSpace
from ...transforms.checks import LEAST_ODDS
from ..console import facts, heading, notes, number, shares
from .fit import Fitted


def show(console: Console, fitted: Fitted) -> None:
    """Print a fitted model."""
    model, origin, found = fitted.model, fitted.model.provenance, fitted.model.diagnostics
    belief = belief_from_dict(model.belief)
    heading(console, f"{fitted.path}: {origin.series:,} series, {origin.transitions:,} transitions")
    interval = "" if model.interval_us is None else format_duration(model.interval_us)
    if "rhythm" in found:
        _show_rhythm(console, model, interval)
    elif "cover" in found:
        _show_cover(console, model, interval)
    else:
        _show_pooled(console, model, belief, interval)
    said = [*origin.notes]
    if fitted.protected:
        said.append(
            f"{fitted.protected} of its series are in the settings' roster: what is published about them would be "
            "'given the model', which is a function of their data; leave them out with --exclude"
        )
    if origin.odds is not None and origin.odds < LEAST_ODDS:
        said.append(
            f"the belief covers a further series with odds of about {origin.odds:.2f}: `run` needs --accept-cover, and "
            "every row says so; a longer list of series allows a larger --cover"
        )
    if METHODS[fitted.mechanism].reads != "directions" and not has_quilts(belief):
        said.append(
            f"the settings say privacy.mechanism: {fitted.mechanism}, which needs quilts, and this belief has none: "
            "set forward-backward, or fit with --belief pooled"
        )
    said.append("this file is an exact statistic of the history; publishing it is a release that no ledger counts")
    heading(console, "Remember")
    notes(console, said)


def habits_told(found: Mapping[str, Any], space: StateSpace | None) -> str:
    """What habits tell, in words; of one series nothing is known."""
    told = found.get("habits", {})
    if not told:
        return "not hidden; one series does not say how much they tell"
    if told["most"] is None:
        return "not hidden; one of them tells a state for certain, so nothing bounds what they tell"
    first, second = told["pair"]
    labels = [str(one) for one in range(max(told["pair"]) + 1)] if space is None else space.labels
    least, most = (one(told["neighbours"]) for one in (min, max))
    between = f"{most:.2f}" if len(told["neighbours"]) == 1 else f"{least:.2f} to {most:.2f}"
    neighbours = f"; between neighbouring bands {between}" if space is None or not space.categories else ""
    return f"not hidden; habits tell at most {told['most']:.2f} more ({labels[first]} and {labels[second]}){neighbours}"


def of_a_new_series(found: Mapping[str, Any]) -> str:
    """For whom a covering belief holds, in words."""
    rank, n, (low, high) = found["rank"], found["series"], found["range"]
    return (
        f"exchangeable with the history's {n} loses at most epsilon by its own chain, a smoothed plug-in fitted in the "
        f"same way, with odds of about {rank}/{n + 1} = {found['probability']:.2f}; for this history the share of such "
        f"series may be {low:.2f} to {high:.2f}"
    )


def _show_cover(console: Console, model: Model, interval: str) -> None:
    """Print what a belief that covers most series costs, and for whom it holds."""
    found = model.diagnostics["cover"]
    rank, n = found["rank"], found["series"]
    believed = "of the list" if found["belief"] == "series" else "that forgets so fast, also one that changes in time"
    given = f"; given the kind of day ({found['given']})" if found["given"] else ""
    said = {
        "promise": PROMISE,
        "chain": f"any {believed}{given}",
        "habits": habits_told(found, model.states),
        "a new series": of_a_new_series(found),
        "interval": interval,
        "noise": f"forward-backward at epsilon 1, endless: sigma {number(found['sigma'])}",
    }
    if found["given"].startswith("kinds"):
        said["kinds"] = (
            "thirds estimate a label that is drawn first, the day then following its label's chain: the promise is "
            "given that label, and given the third itself a day is no Markov chain"
        )
    others = found["others"]
    if others.get("least") is not None:
        said["at least"] = (
            f"below sigma {number(others['least'])} the slowest of the {rank} chains would lose more by counts of "
            f"every slot; for the list of them {_shown(others['own'])} is enough"
        )
    given_by = {"chains": "the list of these chains", "bounds": "bounds on pi_min and gap that hold them"}
    quilts = [
        f"{name} {number(others[name])} for {given_by[METHODS[name].reads]}"
        for name in reversed([*METHODS])
        if others.get(name) is not None
    ]
    if quilts:
        said["by quilts"] = ", ".join(quilts)
    facts(console, said | {"model id": model.model_id})
    _show_table(console, found["table"], rank, n)
    own = found["own"]
    chains = f"{own['within']} of the {n} series {_SAID['own'][1]}" if own else ""
    if own and own["largest"] is not None:
        chains += f"; the slowest needs sigma {number(own['largest'])}"
    _show_checks(console, found, chains)


def _show_table(console: Console, table: list[Any], rank: int, n: int) -> None:
    """Print what each cover of a history of n series costs, with a mark at the chosen rank."""
    console.print("  Covers of this history: series, odds for a further one, noise (sigma at epsilon 1, endless)")
    console.print("    series          odds  (range)        contraction class   inside   own chains", soft_wrap=True)
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
            "promise": PROMISE,
            "chain": "this one, for every series; what the habits of single series tell is not in it",
            "interval": interval,
            "pi_min": f"{found['pi_min']:.6g}; the rarest state was visited {found['rarest_visits']:,} times",
            "gap": f"{found['gap']:.6g} of P P*",
            "noise": f"MQMApprox at epsilon 1, endless: sigma {noise.sigma:.4f}, quilt {noise.quilt}",
            **kept,
            "outside": out,
            "model id": model.model_id,
        },
    )


def _show_rhythm(console: Console, model: Model, interval: str) -> None:
    """Print what such a belief costs, and for whom it holds."""
    found = model.diagnostics["rhythm"]
    facts(
        console,
        {
            "promise": PROMISE,
            "chain": f"this one, for every series, with a kernel for each of the {found['slots']} slots of the day",
            "interval": interval,
            "noise": f"forward-backward at epsilon 1, endless: sigma {number(found['sigma'])}",
            "model id": model.model_id,
        },
    )
    _show_checks(console, found, "")


_KNOWING = "lose more than epsilon, for someone who knows the kind of each day, by the stretches of {} that they had"

_SAID: Mapping[str, tuple[str, str]] = {
    "own": ("own chain", "lose at most epsilon by their own chains"),
    "rhythm": ("daily rhythm", "lose at most epsilon by their own chains with a kernel for every slot of the day"),
    "memory": ("two slots", "lose at most epsilon by their own chains with a memory of two slots"),
    "25 hours": ("25 hours", _KNOWING.format("25 hours")),
    "week": ("a week", _KNOWING.format("a week")),
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


def _show_checks(console: Console, found: Mapping[str, Any], own: str) -> None:
    """Print what was checked; ``own`` says what the series lose by their own chains at epsilon 1, if that is known."""
    checks, checked = found["checks"], found.get("checked", {"epsilon": 1.0})
    epsilon = checked["epsilon"]
    at = "this noise" if epsilon == 1 else f"epsilon {epsilon:g} and its noise, sigma {number(checked['sigma'])}"
    heading(console, f"The history under richer beliefs, at {at} (exact statistics, which no ledger counts)")
    if "own" in checked:
        own = f"{_said('own', checked['own'])}{_most('own', checked['own'])}"
    lines = [("own chain", own)] if own and (epsilon == 1 or "own" in checked) else []
    said = zip(checks, said_of(checks), strict=True)
    facts(console, [*lines, *((label, text + _most(name, checks[name])) for name, (label, text) in said)])


def _most(name: str, found: Mapping[str, Any]) -> str:
    """The largest loss, where a series loses more than epsilon."""
    if "skipped" in found or found["within"] == found["series"]:
        return ""
    if found["largest"] is None:
        return "; of the others no bound is known"
    return f"; the largest loss is at {'least' if name in _FROM_BELOW else 'most'} {found['largest']:.2f}"
