"""Planning: what a release will be worth, before any data is read, and the mechanisms side by side for a purpose.

The error of a histogram is its noise, and the law of that is known: discrete Laplace of scale 2 sigma in every bin, or,
where the total of a row is public, the law that keeps the total (`FixedTotalHistogram`). So the mean absolute error of
a bin is E|Z| and that of k bins in L1 is k E|Z|, for any data. It is set against the cells that the histogram counts,
window times group. Everything follows from the belief, the windows and the group sizes, which are public; no account
is opened. Noise is as a job calibrates it (`Method.anywhere`).

>>> from quiltstream.privacy.models.classes import MixingBounds
>>> london = MixingBounds(pi_min=0.0305228, gap=0.39007)  # 60 homes pooled, 5 bands of power, half-hourly
>>> week = Purpose(window=336, group=30, bins=5, mechanism="mqm-approx", total_is_public=False)
>>> plan = plan_release(london, week)
>>> round(plan.sigma, 1), round(plan.relative_error, 3)
(84.4, 0.084)
>>> plan.smallest_group, smallest_window(london, week)
(51, 563)

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> found = analyse_utility(chain, Purpose(window=336, group=30, error=0.01))
>>> found.chosen.name, round(found.chosen.error, 4), found.chosen.smallest_group
('forward-backward', 0.0007, 2)

The estimate that is published beside the counts, projected onto a known total, is nearer to the truth in L2 by an
amount that depends on the data; it is not counted here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, get_args

from ...schemas.errors import ArgumentError
from ..accounting.ledger import Ledger
from ..accounting.lower_bounds import least_loss
from ..accounting.schedules import Schedule
from ..mechanisms.histogram import FixedTotalHistogram, LaplaceHistogram
from ..models.belief import Belief
from ..models.classes import mixing_bounds
from ..models.markov_chain import ChainError
from ..models.serialisation import check_belief
from ..quilts.calibration import Calibration
from ..quilts.powers import shared_powers
from ..validation import a_slot, as_list, choice, positive, rounded_down, rounded_up, whole
from .methods import METHODS, Method

Guarantee = Literal["stream", "window"]

LARGEST_EPSILON = 100.0
"""The largest epsilon that is tried for a wanted error: odds of 10^43 are no secret."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """What is to be published, and how exact it is to be."""

    window: int  # slots of a window
    group: int = 1  # series in the smallest group; the noise stays, the counts grow (theory section 8, item 3)
    bins: int | None = None  # bins of a histogram; the states of the belief where left out
    epsilon: float = 1.0  # target of everything published, or of each window
    error: float = 0.05  # wanted expected error of a bin, as a share of an evenly filled bin
    mechanism: str | None = None  # name of a method; None for the one with least noise that hides correlated slots
    guarantee: Guarantee = "stream"  # ``stream``: all windows together, for ever. ``window``: each window alone
    # windows that share a slot; under ``window`` each is calibrated alone, and the account still counts them all
    overlap: int = 1
    multiplicity: int = 1  # groups that a series is in, each with a histogram
    class_share: float = 1.0  # share of a window's slots in the smallest class of slots with a histogram of its own
    total_is_public: bool = True  # whether the noise keeps the total, as a job's does
    windows: tuple[int, ...] = ()  # of the table, in slots; else a quarter, four and twelve times the given one, and it
    groups: tuple[int, ...] = ()  # of the table; else 1 to 1,000 and the given one
    epsilons: tuple[float, ...] = ()  # of the table; else 0.5, 1, 2 and the given one

    def __post_init__(self) -> None:
        for slots in (self.window, *as_list("windows", self.windows, "windows in slots")):
            whole("window", slots, "give the slots of a window", least=1)
        for size in (self.group, *as_list("groups", self.groups, "sizes of groups")):
            whole("group", size, "give the number of series in a histogram", least=1)
        for epsilon in (self.epsilon, *as_list("epsilons", self.epsilons, "losses")):
            positive("epsilon", epsilon, "give the loss you accept, for example 1.0")
        if self.bins is not None:
            whole("bins", self.bins, "give the number of bins", least=1)
        a_slot("overlap", self.overlap, "give the number of windows that share a slot", least=1)
        a_slot("multiplicity", self.multiplicity, "give the number of groups that a series is in", least=1)
        positive("error", self.error, "give the error you want, for example 5%")
        if not 0 < self.class_share <= 1:
            raise ArgumentError(f"class_share is {self.class_share:g}, but must be above 0 and at most 1: give a share")
        choice("guarantee", self.guarantee, get_args(Guarantee))
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
class Plan:
    """What one histogram per window and group will look like."""

    purpose: Purpose
    calibration: Calibration  # where the noise comes from, and what it assumes
    mechanism: LaplaceHistogram | FixedTotalHistogram  # with its exact scale

    @property
    def sigma(self) -> float:
        """Noise scale per unit of sensitivity: that of the calibration, times the histograms that share a slot."""
        return self.calibration.sigma * self.purpose.shared

    @property
    def bins(self) -> int:
        """Number of bins k."""
        return self.mechanism.bins

    @property
    def cells(self) -> int:
        """Cells that a window has for a group, window times group; less where cells are missing."""
        return self.purpose.window * self.purpose.group

    @property
    def bin_error(self) -> float:
        """Expected absolute error of one bin, in cells: E|Z| of the discrete law."""
        return self.mechanism.mean_abs

    @property
    def l1_error(self) -> float:
        """Expected L1 error of the histogram, in cells: bins times `bin_error`."""
        return self.bins * self.bin_error

    @property
    def relative_error(self) -> float:
        """Expected L1 error over the cells counted: the error of a bin over its count, were the bins evenly filled."""
        return self.l1_error / (self.cells * self.purpose.class_share)

    @property
    def smallest_group(self) -> int:
        """The fewest series a group with the wanted error: the noise does not depend on the group."""
        return _least(self, self.purpose.window)

    def half_width(self, level: float = 0.95) -> int:
        """The smallest h such that a bin's error lies within -h..h with that probability; noise only."""
        return self.mechanism.half_width(level)


def _least(plan: Plan, cells: int) -> int:
    """The least n whose n times so many cells have the wanted error, exact for the floats given."""
    error = Fraction(plan.l1_error / plan.purpose.class_share)
    return max(1, math.ceil(error / (cells * Fraction(plan.purpose.error))))


def plan_release(belief: Belief, purpose: Purpose) -> Plan:
    """The plan of a purpose under a belief, by its mechanism, or by forward-backward where it names none.

    Raises:
        ChainError: If the method has no noise for this belief.
        TypeError: If the method does not read such a belief.
        ValueError: If nothing is secret, or the number of bins is not known.
    """
    check_belief(belief)
    bins, name = purpose.bins or belief.states, purpose.mechanism or "forward-backward"
    if bins is None:
        raise ArgumentError(f"bins is left out, but {type(belief).__name__} has no states: give the number of bins")
    length = None if purpose.guarantee == "stream" else purpose.window
    calibration = _calibrated(name, belief, purpose.epsilon, length)
    if not calibration.sigma > 0:
        raise ArgumentError(
            f"{name} finds nothing secret under this belief, so there is no noise to plan: check the belief, which has "
            "one possible state in every slot"
        )
    kind = FixedTotalHistogram if purpose.total_is_public else LaplaceHistogram
    return Plan(purpose, calibration, kind.from_sigma(bins, calibration.sigma * purpose.shared))


@lru_cache(maxsize=1024)
def _calibrated(name: str, belief: Belief, epsilon: float, length: int | None) -> Calibration:
    return METHODS[name].anywhere(belief, epsilon, length)


def smallest_window(belief: Belief, purpose: Purpose) -> int | None:
    """The shortest window whose relative error is at most the purpose's; None where 10^8 slots do not reach it.

    For a stream the noise does not depend on the window. For windows alone it does not fall with their length: to each
    quilt of the longer window there is one of the shorter, the same or without an end that lies outside, that holds no
    more slots and tells no more. So neither does phi(T) = ceil(bins E|Z_T| / (group error)), and the windows that will
    do are those with T >= phi(T). From T = 1 on, T -> phi(T) never passes the shortest of them, and where it stops it
    is one. (With a method whose noise can fall with the length, what is found reaches the error, but a shorter window
    might, too.)

    Raises:
        As of `plan_release`.
    """
    tried, wanted = 0, 1
    while wanted > tried:
        if wanted > 10**8:  # 190 years of minutes
            return None
        tried, plan = wanted, plan_release(belief, replace(purpose, window=wanted))
        wanted = _least(plan, purpose.group)
    return tried


def smallest_epsilon(belief: Belief, purpose: Purpose) -> float | None:
    """The least epsilon whose relative error is at most the purpose's, up to 1 % and in three digits.

    The noise of every method falls as epsilon grows, about as 1 / epsilon, so a few steps on a straight line of
    logarithms find it; what is returned was planned and reaches the error. None where no epsilon of up to
    `LARGEST_EPSILON` does.

    Raises:
        As of `plan_release`, at an epsilon on the way.
    """
    low, high, tried = 0.0, math.inf, purpose.epsilon
    for turn in itertools.count():
        reached = plan_release(belief, replace(purpose, epsilon=tried)).relative_error
        if 0.99 * purpose.error <= reached <= purpose.error:
            return tried
        low, high = (tried, high) if reached > purpose.error else (low, tried)
        if low >= LARGEST_EPSILON:
            return None
        # a little beyond the line, so that it ends on the side that reaches the error
        step = tried * reached / purpose.error * 1.003
        enclosed = low > 0 and math.isfinite(high)
        if not enclosed and turn:  # the noise does not follow the line
            step = max(step, 3 * low) if low > 0 else min(step, high / 3)
        elif not low < step < high or (enclosed and turn > 6):  # noqa: PLR2004 - then the interval is halved
            step = math.sqrt(low * high)
        unit = Fraction(10) ** (math.floor(math.log10(step)) - 2)
        tried = min(LARGEST_EPSILON, float(math.ceil(Fraction(step) / unit) * unit))
        if not low < tried < high:
            return high
    raise AssertionError  # the steps do not end by themselves


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """A method that gives no noise for a belief."""

    method: str  # its name
    reason: str  # the error it gave


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
    """What a purpose comes to under a belief."""

    purpose: Purpose  # what was asked
    bins: int  # bins of a histogram
    chosen: MechanismUtility  # the mechanism that the rest speaks of
    mechanisms: tuple[MechanismUtility, ...]  # all that apply, the least noise first
    others: tuple[NotApplicable, ...]  # those that do not, with the reason
    table: ErrorTable  # error over windows, groups and epsilons, of the chosen one
    epsilon_for_error: float | None  # the least epsilon with the wanted error; None where no epsilon has it
    loss: float  # what the whole endless schedule loses for a single slot, by the ledger's account
    events: tuple[tuple[float, int | None], ...]  # (epsilon, slots): so long events lose at most that; None for any
    per_window: PerWindow  # what noise for single readings would tell


@shared_powers()
def analyse_utility(belief: Belief, purpose: Purpose, bounds: Belief | None = None) -> Utility:
    """Say what a purpose comes to under a belief, and for methods that read bounds under bounds that are beside it.

    Raises:
        ChainError: If the chosen mechanism has no noise for the belief.
        ValueError: If the number of bins is not known, or no mechanism that hides correlated slots applies.
    """
    rows: list[tuple[MechanismUtility, Plan, Belief]] = []
    others: list[NotApplicable] = []
    plan_release(belief, replace(purpose, mechanism="entry-dp"))  # an argument out of range is no method's fault
    for name, method in METHODS.items():
        held = belief if bounds is None or method.reads != "bounds" else bounds
        try:
            rows.append((*_row(held, replace(purpose, mechanism=name), method), held))
        except (TypeError, ValueError) as error:
            others.append(NotApplicable(name, str(error)))
    rows.sort(key=lambda row: row[0].sigma)
    sound = [row for row in rows if row[0].hides_neighbours]
    wanted = sound if purpose.mechanism is None else [row for row in rows if row[0].name == purpose.mechanism]
    if not wanted:
        reasons = "; ".join(f"{one.method}: {one.reason}" for one in others)
        raise ChainError(f"no mechanism that is asked for has noise for this belief: {reasons}")
    chosen, plan, held = wanted[0]
    schedule = purpose.schedule(plan.mechanism.epsilon_dp)
    ledger = Ledger(_account(held, METHODS[chosen.name]))
    loss, within = ledger.extended_loss([schedule]), (1.0, 2.0, 4.0)
    epsilon: float | None = None
    with suppress(ValueError):  # on the way there is an epsilon without noise
        epsilon = smallest_epsilon(held, plan.purpose)
    return Utility(
        purpose=purpose,
        bins=plan.bins,
        chosen=chosen,
        mechanisms=tuple(one for one, _, _ in rows),
        others=tuple(others),
        table=_table(held, plan.purpose, chosen.name),
        epsilon_for_error=epsilon,
        loss=loss,
        events=tuple((most, ledger.longest_event(most, [schedule])) for most in within),
        per_window=per_window(belief, purpose),
    )


def _account(belief: Belief, method: Method) -> Belief:
    """What the account of a job believes whose noise is by a method."""
    if method.reads == "bounds":
        with suppress(ChainError):  # noise that reads nothing of the belief
            return mixing_bounds(belief)
    return belief.everywhere


def _row(belief: Belief, purpose: Purpose, method: Method) -> tuple[MechanismUtility, Plan]:
    plan = plan_release(belief, purpose)
    window: int | None = None
    with suppress(ValueError):  # a length without noise
        window = smallest_window(belief, purpose)
    one = MechanismUtility(
        name=method.name,
        sigma=plan.sigma,
        bin_error=plan.bin_error,
        half_width_95=plan.half_width(0.95),
        error=plan.relative_error,
        smallest_window=window,
        smallest_group=plan.smallest_group,
        hides_neighbours=method.hides_neighbours,
        assumes=tuple(plan.calibration.assumptions),
        leaves=method.leaves,
    )
    return one, plan


def _table(belief: Belief, purpose: Purpose, name: str) -> ErrorTable:
    length = purpose.window
    windows = _several(purpose.windows or (max(1, length // 4), 4 * length, 12 * length), length)
    groups = _several(purpose.groups or (1, 10, 30, 100, 1000), purpose.group)
    epsilons = _several(purpose.epsilons or (0.5, 1.0, 2.0), purpose.epsilon)

    def row(epsilon: float, window: int) -> tuple[float | None, ...]:
        try:
            error = plan_release(belief, replace(purpose, epsilon=epsilon, window=window)).relative_error
        except ValueError:  # no noise at this epsilon
            return (None,) * len(groups)
        return tuple(error * purpose.group / group for group in groups)

    errors = tuple(tuple(row(epsilon, window) for window in windows) for epsilon in epsilons)
    return ErrorTable(name, epsilons, windows, groups, errors)


def _several(given: Iterable[Any], one: Any) -> tuple[Any, ...]:
    """Those and the one, ascending."""
    return tuple(sorted({*given, one}))


def per_window(belief: Belief, purpose: Purpose) -> PerWindow:
    """What the purpose's windows tell whose noise is calibrated to single readings, by the ledger under a belief."""
    ledger = Ledger(belief.everywhere)
    schedule = purpose.schedule(purpose.epsilon)
    # of windows that overlap, those that adjoin are a part
    least = [least_loss(chain, schedule.epsilon_dp) for chain in belief.witnesses]
    return PerWindow(
        claimed=purpose.epsilon,
        window=ledger.extended_loss([schedule.first(1)]),
        at_most=ledger.extended_loss([schedule]),
        at_least=max(least, default=None),
    )


def mechanism_table(found: Utility) -> str:
    """The mechanisms side by side, as plain text; a star marks what is no protection of correlated slots."""
    head = ("mechanism", "sigma", "error", "of a bin", "95% within", "window", "group")
    rows = [
        (
            one.name if one.hides_neighbours else f"{one.name} *",
            f"{one.sigma:,.4g}",
            f"{one.bin_error:,.4g}",
            percent(one.error),
            f"{one.half_width_95:,}",
            "none" if one.smallest_window is None else f"{one.smallest_window:,}",
            f"{one.smallest_group:,}",
        )
        for one in found.mechanisms
    ]
    return _aligned([head, *rows])


def error_tables(table: ErrorTable, label: Sequence[str] | None = None) -> tuple[str, ...]:
    """A plain-text table for each epsilon: windows down, by their label or else their slots, and groups across."""
    names = [f"{one:,} slots" for one in table.windows] if label is None else list(label)
    found: list[str] = []
    for epsilon, rows in zip(table.epsilons, table.errors, strict=True):
        head = (f"epsilon {epsilon:g}, series", *(f"{group:,}" for group in table.groups))
        lines = [["none" if share is None else percent(share) for share in row] for row in rows]
        found.append(_aligned([head, *((name, *line) for name, line in zip(names, lines, strict=True))]))
    return tuple(found)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells in columns, the first to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def percent(share: float, *, up: bool = False) -> str:
    """A share in per cent, in three digits, such as ``73.2%``; up for what is said to be at most so much.

    What is below 100 % has so many digits as to stay below it.
    """
    value = 100 * share
    if value >= 1000:  # noqa: PLR2004 - beyond, digits are noise
        return f"{value:,.0f}%"
    if not (up and value > 0):
        return f"{value:.3g}%"
    texts = (rounded_up(value, digits) for digits in (3, 6, 9, 12))
    return next((f"{text}%" for text in texts if float(text) < 100), f"{math.ceil(value)}%")  # noqa: PLR2004 - per cent
