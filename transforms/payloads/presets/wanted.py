"""What of a message is a reading under a preset, and what its format says of a message that does not follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....schemas.errors import QuiltstreamError
from ....schemas.readings import RejectReason


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a message is a reading."""

    name: str
    # the series of each message by its number, where the settings say where it is; otherwise the convention says it
    series: dict[int, Any] | None = None
    timezone: str = "UTC"
    unit: str = ""  # of the value, as the settings say it; empty if they do not
    # the time of each message by its number, for what has none of its own; ``None`` if the settings name none
    times: dict[int, Any] | None = None

    def series_of(self, message: int, own: Any) -> Any:
        """The series of a reading."""
        return own if self.series is None else self.series.get(message)


class MalformedError(QuiltstreamError, ValueError):
    """A message does not follow its format."""

    reason = RejectReason.MALFORMED_ROW


class MixedUnitsError(MalformedError):
    """The values of a message are of several units, or of another one than is wanted."""

    reason = RejectReason.MIXED_UNITS
