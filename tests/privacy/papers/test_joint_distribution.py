from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.papers.joint import (
    JointTable,
    exact_distribution,
    exact_number,
    exact_stationary,
)

from .. import reference


def test_a_float_is_the_simple_fraction_or_the_decimal_that_it_prints_as() -> None:
    for numerator, denominator in ((1, 3), (5, 7), (999_983, 999_999)):
        quotient = numerator / denominator
        for value in (quotient, np.nextafter(quotient, 0), np.nextafter(quotient, 1)):
            assert exact_number("x", value) == Fraction(numerator, denominator)
    for value in (0.123456789012345, 1e-300, np.pi / 4):
        assert exact_number("x", value) == Fraction(repr(float(value)))
    assert exact_number("x", 0.1) == Fraction(1, 10)
    assert exact_number("x", 1e-05) == Fraction(1, 100_000)
    assert exact_number("x", np.float64(0.3)) == Fraction(3, 10)
    assert exact_number("x", Fraction(1, 3)) == Fraction(1, 3)
    assert exact_number("x", 7) == 7


def test_the_exact_stationary_distribution_solves_its_equations_exactly() -> None:
    generator = np.random.default_rng(4)
    for states in (1, 2, 3, 5):
        rows = [exact_distribution("row", row) for row in generator.dirichlet(np.ones(states), states).tolist()]
        weights = exact_stationary(rows)
        assert sum(weights) == 1
        for state in range(states):
            assert sum(weights[other] * rows[other][state] for other in range(states)) == weights[state]


def test_a_table_of_a_chain_is_its_joint_law() -> None:
    transition = np.array([[0.9, 0.1], [0.4, 0.6]])
    every, chance = reference.sequences(np.array([0.25, 0.75]), transition, 4)
    table = JointTable.from_chain(MarkovChain(transition, [0.25, 0.75]), 4)
    assert np.array_equal(np.array(table.outcomes), every)
    assert [float(weight) for weight in table.weights] == pytest.approx(chance.tolist(), rel=1e-14)
    assert sum(table.weights) == 1
    stationary = JointTable.from_chain(MarkovChain(transition), 2)
    assert stationary.law_given([0, 1, 0, 1], 0, 0)[1] == (Fraction(9, 10), Fraction(1, 10))


def test_the_law_of_a_query_given_a_state() -> None:
    table = JointTable([(0, 0), (0, 1), (1, 1), (2, 0)], [0.5, 0.25, 0.25, 0.0])
    assert table.states_of(0) == (0, 1)
    assert table.values_of(sum) == (0, 1, 2, 2)
    assert table.law_given(table.values_of(sum), record=1, state=1) == ((1, 2), (Fraction(1, 2), Fraction(1, 2)))
