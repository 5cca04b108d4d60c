"""The settings of Google Cloud Pub/Sub: which subscription is read, and to which topics rows go.

>>> source = PubSubSource(subscription="projects/grid-data/subscriptions/meters", reread="1d")
>>> source.subscription, source.settle
('projects/grid-data/subscriptions/meters', '1min')
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from .sections import Duration, Name, Section
from .slots import parse_duration

#: What a project, and a subscription or topic in it, may be called.
_PROJECT = r"[a-z][a-z0-9.:-]{4,98}[a-z0-9]"
_NAME = r"[A-Za-z][A-Za-z0-9._~+%-]{2,254}"

_SHORTEST_SETTLE_US = 45_000_000


def _whole_name(kind: str, given: Any) -> Any:
    if isinstance(given, str) and re.fullmatch(rf"projects/{_PROJECT}/{kind}/{_NAME}", given) is None:
        raise ValueError(f"{given!r} is not written as projects/PROJECT/{kind}/NAME")
    return given


def _subscription(given: Any) -> Any:
    return _whole_name("subscriptions", given)


def _topic(given: Any) -> Any:
    return _whole_name("topics", given)


class PubSubSource(Section):
    """A Pub/Sub subscription of readings, of this job alone; only live."""

    subscription: Annotated[str, BeforeValidator(_subscription)] = Field(
        description="the job's own", examples=["projects/my-project/subscriptions/meters"]
    )
    timestamp_attribute: Name | None = Field(
        default=None,
        description="attribute with a message's time, as milliseconds since 1970 or RFC 3339; left out: when Pub/Sub "
        "took it",
    )
    id_attribute: Name | None = Field(
        default=None,
        description="attribute that is the same when a publisher sends a message again; left out: Pub/Sub's own id",
    )
    reread: Duration | None = Field(
        default=None,
        description="a run without the runner's state seeks so long before its first missing window; left out: it "
        "publishes only windows that start after it began",
    )
    settle: Duration = Field(
        default="1min",
        description="windows wait so long after the start, after a silence of that length, and after a message that "
        "was that old when it came",
    )
    outstanding: int = Field(
        default=100_000, ge=1_000, le=10_000_000, description="messages that the runner has not yet kept, at most"
    )

    @field_validator("settle")
    @classmethod
    def _settle(cls, text: str) -> str:
        if parse_duration(text) < _SHORTEST_SETTLE_US:
            raise ValueError(
                f"settle is {text}, and what a lost worker held comes again only after 30 s; set it to 45s or more"
            )
        return text


class PubSubSink(Section):
    """A Pub/Sub topic that rows are sent to; only live."""

    topic: Annotated[str, BeforeValidator(_topic)] = Field(examples=["projects/my-project/topics/releases"])
    format: Literal["json", "avro-single-object"] = "json"
    resend: int = Field(
        default=1, ge=0, le=100_000, description="windows on record whose rows are sent again when a run begins"
    )


__all__ = ["PubSubSink", "PubSubSource"]
