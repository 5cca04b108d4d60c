"""The exponential mechanism: its exact law from an enumeration of the bits behind it, and its promise from the law."""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from quiltstream.privacy.mechanisms import exponential, sampling
from quiltstream.privacy.mechanisms.exponential import ExponentialTopK

from ...depth import examples
from .test_sampling import UNDECIDED, assert_law, enumerate_law, exp_minus

TOLERANCE = Fraction(1, 10**6)


def measured(block: Callable[..., Any], tolerance: Fraction) -> Callable[..., Any]:
    """The block as a branch on its own law, measured from the bits once for each of its arguments."""
    laws: dict[str, list[tuple[Any, Fraction]]] = {}

    def branch_on_law(*arguments: Any) -> Any:
        *values, source = arguments
        if any(isinstance(value, np.ndarray) and value.size == 0 for value in values) or values == [0]:
            return block(*arguments)
        key = repr(values)
        if key not in laws:
            law, undecided = enumerate_law(lambda bits: tuple(block(*values, bits).tolist()), tolerance)
            laws[key] = [*law.items(), (UNDECIDED, undecided)]
        dtype = (
            np.bool_ if block.__name__ in {"bernoulli", "bernoulli_exp", "bernoulli_exp_minus_one", "_kept"} else int
        )
        return np.array(source.tree.choose(laws[key]), dtype=dtype)

    return branch_on_law


def measured_blocks(
    monkeypatch: pytest.MonkeyPatch, user: ModuleType, tolerance: Fraction = Fraction(1, 10**9)
) -> None:
    """Replace each block by its law; a block that calls others branches on their laws."""
    for module, names in (
        (sampling, ("_accepted_below", "bernoulli")),
        (user, ("uniform_below", "bernoulli_exp", "bernoulli_exp_minus_one", "_kept", "_attempt", "_pick")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, measured(getattr(module, name), tolerance))


def law_of(mechanism: Any, counts: list[int], tolerance: Fraction) -> tuple[dict[Any, Fraction], Fraction]:
    table = np.array([counts])
    return enumerate_law(lambda bits: tuple(mechanism.select(table, entropy=bits)[0].tolist()), tolerance)


def ordered_law(counts: list[int], chosen: tuple[int, ...], rate: Fraction) -> Fraction:
    """The probability of drawing these bins in this order, from the definition."""
    left, chance = list(range(len(counts))), Fraction(1)
    for pick in chosen:
        if pick not in left:
            return Fraction(0)
        top = max(counts[other] for other in left)
        weights = {other: exp_minus(rate * (top - counts[other])) for other in left}
        chance *= weights[pick] / sum(weights.values())
        left.remove(pick)
    return chance


@pytest.mark.night
@pytest.mark.parametrize(
    ("counts", "choose", "epsilon"),
    [
        ([3, 1], 1, Fraction(1)),
        ([0, 4, 2], 1, Fraction(3, 2)),
        ([0, 4, 2], 2, Fraction(1)),
        ([5, 5, 5], 1, Fraction(2)),
        ([0, 3], 1, Fraction(4)),
        ([9], 1, Fraction(1)),
        ([1, 0], 2, Fraction(1)),
    ],
)
def test_a_selection_has_exactly_the_exponential_law(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], choose: int, epsilon: Fraction
) -> None:
    measured_blocks(monkeypatch, exponential)
    mechanism = ExponentialTopK(len(counts), choose, epsilon)
    measured = law_of(mechanism, counts, TOLERANCE)
    assert set(measured[0]) == set(itertools.permutations(range(len(counts)), choose))
    assert measured[1] < 2 * TOLERANCE
    assert_law(measured, lambda chosen: ordered_law(counts, chosen, epsilon / (2 * choose)))


MUTANTS = {
    "the rate forgets the two": ("self.epsilon / (2 * self.choose)", "self.epsilon / self.choose"),
    "the rate forgets the number of draws": ("self.epsilon / (2 * self.choose)", "self.epsilon / 2"),
    "a whole exponent is one event short": ("wholes[alive] == successes", "wholes[alive] <= successes + 1"),
    "the fraction of the exponent is lost": (
        "bernoulli_exp(rests, q, entropy)",
        "bernoulli_exp(rests * 0, q, entropy)",
    ),
    "a rejected proposal is taken": ("np.where(kept, proposed, -1)", "proposed"),
    "the drawn bin stays": ("!= picked[:, np.newaxis]", "!= 0 * picked[:, np.newaxis]"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_enumeration_fails_on_a_wrong_mechanism(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    right, wrong = MUTANTS[name]
    source = inspect.getsource(exponential)
    assert source.count(right) == 1
    mutant = ModuleType(exponential.__name__ + "_mutant")
    mutant.__package__ = exponential.__package__
    monkeypatch.setitem(sys.modules, mutant.__name__, mutant)  # dataclasses look their module up
    exec(compile(source.replace(right, wrong), "choices", "exec"), mutant.__dict__)  # noqa: S102 - our own source
    measured_blocks(monkeypatch, mutant, Fraction(1, 10**4))
    epsilon = Fraction(2)
    mechanism = mutant.ExponentialTopK(3, 2, epsilon)
    with pytest.raises(AssertionError):
        assert_law(law_of(mechanism, [0, 3, 1], Fraction(1, 1000)), lambda c: ordered_law([0, 3, 1], c, epsilon / 4))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_one_changed_cell_changes_no_selections_probability_by_more_than_epsilon(data: st.DataObject) -> None:
    bins = data.draw(st.integers(2, 4))
    choose = data.draw(st.integers(1, bins))
    epsilon = data.draw(st.fractions(Fraction(1, 10), 4, max_denominator=20))
    before = data.draw(st.lists(st.integers(0, 6), min_size=bins, max_size=bins).filter(any))
    source = data.draw(st.sampled_from([bin_ for bin_ in range(bins) if before[bin_]]))
    target = data.draw(st.integers(0, bins - 1))
    after = before.copy()
    after[source] -= 1
    after[target] += 1
    for chosen in itertools.permutations(range(bins), choose):
        laws = [ordered_law(counts, chosen, epsilon / (2 * choose)) for counts in (before, after)]
        assert abs(math.log(laws[0] / laws[1])) <= float(epsilon) + 1e-12


class CountingBits:
    """The system's kind of bits, and how many calls were made."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(7)
        self.calls = 0

    def bits(self, width: int, count: int) -> NDArray[Any]:
        self.calls += 1
        return self._generator.integers(0, 2**width, count, dtype=np.uint64)


@pytest.mark.parametrize(
    "epsilon", [Fraction(1, 2**40), Fraction(1), Fraction(10), Fraction(2**40), Fraction(3, 2**40)]
)
def test_count_differences_of_any_size_cost_few_bits_and_never_overflow(epsilon: Fraction) -> None:
    counts = np.array([[0, 2**62, 2**62 - 1, 2**61, 5]] * 3)
    bits = CountingBits()
    selected = ExponentialTopK(5, 5, epsilon).select(counts, bits)
    assert np.array_equal(np.sort(selected, axis=1), np.tile(np.arange(5), (3, 1)))
    assert set(selected[:, :2].ravel().tolist()) == {1, 2}
    assert bits.calls < 1000


def test_every_row_has_its_own_law() -> None:
    """Exact binomial tests at 1e-9 / 6 each, so the false-alarm rate is at most 1e-9."""
    rows = np.array([[0, 3, 1], [4, 0, 0]])
    mechanism = ExponentialTopK(3, 1, Fraction(1))
    selected = mechanism.select(np.repeat(rows, 20_000, axis=0))[:, 0].reshape(2, -1)
    for row, picks in zip(rows.tolist(), selected, strict=True):
        for pick in range(3):
            chance = float(ordered_law(row, (pick,), Fraction(1, 2)))
            assert stats.binomtest(int((picks == pick).sum()), picks.size, chance).pvalue > 1e-9 / 6


def test_the_probabilities_describe_the_first_draw() -> None:
    counts = [[0, 4, 2], [7, 7, 0]]
    described = ExponentialTopK(3, 2, Fraction(3, 2)).probabilities(np.array(counts))
    for row, law in zip(counts, described, strict=True):
        assert law.tolist() == pytest.approx([float(ordered_law(row, (pick,), Fraction(3, 8))) for pick in range(3)])


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_the_shortfall_bound_holds_for_any_counts(level: float) -> None:
    mechanism = ExponentialTopK(6, 2, Fraction(1, 2))
    h = mechanism.shortfall(level)
    for gap in (h + 1, 3 * h):
        # the worst case: all other bins just too short
        law = mechanism.probabilities(np.array([[gap, 0, 0, 0, 0, 0]]))
        assert law[0, 0] >= level
    with pytest.raises(ValueError, match=r"level: 1\.0 is not strictly between 0 and 1"):
        mechanism.shortfall(1.0)


@pytest.mark.parametrize("sigma", [1e-6, 0.3, 31.7098, 2033.7827, 1e9])
def test_the_epsilon_of_a_sigma_is_never_above_it_and_close_below(sigma: float) -> None:
    mechanism = ExponentialTopK.from_sigma(51, 3, sigma)
    assert mechanism.epsilon <= 1 / Fraction(sigma)
    assert Fraction(mechanism.epsilon_dp) >= mechanism.epsilon
    assert mechanism.epsilon_dp == pytest.approx(1 / sigma, rel=1e-3 if sigma > 1e6 else 1e-8)


def test_a_sigma_at_the_limit_of_exact_draws_keeps_its_whole_epsilon() -> None:
    for sigma in (2.0**45, 2.0**44, 1.0):
        assert ExponentialTopK.from_sigma(4, 1, sigma).epsilon == 1 / Fraction(sigma)
    with pytest.raises(ValueError, match="must be at least 2"):
        ExponentialTopK.from_sigma(4, 1, 2.0**45 * 1.01)
