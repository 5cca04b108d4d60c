"""Planning: what a release will be worth, before any data is read.

The error of a histogram is its noise, and the law of that is known: discrete Laplace of scale 2 sigma in every bin, or,
where the total of a row is public, the law that keeps the total (`FixedTotalHistogram`). So the mean absolute error of
a bin is E|Z| and that of k bins in L1 is k E|Z|, for any data. It is set against the cells that the histogram counts,
window times group. Everything follows from the belief, the windows and the group sizes, which are public; no account
is opened.

`Planner` has the plan of one method, the smallest group, window or epsilon for a wanted error, and all methods side by
side:

>>> from quiltstream.privacy.models.classes import MixingBounds
>>> london = MixingBounds(pi_min=0.0305228, gap=0.39007)  # 60 homes pooled, 5 bands of power, half-hourly
>>> homes = Planner(london, epsilon=1.0, group=30, bins=5)
>>> week = homes.at(window=336)
>>> round(week.sigma, 1), round(week.relative_error, 3)
(84.4, 0.084)
>>> homes.smallest_group(target=0.05, window=336).group, homes.smallest_window(target=0.05).window
(51, 563)

`analyse_utility` has all that a purpose asks, noise as a job calibrates it (`Method.anywhere`), and what its epsilons
mean to the protected:

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> found = analyse_utility(chain, Purpose(window=336, group=30, error=0.01))
>>> found.chosen.name, round(found.chosen.error, 4), found.chosen.smallest_group
('forward-backward', 0.0007, 2)
>>> print(Odds.at(1.0))
a guess of 50% becomes at most 73.2%

The estimate that is published beside the counts, projected onto a known total, is nearer to the truth in L2 by an
amount that depends on the data; it is not counted here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, get_args

from ..accounting.ledger import Ledger
from ..accounting.lower_bounds import least_loss
from ..accounting.schedules import Schedule
from ..mechanisms.histogram import FixedTotalHistogram, LaplaceHistogram
from ..models.belief import Belief
from ..models.classes import everywhere, mixing_bounds
from ..models.markov_chain import ChainError
from ..models.serialisation import check_belief
from ..quilts.calibration import Calibration
from ..quilts.powers import shared_powers
from ..validation import a_slot, as_list, choice, number, positive, rounded_down, rounded_up, whole
from .baselines import entry_dp
from .methods import METHODS, Calibrator, Method

Guarantee = Literal["stream", "window"]

#: Longest window that is looked for, in slots: 190 years of minutes.
LARGEST_WINDOW = 10**8

#: Largest epsilon that is tried for a wanted error: odds of 10^43 are no secret.
LARGEST_EPSILON = 100.0

#: Losses for which the longest event is said, and for which an epsilon is put as odds; and guesses whose odds are said.
WITHIN = (1.0, 2.0, 4.0)
_PRIORS = (0.01, 0.1, 0.5, 0.9)

#: Epsilons and groups of the table of errors.
_EPSILONS = (0.5, 1.0, 2.0)
_GROUPS = (1, 10, 30, 100, 1000)

_WINDOW_ADVICE = "give the slots of a window"
_BINS_ADVICE = "give the number of bins"
_EPSILON_ADVICE = "give the loss you accept, for example 1.0"
_TARGET_ADVICE = "give the relative error you accept, for example 0.05"

#: How near to the target an epsilon is close enough, how far a step goes beyond the line, and how many steps there are
#: before the interval is halved; and the least step while one end of the interval is not known.
_CLOSE, _STEP, _STEPS, _LEAP = 0.99, 1.003, 6, 3.0

_PERCENT = 100

_HEAD = ("mechanism", "sigma", "error a bin", "of an even bin", "95% within", "smallest window", "smallest group")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one histogram per window and group will look like.

    Attributes:
        method: Name of the calibration.
        epsilon: Target.
        guarantee: ``stream``: all windows together stay within epsilon for ever. ``window``: each window alone.
        window: Slots of a window.
        group: Series added up in one histogram.
        bins: Number of bins k.
        overlap: Histograms that count a slot, windows that share it times groups of a series; their density is shared,
            so the noise is multiplied.
        calibration: Where the noise comes from, and what it assumes.
        mechanism: The histogram mechanism with its exact scale.
        class_share: Share of a window's slots in the smallest class of slots that has a histogram of its own, such as
            an hour of the day; 1 for one histogram of all slots.
    """

    method: str
    epsilon: float
    guarantee: Guarantee
    window: int
    group: int
    bins: int
    overlap: int
    calibration: Calibration
    mechanism: LaplaceHistogram | FixedTotalHistogram
    class_share: float = 1.0

    @property
    def sigma(self) -> float:
        """Noise scale per unit of sensitivity that the calibration asks for, times the overlap."""
        return self.calibration.sigma * self.overlap

    @property
    def cells(self) -> int:
        """Cells that a window has for a group, window times group; less where cells are missing."""
        return self.window * self.group

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
        return self.l1_error / (self.cells * self.class_share)

    def half_width(self, level: float = 0.95) -> int:
        """The smallest h such that a bin's error lies within -h..h with that probability; noise only."""
        return self.mechanism.half_width(level)


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """A method that gives no noise for a belief.

    Attributes:
        method: Its name.
        reason: The error it gave.
    """

    method: str
    reason: str


@dataclass(frozen=True, slots=True)
class Planner:
    """All that a plan needs but the window.

    Attributes:
        belief: What is believed about every series.
        epsilon: Target.
        group: Series added up in one histogram; the noise stays, the counts grow (theory section 8, item 3).
        bins: Bins of the histogram; the states of the belief where left out.
        method: Name of a calibration in ``methods``.
        guarantee: ``stream`` calibrates for an endless stream of windows, ``window`` for each window alone.
        overlap: Windows that share a slot, size over step; only with ``stream``.
        total_is_public: Whether every cell is counted, or which are is public: the noise then keeps the total.
        multiplicity: Groups that a series is in, each with a histogram.
        class_share: Share of a window's slots in the smallest class of slots that has a histogram of its own.
        methods: The calibrations to choose from, by name.
    """

    belief: Belief
    epsilon: float
    _: KW_ONLY
    group: int = 1
    bins: int | None = None
    method: str = "mqm-approx"
    guarantee: Guarantee = "stream"
    overlap: int = 1
    total_is_public: bool = False
    multiplicity: int = 1
    class_share: float = 1.0
    methods: Mapping[str, Calibrator] = field(default_factory=lambda: METHODS, hash=False)

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, _EPSILON_ADVICE)
        whole("group", self.group, "give the number of series in a histogram", least=1)
        a_slot("overlap", self.overlap, "give the number of windows that share a slot", least=1)
        a_slot("multiplicity", self.multiplicity, "give the number of groups that a series is in", least=1)
        if not 0 < self.class_share <= 1:
            raise ValueError(f"class_share is {self.class_share:g}, but must be above 0 and at most 1: give a share")
        choice("guarantee", self.guarantee, get_args(Guarantee))
        choice("method", self.method, self.methods)
        if self.overlap > 1 and self.guarantee != "stream":
            raise ValueError(
                f"overlap is {self.overlap}, but windows calibrated alone share nothing: use the guarantee stream"
            )

    def at(self, window: int) -> Plan:
        """The plan for windows of so many slots.

        Raises:
            ChainError: If the method has no noise for this belief.
            ValueError: If the window is out of range, or nothing is secret.
        """
        window = whole("window", window, _WINDOW_ADVICE, least=1)
        bins = a_slot("bins", _bins(self.belief, self.bins), _BINS_ADVICE, least=1)
        length = None if self.guarantee == "stream" else window
        calibration = self.methods[self.method](self.belief, self.epsilon, length)
        if not calibration.sigma > 0:
            raise ValueError(
                f"{self.method} finds nothing secret under this belief, so there is no noise to plan: check the "
                "belief, it has one possible state in every slot"
            )
        kind = FixedTotalHistogram if self.total_is_public else LaplaceHistogram
        share = self.overlap * self.multiplicity
        return Plan(
            method=self.method,
            epsilon=float(self.epsilon),
            guarantee=self.guarantee,
            window=window,
            group=self.group,
            bins=bins,
            overlap=share,
            calibration=calibration,
            mechanism=kind.from_sigma(bins, calibration.sigma * share),
            class_share=self.class_share,
        )

    def compare(self, window: int) -> tuple[Plan | NotApplicable, ...]:
        """The same release under every method: the least noise first, and last those that do not apply, with why."""
        window = whole("window", window, _WINDOW_ADVICE, least=1)
        whole("bins", _bins(self.belief, self.bins), _BINS_ADVICE, least=1)
        check_belief(self.belief)
        plans: list[Plan] = []
        others: list[NotApplicable] = []
        for name in self.methods:
            planner = replace(self, method=name)
            try:
                plans.append(planner.at(window))
            except ValueError as error:  # of the method: the arguments have been checked
                others.append(NotApplicable(name, str(error)))
        plans.sort(key=lambda plan: plan.sigma)
        return (*plans, *others)

    def smallest_group(self, target: float, window: int) -> Plan:
        """The plan with the fewest series a group whose relative error is at most the target.

        The noise does not depend on the group, so the answer is bins E|Z| / (window target), rounded up.

        Raises:
            ChainError: If the method has no noise for this belief.
        """
        share = positive("target", target, _TARGET_ADVICE)
        one = self.at(window)
        return replace(one, group=_least(one.l1_error / self.class_share, window * Fraction(share)))

    def smallest_window(self, target: float) -> Plan:
        """The plan with the shortest window whose relative error is at most the target.

        For a stream the noise does not depend on the window. For windows alone it does not fall with their length: to
        each quilt of the longer window there is one of the shorter, the same or without an end that lies outside, that
        holds no more slots and tells no more. So neither does phi(T) = ceil(bins E|Z_T| / (group target)), and the
        windows that will do are those with T >= phi(T). From T = 1 on, T -> phi(T) never passes the shortest of them,
        and where it stops it is one. (With a method whose noise can fall with the length, what is found reaches the
        target, but a shorter window might, too.)

        Raises:
            ChainError: If the method has no noise for this belief.
            ValueError: If an argument is out of range, or no window of up to `LARGEST_WINDOW` slots will do.
        """
        share = positive("target", target, _TARGET_ADVICE)
        found, wanted = self.at(1), 1
        while (wanted := _least(found.l1_error / self.class_share, found.group * Fraction(share))) > found.window:
            if wanted > LARGEST_WINDOW:
                raise ValueError(
                    f"target is {share:g}, but with {self.method} and groups of {found.group} no window of up to "
                    f"{LARGEST_WINDOW} slots reaches it: use larger groups, fewer bins, or a larger epsilon"
                )
            found = self.at(wanted)
        return found

    def smallest_epsilon(self, target: float, window: int) -> float | None:
        """The least epsilon whose relative error is at most the target, up to 1 % and in three digits.

        The noise of every method falls as epsilon grows, about as 1 / epsilon, so a few steps on a straight line of
        logarithms find it; what is returned was planned and reaches the target.

        Returns:
            None where no epsilon of up to `LARGEST_EPSILON` reaches it.

        Raises:
            ChainError: If the method has no noise for this belief at an epsilon on the way.
        """
        share = positive("target", target, _TARGET_ADVICE)
        low, high, tried = 0.0, math.inf, self.epsilon
        for turn in itertools.count():
            reached = replace(self, epsilon=tried).at(window).relative_error
            if _CLOSE * share <= reached <= share:
                return tried
            low, high = (tried, high) if reached > share else (low, tried)
            if low >= LARGEST_EPSILON:
                return None
            # a little beyond the line, so that it ends on the side that reaches the target
            step = tried * reached / share * _STEP
            enclosed = low > 0 and math.isfinite(high)
            if not enclosed and turn:  # the noise does not follow the line
                step = max(step, _LEAP * low) if low > 0 else min(step, high / _LEAP)
            elif not low < step < high or (enclosed and turn > _STEPS):
                step = math.sqrt(low * high)
            tried = min(LARGEST_EPSILON, _three_digits_up(step))
            if not low < tried < high:
                return high
        raise AssertionError  # the steps do not end by themselves


def _three_digits_up(value: float) -> float:
    """The number rounded up to three digits."""
    unit = Fraction(10) ** (math.floor(math.log10(value)) - 2)
    return float(math.ceil(Fraction(value) / unit) * unit)


def _bins(belief: Belief, bins: int | None) -> int:
    if bins is not None:
        return bins
    if belief.states is None:
        raise ValueError(f"bins is left out, but {type(belief).__name__} has no states: give the number of bins")
    return belief.states


def _least(error: float, share: Fraction) -> int:
    """The least n with error / n <= share, exact for the floats given."""
    return max(1, math.ceil(Fraction(error) / share))


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
                (f"epsilon {epsilon:g}", *(f"{group:,} series" for group in table.groups)),
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
