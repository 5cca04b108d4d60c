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

The estimate that is published beside the counts, projected onto a known total, is nearer to the truth in L2 by an
amount that depends on the data; it is not counted here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from typing import Literal, get_args

from ..mechanisms.histogram import FixedTotalHistogram, LaplaceHistogram
from ..models.belief import Belief
from ..models.serialisation import check_belief
from ..quilts.calibration import Calibration
from ..validation import a_slot, choice, positive, whole
from .methods import METHODS, Calibrator

Guarantee = Literal["stream", "window"]

#: Longest window that is looked for, in slots: 190 years of minutes.
LARGEST_WINDOW = 10**8

#: Largest epsilon that is tried for a wanted error: odds of 10^43 are no secret.
LARGEST_EPSILON = 100.0

_WINDOW_ADVICE = "give the slots of a window"
_BINS_ADVICE = "give the number of bins"
_EPSILON_ADVICE = "give the loss you accept, for example 1.0"
_TARGET_ADVICE = "give the relative error you accept, for example 0.05"

#: How near to the target an epsilon is close enough, how far a step goes beyond the line, and how many steps there are
#: before the interval is halved; and the least step while one end of the interval is not known.
_CLOSE, _STEP, _STEPS, _LEAP = 0.99, 1.003, 6, 3.0


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
