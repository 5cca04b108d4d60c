"""Encrypted dead letters: the content of one rejected message, encrypted to an operator's public key.

A letter is HPKE of RFC 9180 in its base mode, with X25519, HKDF-SHA256 and AES-256-GCM, by the library cryptography.
The public key is no secret and stands in the settings as it is: it writes letters. Only the private key reads them; no
job or gateway ever has that. What is inside names the reject once more, so that a letter that was moved to another row
is noticed.

>>> Letters(public_key="KPe0zCXrsdoBR0sXwi9fmfJsq1UNUQsDMgoXHkGjhxU=").most_bytes
65536
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from .errors import QuiltstreamError
from .settings.base import Section, SettingsError

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


#: What the letters are for, so that nothing else that is encrypted to the key is taken for one.
_INFO = b"quiltstream-letter-1"

#: Characters for a byte of a key and headers: the largest letter then fits into a message of 1,048,588 bytes, which is
#: what brokers take without being asked.
_AS_TEXT = 1.4
_EMPTY_LENGTH = len(json.dumps({"key": None, "headers": []}))

_EXTRA = "it needs the package cryptography; pip install 'quiltstream[encrypted]'"


class LetterError(QuiltstreamError, ValueError):
    """A letter cannot be opened: it is none, is damaged, or is for another key."""


@dataclass(frozen=True, slots=True)
class Content:
    """What was rejected."""

    payload: bytes  # the body
    topic: str  # where it came from
    stamp_us: int  # the broker's time stamp, or when it was received, in microseconds since 1970; -1 without one
    key: bytes | None = None  # the broker's key
    headers: Sequence[tuple[str, bytes | None]] = ()  # the broker's headers


def check_sealing(letters: Letters, setting: str, where: str) -> None:
    """See whether messages can be encrypted here; ``where`` the library is needed is for the message.

    Raises:
        SettingsError: the library is missing, or the key is none that can be used.
    """
    try:
        seal(b"", decoded_key(letters.public_key))
    except ImportError:
        raise SettingsError([f"{setting}: {_EXTRA} {where}"]) from None
    except ValueError:
        raise SettingsError(
            [f"{setting}.public_key: nothing can be encrypted to it; make one with `quiltstream letters key`"]
        ) from None


def letter_of(reject: Mapping[str, Any], content: Content, letters: Letters) -> str:
    """A letter: reason, source, position and size of a reject stand beside what was rejected.

    Raises:
        ImportError: the library is not installed on this machine.
    """
    inside = json.dumps(_written({**reject, **_plain(content, letters.most_bytes)})).encode()
    return base64.b64encode(seal(inside, decoded_key(letters.public_key))).decode("ascii")


def _plain(content: Content, most: int) -> dict[str, Any]:
    """A message as plain JSON: bytes as base64, and no more of it than is allowed."""
    payload = content.payload
    beside = {"key": _text(content.key), "headers": [[name, _text(value)] for name, value in content.headers]}
    # as long as it is then: names may be written several times as long, and a header of nothing takes room as well
    is_long = len(json.dumps(beside)) > _EMPTY_LENGTH + most * _AS_TEXT
    return {
        "topic": content.topic,
        "stamp_us": content.stamp_us,
        **({"key": None, "headers": []} if is_long else beside),
        "payload": _text(payload[:most]),
        "cut": len(payload) > most or is_long,
    }


def _written(value: Any) -> Any:
    """A value whose texts are UTF-8: half a pair of surrogates, which is none, is written as an escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {name: _written(one) for name, one in value.items()}
    return [_written(one) for one in value] if isinstance(value, list) else value


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def open_letter(letter: str, private_key: bytes) -> dict[str, Any]:
    """What a letter holds, by a private key of 32 bytes: the reject, and the message with its bytes as base64.

    Raises:
        LetterError: it cannot be opened with this key, or what was encrypted is no letter.
        ImportError: the library is not installed.
    """
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - of the extra
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415 - of the extra

    own = X25519PrivateKey.from_private_bytes(private_key)
    try:
        data: bytes = _suite().decrypt(base64.b64decode(letter, validate=True), own, _INFO)
        inside = json.loads(data)
    except (InvalidTag, ValueError, RecursionError):
        raise LetterError("this is no letter for this key, or it is damaged") from None
    try:
        _Inside.model_validate_json(data)
    except ValidationError:
        raise LetterError("what was encrypted is no letter") from None
    return inside


def _base64(text: str) -> str:
    base64.b64decode(text, validate=True)
    return text


_Base64 = Annotated[str, AfterValidator(_base64)]


class _Inside(BaseModel):
    """The content that :func:`letter_of` encrypts.

    Every field is required, because any holder of the public key can encrypt anything.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str
    source: str
    position: int
    size: int
    topic: str
    stamp_us: int
    key: _Base64 | None
    headers: list[tuple[str, _Base64 | None]]
    payload: _Base64
    cut: bool


def new_keys() -> tuple[bytes, bytes]:
    """A new private key and its public one, 32 bytes each.

    Raises:
        ImportError: the library is not installed.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415 - of the extra

    own = X25519PrivateKey.generate()
    return own.private_bytes_raw(), own.public_key().public_bytes_raw()


@lru_cache(maxsize=1)
def _suite() -> Any:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite  # noqa: PLC0415 - of the extra

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def seal(data: bytes, public_key: bytes) -> bytes:
    """Encrypt.

    Raises:
        ImportError: the library is not installed on this machine.
        ValueError: nothing can be encrypted to the key.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415 - of the extra

    return _suite().encrypt(data, X25519PublicKey.from_public_bytes(public_key), _INFO)
