"""How far the powers of a transition matrix can be told apart: log-ratios within their columns and within their rows.

Both influences of a slot on its neighbours come from these two tables and from nothing else of the matrix:

    right[b][x, x'] = max_y log(P^b(x, y) / P^b(x', y))      two starts, seen b slots later (F of the theory)
    left[a][x, x']  = max_y log(P^a(y, x) / P^a(y, x'))      two ends, seen a slots earlier

The influence of the slot a earlier on the pair (x, x') is left[a][x, x'] + log(m(x') / m(x)), m being the distribution
of the slot itself: Bayes' rule turns one into the other ([SWC17] section 4.4 and App. C.4).

*Underflow.* Every column y of a power is P applied to the column before, so each column may carry a scale of its own:
ratios within a column do not see it, and ratios within a row are put right by the difference of two scales. So a
state that is hardly ever entered loses nothing. Where entries of one column lie further apart than floats reach, the
step is taken in logarithms. No positive probability is ever taken for a zero.

*Rounding.* A product of n non-negative matrices has a relative error of at most n k / 2 ulp per entry. What the two
entries of a ratio can be off by is added to every number, so that all of them are upper bounds.

>>> import numpy as np
>>> tables = PowerTables(np.array([[0.9, 0.1], [0.4, 0.6]]))
>>> tables.extend(2)
>>> np.exp(tables.right).round(6).tolist()
[[2.25, 6.0], [1.416667, 2.666667]]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .chains import FloatArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]

ULP = 2.0**-52
_TINY = 1e-290
"""Positive entries below this may have lost digits."""
_ROOM = 1e-200
"""Where all positive entries of a column are at least this share of its largest, logarithms are left again."""
_LN2 = float(np.log(2.0))
_BLOCK = 2**15
_FIRST = 64


class PowerTables:
    """The two tables of one matrix, for lags 1, 2, ... as far as they are asked for.

    Attributes:
        rows: State x of each ordered pair, shape (pairs,), pairs = k (k - 1).
        columns: State x' of each ordered pair.
        opposite: Where the pair (x', x) stands.
        lags: How many lags there are so far.
    """

    def __init__(self, transition: FloatArray, sources: BoolArray | None = None) -> None:
        """Take the matrix.

        Args:
            transition: P, shape (k, k).
            sources: The states y that the left table takes its maximum over, shape (k,); None for all of them.
        """
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
        self._error = 4 * ULP * (states + 4)
        self._worst = _Worst(states)
        self._right = np.empty((0, len(self.rows)))
        self._left = np.empty((0, len(self.rows)))
        self._margins = np.empty(0)

    @property
    def right(self) -> FloatArray:
        """Right table, shape (lags, pairs), at least 0; infinite where a zero stands below."""
        return self._right[: self.lags]

    @property
    def left(self) -> FloatArray:
        """Left table, shape (lags, pairs); infinite where a zero stands below, -infinite where x is never entered."""
        return self._left[: self.lags]

    @property
    def margins(self) -> FloatArray:
        """What was added for rounding at each lag at least, shape (lags,)."""
        return self._margins[: self.lags]

    def extend(self, lags: int) -> None:
        """Go on to a number of lags; nothing happens where there are as many."""
        if lags > len(self._right):
            room = max(lags, 2 * len(self._right), _FIRST) - len(self._right)
            self._right = np.concatenate([self._right, np.empty((room, len(self.rows)))])
            self._left = np.concatenate([self._left, np.empty((room, len(self.rows)))])
            self._margins = np.concatenate([self._margins, np.empty(room)])
        while self.lags < lags:
            self._advance()
            forward, backward = self._ratios()
            margin = 2 * self._error
            self._right[self.lags] = np.maximum(forward, 0) * (1 + 4 * ULP) + margin
            room = 8 * ULP * np.where(np.isfinite(backward), np.abs(backward), 0.0)
            self._left[self.lags] = backward + (margin + room)
            self._margins[self.lags] = margin
            self.lags += 1

    def _advance(self) -> None:
        states = len(self._step)
        if self._logs is not None:
            self._advance_in_logarithms(self._logs)
            return
        power = self._step @ self._power
        if not self._is_positive:
            support: BoolArray = (self._support.astype(np.float64) @ self._edges) > 0
            if _smallest(power, support) < _TINY:
                power = self._rescaled()
            if _smallest(power, support) < _TINY:
                with np.errstate(divide="ignore"):
                    self._advance_in_logarithms(np.log(self._power))
                return
            self._support = support
        # once every entry is positive, none falls any more: each is a mean of those of its column before
        self._power = power
        self._error += ULP / 2 * (states + 4)

    def _rescaled(self) -> FloatArray:
        """The next power after the columns have been brought near 1, by powers of two: no digit is lost."""
        _, exponents = np.frexp(self._power.max(axis=0))
        self._power = np.ldexp(self._power, -exponents)
        self._scales = self._scales + exponents * _LN2
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
        self._error += ULP * (len(steps) + 8 + 8 * largest)
        self._support = support
        back = float(found.min(initial=0.0, where=support)) > np.log(_ROOM)
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
        size = 8 * ULP * np.abs(self._scales).max()
        return forward.ravel()[self._flat], backward.ravel()[self._flat] + size


def _smallest(power: FloatArray, support: BoolArray) -> float:
    return float(power.min(initial=np.inf, where=support))


class _Worst:
    """Largest ratio[y, x] / [y, x'] over y, shape (k, k); a zero below alone makes it infinite.

    Zero over zero is no constraint. Without any constraint the result is that of a zero above.
    """

    def __init__(self, states: int) -> None:
        self._room = np.empty((max(1, _BLOCK // states**2), states, states))

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
