"""The audit against likelihoods written out, and every calibration and the ledger against the audit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import FiniteClass, Ledger, MarkovChain, MixingBounds
from quiltstream.privacy.analysis.methods import METHODS
from quiltstream.privacy.models import Belief
from quiltstream.privacy.models.classes import AnyInitial, BinaryInterval
from quiltstream.privacy.papers.audit import AuditRelease, exact_loss

from ...depth import examples
from .. import audit_truth
from ..audit_truth import Query
from ..strategies import distributions, transitions

# slots enumerated, and how many histograms may be released over them
LENGTH = {2: 6, 3: 4}
HISTOGRAMS = {2: 3, 3: 2}
# the ledger rounds outward; the enumeration's own rounding is far less than this
TINY = 1e-9

BINARY = MarkovChain([[0.9, 0.1], [0.4, 0.6]])


@st.composite
def releases(draw, states, length, most=None):
    """Releases in any overlap, few enough to be enumerated; at most one of them counts transitions."""
    found = []
    for number in range(draw(st.integers(1, HISTOGRAMS[states] if most is None else most))):
        start = draw(st.integers(0, length - 1))
        stop = draw(st.integers(start + 1, length))
        kinds = ["histogram", "count", "transitions"] if number == 0 and states == 2 else ["histogram", "count"]
        statistic = draw(st.sampled_from(kinds))
        if statistic == "transitions":
            stop = min(stop, start + 4)
        state = draw(st.integers(0, states - 1)) if statistic == "count" else None
        epsilon_dp = draw(st.floats(0.01, 3.0))
        sensitivity = {"histogram": 2, "count": 1, "transitions": 4}[statistic]
        found.append(AuditRelease(start, stop, sensitivity / epsilon_dp, statistic, state))
    return found


def written_out(release):
    return Query(release.start, release.stop, float(release.scale), release.statistic, release.state)


def truth(chain, length, found, output, law):
    queries = [written_out(release) for release in found]
    start = chain.stationary if chain.initial is None else chain.initial
    return audit_truth.ratio(start.tolist(), chain.transition.tolist(), queries, output, length=length, law=law)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_the_witness_has_the_loss_and_no_other_output_has_more(data):
    matrix = data.draw(transitions(zeros=data.draw(st.booleans()), least=1e-3))
    initial = data.draw(distributions(len(matrix)))
    length = data.draw(st.integers(1, LENGTH[len(matrix)] - 1))
    found = data.draw(releases(len(matrix), length, most=2))
    chain = MarkovChain(matrix, initial)
    exact = exact_loss(chain, length, found)
    if exact.slot is None or exact.pair is None:
        assert exact.loss == 0
    else:
        x, y = exact.pair
        for law in (audit_truth.continuous, audit_truth.discrete):
            at_witness = truth(chain, length, found, exact.output, law)
            assert at_witness[exact.slot, x, y] == pytest.approx(exact.loss, rel=1e-9, abs=1e-12)
    sizes = [{"histogram": len(matrix), "count": 1, "transitions": len(matrix) ** 2}[one.statistic] for one in found]
    value = st.one_of(st.floats(-2.0, length + 2.0), st.integers(-3, length + 3))
    for _ in range(3):
        output = [data.draw(st.lists(value, min_size=size, max_size=size)) for size in sizes]
        ratios = truth(chain, length, found, output, audit_truth.continuous)
        assert max(ratios.values(), default=0.0) <= exact.loss + 1e-9


class TestWorkedCases:
    def test_one_cell_of_independent_slots_loses_exactly_its_charge(self):
        free = MarkovChain([[0.5, 0.5], [0.5, 0.5]])
        found = exact_loss(free, 3, [AuditRelease(1, 2, scale=4.0)])
        assert found.loss == pytest.approx(0.5, rel=1e-12)
        assert (found.slot, found.outputs) == (1, 4)
        assert set(found.output[0]) == {0, 1}

    def test_a_chain_that_never_moves_loses_the_whole_window(self):
        still = MarkovChain(np.eye(3), [0.2, 0.3, 0.5])
        assert exact_loss(still, 4, [AuditRelease(0, 4, scale=2.0)]).loss == pytest.approx(4.0, rel=1e-12)

    def test_one_cell_moves_transitions_by_four(self):
        # a middle cell whose neighbours are pinned: only it can differ
        pinned = MarkovChain([[0, 0, 0.5, 0.5], [1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]], [1, 0, 0, 0])
        found = exact_loss(pinned, 3, [AuditRelease(0, 3, scale=8.0, statistic="transitions")])
        assert found.loss == pytest.approx(0.5, rel=1e-12)
        assert found.slot == 1

    def test_nothing_published_and_nothing_secret_lose_nothing(self):
        assert exact_loss(BINARY, 4, []).loss == 0
        one = exact_loss(MarkovChain([[1.0]]), 4, [AuditRelease(0, 4, 0.1)])
        assert (one.loss, one.slot, one.pair) == (0, None, None)
        certain = MarkovChain([[0, 1], [1, 0]], [1, 0])
        assert exact_loss(certain, 4, [AuditRelease(0, 4, 0.1)]).slot is None

    def test_the_worst_member_of_a_class_counts(self):
        free, sticky = MarkovChain([[0.5, 0.5], [0.5, 0.5]]), MarkovChain([[0.99, 0.01], [0.01, 0.99]])
        found = exact_loss(FiniteClass([free, sticky, free]), 5, [AuditRelease(0, 5, 10.0)])
        assert found.member == 1
        assert found.loss == exact_loss(sticky, 5, [AuditRelease(0, 5, 10.0)]).loss


def mixes(chain):
    return chain.is_irreducible and chain.period == 1 and chain.gap > 1e-6


def beliefs_that_hold(chain: MarkovChain, others: list[MarkovChain]) -> list[Belief]:
    """What may truly be believed of a series that follows the chain."""
    found: list[Belief] = [chain, FiniteClass([chain, *others])]
    plain = MarkovChain(chain.transition)
    if mixes(plain):
        found.append(MixingBounds.of(plain))
        found.append(MixingBounds(min(0.5, plain.pi_min) / 2, plain.gap / 2, "multiplicative"))
    found.append(AnyInitial([other.transition for other in others] + [chain.transition]))
    if chain.states == 2:
        stays = [(max(0.0, stay - 0.05), min(1.0, stay + 0.05)) for stay in np.diag(chain.transition).tolist()]
        found.append(BinaryInterval(*stays))
    return found


def ledgers(belief: Belief) -> list[Ledger]:
    """The ledger of a belief, and the one that is told where a chain with an initial distribution begins."""
    chains = belief.chains if isinstance(belief, FiniteClass) else [belief]
    begins = any(isinstance(chain, MarkovChain) and chain.initial is not None for chain in chains)
    return [Ledger(belief), *([Ledger(belief, start=0)] if begins else [])]


def drawn_chain(data, states=None):
    matrix = data.draw(
        transitions(zeros=data.draw(st.booleans()), least=data.draw(st.sampled_from([0.01, 0.05])))
        if states is None
        else transitions(states=st.just(states))
    )
    initial = data.draw(st.one_of(st.none(), distributions(len(matrix))))
    chain = MarkovChain(matrix, initial)
    assume(initial is not None or chain.is_irreducible)
    return chain


def the_ledger_is_never_below(data):
    chain = drawn_chain(data)
    others = [drawn_chain(data, chain.states) for _ in range(data.draw(st.integers(0, 1)))]
    length = LENGTH[chain.states]
    found = data.draw(releases(chain.states, length))
    true_loss = exact_loss(chain, length, found).loss
    charges = [release.charge for release in found]
    for belief in beliefs_that_hold(chain, others):
        for ledger in ledgers(belief):
            assert ledger.loss_of(charges) >= true_loss - TINY
    both = FiniteClass([chain, *others])
    worst = exact_loss(both, length, found).loss
    for ledger in ledgers(both):
        assert ledger.loss_of(charges) >= worst - TINY


def noise(calibrate, belief, epsilon, length):
    """Sigma, or None where the method says that it does not apply to the belief."""
    try:
        sigma = calibrate(belief, epsilon, length).sigma
    except ValueError:
        return None
    return max(sigma, 0.1)  # 0 where nothing is secret; then little noise tells nothing either


def no_calibration_is_too_small(data):
    chain = drawn_chain(data)
    length = data.draw(st.integers(1, LENGTH[chain.states]))
    epsilon = data.draw(st.sampled_from([0.2, 1.0, 5.0]))
    assume(mixes(MarkovChain(chain.transition)))
    cut = data.draw(st.integers(0, length))
    for belief in beliefs_that_hold(chain, []):
        for calibrate in (METHODS[name] for name in METHODS if name != "entry-dp"):
            if (window := noise(calibrate, belief, epsilon, length)) is not None:
                alone = [AuditRelease(0, length, 2 * window)]
                assert exact_loss(chain, length, alone).loss <= epsilon + TINY
            if (stream := noise(calibrate, belief, epsilon, None)) is not None:
                ends = [(start, stop) for start, stop in ((0, cut), (cut, length)) if start < stop]
                tumbling = [AuditRelease(start, stop, 2 * stream) for start, stop in ends]
                assert exact_loss(chain, length, tumbling).loss <= epsilon + TINY


QUICKLY = settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


@pytest.mark.night
@QUICKLY
@given(st.data())
def test_the_true_loss_is_never_above_the_ledger(data):
    the_ledger_is_never_below(data)


@pytest.mark.night
@settings(QUICKLY, max_examples=examples(120))
@given(st.data())
def test_the_true_loss_is_never_above_the_target_of_a_calibration(data):
    no_calibration_is_too_small(data)
