"""Checks of plain arguments, with messages that name the field, the value, the limit and the next step.

The base class of the errors of the mathematics is here, too.
"""

from __future__ import annotations

import math
import operator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction
from typing import SupportsFloat, SupportsIndex

import numpy as np

from ..schemas.errors import QuiltstreamError


class PrivacyError(QuiltstreamError, ValueError):
    """A belief, a mechanism or an account that cannot do what it was asked for; subclasses say which and why."""


#: Types that ``float`` takes, or that are numbers to Python, and that no caller means.
NO_NUMBERS = (bool, np.bool_, str, bytes)


def positive(name: str, value: SupportsFloat, advice: str) -> float:
    """Return ``value`` as a float that is finite and above zero.

    Args:
        name: What the message calls the argument.
        value: The number to check.
        advice: The next step, the last clause of the message.

    Raises:
        TypeError: If the value is not a number.
        ValueError: If it is not finite or not above zero.
    """
    if isinstance(value, NO_NUMBERS):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}: {advice}")
    try:
        number = float(value)
    except OverflowError:  # of a whole number or a fraction
        number = math.inf
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{name} is {number!r}, but must be finite and above 0: {advice}")
    return number


def whole(name: str, value: SupportsIndex, advice: str, *, least: int | None = None) -> int:
    """Return ``value`` as an int, at least ``least`` where that is given.

    Raises:
        TypeError: If the value is not a whole number.
        ValueError: If it is below the least.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not bool: {advice}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}: {advice}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} is {number}, but must be at least {least}: {advice}")
    return number


def float_above(value: float | Fraction) -> float:
    """The smallest float that is not below an exact number, so that rounding never hides a loss."""
    number = float(value)
    return number if Fraction(number) >= value else math.nextafter(number, math.inf)


#: What rounding has added to a number, or taken away, and no printed digit must show.
_LAST_DIGITS = 2.0**-40


def rounded_up(value: float, digits: int) -> str:
    """A number of 0 or more in so many significant digits, rounded up, for what is said to be at most so much.

    >>> rounded_up(1.73204, 3), rounded_up(1.0000000000000002, 3), rounded_down(3.29825, 3)
    ('1.74', '1', '3.29')
    """
    return _rounded(value * (1 - _LAST_DIGITS), digits, ROUND_CEILING)


def rounded_down(value: float, digits: int) -> str:
    """A number of 0 or more in so many significant digits, rounded down, for what is said to be at least so much."""
    return _rounded(value * (1 + _LAST_DIGITS), digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{float(Context(digits, rounding).create_decimal_from_float(value)):.{digits}g}"
