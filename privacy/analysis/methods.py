"""The calibration table: every method by name, what it reads of the model, what it assumes and does not protect.

Settings, plans, comparisons, dry runs, the estimates of a job and the documents read this table. The name of a method
is that of its function with hyphens, so names are listed once: those that settings may choose, in their schema.

>>> from quiltstream.privacy.models.classes import MixingBounds
>>> METHODS["mqm-approx"](MixingBounds(pi_min=0.2, gap=0.75), 1.0, None).sigma > 30
True
>>> METHODS["entry-dp"].label
'entry-dp (correlated slots not protected)'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from ..accounting.forward_backward import forward_backward
from ..models.belief import Belief
from ..models.classes import everywhere, starts_stationary, stated_chains
from ..models.markov_chain import ChainError
from ..quilts.calibration import Calibration, mqm_approx, mqm_exact, pairwise
from . import baselines

#: What turns a belief, an epsilon and the slots of a window, None for an endless stream, into noise.
Calibrator: TypeAlias = Callable[..., Calibration]

Reads: TypeAlias = Literal["bounds", "chains", "directions"]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to calibrate noise."""

    calibrate: Calibrator  # its function
    # what it reads of the model, and what the account is then kept under: ``bounds`` on pi_min and the gap, the
    # ``chains`` themselves, or the model's own belief by its ``directions``
    reads: Reads
    noise: str  # where the noise comes from, in words
    believes: str  # what the account believes, in words
    needs: str  # what a job must give
    leaves: str  # what it does not protect, in words
    endless: bool = True  # whether there is noise for an endless stream
    published: bool = False  # whether it is a method of [SWC17], which other calibrations are shown beside
    in_settings: bool = True  # whether settings may choose it
    hides_neighbours: bool = True

    @property
    def name(self) -> str:
        """Name in settings, rows and records."""
        return self.calibrate.__name__.replace("_", "-")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - each is a function

    @property
    def label(self) -> str:
        """How rows and ledger name it: with a warning where the neighbours of a slot tell what it hides."""
        return self.name if self.hides_neighbours else f"{self.name} ({self.leaves} not protected)"

    def __call__(self, belief: Any, epsilon: float, length: int | None = None) -> Calibration:
        """Calibrate for windows of ``length`` slots, or for an endless stream; errors as of `anywhere`."""
        return self.calibrate(belief, epsilon, length)

    def anywhere(self, belief: Belief, epsilon: float, length: int | None = None) -> Calibration:
        """Calibrate for windows that may begin in any slot of the chain, as those of a job do.

        A fixed start is replaced by any start, which is true in every slot. A window's own calibration by chains uses
        how many slots of the window lie before a slot, and not only the distance of the quilt; an account that does not
        know where a window begins uses the influence that holds at every slot, and would find up to some percent more
        than epsilon. So where a start is not stationary, a window has the noise of an endless stream or that of group
        privacy, whichever is less: the account finds both to cost at most epsilon.

        Raises:
            TypeError: The belief is none that the method reads, or a number is of another type.
            ValueError: The method has no noise for it, or a number is out of range.
        """
        held = everywhere(belief)
        if length is None or self.reads != "chains" or not self.in_settings or starts_stationary(held):
            return self.calibrate(held, epsilon, length)
        whole = replace(
            group_dp(None, epsilon, length),
            method=self.name,
            assumptions=("any dependence within the window, which is too short for a quilt",),
        )
        try:
            endless = self.calibrate(held, epsilon, None)
        except ChainError:
            return whole
        return whole if endless.sigma > whole.sigma else replace(endless, length=length)


def mqm_approx_spectral(belief: Belief, epsilon: float, length: int | None = None) -> Calibration:
    """`mqm_approx` with the spectral bound."""
    return mqm_approx(belief, epsilon, length, bound="spectral")


def group_dp(belief: object, epsilon: float, length: int | None = None) -> Calibration:  # noqa: ARG001 - holds for all
    """`baselines.group_dp` of a window."""
    return baselines.group_dp(epsilon, _window_of("group privacy", length))


def gk16(belief: Any, epsilon: float, length: int | None = None) -> Calibration:
    """`baselines.gk16` of a window."""
    slots = _window_of("an influence matrix", length)
    try:
        stated_chains(belief, "an influence matrix")
    except TypeError as error:
        # a method that does not read a belief is no wrong type: a comparison shows it with its reason
        raise ChainError(str(error)) from None
    return baselines.gk16(belief, epsilon, slots)


def entry_dp(belief: object, epsilon: float, length: int | None = None) -> Calibration:  # noqa: ARG001 - reads nothing
    """`baselines.entry_dp`."""
    return replace(baselines.entry_dp(epsilon), length=length)


def _window_of(what: str, length: int | None) -> int:
    if length is None:
        raise ValueError(f"{what} has no bound for an endless stream: use the guarantee window")
    return length


_BOUNDED = "every chain that mixes at least so fast"
_CHAINS = "the chains of the model"
_FILE = "a model file with chains"
_EITHER = "a model file, or bounds by hand"
_OTHERS = "series that follow another chain"

_TABLE = (
    Method(
        mqm_approx,
        "bounds",
        noise="from pi_min and the gap alone, Lemma 4.8",
        believes=_BOUNDED,
        needs=_EITHER,
        leaves="series that mix more slowly, or change in time",
        published=True,
    ),
    Method(
        mqm_approx_spectral,
        "bounds",
        noise="from pi_min and the gap alone, spectral bound",
        believes=_BOUNDED,
        needs=_EITHER,
        leaves="series that mix more slowly, or change in time",
        in_settings=False,
    ),
    Method(
        mqm_exact,
        "chains",
        noise="from the exact influence of each quilt",
        believes=_CHAINS,
        needs=_FILE,
        leaves=_OTHERS,
        published=True,
    ),
    Method(
        pairwise,
        "chains",
        noise="the same, with a quilt for each pair of states; never more than `mqm-exact`",
        believes=_CHAINS,
        needs=_FILE,
        leaves=_OTHERS,
    ),
    Method(
        forward_backward,
        "directions",
        noise="by the [forward-backward account](mechanisms.md#the-forward-backward-account); for an "
        "endless stream never more than the three above, but for rounding; for a window alone neither, at an epsilon "
        "of at most 3 and up to 12 states, or with the certificates of `fit --certify`; else compare them by "
        "`quiltstream plan`",
        believes="the model's bounds, chains or class",
        needs=_EITHER,
        leaves="series outside the belief",
    ),
    Method(
        group_dp,
        "bounds",
        noise="slots of the window / epsilon",
        believes=_BOUNDED,
        needs="`guarantee: window`",
        leaves="several windows together",
        endless=False,
    ),
    Method(
        gk16,
        "chains",
        noise="from the norm of an influence matrix",
        believes=_CHAINS,
        needs=_FILE,
        leaves=_OTHERS,
        endless=False,
        in_settings=False,
    ),
    Method(
        entry_dp,
        "bounds",
        noise="1 / epsilon",
        believes=_BOUNDED,
        needs="a budget for what it really costs",
        leaves="correlated slots",
        hides_neighbours=False,
    ),
)

METHODS: Mapping[str, Method] = MappingProxyType({one.name: one for one in _TABLE})
"""Every method by name, as `Planner.compare` sets them side by side.

entry-dp does not protect correlated slots: it is the line to compare with.
"""


def by_quilts(belief: Belief, epsilon: float, length: int | None = None) -> dict[str, float]:
    """Sigma by the methods of [SWC17] that have an answer for a belief, the least first; {} for one without quilts."""
    found: dict[str, float] = {}
    for name, method in METHODS.items():
        # a method that does not read such a belief, or finds no quilt far enough, has no answer
        if method.published:
            with suppress(TypeError, ValueError):
                found[name] = method(belief, epsilon, length).sigma
    return dict(sorted(found.items(), key=lambda one: one[1]))
