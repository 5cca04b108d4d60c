"""The sampler's exact probabilities, from an enumeration of the random bits behind it.

The production functions run at array size 1 on a source whose bits are branches of a tree. Every leaf has an exact
weight, so that an outcome's probability lies within [decided, decided + undecided]; the tree grows by its heaviest node
until the undecided weight is below a bound. A function that calls other blocks branches on *their* measured outcomes
(undecided weight included), because a block reads fresh bits only: the whole sampler is thus enumerated from the bits
up, and nothing is assumed about any part of it.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from quiltstream.privacy.mechanisms import discrete_laplace as noise
from quiltstream.privacy.mechanisms import sampling
from quiltstream.privacy.mechanisms.sampling import EntropyError, SystemEntropy

UNDECIDED = "undecided"
BLOCK_TOLERANCE = Fraction(1, 10**10)
DRAW_TOLERANCE = Fraction(5, 10**7)
SCALES = [Fraction(1), Fraction(7, 5), Fraction(2, 3), Fraction(3)]

Law = dict[Any, Fraction]


class Fork(Exception):  # noqa: N818 - a signal to the enumeration, not an error
    def __init__(self, branches: Sequence[tuple[Any, Fraction]]) -> None:
        super().__init__()
        self.branches = branches


class Tree:
    """One path through the tree of choices; behind its end, a choice raises `Fork`."""

    def __init__(self, path: tuple[Any, ...]) -> None:
        self._path = path
        self._next = 0

    def choose(self, branches: Sequence[tuple[Any, Fraction]]) -> Any:
        if self._next == len(self._path):
            raise Fork(branches)
        self._next += 1
        return self._path[self._next - 1]


class TreeBits:
    """A bit source whose values are branches of equal weight."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def bits(self, width: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        if count == 0:
            return np.zeros(0, dtype=np.uint64)
        assert count == 1, "the enumeration runs at array size 1"
        return np.array([self.tree.choose(equal_branches(width))], dtype=np.uint64)


@cache
def equal_branches(width: int) -> list[tuple[int, Fraction]]:
    return [(value, Fraction(1, 2**width)) for value in range(2**width)]


def enumerate_law(run: Callable[[TreeBits], Any], tolerance: Fraction) -> tuple[Law, Fraction]:
    """Grow the tree by its heaviest node until what is open weighs less than the tolerance.

    Returns:
        The decided weights, and the undecided rest: what is open, and what the blocks below left undecided.
    """
    decided: Law = defaultdict(Fraction)
    number = itertools.count()
    nodes: list[tuple[Fraction, int, tuple[Any, ...]]] = [(Fraction(-1), next(number), ())]
    lost, open_weight = Fraction(0), Fraction(1)
    while nodes and open_weight >= tolerance:
        negative, _, path = heapq.heappop(nodes)
        try:
            outcome = run(TreeBits(Tree(path)))
        except Fork as fork:
            for branch, weight in fork.branches:
                if branch is UNDECIDED:
                    lost -= negative * weight
                    open_weight += negative * weight
                elif weight:
                    heapq.heappush(nodes, (negative * weight, next(number), (*path, branch)))
        else:
            decided[outcome] -= negative
            open_weight += negative
    undecided = lost + open_weight
    assert sum(decided.values()) + undecided == 1
    return dict(decided), undecided


class Bench:
    """The production modules with each block replaced by its own law, measured from the bits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sampler: ModuleType, user: ModuleType) -> None:
        self.sampler, self.user = sampler, user
        for module, names in (
            (sampler, ("_accepted_below", "bernoulli", "bernoulli_exp_minus_one")),
            (user, ("uniform_below", "bernoulli_exp", "geometric", "_magnitudes", "_attempt")),
        ):
            for name in names:
                monkeypatch.setattr(module, name, self.measured(getattr(module, name)))

    @staticmethod
    def measured(block: Callable[..., Any]) -> Callable[..., Any]:
        laws: dict[tuple[Any, ...], list[tuple[Any, Fraction]]] = {}

        def branch_on_law(*arguments: Any) -> Any:
            *values, source = arguments
            sizes = [value.size for value in values if isinstance(value, np.ndarray)]
            # the last integer is the number of lanes where there is no array
            lanes = sizes[0] if sizes else values[-1]
            if lanes == 0:
                return block(*arguments)
            key = tuple(tuple(value.tolist()) if isinstance(value, np.ndarray) else value for value in values)
            if key not in laws:
                law, undecided = enumerate_law(lambda bits: tuple(block(*values, bits).tolist()), BLOCK_TOLERANCE)
                laws[key] = [*law.items(), (UNDECIDED, undecided)]
            dtype = np.bool_ if block.__name__.startswith("bernoulli") else np.int64
            return np.array(source.tree.choose(laws[key]), dtype=dtype)

        return branch_on_law

    def law_of_draw(self, scale: Fraction, tolerance: Fraction) -> tuple[Law, Fraction]:
        law = self.user.DiscreteLaplace(scale)
        return enumerate_law(lambda bits: int(law.draw(1, entropy=bits)[0]), tolerance)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch, sampling, noise)


def exp_minus(gamma: Fraction) -> Fraction:
    if gamma > 1:
        return exp_minus(gamma / 2) ** 2
    term, total = Fraction(1), Fraction(1)
    for k in range(1, 40):
        term *= -gamma / k
        total += term
    return total


def assert_law(measured: tuple[Law, Fraction], expected: Callable[[Any], Fraction]) -> None:
    decided, undecided = measured
    slack = Fraction(1, 10**25)
    for outcome, weight in decided.items():
        assert weight - slack <= expected(outcome) <= weight + undecided + slack, outcome


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 7, 8, 11])
def test_uniform_below_has_exactly_equal_probabilities(bench: Bench, bound: int) -> None:
    measured = enumerate_law(lambda bits: int(bench.sampler.uniform_below(bound, 1, bits)[0]), BLOCK_TOLERANCE)
    assert sorted(measured[0]) == list(range(bound))
    assert_law(measured, lambda _: Fraction(1, bound))


@pytest.mark.parametrize(
    ("p", "q"),
    [(0, 1), (1, 1), (0, 7), (7, 7), (1, 2), (1, 3), (2, 3), (5, 7), (255, 256), (1, 257), (2**45, 2**46 - 1)],
)
def test_bernoulli_has_exactly_the_probability_of_the_fraction(p: int, q: int) -> None:
    measured = enumerate_law(lambda bits: bool(sampling.bernoulli(np.array([p]), q, bits)[0]), BLOCK_TOLERANCE)
    assert_law(measured, lambda event: Fraction(p, q) if event else 1 - Fraction(p, q))


@pytest.mark.night
@pytest.mark.parametrize(("p", "q"), [(0, 1), (1, 1), (1, 2), (1, 3), (2, 3), (6, 7), (123, 1000)])
def test_bernoulli_exp_has_exactly_the_exponential_probability(bench: Bench, p: int, q: int) -> None:
    measured = enumerate_law(lambda bits: bool(bench.sampler.bernoulli_exp(np.array([p]), q, bits)[0]), BLOCK_TOLERANCE)
    success = exp_minus(Fraction(p, q))
    assert_law(measured, lambda event: success if event else 1 - success)


def test_the_geometric_part_has_exactly_its_law(bench: Bench) -> None:
    measured = enumerate_law(lambda bits: int(bench.sampler.geometric(1, bits)[0]), BLOCK_TOLERANCE)
    assert len(measured[0]) > 15
    assert_law(measured, lambda value: exp_minus(Fraction(value)) * (1 - exp_minus(Fraction(1))))


def discrete_laplace(scale: Fraction) -> Callable[[int], Fraction]:
    ratio = exp_minus(1 / scale)
    return lambda value: (1 - ratio) / (1 + ratio) * ratio ** abs(value)


@pytest.mark.night
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_a_draw_has_exactly_the_discrete_laplace_law(bench: Bench, scale: Fraction) -> None:
    measured = bench.law_of_draw(scale, DRAW_TOLERANCE)
    assert measured[1] < Fraction(1, 10**6)
    assert_law(measured, discrete_laplace(scale))


@pytest.mark.parametrize(
    ("size", "things", "width"), [(1, 2, 1), (1, 2, 3), (2, 4, 2), (2, 4, 4), (3, 6, 2), (1, 5, 3)]
)
def test_each_subset_is_chosen_equally_often_over_all_keys(size: int, things: int, width: int) -> None:
    keys = np.indices([2**width] * things, dtype=np.uint8).reshape(things, -1).T
    chosen, times = np.unique(sampling.smallest(keys, size), axis=0, return_counts=True)
    assert len(chosen) == math.comb(things, size)
    assert set(chosen.sum(axis=1).tolist()) == {size}
    assert len(set(times.tolist())) == 1
    # what is left out has a tie at the place of the last that is chosen, and nothing else is
    last, following = np.sort(keys, axis=1)[:, size - 1 : size + 1].T
    assert times.sum() == (last < following).sum()


class Keys:
    """A bit source that gives keys from a list, and notes how wide they were asked for."""

    def __init__(self, *keys: int) -> None:
        self.left, self.widths = list(keys), list[int]()

    def bits(self, width: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        self.widths.append(width)
        given, self.left = self.left[:count], self.left[count:]
        return np.array(given, dtype=np.uint64)


def test_only_a_lane_without_a_subset_is_drawn_again() -> None:
    keys = Keys(5, 5, 9, 1, 2, 3, 7, 4, 7, *(0, 0, 0), *(8, 3, 6))
    chosen = sampling.uniform_subset(3, 1, 3, keys)
    assert chosen.tolist() == [[True, False, False], [False, True, False], [False, True, False]]
    assert not keys.left
    assert len(keys.widths) == 3


def test_none_and_all_are_chosen_without_a_key() -> None:
    for size, things in ((0, 2), (3, 3), (0, 0)):
        keys = Keys()
        assert sampling.uniform_subset(4, size, things, keys).tolist() == [[size == things] * things] * 4
        assert not keys.widths


@pytest.mark.night
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_magnitudes_have_exactly_the_geometric_law(bench: Bench, scale: Fraction) -> None:
    measured = enumerate_law(lambda bits: int(bench.user.magnitudes(scale, 1, bits)[0]), DRAW_TOLERANCE)
    ratio = exp_minus(1 / scale)
    assert_law(measured, lambda value: (1 - ratio) * ratio**value)


def zero_sum(scale: Fraction, bins: int) -> Callable[[tuple[int, ...]], Fraction]:
    """The exact probability of a vector of sum zero: its weight over that of all, to 1e-20."""
    ratio = exp_minus(1 / scale)
    # of so many cells taken and given there are so many vectors: plus and minus bins, divided among either
    total, taken = Fraction(1), 1
    while (weight := ratio ** (2 * taken)) > Fraction(1, 10**28):
        vectors = sum(
            math.comb(bins, plus) * math.comb(taken - 1, plus - 1) * math.comb(taken + bins - plus - 1, taken)
            for plus in range(1, bins)
        )
        total, taken = total + vectors * weight, taken + 1
    return lambda vector: ratio ** sum(map(abs, vector)) / total


@pytest.mark.night
@pytest.mark.parametrize(("bins", "scale"), [(2, Fraction(1)), (2, Fraction(7, 5)), (3, Fraction(1))])
@pytest.mark.parametrize("sampler", ["_by_sum", "_by_cuts"])
@pytest.mark.usefixtures("bench")
def test_noise_of_sum_zero_has_exactly_its_law(
    monkeypatch: pytest.MonkeyPatch, sampler: str, scale: Fraction, bins: int
) -> None:
    measured = enumerate_law(one_candidate(monkeypatch, sampler, scale, bins), Fraction(1, 300))
    assert_law_of_accepted(measured, zero_sum(scale, bins))


def one_candidate(
    monkeypatch: pytest.MonkeyPatch, sampler: str, scale: Fraction, bins: int
) -> Callable[[TreeBits], Any]:
    """A candidate of a sampler of noise of sum zero, or None where it is not accepted, lane by lane."""
    laws: dict[Any, list[tuple[Any, Fraction]]] = {}
    draw_magnitudes, plain = noise.magnitudes, noise.DiscreteLaplace

    def lanes(key: Any, count: int, draw: Callable[[TreeBits], Any], source: TreeBits) -> list[Any]:
        if key not in laws:
            law, undecided = enumerate_law(draw, Fraction(1, 10**4))
            laws[key] = [*law.items(), (UNDECIDED, undecided)]
        return [source.tree.choose(laws[key]) for _ in range(count)]

    def magnitudes(scale: Fraction, count: int, source: TreeBits) -> Any:
        return np.array(lanes(("m", scale), count, lambda bits: int(draw_magnitudes(scale, 1, bits)[0]), source))

    class Noise:
        def __init__(self, scale: Fraction) -> None:
            self.law = plain(scale)

        def draw(self, shape: tuple[int, ...], source: TreeBits) -> Any:
            found = lanes("z", math.prod(shape), lambda bits: int(self.law.draw(1, bits)[0]), source)
            return np.array(found).reshape(shape)

    monkeypatch.setattr(noise, "magnitudes", magnitudes)
    monkeypatch.setattr(noise, "DiscreteLaplace", Noise)

    # its law is proven by itself, and its keys have too many bits for a tree
    def subset(count: int, size: int, things: int, source: TreeBits) -> Any:
        choices = list(itertools.combinations(range(things), size))
        branches = [(choice, Fraction(1, len(choices))) for choice in choices]
        return np.array([np.isin(range(things), source.tree.choose(branches)) for _ in range(count)])

    monkeypatch.setattr(noise, "uniform_subset", subset)

    def candidate(bits: TreeBits) -> Any:
        found = getattr(noise, sampler)(scale, bins, 1, bits)
        return tuple(found[0].tolist()) if len(found) else None

    return candidate


def assert_law_of_accepted(measured: tuple[Law, Fraction], expected: Callable[[tuple[int, ...]], Fraction]) -> None:
    """Given acceptance, outcomes have the expected law: weights within what is undecided."""
    decided, undecided = measured
    refused = decided.pop(None, Fraction(0))
    accepted = sum(decided.values())
    assert len(decided) >= 5
    for outcome, weight in decided.items():
        least, most = weight / (1 - refused), (weight + undecided) / accepted
        assert least - Fraction(1, 10**20) <= expected(outcome) <= most + Fraction(1, 10**20), outcome


MUTANTS = {
    "a remainder instead of rejection": ("sampling", "drawn[drawn < bound]", "drawn % bound"),
    "success needs more than the denominator": (
        "sampling",
        "events = rest >= denominator",
        "events = rest > denominator",
    ),
    "ties are never looked at again": ("sampling", "while undecided.size:", "while False:"),
    "the series stops at even trials": ("sampling", "trial % 2 == 1", "trial % 2 == 0"),
    "the series skips a trial": ("sampling", "    trial = 1\n", "    trial = 2\n"),
    "a trial forgets gamma": ("sampling", "alive = alive[of_gamma(alive)]", "alive = alive"),
    "the geometric part starts at one": (
        "sampling",
        "values = np.zeros(count, dtype=np.int64)\n    alive",
        "values = np.ones(count, dtype=np.int64)\n    alive",
    ),
    "the geometric part counts one too many": ("sampling", "values[alive] = value\n", "values[alive] = value + 1\n"),
    "minus zero is kept": ("noise", "kept = (magnitude != 0) | ~negative", "kept = magnitude >= 0"),
    "zero is never drawn": ("noise", "kept = (magnitude != 0) | ~negative", "kept = magnitude != 0"),
    "the low part is not thinned": ("noise", "low = low[bernoulli_exp(low, t, entropy)]", "low = low"),
    "the quotient is rounded up": ("noise", "entropy)) // s", "entropy) + s - 1) // s"),
    "the low part excludes zero": (
        "noise",
        "low = uniform_below(t, count, entropy)",
        "low = uniform_below(t, count, entropy) | 1",
    ),
}


@pytest.mark.night
@pytest.mark.parametrize("name", MUTANTS)
def test_the_enumeration_fails_on_a_wrong_sampler(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    where, right, wrong = MUTANTS[name]
    modules: dict[str, ModuleType] = {}
    for short, module in (("sampling", sampling), ("noise", noise)):
        source = inspect.getsource(module)
        if short == where:
            assert source.count(right) == 1
            source = source.replace(right, wrong)
        copy = ModuleType(module.__name__ + "_mutant")
        copy.__package__ = module.__package__
        monkeypatch.setitem(sys.modules, copy.__name__, copy)  # dataclasses look their module up
        exec(compile(source, short, "exec"), copy.__dict__)  # noqa: S102 - the mutant is our own source
        modules[short] = copy
    for block in ("uniform_below", "bernoulli_exp", "geometric"):
        monkeypatch.setattr(modules["noise"], block, getattr(modules["sampling"], block))
    mutant = Bench(monkeypatch, modules["sampling"], modules["noise"])
    with pytest.raises(AssertionError):
        assert_law(mutant.law_of_draw(Fraction(3, 2), Fraction(1, 1000)), discrete_laplace(Fraction(3, 2)))


class Stuck:
    def bits(self, width: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        return np.zeros(count, dtype=np.uint64) * width


def test_a_source_that_never_ends_a_run_is_an_error_and_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    # a comparison with digit 0 succeeds in every trial, so the series never ends; make its outcome the constant True
    monkeypatch.setattr(sampling, "bernoulli_exp_minus_one", lambda count, _: np.ones(count, dtype=np.bool_))
    with pytest.raises(EntropyError, match="65536 events"):
        sampling.geometric(1, Stuck())


def test_the_largest_value_of_a_draw_fits_64_bits() -> None:
    t = sampling.LARGEST_DENOMINATOR
    largest = (t - 1) + t * (sampling.GEOMETRIC_END - 1)
    assert largest < 2**62
    # the widest numbers inside the comparison: a numerator shifted by one digit, a digit times the denominator
    assert t << sampling.DIGIT < 2**63
    # the type of the vectorised sum: it stays int64 and exact at that size
    summed = np.array([t - 1]) + t * np.array([sampling.GEOMETRIC_END - 1])
    assert summed.dtype == np.int64
    assert int(summed[0]) == largest


def reference_bernoulli(numerators: list[int], denominator: int, digits: list[int]) -> list[bool]:
    """Compare each lane's digits with the fraction, one by one; later rounds serve the open lanes in order."""
    feed = iter(digits)
    events: dict[int, bool] = {}
    low = {lane: Fraction(0) for lane in range(len(numerators))}
    width = Fraction(1)
    while low:
        width /= 256
        for lane in list(low):
            low[lane] += next(feed) * width
            limit = Fraction(numerators[lane], denominator)
            if low[lane] + width <= limit or low[lane] >= limit:
                events[lane] = low[lane] < limit
                del low[lane]
    return [events[lane] for lane in range(len(numerators))]


@pytest.mark.parametrize("denominator", [3, 7, 1000, 2**46 - 1])
def test_each_lane_is_decided_by_its_own_digits(denominator: int) -> None:
    generator = np.random.default_rng(denominator)
    numerators = generator.integers(0, denominator + 1, 400)
    # digits close to the fraction's own, so that many lanes go on to a second and a third digit
    close = [
        (256 * p // denominator + int(d)) % 256
        for p, d in zip(numerators.tolist(), generator.integers(0, 2, 400), strict=True)
    ]
    digits = close + generator.integers(0, 256, 4000).tolist()

    class Scripted:
        position = 0

        def bits(self, width: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
            assert width == 8
            self.position += count
            return np.array(digits[self.position - count : self.position], dtype=np.uint8)

    events = sampling.bernoulli(numerators, denominator, Scripted())
    assert events.tolist() == reference_bernoulli(numerators.tolist(), denominator, digits)


@pytest.mark.parametrize("missing", [1, 7, 8])
def test_a_short_read_of_the_systems_entropy_draws_nothing(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    read = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: read(size - missing))
    with pytest.raises(EntropyError, match=f"gave {64 - missing} of 64 random bytes"):
        SystemEntropy().bits(64, 8)


def test_a_system_without_entropy_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: int) -> bytes:
        raise OSError(size)

    monkeypatch.setattr(os, "urandom", fail)
    with pytest.raises(EntropyError, match=r"gave no random bytes \(OSError\)"):
        SystemEntropy().bits(8, 1)


def test_one_value_for_many_lanes_is_refused_and_not_broadcast() -> None:
    class Short:
        def bits(self, width: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
            return np.zeros(min(count, 1), dtype=np.uint64) * width

    lanes = np.array([1, 1, 1], dtype=np.int64)
    for draw in (lambda: sampling.bernoulli(lanes, 3, Short()), lambda: sampling.uniform_below(5, 3, Short())):
        with pytest.raises(EntropyError, match=r"shape \(1,\) and was asked for \(3,\)"):
            draw()
