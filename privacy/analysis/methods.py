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
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from ...schemas.errors import ArgumentError
from ..accounting.forward_backward import forward_backward
from ..models.belief import Belief
from ..models.markov_chain import ChainError
from ..quilts.calibration import Calibration, mqm_approx, mqm_exact, pairwise
from ..quilts.influence import Quilt
from ..validation import a_slot, accepted_loss


@dataclass(frozen=True, slots=True)
class Method:
    """One way to calibrate noise."""

    calibrate: Callable[..., Calibration]  # from a belief, an epsilon and the slots of a window, None for a stream
    # what it reads of the model, and what the account is then kept under: ``bounds`` on pi_min and the gap, the
    # ``chains`` themselves, or the model's own belief by its ``directions``
    reads: Literal["bounds", "chains", "directions"]
    noise: str  # where the noise comes from, in words
    believes: str  # what the account believes, in words
    needs: str  # what a job must give
    leaves: str  # what it does not protect, in words
    endless: bool = True  # whether there is noise for an endless stream
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
        held = belief.everywhere
        if length is None or self.reads != "chains" or held.starts_stationary:
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


def group_dp(belief: object, epsilon: float, length: int | None = None) -> Calibration:  # noqa: ARG001 - holds for all
    """Group privacy: sigma = length / epsilon, as at worst all slots of a window change together.

    It holds for every belief, whatever happens inside the chain. Of independent chains the longest decides.

    Args:
        belief: Not looked at.
        epsilon: Target, finite and at least 2^-46.
        length: Slots of the window.

    Raises:
        ValueError: There is no window: an endless stream has no bound.
    """
    target, slots = accepted_loss(epsilon), _slots(length)
    return _without_quilt(target, slots / target, slots, "group-dp", "any dependence within a chain of slots")


def entry_dp(belief: object, epsilon: float, length: int | None = None) -> Calibration:  # noqa: ARG001 - reads nothing
    """Differential privacy of single entries: sigma = 1 / epsilon.

    It does not protect correlated slots: what one slot hides, its neighbours tell. It bounds the loss only where all
    slots are independent, and is here to show what a claim of "epsilon" without a belief about correlation means.
    """
    target = accepted_loss(epsilon)
    note = "does not protect correlated slots: true only if all slots are independent of each other"
    return _without_quilt(target, 1 / target, length, "entry-dp", note)


def _slots(length: int | None) -> int:
    if length is None:
        raise ArgumentError("group privacy has no bound for an endless stream: use the guarantee window")
    return a_slot("length", length, "give the slots of a window", least=1)


def _without_quilt(epsilon: float, sigma: float, length: int | None, method: str, note: str) -> Calibration:
    return Calibration(epsilon, sigma, Quilt(None, None), None, 0.0, length, method, None, (note,))


def _table() -> tuple[Method, ...]:
    either, bounded = "a model file, or bounds by hand", "every chain that mixes at least so fast"
    lemma, slower = "from pi_min and the gap alone, Lemma 4.8", "series that mix more slowly, or change in time"
    by_chains = partial(
        Method,
        reads="chains",
        believes="the chains of the model",
        needs="a model file with chains",
        leaves="series that follow another chain",
    )
    account = (
        "by the [forward-backward account](mechanisms.md#the-forward-backward-account); for an endless stream never "
        "more than the three above, but for rounding; for a window alone neither, at an epsilon of at most 3 and up to "
        "12 states, or with the certificates of `fit --certify`; else compare them by `quiltstream plan`"
    )
    one_each = "the same, with a quilt for each pair of states; never more than `mqm-exact`"
    chosen, outside = "the model's bounds, chains or class", "series outside the belief"
    directions = Method(forward_backward, "directions", account, chosen, either, outside)
    grouped = Method(
        group_dp,
        "bounds",
        "slots of the window / epsilon",
        bounded,
        "`guarantee: window`",
        "several windows together",
        endless=False,
    )
    single = Method(
        entry_dp,
        "bounds",
        "1 / epsilon",
        bounded,
        "a budget for what it really costs",
        "correlated slots",
        hides_neighbours=False,
    )
    return (
        Method(mqm_approx, "bounds", lemma, bounded, either, slower),
        by_chains(mqm_exact, noise="from the exact influence of each quilt"),
        by_chains(pairwise, noise=one_each),
        directions,
        grouped,
        single,
    )


METHODS: Mapping[str, Method] = MappingProxyType({one.name: one for one in _table()})
"""Every method by name. entry-dp does not protect correlated slots: it is the line to compare with."""
