from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy.mechanisms import randomised_response
from quiltstream.privacy.mechanisms.randomised_response import RandomisedResponse

from ...depth import examples

CASES = [(2, Fraction(3)), (3, Fraction(3)), (3, Fraction(5, 2)), (5, Fraction(10, 7)), (4, Fraction(2**20 + 1, 2**20))]


@pytest.mark.parametrize(("states", "odds"), CASES[:4], ids=str)
def test_every_value_of_the_uniform_integer_makes_up_exactly_the_matrix(
    monkeypatch: pytest.MonkeyPatch, states: int, odds: Fraction
) -> None:
    # `uniform_below` has exactly equal probabilities (see the tests of the sampling module); here each value comes once
    response = RandomisedResponse(states, odds)
    asked: list[int] = []

    def each_once(bound: int, count: int, _: object) -> np.ndarray:
        asked.append(bound)
        return np.arange(bound)[:count]

    monkeypatch.setattr(randomised_response, "uniform_below", each_once)
    total = odds.numerator + odds.denominator * (states - 1)
    for state in range(states):
        answers = response.respond(np.full(total, state))
        found = Counter(answers.tolist())
        assert [Fraction(found[answer], total) for answer in range(states)] == list(response.matrix[state])
    assert set(asked) == {total}


@pytest.mark.parametrize(("states", "odds"), CASES, ids=str)
def test_the_matrix_has_exact_rows_and_exactly_the_odds(states: int, odds: Fraction) -> None:
    response = RandomisedResponse(states, odds)
    matrix = response.matrix
    assert all(sum(row) == 1 for row in matrix)
    worst = max(
        matrix[x][answer] / matrix[y][answer]
        for x, y in itertools.permutations(range(states), 2)
        for answer in range(states)
    )
    assert worst == odds
    assert response.epsilon_dp >= math.log(odds)
    assert response.epsilon_dp == pytest.approx(math.log1p(float(odds - 1)), rel=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(states=st.integers(2, 60), epsilon=st.floats(1e-4, 20.0))
def test_an_epsilon_is_never_exceeded_and_nearly_used(states: int, epsilon: float) -> None:
    response = RandomisedResponse.from_epsilon(states, epsilon)
    assert response.epsilon_dp <= epsilon
    assert response.epsilon_dp >= epsilon - 1e-5


@pytest.mark.parametrize(("states", "odds"), CASES[:4], ids=str)
def test_the_estimate_is_unbiased(states: int, odds: Fraction) -> None:
    response = RandomisedResponse(states, odds)
    total = odds.numerator + odds.denominator * (states - 1)
    counts = [total * (3 * state + 1) for state in range(states)]
    expected = [
        sum(count * row[answer] for count, row in zip(counts, response.matrix, strict=True)) for answer in range(states)
    ]
    assert all(value.denominator == 1 for value in expected)
    estimated = response.estimate(np.array([[int(value) for value in expected]]))
    assert estimated[0].tolist() == pytest.approx(counts, rel=1e-12)
    assert estimated.sum() == pytest.approx(sum(counts), rel=1e-12)


def test_the_variance_is_that_of_all_answers_enumerated() -> None:
    response = RandomisedResponse(3, Fraction(5, 2))
    cells, matrix = [0, 0, 1], response.matrix
    moments = np.zeros((2, 3))
    for answers in itertools.product(range(3), repeat=3):
        chance = math.prod(float(matrix[cell][answer]) for cell, answer in zip(cells, answers, strict=True))
        estimate = response.estimate(np.array([np.bincount(answers, minlength=3)]))[0]
        moments += chance * np.array([estimate, estimate**2])
    assert moments[0].tolist() == pytest.approx([2, 1, 0], abs=1e-12)
    variance = response.variance(np.array([[2, 1, 0]]))[0]
    assert variance.tolist() == pytest.approx((moments[1] - moments[0] ** 2).tolist())


def test_answers_keep_the_shape_and_the_states_stay() -> None:
    response = RandomisedResponse(3, Fraction(2))
    states = np.array([[0, 1, 2], [2, 2, 0]])
    before = states.copy()
    answers = response.respond(states)
    assert answers.shape == states.shape
    assert set(answers.ravel().tolist()) <= {0, 1, 2}
    assert np.array_equal(states, before)
    assert response.respond(np.zeros((0,), dtype=np.int64)).shape == (0,)


def test_long_arrays_are_answered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomised_response, "_LANES", 7)
    parts: list[int] = []

    def truth(_bound: int, count: int, _: object) -> np.ndarray:
        parts.append(count)
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(randomised_response, "uniform_below", truth)
    states = np.arange(18) % 3
    assert np.array_equal(RandomisedResponse(3, Fraction(2)).respond(states), states)
    assert parts == [7, 7, 4]


def test_a_response_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="states is 1"):
        RandomisedResponse(1, Fraction(2))
    with pytest.raises(ValueError, match="odds is 1, but must be above 1"):
        RandomisedResponse(2, Fraction(1))
    with pytest.raises(TypeError, match=r"odds: 2\.0 is not a Fraction"):
        RandomisedResponse(2, 2.0)  # pyright: ignore[reportArgumentType] - the wrong type is the point
    with pytest.raises(ValueError, match="a denominator of 51 bits"):
        RandomisedResponse(2, Fraction(2**50 + 1, 2**20))
    with pytest.raises(ValueError, match=r"epsilon is 50\.0"):
        RandomisedResponse.from_epsilon(2, 50.0)
    with pytest.raises(ValueError, match="cannot be told from 1"):
        RandomisedResponse.from_epsilon(2, 1e-12)


def test_states_out_of_range_are_refused_without_naming_them() -> None:
    response = RandomisedResponse(3, Fraction(2))
    for bad in (-4711, 4711):
        with pytest.raises(ValueError, match="states: a state is outside 0 to 2") as caught:
            response.respond(np.array([0, bad]))
        assert "4711" not in str(caught.value)
    with pytest.raises(TypeError, match="states: the type is float64"):
        response.respond(np.array([0.0]))
    with pytest.raises(ValueError, match=r"must be \(rows, 3\)"):
        response.estimate(np.array([[1, 2]]))


def test_the_estimate_of_very_many_answers_adds_up_to_them() -> None:
    answered = np.array([[2**62, 2**62]])
    assert RandomisedResponse(2, Fraction(3)).estimate(answered).sum() == pytest.approx(2.0**63)
    assert (RandomisedResponse(2, Fraction(3)).variance(answered) > 0).all()
