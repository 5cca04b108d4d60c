"""Which noise and which belief of the account belong to each mechanism of the settings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import (
    AnyInitial,
    BinaryInterval,
    FiniteClass,
    LaplaceHistogram,
    Ledger,
    MarkovChain,
    MixingBounds,
    Schedule,
    belief_from_dict,
    mqm_approx,
    mqm_exact,
    pairwise,
)
from quiltstream.privacy.accounting.certificates import certified
from quiltstream.privacy.accounting.forward_backward import stream_by_quilts
from quiltstream.privacy.accounting.quilt_account import loss_by_quilts
from quiltstream.privacy.analysis.methods import METHODS
from quiltstream.privacy.models import Belief, ChainError
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.transforms.calibrating import MECHANISMS, Chosen, choose, density_with_room

from ..depth import examples
from ..privacy import reference
from ..privacy.strategies import transitions

EXACT = [name for name in MECHANISMS if METHODS[name].reads == "chains"]
UNPROTECTED = METHODS["entry-dp"].label

MATRIX = [[0.5, 0.4, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]]
OTHER = [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]]
BINARY = [[0.9, 0.1], [0.4, 0.6]]
CHAIN = MarkovChain(MATRIX)

BELIEFS: dict[str, Belief] = {
    "a stationary chain": CHAIN,
    "a chain with a start": MarkovChain(MATRIX, [1, 0, 0]),
    "a class": FiniteClass([CHAIN, MarkovChain(OTHER)]),
    "a class of which one has a start": FiniteClass([CHAIN, MarkovChain(OTHER, [0, 0, 1])]),
    "any start": AnyInitial([MATRIX, OTHER]),
    "an interval": BinaryInterval((0.8, 0.9), (0.55, 0.6)),
    "bounds": MixingBounds(0.2, 0.75),
}


def chosen(
    mechanism: str, belief: Belief, *, guarantee: str = "stream", window: int = 12, epsilon: float = 1.0
) -> Chosen:
    states = belief.states or 3
    return choose(mechanism, belief.to_dict(), states=states, epsilon=epsilon, window=window, guarantee=guarantee)


def scheduled(found: Chosen, bins: int, window: int, windows: int | None) -> Schedule:
    """Windows that adjoin, with the noise as it is drawn."""
    density = LaplaceHistogram.from_sigma(bins, found.calibration.sigma).epsilon_dp
    stop = None if windows is None else windows * window
    return Schedule(size=window, every=window, start=0, stop=stop, epsilon_dp=density)


def loss(found: Chosen, bins: int, window: int, windows: int | None) -> float:
    """What an account finds windows that adjoin to cost."""
    return Ledger(belief_from_dict(found.belief)).extended_loss([scheduled(found, bins, window, windows)])


def by_quilts(found: Chosen, bins: int, window: int) -> float:
    """What the quilts find endless windows that adjoin to cost."""
    return loss_by_quilts(belief_from_dict(found.belief), schedules=[scheduled(found, bins, window, None)])


def applies(mechanism: str, name: str) -> bool:
    return name != "bounds" or mechanism not in EXACT


@pytest.mark.night
@pytest.mark.parametrize(
    ("mechanism", "name"), [pair for pair in product(["mqm-approx", *EXACT], BELIEFS) if applies(*pair)]
)
def test_an_endless_stream_costs_epsilon_by_the_quilts_and_less_in_the_account(mechanism: str, name: str) -> None:
    found = chosen(mechanism, BELIEFS[name])
    assert 0.5 < by_quilts(found, 3, 12) <= 1
    assert loss(found, 3, 12, None) < 0.9 * by_quilts(found, 3, 12)


@pytest.mark.night
@pytest.mark.parametrize("window", [1, 5, 60])
@pytest.mark.parametrize(
    ("mechanism", "name"), [pair for pair in product(["mqm-approx", *EXACT, "group-dp"], BELIEFS) if applies(*pair)]
)
def test_a_window_alone_costs_at_most_epsilon_in_the_account_of_its_belief(
    mechanism: str, name: str, window: int
) -> None:
    found = chosen(mechanism, BELIEFS[name], guarantee="window", window=window)
    assert 0 < loss(found, 3, window, 1) <= 1


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_a_window_with_noise_by_its_length_loses_at_most_epsilon_alone(data: st.DataObject) -> None:
    """By enumeration: what ``guarantee: window`` promises of windows by the calendar."""
    matrix = data.draw(transitions(least=1e-2).filter(lambda found: len(found) == 2))
    assume(MarkovChain(matrix).is_irreducible and MarkovChain(matrix).period == 1)
    belief, epsilon = MarkovChain(matrix), data.draw(st.floats(0.2, 3.0))
    lengths = sorted(data.draw(st.sets(st.integers(1, 7), min_size=2, max_size=4)))
    for mechanism in ("forward-backward", "mqm-exact", "pairwise", "group-dp"):
        found = choose(mechanism, belief.to_dict(), states=2, epsilon=epsilon, window=lengths, guarantee="window")
        own = dict(found.lengths) or dict.fromkeys(lengths, found.calibration)
        assert sorted(own) == lengths
        assert max(one.sigma for one in own.values()) == found.calibration.sigma
        for slots, one in own.items():
            alone = choose(mechanism, belief.to_dict(), states=2, epsilon=epsilon, window=slots, guarantee="window")
            assert one.sigma == alone.calibration.sigma
            density = LaplaceHistogram.from_sigma(2, one.sigma).epsilon_dp
            charges, initial = [(0, slots, density)], reference.stationary(matrix)
            assert reference.true_loss(initial, matrix, slots, charges) <= epsilon + 1e-9


@pytest.mark.night
@pytest.mark.parametrize("seed", range(examples(40)))
def test_no_window_of_a_random_chain_with_any_start_costs_more_than_epsilon(seed: int) -> None:
    """The window's own calibration can be some percent short of that, which is why it is not used."""
    draw = np.random.default_rng(seed)
    states, window = int(draw.integers(2, 5)), int(draw.integers(2, 50))
    belief = AnyInitial([0.9 * draw.dirichlet(np.ones(states), size=states) + 0.1 / states])
    for mechanism in ("mqm-exact", "pairwise"):
        found = chosen(mechanism, belief, guarantee="window", window=window)
        assert loss(found, states, window, 1) <= 1


def test_the_noise_is_that_of_the_methods() -> None:
    for length, guarantee in ((None, "stream"), (12, "window")):
        for mechanism, method in (("mqm-approx", mqm_approx), ("mqm-exact", mqm_exact), ("pairwise", pairwise)):
            found = chosen(mechanism, CHAIN, guarantee=guarantee)
            assert found.calibration.sigma == method(CHAIN, 1.0, length).sigma
            assert found.calibration.method == mechanism
    assert chosen("group-dp", CHAIN, guarantee="window").calibration.sigma == 12
    assert chosen("entry-dp", CHAIN).calibration.sigma == 1


def test_the_account_is_kept_under_bounds_or_under_the_chains_by_the_mechanism() -> None:
    bounds = MixingBounds.of(CHAIN).to_dict()
    assert {name: chosen(name, CHAIN, guarantee="window").belief == bounds for name in MECHANISMS} == {
        "mqm-approx": True,
        "mqm-exact": False,
        "pairwise": False,
        "forward-backward": False,
        "group-dp": True,
        "entry-dp": True,
    }
    assert chosen("pairwise", CHAIN).belief == CHAIN.to_dict()


def test_a_window_of_any_start_too_short_for_a_quilt_has_group_noise() -> None:
    slow = AnyInitial([[[0.999, 0.001], [0.001, 0.999]]])
    found = chosen("pairwise", slow, guarantee="window").calibration
    assert (found.sigma, found.quilt.left, found.quilt.right, found.method) == (12, None, None, "pairwise")
    never = AnyInitial([[[0.0, 1.0], [1.0, 0.0]]])
    assert chosen("mqm-exact", never, guarantee="window").calibration.sigma == 12


def test_the_unprotective_baseline_is_marked_and_charged_its_loss() -> None:
    found = chosen("entry-dp", CHAIN)
    assert found.calibration.method == UNPROTECTED
    assert "not protected" in UNPROTECTED
    lost = loss(found, 3, 12, None)
    density = LaplaceHistogram.from_sigma(3, 1.0).epsilon_dp
    assert lost == Ledger(MixingBounds.of(CHAIN)).ceiling(density)
    assert lost > 2
    assert "does not protect correlated slots" in found.calibration.assumptions[0]


@pytest.mark.night
@pytest.mark.parametrize("guarantee", ["stream", "window"])
@pytest.mark.parametrize("name", BELIEFS)
def test_by_forward_backward_epsilon_holds_in_the_account(name: str, guarantee: str) -> None:
    found = chosen("forward-backward", BELIEFS[name], guarantee=guarantee)
    density = LaplaceHistogram.from_sigma(3, found.calibration.sigma).epsilon_dp
    held = belief_from_dict(found.belief)
    assert found.calibration.method == "forward-backward"
    ledger = Ledger(held, budget=1.0)
    if guarantee == "stream":
        assert 0.99 < ledger.ceiling(density) <= 1
        assert ledger.admitted_prefix(Schedule(12, 12, 0, None, density)) is None
        quilts = stream_by_quilts(held, 1.0).density
        assert density > 1.2 * quilts
    else:
        assert ledger.charge(0, 12, density).loss_after <= 1


@pytest.mark.night
def test_by_forward_backward_a_window_has_at_most_the_noise_of_group_privacy() -> None:
    never = AnyInitial([[[0.0, 1.0], [1.0, 0.0]]])
    assert chosen("forward-backward", never, guarantee="window").calibration.sigma == pytest.approx(12)
    with pytest.raises(ChainError, match="no bound for an endless stream"):
        chosen("forward-backward", never)
    with pytest.raises(SettingsError, match=r"model\.pi_min is 0\.5"):
        chosen("forward-backward", MixingBounds(0.5, 0.75), guarantee="window")


def test_group_privacy_has_no_noise_for_an_endless_stream() -> None:
    with pytest.raises(SettingsError, match=r"group-dp.*privacy\.guarantee to window"):
        chosen("group-dp", CHAIN)


def test_chains_of_other_states_than_the_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"2 states, and the settings have 3"):
        choose("pairwise", MarkovChain(BINARY).to_dict(), states=3, epsilon=1.0, window=12, guarantee="window")


def test_a_chain_that_does_not_mix_has_no_noise_for_an_endless_stream() -> None:
    periodic = MarkovChain([[0.0, 1.0], [1.0, 0.0]])
    for mechanism in ("mqm-approx", "mqm-exact", "pairwise"):
        with pytest.raises(ChainError):
            chosen(mechanism, periodic)
    assert chosen("mqm-exact", periodic, guarantee="window").calibration.sigma == 12


def test_a_domain_keeps_the_certificate_that_its_model_carries() -> None:
    kept = certified(MarkovChain(MATRIX))
    for mechanism in ("forward-backward", "mqm-exact"):
        found = chosen(mechanism, kept)
        assert belief_from_dict(found.belief) == kept
        assert loss(found, 3, 12, None) <= 1
    assert chosen("mqm-approx", kept).belief == MixingBounds.of(MarkovChain(MATRIX)).to_dict()


@pytest.mark.night
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_a_stream_with_room_for_a_change_loses_at_most_epsilon_and_little_less(epsilon: float) -> None:
    held = MixingBounds(0.2, 0.75)
    density = density_with_room(held.to_dict(), epsilon)
    losses: list[float] = []
    for change in (None, 0, 100, 336, 337, 1000):
        ledger = Ledger(held)
        if change is not None:
            ledger.switch(change, held)
        losses.append(ledger.extended_loss([Schedule(336, 336, 0, None, density)]))
    assert 0.99 * epsilon < max(losses) <= epsilon
    if epsilon <= 1:
        assert density > 1.9 * stream_by_quilts(held, epsilon).density


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_a_stream_with_room_loses_at_most_epsilon_by_enumeration(data: st.DataObject) -> None:
    chains = [data.draw(transitions(st.just(2), least=0.1)) for _ in range(2)]
    bounds = [MixingBounds.of(MarkovChain(chain)) for chain in chains]
    held = MixingBounds(min(one.pi_min for one in bounds), min(one.gap for one in bounds), kind=bounds[0].kind)
    assume(bounds[0].kind == bounds[1].kind and held.gap > 0.05)
    epsilon = data.draw(st.floats(0.3, 6.0))
    density = density_with_room(held.to_dict(), epsilon)
    length, change, cut = 7, data.draw(st.integers(0, 7)), data.draw(st.integers(1, 6))
    steps = [chains[slot >= change] for slot in range(length - 1)]
    start = data.draw(st.sampled_from([reference.stationary(chains[0]), np.array([1.0, 0.0]), np.array([0.0, 1.0])]))
    charges = [(0, cut, density), (cut, length, density)]
    assert reference.changing_loss(start, steps, charges) <= epsilon
    assert reference.changing_loss(start, steps, charges, counts=True) <= epsilon
