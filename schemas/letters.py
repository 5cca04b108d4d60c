"""The setting of encrypted dead letters: a public key, to which the content of rejected messages is encrypted.

A public key is no secret, so it stands in the settings as it is. Its private key is with whoever opens the letters, and
nowhere in a job.

>>> Letters(public_key="KPe0zCXrsdoBR0sXwi9fmfJsq1UNUQsDMgoXHkGjhxU=").most_bytes
65536
"""

from __future__ import annotations

import base64
import binascii

from pydantic import Field, field_validator

from .sections import Section

#: Bytes of a key of X25519.
KEY_BYTES = 32


class Letters(Section):
    """Keep the content of messages that were rejected, encrypted to a public key."""

    public_key: str = Field(
        description="X25519, 32 bytes as base64, as `quiltstream letters key` prints it; its private key is elsewhere",
        examples=["KPe0zCXrsdoBR0sXwi9fmfJsq1UNUQsDMgoXHkGjhxU="],
    )
    most_bytes: int = Field(
        default=65_536, ge=256, le=262_144, description="of a longer message so much of its beginning is kept"
    )

    @field_validator("public_key")
    @classmethod
    def _key(cls, text: str) -> str:
        if len(decoded_key(text)) != KEY_BYTES:
            raise ValueError(
                f"this is no public key: one is {KEY_BYTES} bytes as base64, as `quiltstream letters key` prints it"
            )
        return text


def decoded_key(text: str) -> bytes:
    """The bytes of a key; none if the text is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


__all__ = ["KEY_BYTES", "Letters", "decoded_key"]
