"""What the series of a history lose at the chosen noise under richer beliefs: a rhythm, a longer memory, no chain.

The belief that is fitted knows how fast a chain forgets, and nothing else. So ``fit`` says beside it how many series of
the history lose more where more is believed (:mod:`quiltstream.privacy.belief_checks`): exact statistics of the
history, which no ledger counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from ...privacy.belief_checks import Path, memory, rhythm, stretches
from ...privacy.chains import FloatArray
from ...schemas.slots import DAY_US, HOUR_US
from ..console import facts, heading

#: Work up to which a check takes a few seconds: pairs of rows that are coupled, and cells times sets of states.
_MOST_ROWS = 40_000
_MOST_CELLS = 200_000_000


def check(
    paths: Sequence[Path] | None, states: int, interval_us: int, sigma: float, *, quick: bool = False
) -> dict[str, dict[str, Any]]:
    """Check the series of a history.

    Args:
        paths: their states; None where they were too many to keep.
        states: number of states.
        interval_us: length of a slot in microseconds.
        sigma: noise at epsilon 1.
        quick: leave out what takes more than a second.

    Returns:
        By name, ``within`` and ``series``, or the reason why it was ``skipped``.
    """
    density = 1 / sigma
    if paths is None:
        return {name: {"skipped": "the history has too many series or states, or too long series"} for name in _SAID}
    n, cells = len(paths), sum(len(path.states) for path in paths)
    found: dict[str, dict[str, Any]] = {}
    day, odd = divmod(DAY_US, interval_us)
    if not quick:
        slow = "it would take long for so many series, states and slots of a day"
        rows = n * day * states * (states - 1)
        no_rhythm = "the interval does not divide the day" if odd else slow if rows > _MOST_ROWS else ""
        found["rhythm"] = _counted(lambda: rhythm(paths, states, day, density, 1.0), no_rhythm)
        found["memory"] = _counted(
            lambda: memory(paths, states, density, 1.0), slow if n * states**4 > _MOST_ROWS else ""
        )
    for name, length in (("25 hours", 25 * HOUR_US), ("week", 7 * DAY_US)):
        half = length // interval_us // 2
        why = "it would take long for so many readings and states" if cells * 2**states > _MOST_CELLS else ""
        if half < 1:
            why = "a slot is longer"
        found[name] = _counted(lambda half=half: stretches(paths, states, density, half), why)
    return found


def _counted(losses: Callable[[], FloatArray], why_not: str) -> dict[str, Any]:
    if why_not:
        return {"skipped": why_not}
    found = losses()
    return {"within": int((found <= 1.0).sum()), "series": len(found)}


_KNOWING = "someone who knows which stretches of {} the series had, and how often"

_SAID: Mapping[str, tuple[str, str]] = {
    "rhythm": ("daily rhythm", "lose at most epsilon by their own chains with a kernel for every slot of the day"),
    "memory": ("two slots", "lose at most epsilon by their own chains with a memory of two slots"),
    "25 hours": ("25 hours", f"lose more against {_KNOWING.format('25 hours')}"),
    "week": ("a week", f"lose more against {_KNOWING.format('a week')}"),
}

#: Checks that count who loses more, because they bound the loss from below.
_FROM_BELOW = frozenset({"25 hours", "week"})


def said_of(name: str, found: Mapping[str, Any]) -> str:
    """What a check found, in words."""
    if "skipped" in found:
        return f"not checked: {found['skipped']}"
    many = found["series"] - found["within"] if name in _FROM_BELOW else found["within"]
    return f"{many} of the {found['series']} series {_SAID[name][1]}"


def show_checks(console: Console, found: Mapping[str, Mapping[str, Any]], own: str) -> None:
    """Print what was checked, and what it does not say."""
    heading(console, "The history under richer beliefs, at this noise (exact statistics, which no ledger counts)")
    lines = [("own chain", own)] if own else []
    facts(console, [*lines, *((_SAID[name][0], said_of(name, one)) for name, one in found.items())])


__all__ = ["check", "said_of", "show_checks"]
