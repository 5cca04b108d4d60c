"""Arguments that public functions refuse, and forms of one that mean the same."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from quiltstream.privacy import (
    AnyInitial,
    DobrushinBounds,
    FiniteClass,
    LaplaceHistogram,
    Ledger,
    MarkovChain,
    MixingBounds,
    PeriodicChain,
    Purpose,
    Schedule,
    belief_from_dict,
    forward_backward,
    mqm_approx,
    mqm_exact,
    pairwise,
)
from quiltstream.privacy.analysis import METHODS
from quiltstream.privacy.models import ChainError
from quiltstream.privacy.validation import LEAST_EPSILON, MOST_SLOTS

MATRIX = [[0.9, 0.1], [0.4, 0.6]]
CHAIN = MarkovChain(MATRIX)
BOUNDS = MixingBounds(0.2, 0.75)
TABLE = np.array([[90, 10], [9, 41]])


#: Refused of whatever must be finite and above 0.
NO_RATE = (math.nan, math.inf, -math.inf, 0, -3, "abc", 1j, [1.0])
#: Of each public function, what takes a loss or a density.
RATES = {
    "mqm_approx": lambda rate: mqm_approx(BOUNDS, rate),
    "mqm_exact": lambda rate: mqm_exact(CHAIN, rate, 20),
    "pairwise": lambda rate: pairwise(CHAIN, rate, 20),
    "forward_backward": lambda rate: forward_backward(CHAIN, rate),
    "Purpose": lambda rate: Purpose(20, epsilon=rate),
    "budget": lambda rate: Ledger(CHAIN, rate),
    "charge": lambda rate: Ledger(CHAIN).charge(0, 5, rate),
    "would_cost": lambda rate: Ledger(CHAIN).would_cost(0, 5, rate),
    "replay": lambda rate: Ledger(CHAIN).replay([(0, 5, rate)]),
    "ceiling": lambda rate: Ledger(CHAIN).ceiling(rate),
    "density_for": lambda rate: Ledger(CHAIN).density_for(rate),
    "longest_event": lambda rate: Ledger(CHAIN).longest_event(rate),
    "Schedule": lambda rate: Schedule(4, 4, 0, 40, rate),
    "from_sigma": lambda rate: LaplaceHistogram.from_sigma(2, rate),
}
#: Of each, what takes a number of slots.
SLOTS = {
    "charge": lambda slot: Ledger(CHAIN).charge(0, slot, 0.01),
    "switch": lambda slot: Ledger(CHAIN).switch(slot, BOUNDS),
    "event_loss": lambda slot: Ledger(CHAIN).event_loss(slot),
    "Schedule": lambda slot: Schedule(slot, 4, 0, None, 0.1),
    "mqm_exact": lambda slot: mqm_exact(CHAIN, 1.0, slot),
}


@pytest.mark.parametrize("called", RATES)
def test_a_loss_that_is_not_finite_and_above_0_is_refused(called):
    RATES[called](0.5)
    for rate in NO_RATE:
        with pytest.raises((TypeError, ValueError)):
            RATES[called](rate)


@pytest.mark.parametrize("called", SLOTS)
def test_slots_that_are_no_whole_number_are_refused(called):
    SLOTS[called](5)
    for slot in (2.5, True, "abc", math.nan, [1]):
        with pytest.raises((TypeError, ValueError)):
            SLOTS[called](slot)


@pytest.mark.parametrize("method", METHODS)
def test_every_calibration_takes_the_same_epsilons(method):
    calibrate = METHODS[method].calibrate
    chain = MarkovChain([[0.55, 0.45], [0.5, 0.5]])
    for epsilon in (LEAST_EPSILON * (1 - 2**-52), 1e-300, 5e-324):
        with pytest.raises(ValueError, match=r"epsilon is \S+, but must be at least 2\^-46 = 1\.42e-14"):
            calibrate(chain, epsilon, 10)
    assert calibrate(chain, LEAST_EPSILON, 10).sigma >= 2.0**46


@pytest.mark.night
@pytest.mark.parametrize("belief", [CHAIN, BOUNDS, AnyInitial([MATRIX]), DobrushinBounds({1: 0.5}, {1: 0.5})])
def test_an_epsilon_near_0_has_noise_or_is_refused_in_words(belief):
    assert forward_backward(belief, 1e-9).sigma >= 1e9
    for epsilon in (1e-12, LEAST_EPSILON):
        with pytest.raises(ChainError, match="too near to 0 for double precision"):
            forward_backward(belief, epsilon)


@pytest.mark.parametrize("slot", [MOST_SLOTS + 1, -MOST_SLOTS - 1, 10**40], ids=["above", "below", "far"])
def test_a_ledger_refuses_slots_that_no_float_holds(slot):
    ledger = Ledger(BOUNDS, 1.0)
    with pytest.raises(ValueError, match=r"(start|stop) is .* but must be at (least|most) -?9007199254740992"):
        ledger.charge(min(slot, 0), max(slot, 1), 0.01)
    with pytest.raises(ValueError, match=r"but must be at (least|most) -?9007199254740992"):
        ledger.switch(slot, BOUNDS)
    with pytest.raises(ValueError, match=r"but must be at (least|most) -?9007199254740992"):
        ledger.extended_loss([Schedule(1, 1, 0, max(slot, MOST_SLOTS + 1), 0.01)])
    assert ledger.charge(-MOST_SLOTS, MOST_SLOTS, 0.001).loss_after < 1


@pytest.mark.parametrize("made", [MarkovChain, lambda matrix: PeriodicChain([matrix]), lambda one: AnyInitial([one])])
def test_nothing_of_a_matrix_is_dropped_in_silence(made):
    masked = np.ma.masked_array(MATRIX, mask=[[False, True], [False, False]])
    for matrix, said in (
        (np.array(MATRIX) + 0j, "must be an array of numbers with rows of equal length, not of complex128"),
        ((np.array(MATRIX) + 0j).astype(object), "not of complex"),
        (masked, "not a masked array, whose mask would be dropped: fill it first"),
    ):
        with pytest.raises(ChainError, match=said):
            made(matrix)
    counts = np.ma.masked_array(TABLE, mask=[[False, True], [False, False]])
    with pytest.raises(TypeError, match="counts is a masked array, whose mask would be dropped"):
        LaplaceHistogram(2, Fraction(3)).randomise(counts)


def test_a_class_whose_members_differ_in_states_is_refused():
    for made in (FiniteClass, lambda chains: AnyInitial([one.transition for one in chains])):
        with pytest.raises(ChainError, match=r"have \[2, 3\] states: fit them all over the same bins"):
            made([CHAIN, MarkovChain(np.full((3, 3), 1 / 3))])
    found = FiniteClass([CHAIN, CHAIN]).to_dict()
    found["chains"][1] = MarkovChain(np.full((3, 3), 1 / 3)).to_dict()
    with pytest.raises(ChainError, match="same bins"):
        belief_from_dict(found)
