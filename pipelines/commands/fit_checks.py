"""The kinds of the days of a history, and what its series lose under richer beliefs: parts of ``quiltstream fit``."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...privacy.estimation.belief_checks import LEAST_STRETCHES, memory, rhythm, stretches
from ...privacy.estimation.per_series import MOST_KINDS, thirds
from ...privacy.estimation.per_series import Path as SeriesPath
from ...privacy.models.markov_chain import FloatArray
from ...schemas.files import MOST_ROSTER_BYTES, open_table, reason
from ...schemas.settings.job import Settings
from ...schemas.slots import DAY_US, HOUR_US, format_duration, local_of
from ..console import finite, plural
from ..errors import CommandError

#: Work up to which a check takes half a minute at most: pairs of rows that are coupled, and cells times sets of
#: states. A pair of a memory of two slots takes as long as five of a rhythm.
_MOST_ROWS, _RHYTHM_ROWS = 40_000, 5
_MOST_CELLS = 200_000_000

#: Lengths of the stretches that are looked at.
_STRETCHES = {"25 hours": 25 * HOUR_US, "week": 7 * DAY_US}

_UNTOLD = (
    f"no series has {LEAST_STRETCHES} such stretches without gaps about each of two states on days of one kind, or all "
    "are alike"
)


@dataclass(frozen=True)
class Kinds:
    """The kind of each day of a history."""

    name: str  # of what makes the kinds
    number: int
    of: tuple[npt.NDArray[np.int8], ...]  # the kind of each slot's day, of every series, -1 for none
    day: int  # slots of a day


def kinds_of_days(settings: Settings, paths: Sequence[SeriesPath], regimes: str | None) -> Kinds | None:
    """The kinds that are asked for, or thirds of the days; None where slots do not divide the day.

    Raises:
        CommandError: Kinds are asked for and slots do not divide the day, or the calendar is no calendar of the days.
    """
    grid = settings.grid
    day, odd = divmod(DAY_US, grid.interval_us)
    if odd:
        if regimes is None:
            return None
        raise CommandError(f"--regimes {regimes}: slots of {format_duration(grid.interval_us)} do not divide the day")
    slots = (path.first + np.arange(len(path.states), dtype=np.int64) for path in paths)
    days = [local_of(settings.slots.timezone, grid.time_of(one)) // DAY_US for one in slots]
    if regimes in (None, "kinds"):
        found = tuple(thirds(path, own) for path, own in zip(paths, days, strict=True))
        return Kinds("kinds: thirds of a series' days by its lowest band", 3, found, day)
    if regimes == "weekday":  # 1970 began on a Thursday
        weekend = tuple(((own + 3) % 7 >= 5).astype(np.int8) for own in days)  # noqa: PLR2004 - Saturday
        return Kinds("weekday or weekend", 2, weekend, day)
    first, last = min(int(own[0]) for own in days), max(int(own[-1]) for own in days)
    table = _calendar(str(regimes), first, last)
    return Kinds("a calendar", int(table.max()) + 1, tuple(table[own - first] for own in days), day)


def _calendar(path: str, first: int, last: int) -> npt.NDArray[np.int8]:
    """The kind of each day from a first to a last one, days since 1970, by a CSV file."""
    names: dict[int, str] = {}
    advice = "write a CSV file with the columns day (2024-12-25) and kind, one line for each day of the history"
    try:
        with open_table(Path(path), MOST_ROSTER_BYTES) as file:
            for row in csv.DictReader(file):
                number = (dt.date.fromisoformat(row["day"].strip()) - dt.date(1970, 1, 1)).days
                if number in names:
                    raise CommandError(f"--regimes {path}: {row['day'].strip()} is there twice: {advice}")
                names[number] = row["kind"].strip()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"--regimes {path}: cannot be read as a calendar ({reason(error)}): {advice}") from error
    except (KeyError, ValueError, AttributeError, TypeError):
        raise CommandError(f"--regimes {path}: a line has no day and kind: {advice}") from None
    of_days = [names.get(number, "") for number in range(first, last + 1)]
    if "" in of_days:
        missed = dt.date(1970, 1, 1) + dt.timedelta(first + of_days.index(""))
        raise CommandError(f"--regimes {path}: {missed} has no kind, of {plural(of_days.count(''), 'day')}: {advice}")
    kinds = sorted(set(of_days))
    if len(kinds) > MOST_KINDS:
        raise CommandError(
            f"--regimes {path}: {len(kinds)} kinds, and at most {MOST_KINDS} are followed: put some together"
        )
    return np.array([kinds.index(one) for one in of_days], dtype=np.int8)


def check(
    paths: Sequence[SeriesPath] | None,
    states: int,
    interval_us: int,
    sigma: float,
    epsilon: float = 1.0,
    kinds: Kinds | None = None,
    *,
    quick: bool = False,
) -> dict[str, dict[str, Any]]:
    """Check the series of a history, whose states are None where they were too many to keep, at a noise for epsilon.

    By name, ``within``, ``series`` and the ``largest`` loss, ``None`` where it has no bound, or why it was ``skipped``.
    ``quick`` leaves out what takes more than a second.
    """
    if paths is None:
        why = "the history has too many series or states, or too long series"
        return {name: {"skipped": why} for name in ("rhythm", "memory", *_STRETCHES)}
    density, n, cells = 1 / sigma, len(paths), sum(len(path.states) for path in paths)
    found: dict[str, dict[str, Any]] = {}
    day, odd = divmod(DAY_US, interval_us)
    if not quick:
        slow = "it would take long for so many series, states and slots of a day"
        rows = n * day * states * (states - 1)
        why = "the interval does not divide the day" if odd else slow if rows > _MOST_ROWS * _RHYTHM_ROWS else ""
        found["rhythm"] = tally(lambda: rhythm(paths, states, day, density, epsilon), epsilon, why)
        why = slow if n * states**4 > _MOST_ROWS else ""
        found["memory"] = tally(lambda: memory(paths, states, density, epsilon), epsilon, why)
    for name, length in _STRETCHES.items():
        half = length // interval_us // 2
        if kinds is None:
            found[name] = {"skipped": "slots do not divide the day, so days have no kinds"}
            continue
        slow = "it would take long for so many readings and states" if cells * 2**states > _MOST_CELLS else ""
        counted = tally(
            lambda half=half, known=kinds.of: stretches(paths, states, density, half, known, day),
            epsilon,
            "a slot is longer" if half < 1 else slow,
        )
        # The bound is from below: 0 everywhere says nothing of what the series lose.
        found[name] = {"skipped": _UNTOLD} if counted.get("largest") == 0 else counted
    return found


def tally(losses: Callable[[], FloatArray], epsilon: float, why_not: str) -> dict[str, Any]:
    """How many series lose at most epsilon, or why that was not looked at."""
    if why_not:
        return {"skipped": why_not}
    found = losses()
    return {"within": int((found <= epsilon).sum()), "series": len(found), "largest": finite(float(found.max()))}
