"""What the sections of a settings document share: their base, and the types of durations, instants and numbers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from .settings_text import without_credentials
from .slots import parse_duration


def _duration(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"duration {text!r} has no unit; write for example 30min or 7d")  # noqa: TRY004 - pydantic reports ValueErrors
    parse_duration(text)
    return text


def _instant(value: Any) -> str:
    if isinstance(value, (dt.date, dt.datetime)):
        value = value.isoformat()
    if not isinstance(value, str):
        raise ValueError(f"instant {value!r} is not an ISO 8601 date or date-time")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def _name(text: str) -> str:
    if not text.strip() or text != text.strip() or any(ord(c) < ord(" ") for c in text):
        raise ValueError(f"{text!r} is not a name; use printable text without blanks at its ends")
    return text


Duration = Annotated[str, BeforeValidator(_duration), Field(examples=["30min", "7d"])]
Instant = Annotated[str, BeforeValidator(_instant), Field(examples=["2013-01-01", "2013-01-01T00:30Z"])]
Name = Annotated[str, AfterValidator(_name), Field(min_length=1, max_length=200)]


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a number")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]


class Section(BaseModel):
    """A section: unknown settings are mistakes, and nothing changes after the check."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What its repr shows: texts without the credentials of URLs."""
        for name, value in super().__repr_args__():
            yield name, without_credentials(value) if isinstance(value, str) else value


__all__ = ["Duration", "Instant", "Name", "Number", "Positive", "Section"]
