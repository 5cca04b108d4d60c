"""Checks of plain arguments, with messages that name the field, the value, the limit and the next step.

The base class of the errors of the mathematics is here, too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from ..schemas.errors import ArgumentError, ExitCode, QuiltstreamError


class PrivacyError(QuiltstreamError, ValueError):
    """A belief, a mechanism or an account that cannot do what it was asked for; subclasses say which and why."""

    exit_code = ExitCode.SETTINGS


#: Types that ``float`` takes, or that are numbers to Python, and that no caller means; of a complex number the
#: imaginary part would be dropped.
NO_NUMBERS = (bool, np.bool_, str, bytes, bytearray, complex, np.complexfloating)

MOST_SLOTS = 2**53
"""The longest window, and how far from slot 0 a window may lie: a float holds every whole number up to here."""

LEAST_EPSILON = 2.0**-46
"""The least loss that noise is calibrated for: a slot alone needs a scale of 1 / epsilon, and 2^46 is the largest."""


def number(name: str, value: SupportsFloat, advice: str) -> float:
    """Return ``value`` as a float: infinite where it is too large for one.

    Args:
        name: What the message calls the argument.
        value: The number to check.
        advice: The next step, the last clause of the message.

    Raises:
        TypeError: If the value is not a number.
    """
    try:
        if not isinstance(value, NO_NUMBERS) and not (isinstance(value, np.ndarray) and value.dtype.kind not in "iuf"):
            return float(value)
    except OverflowError:  # of a whole number or a fraction
        return math.inf
    except (TypeError, ValueError):  # no number, or an array of several
        pass
    raise TypeError(f"{name} must be a number, not {type(value).__name__}: {advice}")


def positive(name: str, value: SupportsFloat, advice: str) -> float:
    """Return ``value`` as a float that is finite and above zero.

    Raises:
        TypeError: If the value is not a number.
        ValueError: If it is not finite or not above zero.
    """
    found = number(name, value, advice)
    if not math.isfinite(found) or found <= 0:
        raise ArgumentError(f"{name} is {found!r}, but must be finite and above 0: {advice}")
    return found


def accepted_loss(epsilon: SupportsFloat) -> float:
    """Return the epsilon that noise is calibrated for as a float; every calibration takes the same ones.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is not finite, or below ``LEAST_EPSILON``.
    """
    advice = "give the loss you accept, for example 1.0"
    found = positive("epsilon", epsilon, advice)
    if found < LEAST_EPSILON:
        raise ArgumentError(
            f"epsilon is {found!r}, but must be at least 2^-46 = {LEAST_EPSILON:.3g}, for which noise can still be "
            f"drawn: {advice}"
        )
    return found


def whole(name: str, value: SupportsIndex, advice: str, *, least: int | None = None, most: int | None = None) -> int:
    """Return ``value`` as an int, at least ``least`` and at most ``most`` where these are given.

    Raises:
        TypeError: If the value is not a whole number.
        ValueError: If it is out of range.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not bool: {advice}")
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}: {advice}") from None
    if least is not None and found < least:
        raise ArgumentError(f"{name} is {found}, but must be at least {least}: {advice}")
    if most is not None and found > most:
        raise ArgumentError(f"{name} is {found}, but must be at most {most}: {advice}")
    return found


def a_slot(name: str, value: SupportsIndex, advice: str, *, least: int = -MOST_SLOTS) -> int:
    """Return the number of a slot, or of slots, as an int: at most ``MOST_SLOTS`` in absolute value.

    Raises:
        TypeError: If the value is not a whole number.
        ValueError: If it is out of range.
    """
    return whole(name, value, advice, least=least, most=MOST_SLOTS)


def as_list(name: str, values: object, what: str, refusal: type[Exception] = TypeError) -> list[Any]:
    """Return what can be iterated over as a list; text is no list.

    Args:
        name: What the message calls the argument.
        values: What is listed.
        what: What the list must be of, the last clause of the message.
        refusal: The error, raised if the values are no list.
    """
    if isinstance(values, Iterable) and not isinstance(values, str | bytes) and getattr(values, "ndim", 1):
        return list(values)
    raise refusal(f"{name} is a {type(values).__name__}, but must be a list of {what}")


def instance(name: str, value: object, *kinds: type, advice: str = "make one of it first") -> None:
    """Refuse a value that is of none of some classes by a TypeError, which names them."""
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} is a {type(value).__name__}, but must be a {names}: {advice}")


def choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a value that is none of some names by a ValueError, which lists them."""
    known = tuple(allowed)
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{name} is {value!r:.40}, but must be one of {', '.join(known)}")


def as_array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return an array as it is, or what numpy makes of a list; its type and shape are for the caller to check.

    Raises:
        TypeError: If some entries are masked.
        ValueError: If the rows differ in length.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be dropped: fill it first")
    try:
        return np.asarray(values)
    except ValueError:
        raise ArgumentError(f"{name} has rows of different lengths: give an array") from None


def numbers(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return an array of floats of its own, of an array or of what numpy makes one of; nothing of it is dropped.

    Raises:
        TypeError: If the values are no numbers, or none of equal length, or if some are masked or complex.
    """
    wanted = f"{name} must be an array of numbers with rows of equal length"
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{wanted}, not a masked array, whose mask would be dropped: fill it first")
    try:
        given = values if isinstance(values, np.ndarray) else np.array(values, dtype=object)
        other = None if given.dtype.kind in "iuf" else given.dtype.name
        if given.dtype.kind == "O":
            no_number = (one for one in given.flat if isinstance(one, NO_NUMBERS) or not hasattr(one, "__float__"))
            other = next((type(one).__name__ for one in no_number), None)
        if other is None:
            return np.array(given, dtype=np.float64)
        wanted += f", not {'of ' if given.ndim else ''}{other}"
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(f"{wanted}: check its shape")


def float_above(value: float | Fraction) -> float:
    """The smallest float that is not below an exact number, so that rounding never hides a loss."""
    number = float(value)
    return number if Fraction(number) >= value else math.nextafter(number, math.inf)


def rounded_up(value: float, digits: int) -> str:
    """A number of 0 or more in so many significant digits, rounded up, for what is said to be at most so much.

    What floats have added to a number, or taken away, shows in no printed digit.

    >>> rounded_up(1.73204, 3), rounded_up(1.0000000000000002, 3), rounded_down(3.29825, 3)
    ('1.74', '1', '3.29')
    """
    return _rounded(value * (1 - 2.0**-40), digits, ROUND_CEILING)


def rounded_down(value: float, digits: int) -> str:
    """A number of 0 or more in so many significant digits, rounded down, for what is said to be at least so much."""
    return _rounded(value * (1 + 2.0**-40), digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{float(Context(digits, rounding).create_decimal_from_float(value)):.{digits}g}"
