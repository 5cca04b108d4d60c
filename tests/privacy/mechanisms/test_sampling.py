"""The sampler's exact probabilities: all of its first words, and the words next to its thresholds at any depth.

A draw reads 16 bits, then 64 of which the first 48 count, then 64 at a time: the digits of a number U in [0, 1). The
tests give it these digits, and know the distribution functions to 300 bits by a series of fractions.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from quiltstream.privacy.mechanisms.discrete_laplace import LARGEST_SCALE, DiscreteLaplace, ZeroSumLaplace
from quiltstream.privacy.mechanisms.sampling import EntropyError

FEW = [Fraction(1), Fraction(7, 5), Fraction(2, 3), Fraction(3), Fraction(1, 50), Fraction(31)]
"""Scales of one digit."""


@cache
def exp_minus(gamma: Fraction) -> Fraction:
    """exp(-gamma) by its series, to more than 300 bits; a fraction of so many bits."""
    if gamma > 1:
        return rounded(exp_minus(gamma / 2) ** 2)
    term, total = Fraction(1), Fraction(1)
    for k in range(1, 90):
        term *= -gamma / k
        total += term
    return rounded(total)


def rounded(value: Fraction) -> Fraction:
    return Fraction(int(value * 2**400), 2**400)


def at_most(scale: Fraction, value: int) -> Fraction:
    """P(Z <= value)."""
    ratio = exp_minus(1 / scale)
    return ratio**-value / (1 + ratio) if value < 0 else 1 - ratio ** (value + 1) / (1 + ratio)


def probability(scale: Fraction, value: int) -> Fraction:
    ratio = exp_minus(1 / scale)
    return (1 - ratio) / (1 + ratio) * ratio ** abs(value)


class Script:
    """Gives arrays of words, each to one read; then always the same byte."""

    def __init__(self, *reads: Iterable[int], then: int = 0) -> None:
        self.reads, self.then, self.calls = list(reads), then, 0

    def __call__(self, size: int) -> bytes:
        self.calls += 1
        assert self.calls < 1000, "a rejection that never ends"
        if not self.reads:
            return bytes([self.then]) * size
        given = list(self.reads.pop(0))
        assert size in (2 * len(given), 8 * len(given))
        return np.array(given, dtype=f"u{size // len(given)}").tobytes()


def number(digits: int, bits: int) -> Script:
    """One draw's U: so many bits and zeros behind them."""
    behind = -(bits - 64) % 64
    rest = digits << behind
    later = [rest >> shift & (2**64 - 1) for shift in range(bits - 64 + behind - 64, -1, -64)]
    first = digits >> (bits - 64)
    return Script([first >> 48], [(first & (2**48 - 1)) << 16], *([word] for word in later))


@pytest.mark.parametrize("scale", FEW, ids=str)
def test_all_first_words_give_the_law_up_to_what_they_leave_open(scale: Fraction) -> None:
    inside = range(1, 2**16 - 1)  # the first and the last word are open without end
    # whatever follows a word, its value is from the first to the second of these
    least, most = (DiscreteLaplace(scale).draw(len(inside), Script(inside, then=byte)) for byte in (0x00, 0xFF))
    assert (least <= most).all()
    for value in range(int(least.min()), int(most.max())):
        surely, possibly = (int((found <= value).sum()) + 1 for found in (most, least))
        assert Fraction(surely, 2**16) <= at_most(scale, value) <= Fraction(possibly, 2**16)
        assert possibly - surely <= 1


@pytest.mark.parametrize("bits", [64, 128, 192, 256])
@pytest.mark.parametrize("scale", [Fraction(1), Fraction(7, 5), Fraction(31)], ids=str)
def test_a_word_next_to_a_threshold_is_decided_exactly_at_any_depth(scale: Fraction, bits: int) -> None:
    for value in (-40, -9, -2, -1, 0, 1, 3, 25):
        first = int(at_most(scale, value) * 2**bits)
        assert DiscreteLaplace(scale).draw(1, number(first, bits))[0] == value  # zeros behind: below the threshold
        assert DiscreteLaplace(scale).draw(1, number(first + 1, bits))[0] == value + 1


@pytest.mark.parametrize("bits", [80, 150, 300])
def test_the_tails_have_their_values_however_rare(bits: int) -> None:
    scale = Fraction(3)
    for digits in (1, 3, 2**bits - 2):
        found, at = int(DiscreteLaplace(scale).draw(1, number(digits, bits))[0]), Fraction(digits, 2**bits)
        assert at_most(scale, found - 1) <= at < at_most(scale, found)


def test_a_number_of_several_digits_has_exactly_its_law() -> None:
    """Scale 70: two bits and the rest. Each table's words are counted with the other digit held, then multiplied."""
    scale = Fraction(70)
    law = DiscreteLaplace(scale)
    tops = np.arange(1, 2**16 - 1)
    shares: dict[int, float] = {}
    low = law.draw(tops.size, Script(np.full(tops.size, 2**15), tops, then=0x80))
    digits, of_digit = np.unique(low, return_counts=True)
    assert len(digits) == 4
    for digit in digits.tolist():
        word = int(tops[np.flatnonzero(low == digit)[100]])
        for value, times in zip(*np.unique(law.draw(tops.size, opened(tops, word)), return_counts=True), strict=True):
            share = times / 2**16 * of_digit[digits == digit][0] / 2**16
            shares[int(value)] = shares.get(int(value), 0.0) + share
    for value in range(-300, 301):
        assert shares[value] == pytest.approx(float(probability(scale, value)), abs=2.0**-16)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)


def opened(tops: NDArray[np.int64], digit: int) -> Script:
    """The words of the first digits, 64 bits for those that they leave open, and one word for every second digit."""

    class Opened(Script):
        def __call__(self, size: int) -> bytes:
            if not self.reads and size == 2 * tops.size:
                return np.full(tops.size, digit, dtype=np.uint16).tobytes()
            return super().__call__(size)

    return Opened(tops.tolist(), then=0x80)


@pytest.mark.parametrize(("scale", "digit"), [(Fraction(2), None), (Fraction(40), 0), (Fraction(40), 1)])
def test_of_all_candidates_exactly_those_are_accepted_whose_last_draw_is_at_least_their_sum(
    scale: Fraction, digit: int | None
) -> None:
    """P(M >= n) = exp(-n / scale), so the vector (z, z', -z - z') has its law; with a digit more, all have the same."""
    tops = range(-6, 7)
    top_scale = scale if digit is None else scale / 2
    candidates = list(itertools.product(tops, repeat=3))

    def whole(top: int) -> int:
        magnitude = top if top >= 0 else -1 - top
        magnitude = magnitude if digit is None else 2 * magnitude + digit
        return magnitude if top >= 0 else -1 - magnitude

    ratio = exp_minus(1 / scale)
    words = {top: word_of_top(top_scale, ratio, top) for top in tops}
    expected: list[list[int]] = []
    for z, other, last in candidates:
        total, magnitude = whole(z) + whole(other), max(whole(last), -1 - whole(last))
        if magnitude >= abs(total):
            expected.append([whole(z), whole(other), -total])
    tried = min(2**16 // 3 + 1, 4 * len(expected))
    refused = [words[6], words[6], words[0]] * (tried - len(candidates))
    first = [words[top] for candidate in candidates for top in candidate] + refused
    assert len(first) == 3 * tried
    low = 0x00 if digit == 0 else 0xF0
    drawn = ZeroSumLaplace(scale, 3).draw(len(expected), Script(first, then=low))
    assert drawn.tolist() == expected


def word_of_top(top_scale: Fraction, ratio: Fraction, top: int) -> int:
    def at_most_top(value: int) -> Fraction:
        power = exp_minus(1 / top_scale)
        return ratio / (1 + ratio) * power ** (-1 - value) if value < 0 else 1 - power ** (value + 1) / (1 + ratio)

    return int(at_most_top(top - 1) * 2**16) + 1


@pytest.mark.parametrize("byte", [0x00, 0xFF])
@pytest.mark.parametrize("scale", [Fraction(1, 50), Fraction(63), Fraction(LARGEST_SCALE)])
def test_a_source_that_gives_one_byte_for_ever_is_an_error_and_never_wraps(scale: Fraction, byte: int) -> None:
    with pytest.raises(EntropyError, match="no fair source"):
        DiscreteLaplace(scale).draw(1, Script(then=byte))


def test_noise_too_large_for_a_sum_of_64_bits_is_refused() -> None:
    """The last draw of a candidate is 400 times the largest scale, as one in 2^640 is."""
    law = ZeroSumLaplace(Fraction(LARGEST_SCALE), 256)
    first = [0x9000] * 34 * 256
    first[255] = 0xFFFF
    with pytest.raises(EntropyError, match="too large for a sum of 64 bits"):
        law.draw(1, Script(first, *[[2**64 - 1]] * 10, then=0x40))
    assert law.draw(1).sum() == 0
    with pytest.raises(ValueError, match=r"257 bins is above 2\^54"):
        ZeroSumLaplace(Fraction(LARGEST_SCALE), 257)


@pytest.mark.parametrize("missing", [1, 7, 8])
def test_a_short_read_of_the_systems_entropy_draws_nothing(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    read = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: read(size - missing))
    with pytest.raises(EntropyError, match=f"gave {64 - missing} of 64 random bytes"):
        DiscreteLaplace(Fraction(3)).draw(32)
    with pytest.raises(EntropyError, match="nothing is drawn of fewer"):
        ZeroSumLaplace(Fraction(3), 5).draw(32)


def test_a_system_without_entropy_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: int) -> bytes:
        raise OSError(size)

    monkeypatch.setattr(os, "urandom", fail)
    with pytest.raises(EntropyError, match=r"gave no random bytes \(OSError\)"):
        DiscreteLaplace(Fraction(3)).draw(1)
