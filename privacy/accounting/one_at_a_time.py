"""The ledgers of a process work one at a time, since those of equal beliefs share what was computed of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")

_lock = threading.RLock()


def _new_lock() -> None:
    global _lock  # noqa: PLW0603 - the parent's lock may be held by threads that do not exist here
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def one_at_a_time(method: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """The method, alone in its process."""
    call: Callable[..., _Found] = method

    @wraps(method)
    def alone(*args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        # an iterator may wait for another thread's work with a ledger, so it is read before
        given = [list[Any](one) if isinstance(one, Iterator) else one for one in args]
        named = {name: list[Any](one) if isinstance(one, Iterator) else one for name, one in kwargs.items()}
        with _lock:
            return call(*given, **named)

    return alone
