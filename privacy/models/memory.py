"""What was computed of a value, kept with the value: a belief has its certificates, a direction its matrices.

>>> class Number(Remembering):
...     pass
>>> @remembered
... def doubled(number: Number, by: int) -> list[int]:
...     return [2 * by]
>>> one = Number()
>>> doubled(one, 3) is doubled(one, 3), doubled(one, 3) is doubled(Number(), 3)
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

_Of = TypeVar("_Of", bound="Remembering")
_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


class Remembering:
    """A value that never changes, with what was computed of it."""

    @cached_property
    def memory(self) -> dict[Callable[..., Any], dict[tuple[Any, ...], Any]]:
        """By the question, and by what it was asked for."""
        return {}


def remembered(
    compute: Callable[Concatenate[_Of, _Given], _Found],
) -> Callable[Concatenate[_Of, _Given], _Found]:
    """Compute once for a value and what is asked for: a thousand answers are kept, and an error is not."""

    @wraps(compute)
    def asked(of: _Of, *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        known, key = of.memory.setdefault(compute, {}), (*args, *sorted(kwargs.items()))
        if key not in known:
            found = compute(of, *args, **kwargs)
            if len(known) >= 1024:  # densities on the grid of a few octaves, some 10 MB
                known.clear()
            known[key] = found
        return known[key]

    return asked
