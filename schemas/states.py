"""The state space: which bin a value falls in.

``edges`` e_1 < ... < e_m make the m + 1 bins (-inf, e_1), [e_1, e_2), ..., [e_m, inf). Values below the first or
above the last edge go to the end bins and are counted nowhere else: how many there are would be a statistic of the
data. Every bin is a state of the model, whether the history visited it or not.

Edges and readings are decimals, which binary numbers round: 1.15 times 12000 is a little below 13800. A value that lies
below an edge by less than rounding moves it counts as the edge itself (:data:`ROUNDING`).

>>> space = StateSpace((250.0, 500.0), unit="W")
>>> space.encode(np.array([-3.0, 250.0, 1e9])).tolist(), space.labels
([0, 1, 2], ('below 250 W', '250 to 500 W', '500 W and above'))

States may be categories instead of bins: a reading holds a label, and its value is the number of the label's state. The
labels are public: they stand in the settings, the ledger and every row. Noise, sensitivity and account are those of
bins: a secret is the state of one slot, a histogram counts states and moves by 2 in L1 when one cell changes its state
(Lemma of the histogram, whatever the states are called), and the belief is a chain over the k states, whose order and
names no theorem uses. Which label belongs to which state is fixed before any reading, by the settings alone.

>>> space = StateSpace((), categories=("sleep", "walk"), other="other")
>>> space.labels, [space.state_of(label) for label in ("walk", "swim")]
(('sleep', 'walk', 'other'), [1, 2])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ArgumentError

#: Label of the state of a cell without a reading.
MISSING_LABEL = "missing"

#: What rounding moves a value by at most, as a share of it: some steps of a number of 53 bits.
ROUNDING = 2.0**-48

#: As a share of the distance to another edge, where edges are as close together as that.
_OF_A_BIN = 2.0**-10

#: Edges up to which comparing with each of them is faster than a search.
_COMPARED = 64


def _lowest(edges: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """The lowest value that counts as each edge."""
    array = np.asarray(edges, dtype=np.float64)
    with np.errstate(over="ignore"):
        below = np.diff(array, prepend=-np.inf) * _OF_A_BIN
    return array - np.minimum(np.abs(array) * ROUNDING, below)


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Bins of a value, and optionally one more state for a slot without a reading.

    Attributes:
        edges: the inner edges, strictly increasing and finite; none makes a single bin.
        unit: unit of the edges, for people.
        missing_state: whether an empty cell is the last state instead of a gap.
        names: labels of the bins for people; made from the edges where left out.
        categories: the labels that are states, in their order, instead of edges.
        other: the state of every label that is none of the categories, one of them or a state of its own behind them;
            ``None`` where such a label is no reading.
        absent: the value of every slot without a reading; ``None`` where such a slot is a gap, or the missing state.
    """

    edges: tuple[float, ...]
    unit: str = ""
    missing_state: bool = False
    names: tuple[str, ...] = field(default=(), compare=False)
    categories: tuple[str, ...] = ()
    other: str | None = None
    absent: float | None = None

    def __post_init__(self) -> None:
        self._check_categories()
        for i, edge in enumerate(self.edges):
            if not math.isfinite(edge):
                raise ArgumentError(f"states.edges[{i}] is {edge}; edges must be finite: the end bins are open anyway")
            if i and edge <= self.edges[i - 1]:
                raise ArgumentError(
                    f"states.edges[{i}] is {edge:g}, not above the one before it, {self.edges[i - 1]:g}; sort them"
                )
        if self.names and len(self.names) != self.bins:
            raise ArgumentError(
                f"states.labels has {len(self.names)} labels for {self.bins} bins; "
                f"{len(self.edges)} edges make {self.bins} bins"
            )

    def _check_categories(self) -> None:
        if not self.categories:
            if self.other is not None:
                raise ArgumentError(
                    "states.other is the state of labels that are none of states.categories; name these"
                )
            return
        if self.edges or self.names or self.unit:
            raise ArgumentError(
                "states.categories are labels instead of numbers: leave states.edges, states.labels and states.unit out"
            )
        seen: set[str] = set()
        for i, label in enumerate(self.categories):
            if not label.strip() or label != label.strip():
                raise ArgumentError(
                    f"states.categories[{i}] is {label!r}; a label is not empty, and has no blanks around it"
                )
            if label in seen:
                raise ArgumentError(f"states.categories[{i}] is {label!r}, which stands before it; name each once")
            seen.add(label)
        if self.other is not None and (not self.other.strip() or self.other != self.other.strip()):
            raise ArgumentError(f"states.other is {self.other!r}; a label is not empty, and has no blanks around it")
        if self.missing_state and MISSING_LABEL in self.all_categories:
            raise ArgumentError(
                f"states.categories has {MISSING_LABEL!r}, which under missing: state is the state of a cell without a "
                "reading; name the category otherwise in the data, or set missing to public"
            )

    @property
    def all_categories(self) -> tuple[str, ...]:
        """The labels of the states that are categories, with the one of all others."""
        more = () if self.other is None or self.other in self.categories else (self.other,)
        return (*self.categories, *more)

    def state_of(self, label: str) -> int | None:
        """The state of a label; ``None`` where it is no reading."""
        if label in self.categories:
            return self.categories.index(label)
        return None if self.other is None else self.all_categories.index(self.other)

    @property
    def bins(self) -> int:
        """Number of bins of a value, or of categories."""
        return len(self.all_categories) or len(self.edges) + 1

    @property
    def gap_state(self) -> int | None:
        """The state of a slot without a reading; ``None`` where it has none."""
        if self.absent is not None:
            return int(self.encode(np.array([self.absent]))[0])
        return self.bins if self.missing_state else None

    @property
    def size(self) -> int:
        """Number of states k: the bins, and the missing state if there is one."""
        return self.bins + self.missing_state

    @property
    def labels(self) -> tuple[str, ...]:
        """A label for each state, in order."""
        names = self.all_categories or self.names or tuple(self._label(i) for i in range(self.bins))
        return (*names, MISSING_LABEL) if self.missing_state else names

    @property
    def ends(self) -> tuple[tuple[float | None, float | None], ...]:
        """Lower and upper end of each state, in order; an open end, and both of the missing state, are ``None``.

        A category has none.
        """
        if self.categories:
            return ((None, None),) * self.size
        ends = tuple(pairwise((None, *self.edges, None)))
        return (*ends, (None, None)) if self.missing_state else ends

    def _label(self, state: int) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if not self.edges:
            return "any value"
        if state == 0:
            return f"below {self.edges[0]:g}{unit}"
        if state == len(self.edges):
            return f"{self.edges[-1]:g}{unit} and above"
        return f"{self.edges[state - 1]:g} to {self.edges[state]:g}{unit}"

    def encode(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The state of each value; the values must not be NaN.

        Args:
            values: finite values, any shape, in the unit of the edges; of categories the numbers of their states, as
                :meth:`are_states` has them.

        Returns:
            States, int64, the same shape.
        """
        if self.categories:
            return np.clip(values, 0, self.bins - 1).astype(np.int64)
        edges = _lowest(self.edges)
        if len(edges) > _COMPARED:
            return np.searchsorted(edges, values, side="right")
        states = np.zeros(np.shape(values), dtype=np.int64)
        for edge in edges:
            states += values >= edge
        return states

    def are_states(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which values a reading may have: any number of bins, and of categories the number of one, from 0."""
        if not self.categories:
            return np.ones(values.shape, dtype=np.bool_)
        return (values >= 0) & (values < self.bins) & (values == np.floor(values))

    def merged(self, edges: tuple[float, ...]) -> StateSpace:
        """The bins that some of the edges make, each a union of neighbouring states; the missing state stays a bin.

        The bin of a cell is a function of its state. A cell that changes its state changes its bin or stays in it: the
        histogram of the bins moves by 2 in L1 or not at all, so whatever is promised of the states' histogram holds.

        Raises:
            ValueError: no edge is given, or one is none of this space's, or they are not in order.
        """
        if self.categories:
            raise ArgumentError(
                "bins is edges, and states.categories has none: a bin for each category; leave bins out"
            )
        if not edges:
            raise ArgumentError(
                "bins is empty: a single bin says nothing about the values; name an edge, or leave bins out"
            )
        for i, edge in enumerate(edges):
            if edge not in self.edges:
                known = ", ".join(f"{one:g}" for one in self.edges)
                raise ArgumentError(
                    f"bins[{i}] is {edge:g}, and the bins of a query are unions of its domain's states: name some of "
                    f"states.edges, {known}"
                )
            if i and edge <= edges[i - 1]:
                raise ArgumentError(f"bins[{i}] is {edge:g}, not above the one before it, {edges[i - 1]:g}; sort them")
        return self if edges == self.edges else StateSpace(edges, self.unit, self.missing_state, absent=self.absent)

    def firsts_in(self, finer: StateSpace) -> npt.NDArray[np.int64]:
        """The first state of a finer space in each of the bins of this one, which `merged` made of it."""
        return np.concatenate([[0], np.searchsorted(finer.edges, self.edges) + 1]).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Plain form for digests, models and the store; labels of bins are for people and not part of it.

        Categories are: which label is which state is what a count means.
        """
        form: dict[str, Any] = {"unit": self.unit, "missing_state": self.missing_state}
        if self.categories:
            return {"categories": list(self.categories), "other": self.other, **form}
        return {"edges": list(self.edges), **form, **({} if self.absent is None else {"absent": self.absent})}

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> StateSpace:
        """The inverse of :meth:`to_dict`."""
        unit, missing = str(form["unit"]), bool(form["missing_state"])
        if "categories" in form:
            other = None if form["other"] is None else str(form["other"])
            return cls((), unit, missing, categories=tuple(map(str, form["categories"])), other=other)
        absent = form.get("absent")
        edges = tuple(float(e) for e in form["edges"])
        return cls(edges, unit, missing, absent=None if absent is None else float(absent))

    @classmethod
    def of_row(
        cls, edges: Sequence[float] | None, unit: str, missing: str, labels: Sequence[str] | None = None
    ) -> StateSpace:
        """The bins that the columns of a released row say: edges, or the labels of categories.

        Raises:
            ValueError: they say none.
        """
        is_state = missing == "state"
        if labels is None:
            return cls(tuple(edges or ()), unit, is_state)
        return cls((), "", is_state, categories=tuple(labels[:-1] if is_state else labels))
