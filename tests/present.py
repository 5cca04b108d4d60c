"""What may be absent and is not."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """A value that a test goes on with, which fails where there is none."""
    assert value is not None
    return value
