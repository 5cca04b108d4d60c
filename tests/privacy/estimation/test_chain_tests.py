"""The tests of a history: their formulas on small tables, their size and power by simulation.

The simulations have fixed seeds. A test of size 5 % may reject at most so many of the repeats that a binomial law of
rate 7 % exceeds it with probability 1e-9 (2 % are left for the distance from the limit law), and not fewer than so many
that one of rate 3.5 % falls below it with that probability.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from quiltstream.privacy.estimation.hypothesis_tests import (
    TripleCounts,
    homogeneity_test,
    order_test,
    reversibility_test,
)
from quiltstream.privacy.estimation.transition_counts import EstimationError

from ...depth import examples
from ..homes import moves, runs_by_home

FALSE_ALARM = 1e-9
REPEATS, LENGTH = 2000, 1500

BALANCED = np.array([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]])
TURNING = np.array([[0.5, 0.33, 0.17], [0.17, 0.5, 0.33], [0.33, 0.17, 0.5]])


def simulate(rng, matrix, repeats, length):
    """Paths from the uniform distribution, stationary for both matrices, shape (repeats, length)."""
    steps = np.cumsum(matrix, axis=1)
    state = rng.integers(0, len(matrix), repeats)
    found = np.empty((repeats, length), dtype=np.int64)
    for slot in range(length):
        found[:, slot] = state
        state = (rng.random(repeats)[:, np.newaxis] > steps[state][:, :-1]).sum(axis=1)
    return found


def tables(paths, states):
    moves = paths[:, :-1] * states + paths[:, 1:]
    return np.array([np.bincount(row, minlength=states**2).reshape(states, states) for row in moves])


def assert_size(p_values):
    rejected = int((np.array(p_values) < 0.05).sum())
    assert (
        stats.binom.isf(FALSE_ALARM, len(p_values), 0.07)
        >= rejected
        >= stats.binom.ppf(FALSE_ALARM, len(p_values), 0.035)
    )


class TestReversibility:
    def test_has_its_size(self):
        found = [
            reversibility_test(t) for t in tables(simulate(np.random.default_rng(1), BALANCED, REPEATS, LENGTH), 3)
        ]
        assert {one.degrees for one in found} == {1}
        assert_size([one.p_value for one in found])

    def test_has_its_size_for_many_short_runs(self):
        # runs of two cells: pairs drawn at random, whose imbalance at the states is chance and no circulation
        rng = np.random.default_rng(2)
        flow = (BALANCED / 3).ravel()
        found = [reversibility_test(rng.multinomial(LENGTH, flow).reshape(3, 3)) for _ in range(REPEATS)]
        assert_size([one.p_value for one in found])

    def test_finds_a_circulation(self):
        found = [reversibility_test(t) for t in tables(simulate(np.random.default_rng(3), TURNING, 50, LENGTH), 3)]
        assert max(one.p_value for one in found) < 1e-6

    def test_of_one_long_run_is_nearly_bowkers_statistic(self):
        (table,) = tables(simulate(np.random.default_rng(4), TURNING, 1, 20_000), 3)
        bowker = sum(
            (table[x, y] - table[y, x]) ** 2 / (table[x, y] + table[y, x]) for x, y in [(0, 1), (0, 2), (1, 2)]
        )
        assert reversibility_test(table).statistic == pytest.approx(bowker, rel=1e-3)

    @pytest.mark.parametrize(
        ("table", "degrees"),
        [
            ([[5, 3], [2, 4]], 0),  # every chain of two states is reversible
            ([[1, 1, 0], [1, 1, 1], [0, 1, 1]], 0),  # a line has no cycle
            ([[0, 9, 8], [7, 0, 9], [9, 8, 0]], 1),
            (np.ones((5, 5), dtype=int), 6),
            ([[3, 0], [0, 0]], 0),
            (np.zeros((3, 3), dtype=int), 0),
        ],
    )
    def test_counts_the_independent_cycles(self, table, degrees):
        found = reversibility_test(np.array(table))
        assert found.degrees == degrees
        assert (found.p_value == 1) == (degrees == 0 or found.statistic == pytest.approx(0, abs=1e-12))

    @settings(max_examples=examples(60), deadline=None)
    @given(hnp.arrays(np.int64, (4, 4), elements=st.integers(0, 50)))
    def test_is_invariant_to_the_direction_of_time_and_the_names_of_states(self, table):
        found = reversibility_test(table)
        order = np.random.default_rng(5).permutation(4)
        assert found.statistic == pytest.approx(reversibility_test(table.T).statistic, abs=1e-8)
        assert found.statistic == pytest.approx(reversibility_test(table[np.ix_(order, order)]).statistic, abs=1e-8)


class TestOrder:
    def test_has_its_size(self):
        paths = simulate(np.random.default_rng(6), BALANCED, REPEATS, LENGTH)
        found = [order_test(TripleCounts.of_runs(3, [path])) for path in paths]
        assert {one.degrees for one in found} == {12}
        assert min(one.least_expected for one in found) > 5
        assert_size([one.p_value for one in found])

    def test_finds_a_memory_of_two(self):
        rng = np.random.default_rng(7)
        path = rng.integers(0, 2, 3000)
        for slot in range(2, 3000):
            path[slot] = path[slot - 2] if rng.random() < 0.3 else path[slot]
        assert order_test(TripleCounts.of_runs(2, [path])).p_value < 1e-9

    def test_is_the_sum_written_out(self):
        counts = np.random.default_rng(8).integers(0, 9, (3, 3, 3))
        counts[2, 1, :] = 0
        statistic, degrees = 0.0, 0
        for y in range(3):
            square = counts[:, y, :]
            for x, z in np.argwhere(square):
                n = square[x, z]
                statistic += 2 * n * math.log(n * square.sum() / (square[x].sum() * square[:, z].sum()))
            degrees += ((square.sum(axis=1) > 0).sum() - 1) * ((square.sum(axis=0) > 0).sum() - 1)
        found = order_test(TripleCounts(counts))
        assert found.statistic == pytest.approx(statistic)
        assert found.degrees == degrees
        assert found.p_value == pytest.approx(stats.chi2.sf(statistic, degrees))

    def test_of_empty_counts_has_p_value_one(self):
        found = order_test(TripleCounts(np.zeros((2, 2, 2), dtype=np.int64)))
        assert (found.statistic, found.degrees, found.p_value, found.least_expected) == (0, 0, 1, math.inf)


class TestDrift:
    def test_has_its_size(self):
        paths = simulate(np.random.default_rng(9), BALANCED, REPEATS, LENGTH)
        middle = LENGTH // 2
        halves = zip(tables(paths[:, : middle + 1], 3), tables(paths[:, middle:], 3), strict=True)
        found = [homogeneity_test(first, second) for first, second in halves]
        assert {one.degrees for one in found} == {6}
        assert_size([one.p_value for one in found])

    def test_finds_a_change(self):
        rng = np.random.default_rng(10)
        (first,), (second,) = (tables(simulate(rng, matrix, 1, LENGTH), 3) for matrix in (BALANCED, TURNING))
        assert homogeneity_test(first, second).p_value < 1e-6

    def test_is_the_contingency_test_of_every_row(self):
        first, second = np.array([[20, 10], [6, 9]]), np.array([[14, 16], [8, 11]])
        # statistic, p-value, degrees, expected counts
        rows = [tuple(stats.chi2_contingency(np.stack([first[x], second[x]]), correction=False)) for x in range(2)]
        found = homogeneity_test(first, second)
        assert found.statistic == pytest.approx(sum(row[0] for row in rows))
        assert found.degrees == sum(row[2] for row in rows)
        assert found.least_expected == pytest.approx(min(row[3].min() for row in rows))

    def test_leaves_out_states_that_one_half_never_leaves(self):
        first, second = np.array([[20, 10, 0], [6, 9, 0], [0, 0, 0]]), np.array([[14, 16, 0], [8, 11, 1], [0, 1, 0]])
        assert homogeneity_test(first, second).degrees == 1 + 2
        assert homogeneity_test(np.zeros((2, 2), dtype=int), np.ones((2, 2), dtype=int)).p_value == 1


def test_homes_are_not_chains_of_order_1_that_stay_the_same(shared_data):
    found = []
    for runs in runs_by_home(shared_data).values():
        path = np.concatenate(runs)
        # a half that ends inside a run shares no transition with the other one
        middle = len(path) // 2
        ends = np.cumsum([len(run) for run in runs])[:-1]
        first = moves(np.split(path[:middle], ends[ends < middle]))
        whole = moves(runs)
        outcomes = (
            reversibility_test(whole),
            order_test(TripleCounts.of_runs(5, runs)),
            homogeneity_test(first, whole - first),
        )
        found.append([outcome.p_value < 0.05 for outcome in outcomes])
    assert np.sum(found, axis=0).tolist() == [54, 59, 57]


class TestTripleCounts:
    def test_are_counted_within_runs(self):
        first, second = np.array([0, 1, 1, 0, 1]), np.array([1, 1])
        one = TripleCounts.of_runs(2, [first, second])
        assert one.counts.sum() == 3
        assert one.counts[0, 1, 1] == one.counts[1, 1, 0] == one.counts[1, 0, 1] == 1
        with pytest.raises(ValueError, match="read-only"):
            one.counts[0, 0, 0] = 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: TripleCounts(np.zeros((2, 2), dtype=np.int64)), r"shape and type are \(2, 2\)"),
        (lambda: TripleCounts(np.zeros((2, 2, 2))), r"and float64, and must be"),  # pyright: ignore[reportArgumentType]
        (lambda: TripleCounts(np.full((2, 2, 2), -1)), r"a count is negative"),
        (lambda: TripleCounts.of_runs(2, [np.array([0, 2])]), r"a state lies outside 0 to 1"),
        (lambda: TripleCounts.of_runs(2, [np.array([[0]])]), r"must be one row of whole numbers"),
        (lambda: TripleCounts.of_runs(2, [np.array([0.5])]), r"must be one row"),  # pyright: ignore[reportArgumentType]
        (lambda: homogeneity_test(np.ones((2, 2), dtype=int), np.ones((3, 3), dtype=int)), r"over 2 and 3 states"),
        (lambda: homogeneity_test(np.ones((2, 3), dtype=int), np.ones((2, 3), dtype=int)), r"shape is \(2, 3\)"),
        (lambda: reversibility_test(np.full((2, 2), -1)), r"a count is negative"),
    ],
)
def test_bad_input_is_refused_with_argument_value_and_limit(wrong, message):
    with pytest.raises(EstimationError, match=message):
        wrong()
