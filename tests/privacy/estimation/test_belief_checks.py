"""Losses of a history under richer beliefs, against enumeration from the definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog

from quiltstream.privacy.accounting.certificates import certificates_at
from quiltstream.privacy.estimation.belief_checks import memory, rhythm, stretches
from quiltstream.privacy.estimation.per_series import Path
from quiltstream.privacy.models import PeriodicChain


def wandering(seed: int, states: int, slots: int, hold: float = 0.6) -> np.ndarray:
    """A series that stays with some probability and else draws anew."""
    draw = np.random.default_rng(seed)
    found = [0]
    for _ in range(slots - 1):
        found.append(found[-1] if draw.random() < hold else int(draw.integers(states)))
    return np.array(found, dtype=np.int8)


def echoing(seed: int, slots: int) -> np.ndarray:
    """A series that mostly does what it did two slots before, so that one slot alone tells nothing of the next."""
    draw = np.random.default_rng(seed)
    found = [0, 1]
    for _ in range(slots - 2):
        found.append(found[-2] if draw.random() < 0.85 else 1 - found[-2])
    return np.array(found, dtype=np.int8)


def rows(table: np.ndarray) -> np.ndarray:
    return table / table.sum(axis=-1, keepdims=True)


def largest_ratio(p: np.ndarray, q: np.ndarray, paths: np.ndarray, density: float) -> float:
    """log max p.h / q.h over all h that one changed slot changes by at most e^density, by linear programming."""
    place = {tuple(path): at for at, path in enumerate(paths.tolist())}
    upper: list[np.ndarray] = []
    for path, at in place.items():
        for slot, state in itertools.product(range(len(path)), range(int(paths.max()) + 1)):
            if state != path[slot]:
                row = np.zeros(len(paths))
                row[at], row[place[(*path[:slot], state, *path[slot + 1 :])]] = 1.0, -math.exp(density)
                upper.append(row)
    done = linprog(-p, A_ub=np.array(upper), b_ub=np.zeros(len(upper)), A_eq=q[None], b_eq=[1.0])
    assert done.status == 0, done.message
    return math.log(-done.fun)


@pytest.mark.night
@pytest.mark.parametrize(
    ("path", "forgets"),
    [(wandering(1, 2, 400, hold=0.2), True), (wandering(2, 2, 400, hold=0.2), True), (echoing(3, 400), False)],
    ids=["wanders", "wanders too", "echoes"],
)
def test_a_memory_of_two_slots_loses_no_more_than_its_bound(path: np.ndarray, *, forgets: bool) -> None:
    density, slots = 0.2, 7
    bound = memory([Path(0, path)], 2, density)[0]
    triple = np.zeros((2, 2, 2))
    for one in range(len(path) - 2):
        triple[tuple(path[one : one + 3])] += 1
    pooled = rows(triple + 10 * rows(triple.sum(axis=0)))
    kernel = rows(triple + 10 * pooled)
    start = np.full((2, 2), 0.25)
    for _ in range(2000):
        start = np.einsum("ax,axy->xy", start, kernel)
    paths = np.array(list(itertools.product((0, 1), repeat=slots)), dtype=np.int64)
    weights = np.array(
        [start[p[0], p[1]] * math.prod(kernel[p[s], p[s + 1], p[s + 2]] for s in range(slots - 2)) for p in paths]
    )
    losses: list[float] = []
    for slot, (x, other) in itertools.product(range(slots), ((0, 1), (1, 0))):
        p, q = (np.where(paths[:, slot] == state, weights, 0.0) for state in (x, other))
        losses.append(largest_ratio(p / p.sum(), q / q.sum(), paths, density))
    assert max(losses) <= bound
    if forgets:  # within so few slots; pairs that differ in their first state alone are charged a slot on each side
        assert bound < 1.1 * max(losses) + 2 * density


def test_a_rhythm_is_the_chain_of_each_slot_of_the_day() -> None:
    one, two = wandering(3, 3, 600), wandering(4, 3, 500, hold=0.8)
    one[200:210] = -1
    tables = np.zeros((2, 4, 3, 3))
    for at, (path, first) in enumerate(((one, 7), (two, 0))):
        for slot in range(len(path) - 1):
            if min(path[slot], path[slot + 1]) >= 0:
                tables[at, (first + slot) % 4, path[slot], path[slot + 1]] += 1
    pooled = rows(tables.sum(axis=0) + 10 * rows(tables.sum(axis=(0, 1))))
    found = rhythm([Path(7, one), Path(0, two)], 3, 4, 0.1)
    for table, loss in zip(tables, found, strict=True):
        exact = certificates_at(PeriodicChain(list(rows(table + 10 * pooled))), 0.1)[0].loss
        assert exact * (1 - 1e-3) <= loss <= exact * 1.03


def test_the_loss_of_stretches_equals_that_of_outputs_favouring_a_set() -> None:
    path, density, half, far = wandering(5, 3, 300), 0.3, 2, 50
    path[100] = -1
    whole = [path[at - half : at + half + 1] for at in range(half, len(path) - half)]
    whole = [one for one in whole if one.min() >= 0]
    worst = 0.0
    for favoured in itertools.product((0, 1), repeat=3):
        # raw counts of each slot: far above the truth in the set, far below it elsewhere
        outputs = np.where(np.array(favoured) == 1, far, -far)

        def likelihood(states: np.ndarray, outputs: np.ndarray = outputs) -> float:
            off = sum(np.abs(outputs - np.eye(3)[state]).sum() - 3 * far for state in states)
            return math.exp(-off * density / 2)

        means = [np.mean([likelihood(one) for one in whole if one[half] == state]) for state in range(3)]
        worst = max(worst, math.log(max(means) / min(means)))
    alike = [np.zeros(len(path), dtype=np.int8)]
    assert stretches([Path(0, path)], 3, density, half, alike, 1000)[0] == pytest.approx(worst, rel=1e-9)


def test_stretches_are_compared_on_days_of_one_kind_alone() -> None:
    # on days of kind 0 nearly always state 0, on others nearly never, and independent given the kind
    draw, day, days = np.random.default_rng(8), 24, 400
    of_days = draw.integers(2, size=days).astype(np.int8)
    kinds = np.repeat(of_days, day)
    path = Path(0, (draw.random(days * day) < np.where(kinds == 0, 0.1, 0.9)).astype(np.int8))
    density, half = 0.1, 8
    blind = stretches([path], 2, density, half, [np.zeros_like(kinds)], day)[0]
    knowing = stretches([path], 2, density, half, [kinds], day)[0]
    # one number of the own slot is all that independent slots tell
    assert density * 0.9 < knowing < 3 * density < blind
    # half of the days have no kind, and are compared among themselves
    some = np.where(np.arange(len(kinds)) < len(kinds) // 2, kinds, -1).astype(np.int8)
    assert knowing < stretches([path], 2, density, half, [some], day)[0] <= blind * 1.1


def test_long_stretches_at_large_densities_have_a_finite_loss() -> None:
    path, half = (np.random.default_rng(0).random(10_000) < 0.1).astype(np.int8), 750
    density = 0.77  # e to the power of it times the 1501 slots is no float
    visits = np.convolve(path, np.ones(2 * half + 1, dtype=int), mode="valid")
    middle = path[half:-half]
    losses = []
    for inside in (visits, 2 * half + 1 - visits):
        means = [
            np.logaddexp.reduce(density * inside[middle == one]) - math.log((middle == one).sum()) for one in (0, 1)
        ]
        losses.append(abs(means[0] - means[1]))
    alike = [np.zeros(len(path), dtype=np.int8)]
    assert stretches([Path(0, path)], 2, density, half, alike, 10_000)[0] == pytest.approx(max(losses), rel=1e-9)
