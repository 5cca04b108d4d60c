"""The belief of a domain and the noise of a query, by the mechanism that the settings name.

The ledger of record prices every charge under the belief that is frozen with the domain, so mechanism and belief go
together: noise from bounds needs an account under the same bounds, and noise from the exact influence of chains an
account under these chains. Every mechanism here then costs at most its epsilon in the account, but for ``entry-dp``,
which claims nothing about correlated slots: it costs what one release of its density loses under the belief. A domain
whose noise is by ``forward-backward`` names that account in its belief.

>>> bounds = {"kind": "mixing-bounds", "pi_min": 0.2, "gap": 0.75, "gap_kind": "unknown"}
>>> chosen = choose("mqm-approx", bounds, states=2, epsilon=1.0, window=100, guarantee="stream")
>>> chosen.belief == bounds, round(chosen.calibration.sigma, 4)
(True, 31.7098)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

from ..privacy.accounting.calibration import forward_backward
from ..privacy.baselines import Baseline, entry_dp, group_dp
from ..privacy.chains import ChainError, MarkovChain
from ..privacy.classes import (
    AnyInitial,
    Belief,
    BinaryInterval,
    FiniteClass,
    MixingBounds,
    mixing_bounds,
    starts_stationary,
)
from ..privacy.ledger import Ledger
from ..privacy.models.belief import AnyBelief, Directed
from ..privacy.models.reading import read_belief
from ..privacy.quilts import Calibration, Quilt, mqm_approx, mqm_exact, pairwise
from ..schemas.settings import Mechanism, SettingsError

#: A belief that names chains.
Chains: TypeAlias = MarkovChain | FiniteClass | AnyInitial | BinaryInterval

#: Mechanisms that read the chains themselves; the others make do with pi_min and the gap.
EXACT: Mapping[str, Callable[..., Calibration]] = MappingProxyType({"mqm-exact": mqm_exact, "pairwise": pairwise})

#: Every mechanism of the settings.
MECHANISMS: tuple[str, ...] = get_args(Mechanism)

#: How rows and ledger name the mechanism that hides a slot from itself only.
UNPROTECTED = "entry-dp (correlated slots not protected)"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a mechanism makes of a model.

    Attributes:
        belief: canonical form of the belief under which the domain's account is kept.
        calibration: the noise of one histogram that shares its slots with no other.
    """

    belief: dict[str, Any]
    calibration: Calibration


def choose(
    mechanism: str,
    belief: Mapping[str, Any],
    *,
    states: int,
    epsilon: float,
    window: int,
    guarantee: str,
    interval_us: int | None = None,
) -> Chosen:
    """Find the domain's belief and the noise.

    Args:
        mechanism: ``privacy.mechanism`` of the settings.
        belief: canonical form of the model's belief.
        states: states of the query.
        epsilon: target.
        window: slots of a window.
        guarantee: ``stream``: one calibration for ever; ``window``: for each window alone.
        interval_us: length of a slot in microseconds, which a belief with a rhythm must fit.

    Raises:
        ChainError: the belief is none, or the mechanism has no noise for it.
        SettingsError: the mechanism does not fit the model or the guarantee.
    """
    given = read_belief(belief)
    _check_states(given, states)
    if isinstance(given, Directed) and interval_us is not None:
        given.check_interval(interval_us)
    length = None if guarantee == "stream" else window
    if mechanism == "forward-backward":
        held = given if isinstance(given, MixingBounds | Directed) else _everywhere(mechanism, given)
        if isinstance(held, MixingBounds):
            _check_rare(held, states)
        return Chosen(held.to_dict(), forward_backward(held, epsilon, length))
    if isinstance(given, Directed):
        raise SettingsError(
            f"privacy.mechanism is {mechanism}, which needs quilts or a spectral gap, and the model is of kind "
            f"{belief['kind']}, which has none: use forward-backward, or fit a model with --belief pooled"
        )
    if mechanism in EXACT:
        chains = _everywhere(mechanism, given)
        return Chosen(chains.to_dict(), _exact(mechanism, chains, epsilon, length))
    bounds = mixing_bounds(given)
    _check_rare(bounds, states)
    if mechanism == "mqm-approx":
        calibration = mqm_approx(bounds, epsilon, length)
    elif mechanism == "group-dp":
        if length is None:
            raise SettingsError(
                "privacy.mechanism is group-dp, whose noise grows with the window and has no limit for an endless "
                "stream: set privacy.guarantee to window, or use a quilt mechanism"
            )
        calibration = _without_quilt(group_dp(epsilon, length), "group-dp", length)
    elif mechanism == "entry-dp":
        calibration = _without_quilt(entry_dp(epsilon), UNPROTECTED, length)
    else:
        raise SettingsError(f"privacy.mechanism is {mechanism!r}, but must be one of {', '.join(MECHANISMS)}")
    return Chosen(bounds.to_dict(), calibration)


def sigma_with_room(belief: Mapping[str, Any], epsilon: float) -> float:
    """Noise for an endless stream that stays within epsilon although its belief may change to one like it.

    At a change less is known of what the slots on one side tell about those on the other (theory section 4, item 5).
    A stream that has no room for that would have to add noise at its first change, for ever.
    """
    held = read_belief(belief)
    ledger = Ledger(held)
    ledger.switch(0, held)
    return 1 / ledger.density_for(epsilon)


def _check_states(belief: AnyBelief, states: int) -> None:
    found = getattr(belief, "states", None)
    if found is not None and found != states:
        raise SettingsError(
            f"model: its chains have {found} states, and the settings have {states}; fit a model with the settings' "
            "edges and missing rule"
        )


def _check_rare(bounds: MixingBounds, states: int) -> None:
    if bounds.pi_min > 1 / states:
        raise SettingsError(
            f"model.pi_min is {bounds.pi_min:g}, and no chain of {states} states has its rarest above 1/{states}: the "
            "belief would hold for no series; give a smaller pi_min"
        )


def _everywhere(mechanism: str, belief: Belief) -> Chains:
    """The chains of a belief, with a start that is true in every slot: stationary, or any."""
    if isinstance(belief, MixingBounds):
        raise SettingsError(
            f"privacy.mechanism is {mechanism}, which reads the chains themselves, and the model gives bounds only: "
            "name a model file with a chain (`quiltstream fit` writes one), or use mqm-approx"
        )
    if starts_stationary(belief) or isinstance(belief, AnyInitial | BinaryInterval):
        return belief
    # a start that is known is true of one slot only, and windows begin anywhere
    members = (belief,) if isinstance(belief, MarkovChain) else belief.chains
    return AnyInitial([chain.transition for chain in members])


def _exact(mechanism: str, chains: Chains, epsilon: float, length: int | None) -> Calibration:
    method = EXACT[mechanism]
    if length is None or starts_stationary(chains):
        return method(chains, epsilon, length)
    return _window_of_any_start(mechanism, chains, epsilon, length)


def _window_of_any_start(mechanism: str, chains: Chains, epsilon: float, length: int) -> Calibration:
    """The noise of an endless stream, or that of group privacy where it is less.

    A window's own calibration uses how many slots of the window lie before a slot, and not only the distance of the
    quilt. The account does not know where a window begins in the chain: it uses the influence that holds at every
    slot, and would find up to some percent more than epsilon. Both of these it finds to cost at most epsilon.
    """
    whole = replace(
        _without_quilt(group_dp(epsilon, length), mechanism, length),
        assumptions=("any dependence within the window, which is too short for a quilt",),
    )
    try:
        endless = EXACT[mechanism](chains, epsilon)
    except ChainError:
        return whole
    return replace(endless, length=length) if endless.sigma <= whole.sigma else whole


def _without_quilt(baseline: Baseline, name: str, length: int | None) -> Calibration:
    return Calibration(
        epsilon=baseline.epsilon,
        sigma=baseline.sigma,
        quilt=Quilt(None, None),
        node=None,
        influence=0.0,
        length=length,
        method=name,
        pair=None,
        assumptions=baseline.assumptions,
    )
