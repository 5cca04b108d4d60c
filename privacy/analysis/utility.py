"""What a purpose comes to: the mechanisms side by side, errors over windows and groups, and epsilons as odds.

Noise is as a job calibrates it (`Method.anywhere`).

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> found = analyse_utility(chain, Purpose(window=336, group=30, error=0.01))
>>> found.chosen.name, round(found.chosen.error, 4), found.chosen.smallest_group
('forward-backward', 0.0007, 2)
>>> print(Odds.at(1.0))
a guess of 50% becomes at most 73.2%
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from ..accounting.ledger import Ledger
from ..accounting.lower_bounds import least_loss
from ..accounting.schedules import Schedule
from ..models.belief import Belief
from ..models.classes import everywhere, mixing_bounds
from ..models.markov_chain import ChainError
from ..models.serialisation import check_belief
from ..quilts.powers import shared_powers
from ..validation import as_list, choice, number, positive, rounded_down, rounded_up, whole
from .baselines import entry_dp
from .methods import METHODS, Method
from .planning import Guarantee, NotApplicable, Plan, Planner

#: Losses for which the longest event is said, and for which an epsilon is put as odds; and guesses whose odds are said.
WITHIN = (1.0, 2.0, 4.0)
_PRIORS = (0.01, 0.1, 0.5, 0.9)

#: Epsilons and groups of the table of errors.
_EPSILONS = (0.5, 1.0, 2.0)
_GROUPS = (1, 10, 30, 100, 1000)

_EPSILON_ADVICE = "give the loss you accept, for example 1.0"

_PERCENT = 100

_HEAD = ("mechanism", "sigma", "error", "of a bin", "95% within", "window", "group")


@dataclass(frozen=True, slots=True)
class Odds:
    """An epsilon as odds: what a guess may become at most.

    Posterior odds are at most e^epsilon times the prior ones, so p becomes at most p e^epsilon / (1 - p + p e^epsilon):
    for a guess of one half, e^epsilon / (1 + e^epsilon).

    Attributes:
        epsilon: The loss.
        guesses: Pairs (probability before, largest probability after).
    """

    epsilon: float
    guesses: tuple[tuple[float, float], ...]

    @classmethod
    def at(cls, epsilon: float, priors: Sequence[float] = (0.5,)) -> Odds:
        """The odds of an epsilon for some guesses, each above 0 and below 1."""
        epsilon = number("epsilon", epsilon, _EPSILON_ADVICE)
        given = [number("priors", p, "give a probability") for p in as_list("priors", priors, "probabilities")]
        if not all(0 < p < 1 for p in given):
            raise ValueError(f"priors are {given!r:.40}, but each must be above 0 and below 1: give for example 0.5")
        if not epsilon >= 0:
            raise ValueError(f"epsilon is {epsilon!r}, but must be at least 0: {_EPSILON_ADVICE}")
        # 1 / (1 + (1 - p) / p e^-epsilon) does not overflow
        return cls(epsilon, tuple((p, 1 / (1 + (1 - p) / p * math.exp(-epsilon))) for p in given))

    def __str__(self) -> str:
        texts = [
            f"a guess of {percent(before)} becomes at most {percent(after, up=True)}" for before, after in self.guesses
        ]
        return ", ".join(texts)


@dataclass(frozen=True, slots=True)
class Purpose:
    """What is to be published, and how exact it is to be.

    Attributes:
        window: Slots of a window.
        group: Series in the smallest group.
        bins: Bins of a histogram; the states of the belief where left out.
        epsilon: Target of everything published.
        error: Wanted expected error of a bin, as a share of an evenly filled bin.
        mechanism: Name of a method; None for the one with least noise that hides correlated slots.
        guarantee: ``stream`` or ``window``.
        overlap: Windows that share a slot, whatever the guarantee: under ``window`` each is calibrated alone, and the
            account still counts them all.
        multiplicity: Groups that a series is in.
        class_share: Share of a window's slots in the smallest class of slots that has a histogram of its own.
        total_is_public: Whether the noise keeps the total, as a job's does.
        windows: Windows of the table, slots; the given one, a quarter, four and twelve times it where left out.
        groups: Group sizes of the table; 1 to 1,000 and the given one where left out.
        epsilons: Epsilons of the table; 0.5, 1, 2 and the given one where left out.
    """

    window: int
    group: int = 1
    bins: int | None = None
    epsilon: float = 1.0
    error: float = 0.05
    mechanism: str | None = None
    guarantee: Guarantee = "stream"
    overlap: int = 1
    multiplicity: int = 1
    class_share: float = 1.0
    total_is_public: bool = True
    windows: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    epsilons: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        whole("window", self.window, "give the slots of a window", least=1)
        whole("overlap", self.overlap, "give the number of windows that share a slot", least=1)
        whole("multiplicity", self.multiplicity, "give the groups that a series is in", least=1)
        positive("error", self.error, "give the error you want, for example 5%")
        for one in as_list("windows", self.windows, "windows in slots"):
            whole("windows", one, "give whole slots", least=1)
        for one in as_list("groups", self.groups, "sizes of groups"):
            whole("groups", one, "give numbers of series", least=1)
        for one in as_list("epsilons", self.epsilons, "losses"):
            positive("epsilons", one, "give losses that you may accept, for example 0.5,1,2")
        if self.mechanism is not None:
            choice("mechanism", self.mechanism, METHODS)

    @property
    def shared(self) -> int:
        """Histograms that share the density of a slot in the calibration."""
        return (self.overlap if self.guarantee == "stream" else 1) * self.multiplicity

    def schedule(self, epsilon_dp: float) -> Schedule:
        """The endless stream of the purpose's windows, with the density of one histogram, as the ledger prices it."""
        every = -(-self.window // self.overlap)
        return Schedule(self.window, every, start=0, stop=None, epsilon_dp=epsilon_dp * self.multiplicity)


@dataclass(frozen=True, slots=True)
class MechanismUtility:
    """One mechanism for a purpose."""

    name: str  # its name in settings
    sigma: float  # noise scale per unit of sensitivity
    bin_error: float  # expected absolute error of a count, in cells
    half_width_95: int  # A count is within so many cells of the true one with probability 95 %
    error: float  # expected error as a share of an evenly filled bin
    smallest_window: int | None  # fewest slots of a window with the wanted error; None where no length has it
    smallest_group: int  # fewest series of a group with the wanted error
    in_settings: bool  # whether settings may name it
    hides_neighbours: bool  # whether it protects a slot against what its neighbours tell
    assumes: tuple[str, ...]  # what the number rests on
    leaves: str  # what it does not protect


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """Expected error as a share of an evenly filled bin, by epsilon, window and group."""

    mechanism: str  # whose noise it is
    epsilons: tuple[float, ...]  # ascending
    windows: tuple[int, ...]  # in slots, ascending
    groups: tuple[int, ...]  # in series, ascending
    # for each epsilon, for each window, a share for each group; None where there is no noise for it
    errors: tuple[tuple[tuple[float | None, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class PerWindow:
    """What noise tells in truth that counts single readings only: per-window differential privacy of one entry."""

    claimed: float  # its epsilon, by noise of scale 1 / epsilon per unit of sensitivity in every window
    window: float  # what one window alone loses at most, under the belief
    at_most: float  # what all windows lose at most; infinite where no bound is known
    # what all windows lose at least, on a chain of the belief with its stationary start, which is one of any start;
    # None where no chain is named
    at_least: float | None

    def __str__(self) -> str:
        least = "" if self.at_least is None else f"at least {rounded_down(self.at_least, 3)}"
        most = f"at most {rounded_up(self.at_most, 3)}" if math.isfinite(self.at_most) else ""
        known = " and ".join(one for one in (least, most) if one) or "no bound is known for all windows together"
        alone = rounded_up(self.window, 3)
        return f"claims {self.claimed:g}; on this belief {known}, and one window alone at most {alone}"


@dataclass(frozen=True, slots=True)
class Utility:
    """What a purpose comes to under a belief.

    Attributes:
        purpose: What was asked.
        bins: Bins of a histogram.
        chosen: The mechanism that the rest speaks of.
        mechanisms: All that apply, the least noise first.
        others: Those that do not, with the reason.
        table: Error over windows, groups and epsilons, of the chosen one.
        epsilon_for_error: The least epsilon with the wanted error; None where no epsilon has it.
        loss: What the whole endless schedule loses for a single slot, by the ledger's account.
        events: Pairs (epsilon, slots): events of so many slots lose at most that; None for any number.
        odds: Losses as odds: that of the whole schedule first.
        per_window: What noise for single readings would tell.
    """

    purpose: Purpose
    bins: int
    chosen: MechanismUtility
    mechanisms: tuple[MechanismUtility, ...]
    others: tuple[NotApplicable, ...]
    table: ErrorTable
    epsilon_for_error: float | None
    loss: float
    events: tuple[tuple[float, int | None], ...]
    odds: tuple[Odds, ...]
    per_window: PerWindow

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form: shapes as of the fields, infinity as null."""
        return _plain(asdict(self))

    def __str__(self) -> str:
        return mechanism_table(self)


@shared_powers()
def analyse_utility(belief: Belief, purpose: Purpose, bounds: Belief | None = None) -> Utility:
    """Say what a purpose comes to under a belief, and for methods that read bounds under bounds that are beside it.

    Raises:
        ChainError: If the chosen mechanism has no noise for the belief.
        ValueError: If a number of the purpose is out of range, or no mechanism that hides correlated slots applies.
    """
    check_belief(belief)
    rows: list[tuple[MechanismUtility, Plan, Planner]] = []
    others: list[NotApplicable] = []
    _planner(belief, purpose, METHODS["entry-dp"]).at(purpose.window)  # an argument out of range is no method's fault

    def held(method: Method) -> Belief:
        return belief if bounds is None or method.reads != "bounds" else bounds

    for name, method in METHODS.items():
        planner = _planner(held(method), purpose, method)
        try:
            rows.append((*_row(planner, purpose, method), planner))
        except (TypeError, ValueError) as error:
            others.append(NotApplicable(name, str(error)))
    rows.sort(key=lambda one: one[0].sigma)
    wanted = [
        (one, plan, planner)
        for one, plan, planner in rows
        if (one.in_settings and one.hides_neighbours if purpose.mechanism is None else one.name == purpose.mechanism)
    ]
    if not wanted:
        reasons = "; ".join(f"{one.method}: {one.reason}" for one in others)
        raise ChainError(f"no mechanism that is asked for has noise for this belief: {reasons}")
    chosen, plan, planner = wanted[0]
    schedule = purpose.schedule(plan.mechanism.epsilon_dp)
    ledger = Ledger(_account(held(METHODS[chosen.name]), METHODS[chosen.name]))
    loss = ledger.extended_loss([schedule])
    epsilon: float | None = None
    with suppress(ValueError):  # on the way there is an epsilon without noise
        epsilon = planner.smallest_epsilon(purpose.error, purpose.window)
    return Utility(
        purpose=purpose,
        bins=plan.bins,
        chosen=chosen,
        mechanisms=tuple(one for one, _, _ in rows),
        others=tuple(others),
        table=_table(planner, purpose),
        epsilon_for_error=epsilon,
        loss=loss,
        events=tuple((within, ledger.longest_event(within, [schedule])) for within in WITHIN),
        odds=tuple(Odds.at(one, _PRIORS) for one in dict.fromkeys((loss, *WITHIN))),
        per_window=per_window(belief, purpose),
    )


def per_window(belief: Belief, purpose: Purpose) -> PerWindow:
    """What the purpose's windows tell whose noise is calibrated to single readings, by the ledger under a belief."""
    density = 1 / entry_dp(purpose.epsilon).sigma
    ledger = Ledger(everywhere(belief))
    schedule = purpose.schedule(density)
    # of windows that overlap, those that adjoin are a part
    least = [least_loss(chain, schedule.epsilon_dp) for chain in belief.witnesses]
    return PerWindow(
        claimed=purpose.epsilon,
        window=ledger.extended_loss([schedule.first(1)]),
        at_most=ledger.extended_loss([schedule]),
        at_least=max(least, default=None),
    )


def cells(one: MechanismUtility) -> tuple[str, ...]:
    """A line of the table of mechanisms, as text; windows in slots."""
    window = "none" if one.smallest_window is None else f"{one.smallest_window:,}"
    return (
        one.name if one.hides_neighbours else f"{one.name} *",
        f"{one.sigma:,.4g}",
        f"{one.bin_error:,.4g}",
        percent(one.error),
        f"{one.half_width_95:,}",
        window,
        f"{one.smallest_group:,}",
    )


def mechanism_table(found: Utility) -> str:
    """The mechanisms side by side, as plain text; a star marks what is no protection of correlated slots."""
    return aligned([_HEAD, *map(cells, found.mechanisms)])


def error_tables(table: ErrorTable, label: Sequence[str] | None = None) -> tuple[str, ...]:
    """A plain-text table for each epsilon: windows down, by their label or else their slots, and groups across."""
    names = [f"{one:,} slots" for one in table.windows] if label is None else list(label)
    return tuple(
        aligned(
            [
                (f"epsilon {epsilon:g}, series", *(f"{group:,}" for group in table.groups)),
                *(
                    (name, *("none" if share is None else percent(share) for share in row))
                    for name, row in zip(names, rows, strict=True)
                ),
            ]
        )
        for epsilon, rows in zip(table.epsilons, table.errors, strict=True)
    )


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells in columns, the first to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def percent(share: float, *, up: bool = False) -> str:
    """A share in per cent, in three digits, such as ``73.2%``; up for what is said to be at most so much."""
    value = share * _PERCENT
    if value >= 1000:  # noqa: PLR2004 - beyond, digits are noise
        return f"{value:,.0f}%"
    return f"{_up(value) if up and value > 0 else format(value, '.3g')}%"


def _up(value: float) -> str:
    """A number above 0 in three digits, rounded up, and below 100 in so many digits as that takes."""
    for digits in (3, 6, 9, 12):
        found = rounded_up(value, digits)
        if float(found) < _PERCENT:
            return found
    return f"{math.ceil(value)}"


def _planner(belief: Belief, purpose: Purpose, method: Method) -> Planner:
    """The planner of a method, which calibrates once for each epsilon and length."""
    return Planner(
        belief,
        purpose.epsilon,
        group=purpose.group,
        bins=purpose.bins,
        method=method.name,
        guarantee=purpose.guarantee,
        overlap=purpose.overlap if purpose.guarantee == "stream" else 1,
        total_is_public=purpose.total_is_public,
        multiplicity=purpose.multiplicity,
        class_share=purpose.class_share,
        methods={method.name: lru_cache(maxsize=256)(method.anywhere)},
    )


def _account(belief: Belief, method: Method) -> Belief:
    """What the account of a job believes whose noise is by a method."""
    if method.reads == "bounds":
        with suppress(ChainError):  # noise that reads nothing of the belief
            return mixing_bounds(belief)
    return everywhere(belief)


def _row(planner: Planner, purpose: Purpose, method: Method) -> tuple[MechanismUtility, Plan]:
    plan = planner.at(purpose.window)
    window: int | None = None
    with suppress(ValueError):  # none is long enough
        window = planner.smallest_window(purpose.error).window
    one = MechanismUtility(
        name=method.name,
        sigma=plan.sigma,
        bin_error=plan.bin_error,
        half_width_95=plan.half_width(0.95),
        error=plan.relative_error,
        smallest_window=window,
        smallest_group=planner.smallest_group(purpose.error, purpose.window).group,
        in_settings=method.in_settings,
        hides_neighbours=method.hides_neighbours,
        assumes=tuple(plan.calibration.assumptions),
        leaves=method.leaves,
    )
    return one, plan


def _table(planner: Planner, purpose: Purpose) -> ErrorTable:
    length = purpose.window
    windows = _several(purpose.windows or (max(1, length // 4), 4 * length, 12 * length), length)
    groups = _several(purpose.groups or _GROUPS, purpose.group)
    epsilons = _several(purpose.epsilons or _EPSILONS, purpose.epsilon)

    def row(epsilon: float, window: int) -> tuple[float | None, ...]:
        try:
            error = replace(planner, epsilon=epsilon).at(window).relative_error
        except ValueError:  # no noise at this epsilon
            return (None,) * len(groups)
        return tuple(error * planner.group / group for group in groups)

    errors = tuple(tuple(row(epsilon, window) for window in windows) for epsilon in epsilons)
    return ErrorTable(planner.method, epsilons, windows, groups, errors)


def _several(given: Iterable[Any], one: Any) -> tuple[Any, ...]:
    """Those and the one, ascending."""
    return tuple(sorted({*given, one}))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
