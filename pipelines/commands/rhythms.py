"""The chain of all series together with a kernel for every slot of the day, as a belief."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from ...privacy.accounting.directions import NotContracting
from ...privacy.accounting.forward_backward import endless
from ...privacy.belief_checks import Path, pooled_rhythm
from ...privacy.chains import ChainError
from ...privacy.contraction import PSEUDO_VISITS
from ...privacy.models.periodic import PeriodicChain
from ...schemas.models import Model
from ...schemas.slots import DAY_US, format_duration
from ..console import facts, number
from ..failures import CommandError
from .covers import rounded_rows
from .richer import check, show_checks

#: Pairs of rows of a day that are coupled within some seconds.
_MOST_ROWS = 20_000


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
    if paths is None or day * k * (k - 1) > _MOST_ROWS:
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
    show_checks(console, found["checks"], "")
    console.print("  Holidays and seasons are regimes that this chain does not know.")
