"""Checks of plain arguments, with messages that name the field, the value, the limit and the next step.

The base class of the errors of the mathematics is here, too.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import SupportsFloat, SupportsIndex

from ..schemas.errors import QuiltstreamError


class PrivacyError(QuiltstreamError, ValueError):
    """A belief, a mechanism or an account that cannot do what it was asked for; subclasses say which and why."""


#: Types that ``float`` takes, or that are numbers to Python, and that no caller means.
_NO_NUMBERS = (bool, str, bytes)


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
    if isinstance(value, _NO_NUMBERS):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}: {advice}")
    number = float(value)
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
