"""Redis Streams as source and sink of quiltstream's live jobs: the settings, and the object of the entry point.

The client and Beam are imported by :mod:`.streams`, which a job alone imports.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from quiltstream.schemas.settings.base import Name
from quiltstream.schemas.settings.plugins import Connector, ConnectorSection
from quiltstream.schemas.settings.secrets import Secret

__all__ = ["CONNECTOR", "SinkSection", "SourceSection"]

_URL = re.compile(r"rediss?://[^/@\s]+(/\d+)?")


def _url(given: Any) -> Any:
    if isinstance(given, str) and _URL.fullmatch(given) is None:
        raise ValueError("write redis://HOST:PORT or rediss://HOST:PORT, with user and password as username, password")
    return given


Url = Annotated[str, BeforeValidator(_url), Field(description="redis://HOST:PORT, with /NUMBER of the database")]


class _Server(ConnectorSection):
    """The address of the server, and the user."""

    url: Url
    username: Name | None = Field(default=None, description="user of the server; left out: the default user")
    password: Secret | None = Field(default=None, description="where the password is: {env: VARIABLE} or {file: PATH}")


class SourceSection(_Server):
    """Streams of readings."""

    streams: list[Name] = Field(min_length=1, description="keys of the streams, each a part of its own")
    field: Name = Field(default="payload", description="field of an entry that is the message")

    @field_validator("streams")
    @classmethod
    def _each_once(cls, streams: list[str]) -> list[str]:
        if len(set(streams)) != len(streams):
            raise ValueError("a stream is named twice; name each once")
        return streams

    @property
    def place(self) -> str:
        """Streams and server."""
        return f"{', '.join(self.streams)} at {self.url}"

    @property
    def names(self) -> tuple[str, ...]:
        """The streams."""
        return tuple(f"{stream} at {self.url}" for stream in self.streams)


class SinkSection(_Server):
    """A stream of released rows."""

    stream: Name = Field(description="key of the stream")
    resend: int = Field(default=1, ge=0, description="windows whose rows are sent again when a job begins")

    @property
    def place(self) -> str:
        """Stream and server."""
        return f"{self.stream} at {self.url}"


CONNECTOR = Connector("quiltstream_redis_streams.streams", source=SourceSection, sink=SinkSection)
