"""What a mechanism makes of a model: the belief of the domain's account, and the noise.

The ledger prices every charge under the belief that is on record with the domain, so mechanism and belief go together:
noise from bounds needs an account under the same bounds, and noise from the exact influence of chains an account under
these chains. Every mechanism here then costs at most its epsilon in the account, but for ``entry-dp``, which claims
nothing about correlated slots: it costs what one release of its density loses under the belief.

>>> bounds = {"kind": "mixing-bounds", "pi_min": 0.2, "gap": 0.75, "gap_kind": "unknown"}
>>> chosen = choose("mqm-approx", bounds, states=2, epsilon=1.0, window=100, guarantee="stream")
>>> chosen.belief == bounds, round(chosen.calibration.sigma, 4)
(True, 31.7098)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from ..privacy.accounting.ledger import Ledger
from ..privacy.analysis.methods import METHODS, Method
from ..privacy.models.belief import Belief
from ..privacy.models.classes import MixingBounds, mixing_bounds
from ..privacy.models.markov_chain import ChainError
from ..privacy.models.serialisation import KINDS, belief_from_dict, check_belief
from ..privacy.quilts.calibration import Calibration
from ..schemas.model_file import STAND_IN_METHOD, Model, Provenance
from ..schemas.settings.base import SettingsError
from ..schemas.settings.job import Mechanism, Settings
from ..schemas.settings.model import STAND_IN, Bounds, EstimatedModel

#: Every mechanism of the settings.
MECHANISMS: tuple[str, ...] = get_args(Mechanism)


Lengths = tuple[tuple[int, Calibration], ...]
"""(slots of a window, noise for windows of that length), by rising length."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a mechanism makes of a model."""

    belief: dict[str, Any]  # canonical form of the belief under which the domain's account is kept
    # the noise of one histogram that shares its slots with no other; of the window that needs most
    calibration: Calibration
    lengths: Lengths = ()  # the noise of each length of windows, by their slots; nothing where all need the same


def choose(
    mechanism: str,
    belief: Mapping[str, Any],
    *,
    states: int,
    epsilon: float,
    window: int | Sequence[int],
    guarantee: str,
    interval_us: int | None = None,
) -> Chosen:
    """Find the domain's belief and the noise.

    Args:
        mechanism: ``privacy.mechanism`` of the settings.
        belief: canonical form of the model's belief.
        states: states of the query.
        epsilon: target.
        window: slots of a window; or of each window that a calendar has.
        guarantee: ``stream``: one calibration for ever; ``window``: for each window alone, by its own length: a window
            of n slots loses at most epsilon alone by the theorem of the mechanism for T = n ([SWC17] 4.3 for quilts;
            the account's own for the others). What windows of unequal noise lose together is the account's, which
            has the density of every slot and no length.
        interval_us: length of a slot in microseconds, which a belief with a rhythm must fit.

    Raises:
        ChainError: the belief is none, or the mechanism has no noise for it.
        SettingsError: the mechanism does not fit the model or the guarantee.
    """
    if mechanism not in MECHANISMS:
        raise SettingsError(f"privacy.mechanism is {mechanism!r}, but must be one of {', '.join(MECHANISMS)}")
    given, method = belief_from_dict(belief), METHODS[mechanism]
    if given.states is not None and given.states != states:
        raise SettingsError(
            f"model: its chains have {given.states} states, and the settings have {states}; fit a model with the "
            "settings' edges and missing rule"
        )
    if interval_us is not None:
        given.check_interval(interval_us)
    if guarantee == "stream":
        lengths: Sequence[int | None] = (None,)
    else:
        lengths = (window,) if isinstance(window, int) else window
    if guarantee == "stream" and not method.endless:
        raise SettingsError(
            f"privacy.mechanism is {mechanism}, whose noise grows with the window and has no limit for an endless "
            "stream: set privacy.guarantee to window, or use a quilt mechanism"
        )
    held = account_belief(method, given, states)
    named = [replace(method.anywhere(held, epsilon, length), method=method.label) for length in lengths]
    most = max(named, key=lambda one: one.sigma)
    alike = len({one.sigma for one in named}) == 1
    own = () if alike else tuple((slots, one) for slots, one in zip(lengths, named, strict=True) if slots is not None)
    return Chosen(held.to_dict(), most, own)


def density_with_room(belief: Mapping[str, Any], epsilon: float) -> float:
    """Loss per slot of an endless stream that stays within epsilon although its belief may change to one like it.

    At a change less is known of what the slots on one side tell about those on the other (theory section 4, item 5).
    No window of the stream needs to be at the change: neighbours of it tell less, too. It does not hold for a change to
    a belief that mixes more slowly: the ledger prices that, and may refuse it.

    Args:
        belief: canonical form of the account's belief.
        epsilon: target of the stream.

    Raises:
        ChainError: no density above 0 keeps within the target.
    """
    held = belief_from_dict(belief)
    ledger = Ledger(held)
    ledger.switch(0, held)
    return ledger.density_for(epsilon)


def _check_rare(bounds: MixingBounds, states: int) -> None:
    if bounds.pi_min > 1 / states:
        raise SettingsError(
            f"model.pi_min is {bounds.pi_min:g}, and no chain of {states} states has its rarest above 1/{states}: the "
            "belief would hold for no series; give a smaller pi_min"
        )


def account_belief(method: Method, given: Belief, states: int) -> Belief:
    """What the account believes: the model, with a start that is true in every slot, or the bounds of its chains.

    Windows begin anywhere, and a start that is known is true of one slot only.

    Raises:
        ChainError: the chains of the model have no bounds.
        SettingsError: the method needs what the model does not say, or no chain has such bounds.
    """
    if method.reads == "directions":
        held = given.everywhere
        if held.states is None and held.bounds is not None:
            _check_rare(held.bounds, states)
        return held
    if not given.has_quilts:
        raise SettingsError(
            f"privacy.mechanism is {method.name}, which needs quilts or a spectral gap, and the model is of kind "
            f"{given.to_dict()['kind']}, which has none: its chains may change in time, as with the kind of day, and "
            "pi_min and the gap are those of one kernel and its own law; use forward-backward, or fit a model with "
            "--belief series or pooled"
        )
    if method.reads == "chains":
        if not given.members:
            raise SettingsError(
                f"privacy.mechanism is {method.name}, which reads the chains themselves, and the model gives bounds "
                "only: name a model file with a chain (`quiltstream fit` writes one), or use mqm-approx"
            )
        return given.everywhere
    bounds = mixing_bounds(given)
    _check_rare(bounds, states)
    return bounds


def not_a_model(given: object) -> str | None:
    """What to do with a belief, or its plain form, in the place of a model; None for anything else."""
    if isinstance(given, Mapping) and cast("Mapping[str, Any]", given).get("kind") in KINDS:
        made, plain = "the plain form of a belief", "belief"
    else:
        try:
            check_belief(given)
        except TypeError:
            return None
        made, plain = f"a {type(given).__name__}", "belief.to_dict()"
    return (
        f"model is {made}, which says neither its states nor its interval: give "
        f"Model({plain}, StateSpace(...), interval_us, Provenance(...)), all from quiltstream.schemas"
    )


def model_of(settings: Settings) -> Model:
    """The model a settings file names, or one made of the bounds it gives."""
    if isinstance(settings.model, EstimatedModel):
        raise SettingsError(
            "model.estimate is made by `quiltstream run`; where there is no such run, give a model file or bounds"
        )
    return loaded(settings.model, settings)


def loaded(given: str | Bounds, settings: Settings) -> Model:
    """The model of a file, one made of bounds, or a stand-in.

    Raises:
        ModelError: the file cannot be used.
        SettingsError: no chain has such bounds.
    """
    if given != STAND_IN and not isinstance(given, Bounds):
        return Model.load(Path(settings.path_of_model(given)))
    if isinstance(given, Bounds):
        return of_bounds(given)
    return _of_any(stand_in(settings.grid.interval_us, settings.space.size), STAND_IN_METHOD)


def of_bounds(given: Bounds, where: str = "model.") -> Model:
    """The model of bounds given by hand; ``where`` is what a message says before the name of one.

    Raises:
        SettingsError: no chain has such bounds.
    """
    try:
        bounds = MixingBounds(given.pi_min, given.gap, kind=given.kind)
    except ChainError as error:
        raise SettingsError(f"{where}{error}") from None
    return _of_any(bounds, "bounds given by hand")


def _of_any(bounds: MixingBounds, method: str) -> Model:
    """The model of bounds that hold for any states and any interval."""
    return Model(belief=bounds.to_dict(), states=None, interval_us=None, provenance=Provenance(method=method))


#: A stand-in's smallest stationary probability, and its eigengap of P P* over :data:`_STAND_IN_US`, half an hour.
_PI_MIN, _GAP, _STAND_IN_US = 0.01, 0.1, 1_800_000_000


def stand_in(interval_us: int, states: int) -> MixingBounds:
    """Bounds that stand in for a belief, without a look at data; nothing says that they hold for any series.

    A chain that is watched more often forgets less from one slot to the next: P P* of a chain of continuous time has
    the second eigenvalue exp(-2 r t) over slots of t, so that 1 - gap is a power of what it is over half an hour. Slots
    that are longer have no larger gap, because what lasts for days does not follow from what lasts for hours.

    >>> stand_in(1_800_000_000, 5).gap, round(stand_in(60_000_000, 5).gap, 6)
    (0.1, 0.003506)
    """
    share = min(1.0, interval_us / _STAND_IN_US)
    gap = _GAP if share >= 1 else -math.expm1(share * math.log1p(-_GAP))
    return MixingBounds(min(_PI_MIN, 1 / (2 * states)), gap)
