"""Ratios within the rows and the columns of the powers of a transition matrix, rounded up.

Both influences of a slot on its neighbours under a chain come from log-ratios within the columns and within
the rows of the powers of its matrix, and from nothing else of it:

    right[b][x, x'] = max_y log(P^b(x, y) / P^b(x', y))      two starts, seen b slots later (F of the theory)
    left[a][x, x']  = max_y log(P^a(y, x) / P^a(y, x'))      two ends, seen a slots earlier

The influence of the slot a earlier on slot i is left[a] + start[i], start[i][x, x'] = log(m_i(x') / m_i(x)), m_i being
the distribution of slot i: Bayes' rule turns one into the other ([SWC17] section 4.4 and App. C.4). A stationary chain
has the same start term at every slot; a fixed initial distribution has m_i = q P^{i-1}; over every initial distribution
the term is M_{i-1}, where M_n[x, x'] = left[n][x', x]. A pair of which one state is impossible at a slot is no secret
pair there. For later slots the terms need not be followed for ever: m_j with j >= i is a mixture of the rows of
P^{i-1}, so start[j] <= M_{i-1} for every such j, whatever the start.

>>> tables = PowerTables(np.array([[0.9, 0.1], [0.4, 0.6]]))
>>> tables.extend(2)
>>> np.exp(tables.right).round(6).tolist()
[[2.25, 6.0], [1.416667, 2.666667]]

*Underflow.* Every column y of a power is P applied to the column before, so each column may carry a scale of its own:
ratios within a column do not see it, and ratios within a row are put right by the difference of two scales. So a
state that is hardly ever entered loses nothing. Where entries of one column lie further apart than floats reach, the
step is taken in logarithms. No positive probability is ever taken for a zero.

*Rounding.* A product of n non-negative matrices has a relative error of at most n k / 2 ulp per entry. What the two
entries of a ratio can be off by is added to every number, so that all of them are upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import numpy.typing as npt

from ..models.couplings import UNIT, FloatArray
from ..models.periodic import BoolArray, frozen

IntArray = npt.NDArray[np.intp]

TINY = 1e-290
"""Positive entries below this may have lost digits."""


class PowerTables:
    """The two tables of one matrix, for lags 1, 2, ... as far as they are asked for.

    Attributes:
        rows: State x of each ordered pair, shape (pairs,), pairs = k (k - 1).
        columns: State x' of each ordered pair.
        opposite: Where the pair (x', x) stands.
        lags: How many lags there are so far.
    """

    def __init__(self, transition: FloatArray, sources: BoolArray | None = None) -> None:
        """Take P, shape (k, k), and the states that the left table takes its maximum over; None for all of them."""
        self._powers = _powers_of(transition, sources)
        self.rows, self.columns, self.opposite = self._powers.rows, self._powers.columns, self._powers.opposite
        self.lags = 0

    @property
    def right(self) -> FloatArray:
        """Right table, shape (lags, pairs), at least 0; infinite where a zero stands below."""
        return frozen(self._powers.right[: self.lags])

    @property
    def left(self) -> FloatArray:
        """Left table, shape (lags, pairs); infinite where a zero stands below, -infinite where x is never entered."""
        return frozen(self._powers.left[: self.lags])

    @property
    def margins(self) -> FloatArray:
        """What was added for rounding at each lag at least, shape (lags,)."""
        return frozen(self._powers.margins[: self.lags])

    def extend(self, lags: int) -> None:
        """Go on to a number of lags; nothing happens where there are as many."""
        self._powers.extend(lags)
        self.lags = max(self.lags, lags)


_shared: ContextVar[dict[tuple[bytes, bytes], _Powers] | None] = ContextVar("_shared", default=None)


@contextmanager
def shared_powers() -> Generator[None]:
    """Make the tables of a matrix once, however many calibrations ask for them inside; they are kept until it ends."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def _powers_of(transition: FloatArray, sources: BoolArray | None) -> _Powers:
    known = _shared.get()
    if known is None:
        return _Powers(transition, sources)
    key = transition.tobytes(), b"" if sources is None else sources.tobytes()
    if key not in known:
        known[key] = _Powers(transition, sources)
    return known[key]


class _Powers:
    """Powers of a matrix, and the rows of both tables that they make, as in :class:`PowerTables`."""

    def __init__(self, transition: FloatArray, sources: BoolArray | None = None) -> None:
        states = len(transition)
        self.rows, self.columns = np.nonzero(~np.eye(states, dtype=np.bool_))
        places = np.zeros((states, states), dtype=np.intp)
        places[self.rows, self.columns] = np.arange(len(self.rows))
        self.opposite: IntArray = places[self.columns, self.rows]
        self.lags = 0
        self._flat = self.rows * states + self.columns
        self._step, self._edges = transition, transition > 0
        self._sources = sources
        self._power, self._support = np.eye(states), np.eye(states, dtype=np.bool_)
        self._logs: FloatArray | None = None
        self._scales = np.zeros(states)
        self._error = 4 * UNIT * (states + 4)
        self._worst = _Worst(states)
        self.right = np.empty((0, len(self.rows)))
        self.left = np.empty((0, len(self.rows)))
        self.margins = np.empty(0)

    def extend(self, lags: int) -> None:
        """Go on to a number of lags."""
        if lags > len(self.right):
            room = max(lags, 2 * len(self.right), 64) - len(self.right)
            self.right = np.concatenate([self.right, np.empty((room, len(self.rows)))])
            self.left = np.concatenate([self.left, np.empty((room, len(self.rows)))])
            self.margins = np.concatenate([self.margins, np.empty(room)])
        new = slice(self.lags, max(self.lags, lags))
        while self.lags < lags:
            self._advance()
            self.right[self.lags], self.left[self.lags] = self._ratios()
            self.margins[self.lags] = 2 * self._error
            self.lags += 1
        forward, backward, margins = self.right[new], self.left[new], self.margins[new, np.newaxis]
        self.right[new] = np.maximum(forward, 0) * (1 + 4 * UNIT) + margins
        room = 8 * UNIT * np.where(np.isfinite(backward), np.abs(backward), 0.0)
        self.left[new] = backward + (margins + room)

    def _advance(self) -> None:
        states = len(self._step)
        if self._logs is not None:
            self._advance_in_logarithms(self._logs)
            return
        power = self._step @ self._power
        if not self._is_positive:
            support: BoolArray = (self._support.astype(np.float64) @ self._edges) > 0
            if _smallest(power, support) < TINY:
                power = self._rescaled()
            if _smallest(power, support) < TINY:
                with np.errstate(divide="ignore"):
                    self._advance_in_logarithms(np.log(self._power))
                return
            self._support = support
        # once every entry is positive, none falls any more: each is a mean of those of its column before
        self._power = power
        self._error += UNIT / 2 * (states + 4)

    def _rescaled(self) -> FloatArray:
        """The next power after the columns have been brought near 1, by powers of two: no digit is lost."""
        _, exponents = np.frexp(self._power.max(axis=0))
        self._power = np.ldexp(self._power, -exponents)
        self._scales = self._scales + exponents * math.log(2.0)
        return self._step @ self._power

    def _advance_in_logarithms(self, logs: FloatArray) -> None:
        with np.errstate(divide="ignore"):
            steps = np.log(self._step)
        sums = steps[:, :, np.newaxis] + logs[np.newaxis, :, :]
        tops = sums.max(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.exp(sums - np.where(np.isfinite(tops), tops, 0.0)[:, np.newaxis, :])
            found = np.where(np.isfinite(tops), tops + np.log(shares.sum(axis=1)), -np.inf)
        support = np.isfinite(found)
        peaks = found.max(axis=0)
        peaks = np.where(np.isfinite(peaks), peaks, 0.0)
        self._scales = self._scales + peaks
        found = found - peaks
        largest = float(np.abs(found[support]).max(initial=0.0)) + float(np.abs(peaks).max())
        self._error += UNIT * (len(steps) + 8 + 8 * largest)
        self._support = support
        # where all positive entries of a column are so near to its largest, logarithms are left again
        back = float(found.min(initial=0.0, where=support)) > math.log(1e-200)
        self._logs = None if back else found
        if back:
            self._power = np.exp(found)

    @property
    def _is_positive(self) -> bool:
        return bool(self._support.all())

    def _ratios(self) -> tuple[FloatArray, FloatArray]:
        """The two ratios at the present power, without margins, shape (pairs,)."""
        kept = slice(None) if self._sources is None else self._sources
        if self._logs is not None:
            forward = self._worst(np.subtract, self._logs.T, self._logs.T)
            backward = self._worst(np.subtract, self._logs[kept], self._logs[kept])
        else:
            with np.errstate(divide="ignore"):
                inverse = 1 / self._power
                forward = np.log(self._worst(np.multiply, self._power.T, inverse.T))
                backward = np.log(self._worst(np.multiply, self._power[kept], inverse[kept]))
        scales = self._scales[:, np.newaxis] - self._scales
        backward = backward + scales
        size = 8 * UNIT * np.abs(self._scales).max()
        return forward.ravel()[self._flat], backward.ravel()[self._flat] + size


def _smallest(power: FloatArray, support: BoolArray) -> float:
    return float(power.min(initial=np.inf, where=support))


class _Worst:
    """Largest ratio[y, x] / [y, x'] over y, shape (k, k); a zero below alone makes it infinite.

    Zero over zero is no constraint. Without any constraint the result is that of a zero above.
    """

    def __init__(self, states: int) -> None:
        self._room = np.empty((max(1, 2**15 // states**2), states, states))

    def __call__(self, ratio: np.ufunc, above: FloatArray, below: FloatArray) -> FloatArray:
        worst = np.full(self._room.shape[1:], 0.0 if ratio is np.multiply else -np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            for first in range(0, len(above), len(self._room)):
                part = slice(first, first + len(self._room))
                room = self._room[: len(above[part])]
                ratio(above[part, :, np.newaxis], below[part, np.newaxis, :], out=room)
                # zero over zero is nan, which fmax passes over
                np.fmax(worst, np.fmax.reduce(room, axis=0), out=worst)
        return worst
