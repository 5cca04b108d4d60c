"""The forward-backward account of any schedule, finite or without an end: one recursion over the slots, from above.

With d(t) the loss per slot and P_t the kernel out of slot t, for every two states x, x' possible at slot t

    F_t[x,x'] = d(t) + L(P_t(x,.), P_t(x',.); F_{t+1}),   0 behind the last charged slot,

B_t alike against the clock, and the loss at slot t is F_t + B_t - d(t), the largest over x, x' and all slots between
the first and the last charge, those of density 0 included (``docs/mathematics.md`` has the proof).

*A step* bounds the tail F_t - d(t) by the least of what is known; every bound is monotone in what lies ahead.

1. Blocks: D(t+1..t+m-1) + L(P^m; F_{t+m}), D the density of the middle slots, which enter only through the least of
   their values. L is at most log(1 + eta (e^f - 1)) for the total variation eta of P^m and the largest entry f of
   F_{t+m}; from an unknown start it is bounded by odds; and it is at most the influence of the lag [SWC17].
2. Boxes: G(y) / G(z) lies between e^-F[z,y] and e^F[y,z], so threshold sets of the two rows bound L for each anchor z.
   Exact for two states.
3. Couplings of the rows, whatever they are: those that are optimal for a certificate of the density, and for the stream
   that loses 1.

*From above.* What bounds F_{t+1} leads to a bound of F_t, and minima of bounds are bounds. So a line that is nowhere
denser than d has the certificate of d everywhere (:meth:`Side.level`), and a periodic density as many periods, swept
from the certificate of its largest density, as change anything. Nothing has to be proved afterwards.

*Floats.* Tails are rounded up to 20 binary digits and to multiples of 2^-42, densities inside of blocks to these, so
their sums are exact and F_t is a function of the densities ahead, whatever the runs it was computed by. So the order of
charges leaves no trace. In a run of one density tails stop to change after finitely many slots: where a state maps to
itself, that is the rest of the run. A number of 450 or more is infinite: no budget allows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief, ChainError
from ..models.certificates import calibrated, of_kernel, on_grid
from ..models.couplings import Couplings, FloatArray
from ..models.directions import Direction, NotContracting
from ..models.kernels import Kernel, ratios_of
from ..models.memory import remembered
from ..quilts.influence import sided_influence

IntArray = npt.NDArray[np.intp]

_UP, _ADD = 1 + 2.0**-45, 2.0**-50  # outward rounding of the operations of a step
_UNIT = 2.0**-42  # of which tails and densities are multiples, so that sums up to 2^10 are exact
USELESS, _TOP = 450.0, 1024.0  # a loss that no budget allows, and one that stands for all above it
_EXPONENT = 300.0  # whose exponential may be squared
_FOLLOWED = 4096  # slots of a run, and iterations of a level, that are followed at most
FAR = 2**40  # slots that stand for a run without end


def _snapped(tail: FloatArray) -> FloatArray:
    """Rounded up to what tails are: 32 binary digits less than a float has."""
    units = np.ceil(np.minimum(tail, _TOP) / _UNIT) * _UNIT
    return ((units.view(np.int64) + (2**32 - 1)) >> 32 << 32).view(np.float64)


def _above(density: float) -> float:
    """The least multiple of the unit that is not below a density; half of the top for all above."""
    return math.ceil(min(density, _TOP / 2) / _UNIT) * _UNIT


@dataclass(frozen=True, eq=False)
class State:
    """What lies ahead of a run: F of the next slot; largest entries and densities of the slots ahead, nearest last."""

    matrix: FloatArray
    tops: FloatArray
    densities: FloatArray

    @cached_property
    def key(self) -> tuple[bytes, bytes, bytes]:
        """Equal for equal states."""
        return self.matrix.tobytes(), self.tops.tobytes(), self.densities.tobytes()

    def below(self, other: State) -> bool:
        """Whether nothing is above another state."""
        rest = (self.tops <= other.tops).all() and (self.densities <= other.densities).all()
        return bool((self.matrix <= other.matrix).all() and rest)


@dataclass(frozen=True, eq=False)
class Tails:
    """F - d of the slots of a run, and what the run behind it sees."""

    near: FloatArray  # of the slots nearest to what lies ahead, nearest first, shape (slots, *shape)
    far: FloatArray  # of all others by phase, or one for all, shape (period or 1, *shape)
    leaving: State

    @cached_property
    def most(self) -> float:
        """The largest of all."""
        return float(max(self.near.max(initial=0.0), self.far.max()))


class Side:
    """One direction of time of one member of a belief: bounds on L in one number, and what runs come to along it.

    The number is the largest entry of F. A class is followed by it, and so are kernels of many states.
    """

    shape: tuple[int, ...] = ()
    period, step = 1, 1  # slots after which the kernels repeat, and how many a kernel leads ahead

    def __init__(self, direction: Direction, influence: FloatArray) -> None:
        """Take the direction, and the largest influence of each lag, shape (lags,)."""
        curve, odds = direction.blocks
        eta = {1: 1.0, **dict.fromkeys(odds, 1.0), **curve}
        lags = np.array(sorted(eta), dtype=np.intp)
        told = np.array([eta[lag] for lag in lags.tolist()])
        start = np.array([odds.get(lag, np.inf) for lag in lags.tolist()])
        # behind the last lag the influence is no larger
        caps = np.append(influence, np.inf)[np.minimum(lags, max(1, len(influence))) - 1]
        kept = (told < 1) | np.isfinite(start) | np.isfinite(caps)
        # longer blocks than one that has forgotten add nothing; what couplings follow needs none of them
        kept &= np.cumsum((lags >= (1 if self.shape else 64)) & (told < 1e-3)) <= 1
        # of many states, shorter blocks and larger total variations count for short windows alone
        if direction.kernel is not None and not self.shape and min(lags[told < 0.8], default=0) >= 6:
            kept &= told < 0.8
        self.lags, self.eta, self.odds = lags[kept], told[kept], start[kept]
        self.caps = caps[kept] * _UP + _ADD
        self.longest = int(max(self.lags, default=1))
        # slots that are followed at once: no block ends within them
        self.stride = int(min(self.lags, default=1))
        self.level = lru_cache(maxsize=4096)(self._level)
        self.fixed: list[Shares] = []  # held at every density
        self._courses: dict[tuple[object, ...], Course] = {}
        self.remembered = 0  # numbers in them

    def blocks(self, tops: FloatArray, mass: FloatArray) -> FloatArray:
        """The least of all blocks, shape (slots,); of each its largest entry ahead and mass, shape (blocks, slots)."""
        told = np.log1p(self.eta[:, None] * np.expm1(np.minimum(tops, _EXPONENT)))
        told = np.minimum(np.where(tops < _EXPONENT, told, tops), self.caps[:, None])
        if np.isfinite(self.odds).any():
            half, far = tops / 2, np.minimum(self.odds, 1e300)[:, None] / 2
            start = 2 * (np.logaddexp(0, half + far) - np.logaddexp(half, far))
            told = np.where(np.isfinite(self.odds)[:, None], np.minimum(told, start), told)
        told += mass
        return _snapped(told.min(axis=0, initial=_TOP) * _UP + _ADD * (1 + tops.max(initial=0.0)))

    def tails(self, ahead: FloatArray, tops: FloatArray, mass: FloatArray, density: float, given: Given) -> FloatArray:
        """F - d of some slots in a row, nearest first, shape (slots, *shape).

        Args:
            ahead: F of the slot ahead of the first one.
            tops: Largest entries ahead of each block, shape (blocks, slots).
            mass: Density of each block but its first slot, shape (blocks, slots).
            density: That of each of the slots.
            given: The density whose couplings are held beside those that always are, and the slot's phase.
        """
        del given
        least, rise = self.blocks(tops, mass), density * np.arange(mass.shape[1])
        # L is at most what lies ahead
        least[0] = min(least[0], ahead.max())
        return np.minimum.accumulate(least - rise) + rise

    def own(self, tail: FloatArray, density: float, phase: int | slice) -> FloatArray:
        """F = d + tail between states."""
        del phase
        return np.asarray(tail + density)

    def empty(self) -> State:
        """Nothing is charged ahead."""
        return State(np.zeros(self.shape), np.zeros(self.longest), np.zeros(self.longest))

    def bound(self, density: float, slot: int) -> State | None:
        """A state ahead whose nearest slot is given, that bounds every one of any schedule that is nowhere denser."""
        density = _above(density)
        if (level := self.level(density)) is None:
            return None
        matrix = self.own(level, density, slice(None))
        return State(matrix[slot % self.period], np.full(self.longest, matrix.max()), np.full(self.longest, density))

    def _level(self, density: float) -> FloatArray | None:
        """Tails of a certificate of an endless run of a density, shape (period, *shape); None where there is none.

        Iterates of a certificate fall, and each is one.
        """
        tails = self._start(density)
        for _ in range(_FOLLOWED):
            if not tails.max() < USELESS:
                return None
            after = self.mapped(tails, density, density)
            if (after <= tails).all():
                break
            # rounding took it below a certificate
            tails = np.maximum(tails, after)
        else:
            return None
        for _ in range(_FOLLOWED):
            before, tails = tails, np.minimum(tails, self.mapped(tails, density, density))
            if (tails == before).all():
                break
        return tails

    def _start(self, density: float) -> FloatArray:
        """Fixed points of single blocks: the least of them is a certificate but for rounding."""
        mass, grown = (self.lags - 1) * density, self.lags * density
        rise = np.exp(np.minimum(grown, _EXPONENT))
        with np.errstate(divide="ignore", invalid="ignore"):
            closed = mass + np.log((1 - self.eta) / (1 - self.eta * rise))
            half = (np.sqrt(rise) - 1) * np.exp(np.minimum(self.odds, _EXPONENT) / 2)
            start = 2 * np.log((half + np.sqrt(half**2 + 4 * np.sqrt(rise))) / 2) - density
        closed = np.where((self.eta * rise < 1) & (self.eta < 1) & (grown < _EXPONENT), closed, _TOP)
        start = np.where((self.odds < _EXPONENT) & (grown < _EXPONENT), start, _TOP)
        least = min(one.min(initial=_TOP) for one in (closed, start, mass + self.caps))
        return _snapped(np.full((self.period, *self.shape), least) * _UP + _ADD)

    def mapped(self, tails: FloatArray, density: float, held: float) -> FloatArray:
        """What a step makes of tails that all slots ahead have, shape (period, *shape)."""
        matrices = self.own(tails, density, slice(None))
        top = np.full((len(self.lags), 1), matrices.max())
        mass: FloatArray = np.asarray((self.lags - 1)[:, None] * density, dtype=np.float64)
        ahead = [matrices[(phase + self.step) % self.period] for phase in range(self.period)]
        return np.concatenate([self.tails(one, top, mass, density, (held, at)) for at, one in enumerate(ahead)])

    def run(self, state: State, density: float, length: int, slot: int) -> Tails:
        """Tails of the slots of a run from the given one, next to the state, outward."""
        density = _above(density)
        # a longer run has the certificate of its own density, and its couplings
        held, phase = density if length > 64 else 0.0, slot % self.period
        key = state.key, density, held, phase
        if (found := self._courses.get(key)) is None:
            if self.remembered > 2**22:  # some 30 MB
                self._courses.clear()
                self.remembered = 0
            found = self._courses[key] = Course(self, state, density, (held, phase))
        return found.tails(length)


Given: TypeAlias = tuple[float, int]
Shares: TypeAlias = tuple[FloatArray, FloatArray]
"""What stays of a column, shape (pairs, k), and what moves to it, shape (pairs, k, k), both over its chance q."""


class Paired(Side):
    """A side whose kernels are followed by matrices; a chain is a periodic chain of period 1."""

    def __init__(self, direction: Kernel, influence: FloatArray) -> None:
        """Take the kernels, and the largest influence of each lag, shape (lags,)."""
        self.shape, self.period, self.step = direction.shape[-2:], len(direction.kernels), direction.step
        super().__init__(direction, influence)
        self.stride, self.kernels = 1, direction
        self.live = np.zeros((self.period, *self.shape))
        self.live[direction.pairs] = 1.0
        self._pairs = [np.flatnonzero(direction.pairs[0] == phase) for phase in range(self.period)]
        self._factor = 1 + (2 * self.shape[0] + 24) * 2.0**-51 + 2 * direction.rounding
        self._order, *self._rows = _by_ratio(*direction.rows(slice(None)))
        self._sets = self._threshold_sets()
        self.rung = lru_cache(maxsize=1024)(self._rung)
        self._packed = lru_cache(maxsize=4096)(self._pack)

    def _threshold_sets(self) -> list[tuple[FloatArray, FloatArray]]:
        """Probabilities of the sets where p/q is largest, less q and q, outward, by phase, shape (blocks, pairs, k)."""
        slots, first, second = self.kernels.pairs
        more, below = (np.zeros((len(self.lags), len(slots), self.shape[0])) for _ in range(2))
        for place, power in enumerate(self.kernels.products(self.lags.tolist())):
            # sums of products that are not negative
            error = (int(self.lags[place]) + 1) * ((self.shape[0] + 2) * 2.0**-52 + self.kernels.rounding)
            p, q = (np.cumsum(one, axis=1) for one in _by_ratio(power[slots, first], power[slots, second])[1:])
            more[place], below[place] = np.maximum(p - q, 0.0) + error * (p + q), q * (1 - error)
        return [(more[:, pairs], below[:, pairs]) for pairs in self._pairs]

    def tails(self, ahead: FloatArray, tops: FloatArray, mass: FloatArray, density: float, given: Given) -> FloatArray:
        """F - d of a slot, the least of blocks, boxes and couplings; shape (1, k, k)."""
        del density
        most, (_, phase) = float(ahead.max()), given
        tail = min(float(self.blocks(tops, mass)[0]), most)
        found, pairs = np.full(self.shape, tail), self._pairs[phase]
        if most < USELESS and len(pairs):
            more, below = self._sets[phase]
            grown = np.expm1(np.minimum(tops, _EXPONENT))[:, :, None]
            sets = np.log1p((more * grown / (1 + below * grown)).max(axis=2)) + np.where(tops < _EXPONENT, mass, _TOP)
            ratios = ratios_of(ahead)
            stays, moves = self._packed(*given)
            loads = (stays + np.matmul(moves, ratios.T[:, :, None])[:, :, 0]).max(axis=0)
            theta = loads.reshape(-1, len(pairs)).min(axis=0, initial=np.inf)
            if self.shape[0] <= 3:  # for more states they do not pay
                theta = np.minimum(theta, self._boxes(ratios, pairs, phase))
            told = np.minimum(sets.min(axis=0, initial=_TOP), np.log(theta * self._factor))
            which = self.kernels.pairs[1][pairs], self.kernels.pairs[2][pairs]
            found[which] = np.minimum(tail, _snapped(told * _UP + _ADD * (1 + tail)))
        return (found * self.live[phase])[None]

    def _boxes(self, ratios: FloatArray, pairs: IntArray, phase: int) -> FloatArray:
        """Threshold sets, raised in order, the least over the anchors z that are possible at the slot ahead."""
        order = self._order[pairs][:, None, :]
        anchors = np.flatnonzero(self.kernels.live[(phase + self.step) % self.period])[None, :, None]
        high, low = ratios[order, anchors], 1 / ratios[anchors, order]
        sums: list[FloatArray] = []
        for row in self._rows:
            upper, lower = (np.cumsum(row[pairs][:, None, :] * one, axis=2) for one in (high, low))
            sums.append(np.concatenate([lower[:, :, -1:], upper + (lower[:, :, -1:] - lower)], axis=2))
        with np.errstate(over="ignore"):
            return (sums[0] / sums[1]).max(axis=2).min(axis=1)

    def _pack(self, density: float, phase: int) -> Shares:
        """All couplings for a density (0: those of all densities), by column: what stays, and what moves."""
        rung = self.rung(on_grid(Fraction(density))) if density else None
        held = [*self.fixed, *([rung[1]] if rung else [])]
        pairs, k = self._pairs[phase], self.shape[0]
        stays = [np.zeros((k, 0)), *(one[pairs].T for one, _ in held)]
        moves = [np.zeros((k, 0, k)), *(one[pairs].transpose(2, 0, 1) for _, one in held)]
        return np.concatenate(stays, axis=1), np.concatenate(moves, axis=1)

    def _rung(self, density: float) -> tuple[FloatArray, Shares] | None:
        """A certificate at a density on the grid, and couplings that prove it; None where none is found."""
        try:
            matrix, proof = of_kernel(self.kernels, density)
        except (ChainError, NotContracting):
            return None
        return matrix.reshape(self.live.shape), self.kernels.shares(proof)

    def own(self, tail: FloatArray, density: float, phase: int | slice) -> FloatArray:
        """F = d + tail between states that are possible."""
        return tail + density * self.live[phase]

    def _start(self, density: float) -> FloatArray:
        """Or the certificate of the next density on the grid: L is monotone, so F - (D - d) is one at d."""
        tails, grid = super()._start(density) * self.live, on_grid(Fraction(density))
        if density and (found := self.rung(grid)):
            tails = np.minimum(tails, _snapped(np.maximum(found[0] - grid, 0.0) * _UP + _ADD) * self.live)
        return tails


def _by_ratio(p: FloatArray, q: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """The order of falling p/q of each row, and both rows in it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p > 0, p / q, -1.0), axis=1, kind="stable")
    return order, np.take_along_axis(p, order, axis=1), np.take_along_axis(q, order, axis=1)


class Course:
    """A run of one density that begins at a state, followed as far as it had to be."""

    def __init__(self, side: Side, state: State, density: float, given: Given) -> None:
        """Take the side, what lies ahead, and the density; couplings that are held, and the phase of the first slot."""
        self._side, self._state, self._density, (self._held, self._phase) = side, state, density, given
        most = self._most = side.longest
        # sums of so many densities are exact
        self._steps = np.arange(min(side.stride, max(1, int(_TOP / 2 / max(density, _UNIT)))))
        self._tops = np.concatenate([state.tops, np.zeros(max(64, side.stride))])
        self._mass = np.concatenate([[0.0], np.cumsum(state.densities[::-1])])
        total = self._mass[-1] + density * most
        self._slack = 0.0 if total <= _TOP else total * 2.0**-30
        self._tails = np.zeros((len(self._tops) - most, *side.shape))
        self._done, self._since = 0, 0
        self._far: FloatArray | None = None
        # tails that no slot is above, where what lies ahead is not above those of an endless run
        self._level: FloatArray | None = None
        self._take_level(state)
        ordered = np.append(state.densities, density)
        self._falls = bool((ordered[1:] <= ordered[:-1]).all() and (state.tops[1:] <= state.tops[:-1]).all())
        self._made: dict[tuple[int, float], Tails] = {}
        side.remembered += 5 * most + self._tails.size

    def tails(self, length: int) -> Tails:
        """Tails of the slots of so long a run."""
        while self._done < min(length, max(_FOLLOWED, self._most)) and self._far is None:
            self._follow()
        done, most, period = min(self._done, length), self._most, self._side.period
        far = self._further(length) if done < length else self._tails[done - 1 : done]
        if done + most + period < length:
            # further on nothing changes but the phase
            length = done + most + 1 + (length - done - most - 1) % period
        key = length, float(far.max())
        if key not in self._made:
            self._side.remembered += 3 * most
            self._made[key] = self._cut(done, length, far)
        return self._made[key]

    def _cut(self, done: int, length: int, far: FloatArray) -> Tails:
        side, most, last = self._side, self._most, self._phase_of(length - 1)
        tail = self._tails[done - 1] if done == length else far[last % len(far)]
        tops = self._tops[: most + done]
        if done < length:
            tops = np.concatenate([tops, np.full(min(length - done, most), far.max() + self._density)])
        own = np.full(min(length, most), self._density)
        densities = np.concatenate([self._state.densities, own])
        leaving = State(np.asarray(side.own(tail, self._density, last)), tops[-most:], densities[-most:])
        return Tails(self._tails[:done], far, leaving)

    def _take_level(self, state: State) -> None:
        """Keep below the tails of an endless run from a state on that is."""
        if self._level is None and self._held:
            bounds = self._side.bound(self._density, self._phase_of(self._done - 1))
            if bounds is not None and state.below(bounds):
                self._level = self._side.level(self._density)

    def _phase_of(self, place: int) -> int:
        return (self._phase - place * self._side.step) % self._side.period

    def _matrix(self, place: int) -> FloatArray:
        own = self._side.own
        return self._state.matrix if place < 0 else own(self._tails[place], self._density, self._phase_of(place))

    def _follow(self) -> None:
        """As many slots as no block ends within."""
        side, first, count = self._side, self._done, len(self._steps)
        at = self._most + first
        if first + count > len(self._tails):
            more = max(len(self._tails), count)
            self._tops = np.concatenate([self._tops, np.zeros(more)])
            self._tails = np.concatenate([self._tails, np.zeros((more, *side.shape))])
            side.remembered += self._tails.size
        between = side.lags[:, None] - 1
        inside = np.minimum(between, first + self._steps)
        mass = self._density * inside + self._mass[between - inside] + self._slack * (between > 0)
        tops = self._tops[at + self._steps - side.lags[:, None]]
        ahead, given = self._matrix(first - 1), (self._held, self._phase_of(first))
        tails = side.tails(ahead, tops, mass, self._density, given)
        if self._level is not None:
            tails = np.minimum(tails, self._level[given[1]])
        self._tails[first : first + count] = tails
        self._tops[at : at + count] = tails.reshape(count, -1).max(axis=1) + self._density
        self._falls &= bool((self._matrix(first) <= ahead).all())
        if count == 1:
            before = first - side.period
            same = before >= 0 and bool((self._tails[first] == self._tails[before]).all())
        else:
            same = bool((self._tops[at : at + count] == self._tops[at - 1]).all())
            self._falls &= bool((np.diff(tails) <= 0).all())
        if not same:
            self._since = first + count
        # last, so that an interrupt leaves the slots to be followed again
        self._done += count
        if first < self._most <= self._done:
            # where a belief changes, it no longer is in sight
            self._take_level(self._window())
        if self._done - self._since >= side.period:
            self._rest()
        elif first < 1024 <= self._done and self._done >= self._most + side.period:
            self._cover()

    def _window(self) -> State:
        """What a slot behind those that were followed would see."""
        done, most = self._done, self._most
        own = min(done, most)
        densities = np.concatenate([self._state.densities[own:], np.full(own, self._density)])
        return State(self._matrix(done - 1), self._tops[done : most + done], densities)

    def _rest(self) -> None:
        """Whether all further slots are like the last ones: a state like them maps to itself."""
        side, period, done = self._side, self._side.period, self._done
        last = self._largest(period)
        if done - self._since < self._most + period:
            window = self._window()
            if (window.tops > last.max() + self._density).any() or (window.densities > self._density).any():
                return
            after = side.mapped(last, self._density, self._held)
            if self._level is not None:
                after = np.minimum(after, self._level)
            if not (after <= last).all():
                return
        self._far = last

    def _cover(self) -> None:
        """Whether the largest of the last tails map to nothing above them: then no further slot is above them.

        Tails of blocks of several lengths may go round in circles, one rounding wide, and never come to rest.
        """
        last = self._largest(max(self._most, self._side.period))
        if (self._side.mapped(last, self._density, self._held) <= last).all():
            self._far = last

    def _largest(self, slots: int) -> FloatArray:
        """The largest of the last tails by phase."""
        last = np.zeros((self._side.period, *self._side.shape))
        for place in range(self._done - slots, self._done):
            phase = self._phase_of(place)
            last[phase] = np.maximum(last[phase], self._tails[place])
        return last

    def _further(self, length: int) -> FloatArray:
        """What bounds the tails of all slots behind those that were followed, by phase, or one for all."""
        if self._far is not None:
            return self._far
        side, done, density = self._side, self._done, self._density
        if self._falls and side.period == 1:
            return self._tails[done - 1 : done]
        window = self._window()
        grown = _TOP if length >= FAR else float(window.tops.max()) + (length - done) * density
        bounds = side.bound(float(window.densities.max()), self._phase_of(done - 1))
        if bounds is not None and window.below(bounds):
            grown = min(grown, float(bounds.tops[0]))
        return side.own(np.zeros((1, *side.shape)), min(grown - density, _TOP), slice(0, 1))


def changed(states: Sequence[State], side: Side, slot: int) -> State:
    """Where the belief changes the worst member counts, and no block ends behind the next slot."""
    top = max(float(one.tops[-1]) for one in states)
    tops, densities = np.zeros(side.longest), np.zeros(side.longest)
    tops[-1], densities[-1] = top, _TOP / 2
    matrix = side.own(np.zeros(side.shape), top, slot % side.period)
    if {one.matrix.shape for one in states} == {side.shape}:
        matrix = np.max([one.matrix for one in states], axis=0)
    return State(np.asarray(matrix), tops, densities)


@remembered
def members_of(belief: Belief) -> tuple[tuple[Side, Side], ...]:
    """Both sides of each member of a belief, with a start that is true in every slot."""
    if belief.states == 1:  # nothing is secret
        return ()
    everyone = belief.everywhere
    tables = sided_influence(everyone)
    numbers = np.array([number for number, _, _ in tables.pairs], dtype=np.intp)
    found: list[tuple[Side, Side]] = []
    for number, pair in enumerate(everyone.pairs):
        rows = numbers == number if len(numbers) else slice(None)
        influence = (side[rows].max(axis=0) for side in (tables.right, tables.left))
        ahead, back = (_side(one, most) for one, most in zip(pair, influence, strict=True))
        if ahead.shape or back.shape:
            with suppress(ChainError, NotContracting):
                for side, direction, held in zip((ahead, back), pair, calibrated(pair, 1.0).couplings, strict=True):
                    if direction.kernel is not None and isinstance(held, Couplings):
                        side.fixed.append(direction.kernel.shares(held))
        found.append((ahead, back))
    return tuple(found)


def _side(direction: Direction, influence: FloatArray) -> Side:
    kernel = direction.kernel
    # couplings are held for a few states only
    return Side(direction, influence) if kernel is None or kernel.states > 12 else Paired(kernel, influence)
