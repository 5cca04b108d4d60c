"""One side of a slot: the cheapest end of a quilt, or none, over slots of piecewise constant density.

A node lies ``offset`` slots inside its own run, counted from the run's near edge; beyond the edge follow other runs,
outward. The end of the quilt at lag a costs the density of the a - 1 slots between, plus the influence at lag a; no
end costs all the density on this side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .chains import FloatArray

IntArray = npt.NDArray[np.intp]


class Neighbour(NamedTuple):
    """A run beyond the near edge."""

    distance: int
    """Slots between the edge and this run."""
    length: int
    density: float
    mass: float
    """Sum of the density over the slots between the edge and this run."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What lies on one side of a run.

    Attributes:
        neighbours: Runs outward from the near edge, without a hole, up to the reach of the tables or to the end.
        total: Sum of the density over everything on this side of the edge; infinite where it has no end, or where it
            never matters.
    """

    neighbours: tuple[Neighbour, ...]
    total: float

    @classmethod
    def of(cls, runs: Iterable[tuple[int, float]], total: float) -> Surroundings:
        """Place runs, given by length and density, outward from the edge.

        Masses are sums of non-negative numbers, compensated for their rounding, so they are right to 2 ulp.
        """
        neighbours: list[Neighbour] = []
        distance, mass, lost = 0, 0.0, 0.0
        for length, density in runs:
            neighbours.append(Neighbour(distance, length, density, mass + lost))
            distance += length
            added = density * length
            larger, smaller = (mass, added) if mass >= added else (added, mass)
            mass = larger + smaller
            lost += (larger - mass) + smaller
        return cls(tuple(neighbours), total)

    def outward(self, lags: int) -> FloatArray:
        """Sum of the density over the first j slots beyond the edge, for j = 0..lags-1."""
        slots = np.arange(lags)
        sums = np.full(lags, self.total)
        sums[0] = 0.0
        # beyond the last neighbour there is nothing more, so the total is exact there
        shown = 1
        parts = [(run, min(lags, run.distance + run.length + 1)) for run in self.neighbours if run.distance + 1 < lags]
        if parts:
            repeats = np.diff([shown, *(stop for _, stop in parts)])
            inner = slots[shown : parts[-1][1]]
            distance, density, mass = (
                np.repeat([value(run) for run, _ in parts], repeats)
                for value in (attrgetter("distance"), attrgetter("density"), attrgetter("mass"))
            )
            sums[inner] = mass + (inner - distance) * density
        return sums


def _masses(density: float, offset: int, outward: FloatArray) -> FloatArray:
    """Sum of the density strictly between a node and the slot at lag a, for a = 1..lags."""
    inside: FloatArray = np.arange(min(offset, len(outward)), dtype=np.float64) * density
    return np.concatenate([inside, offset * density + outward[: len(outward) - len(inside)]])


def _each_node(table: FloatArray, density: float, around: Surroundings, offsets: Iterable[int]) -> FloatArray:
    outward = around.outward(table.shape[1])
    best = [(table + _masses(density, int(offset), outward)).min(axis=1) for offset in offsets]
    return np.stack(best, axis=1)


def _window_argmin(costs: FloatArray, width: int) -> IntArray:
    """Column of the least cost in [j, j + width), clipped to the array, for each column j.

    By doubling; shape as ``costs``.
    """
    where = np.broadcast_to(np.arange(costs.shape[1]), costs.shape).copy()
    best = costs.copy()
    span = 1
    while span < min(width, costs.shape[1]):
        step = min(span, width - span)
        closer = best[:, step:] < best[:, :-step]
        # the right-hand sides are copies of the old values
        where[:, :-step] = np.where(closer, where[:, step:], where[:, :-step])
        best[:, :-step] = np.where(closer, best[:, step:], best[:, :-step])
        span += step
    return where


def _by_runs(table: FloatArray, density: float, around: Surroundings, nodes: int) -> FloatArray:
    pairs, lags = table.shape
    best = np.full((pairs, nodes), np.inf)
    inside = np.arange(nodes - 1) * density + table[:, : nodes - 1]
    best[:, 1:] = np.minimum.accumulate(inside, axis=1)
    own = np.arange(nodes) * density
    for run in around.neighbours:
        reached = min(nodes, lags - run.distance)
        if reached <= 0 or run.mass >= float(best.max()):
            break
        seen = table[:, run.distance : run.distance + reached - 1 + run.length]
        costs = np.arange(seen.shape[1]) * run.density + seen
        ends = _window_argmin(costs, run.length)[:, :reached]
        between = (ends - np.arange(reached)) * run.density
        # summed from small parts: the minimised cost is off by a multiple of the density, which would cancel badly
        cost = own[:reached] + run.mass + between + np.take_along_axis(seen, ends, axis=1)
        best[:, :reached] = np.minimum(best[:, :reached], cost)
    return best


def far(table: FloatArray, density: float) -> FloatArray:
    """Cheapest end of a quilt within a run that is longer than the reach, shape (pairs,)."""
    if not table.shape[1]:
        return np.full(table.shape[0], np.inf)
    return (np.arange(table.shape[1]) * density + table).min(axis=1)


class SideCosts:
    """Cost of one side of the nodes of a run, by offset from the near edge; rows are pairs.

    Args:
        table: Influence on this side, shape (pairs, lags).
        density: Density of the run.
        around: What lies beyond the near edge.
        nodes: How many nodes, at most the lags, see beyond the near edge.
    """

    def __init__(self, table: FloatArray, density: float, around: Surroundings, nodes: int) -> None:
        self._table, self._density, self._around, self._nodes = table, density, around, nodes

    @cached_property
    def _far(self) -> FloatArray:
        return far(self._table, self._density)

    @cached_property
    def _near(self) -> FloatArray:
        return _by_runs(self._table, self._density, self._around, self._nodes)

    def _ends(self, offsets: IntArray) -> FloatArray:
        # few nodes among many runs are priced one by one, many nodes among few runs run by run
        if len(offsets) <= 4 * (1 + len(self._around.neighbours)):
            return _each_node(self._table, self._density, self._around, offsets)
        return self._near[:, offsets]

    def beyond(self, offsets: npt.NDArray[Any]) -> FloatArray:
        """Costs at offsets beyond the reach, one per pair."""
        return np.minimum(self._far, self._around.total + offsets * self._density)

    def at(self, offsets: IntArray) -> FloatArray:
        """Costs at offsets that are the same for all pairs, shape (pairs, offsets)."""
        none = self._around.total + offsets * self._density
        inside = offsets < self._nodes
        if inside.all():
            costs = np.minimum(self._ends(offsets), none)
        else:
            costs = np.minimum(self._far[:, np.newaxis], none)
            if inside.any():
                costs[:, inside] = np.minimum(self._ends(offsets[inside]), none[inside])
        return costs

    def kink(self, low: int, high: int) -> FloatArray:
        """Per pair the offset where "no end" stops being the cheaper choice, clipped to [low, high]."""
        with np.errstate(divide="ignore", invalid="ignore"):
            offsets = (self._far - self._around.total) / self._density
        return np.clip(np.nan_to_num(offsets, nan=low), low, high)


def cheapest_end(row: FloatArray, density: float, offset: int, around: Surroundings) -> tuple[int | None, float]:
    """Lag and cost of the cheapest end for one pair and node; no lag where no end is as cheap."""
    whole_side = offset * density + around.total
    if not len(row):
        return None, whole_side
    costs = _masses(density, offset, around.outward(len(row))) + row
    first = int(np.argmin(costs))
    return (first + 1, float(costs[first])) if costs[first] < whole_side else (None, whole_side)
