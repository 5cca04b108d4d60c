"""Letters: rejected messages encrypted to the operator's public key, before they leave the reader.

A letter is HPKE of RFC 9180 in its base mode, with X25519, HKDF-SHA256 and AES-256-GCM, by the library cryptography.
Whoever has the public key can write letters, and only who has the private key can read them; no job ever has that. What
is inside names the reject once more, so that a letter that was moved to another row is noticed.

Of what is read at once so many messages are kept, and of each so many bytes: a flood of rejects costs no more.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa

from ..schemas.letters import KEY_BYTES, Letters, decoded_key
from ..schemas.readings import LETTER_SCHEMA
from ..schemas.settings import SettingsError
from .messages import Messages

#: Messages whose content is kept of those that are decoded at once; the others are told without.
MOST_LETTERS = 100

#: What the letters are for, so that nothing else that is encrypted to the key is taken for one.
_INFO = b"quiltstream-letter-1"

_EXTRA = "it needs the package cryptography; pip install 'quiltstream[encrypted]' on every worker"


class LetterError(ValueError):
    """A letter cannot be opened: it is none, is damaged, or is for another key."""


def check_letters(letters: Letters) -> None:
    """See whether messages can be encrypted here.

    Raises:
        SettingsError: the library is missing, or the key is none that can be used.
    """
    try:
        _seal(b"", decoded_key(letters.public_key))
    except SettingsError:
        raise
    except ValueError:
        raise SettingsError(
            ["rejects.encrypted.public_key: nothing can be encrypted to it; make one with `quiltstream letters key`"]
        ) from None


def with_letters(rejects: pa.RecordBatch, messages: Messages, letters: Letters) -> pa.RecordBatch:
    """Rejects with the sizes of their messages, and the letters that hold them; ``LETTER_SCHEMA``.

    Args:
        rejects: of these messages, by their positions, which rise.
        messages: the messages.
        letters: to whom.

    Raises:
        SettingsError: the library is not installed on this machine.
    """
    positions = rejects.column("position").to_numpy(zero_copy_only=False)
    at = np.minimum(np.searchsorted(messages.positions, positions), len(messages) - 1)
    key = decoded_key(letters.public_key)
    sizes: list[int] = []
    found: list[str | None] = []
    for number, row in zip(at.tolist(), rejects.to_pylist(), strict=True):
        payload = messages.payloads[number]
        size = 0 if payload is None else len(payload)
        sizes.append(size)
        if len(found) < MOST_LETTERS and int(messages.positions[number]) == row["position"]:
            inside = row | {"size": size} | _content(messages, number, letters.most_bytes)
            found.append(base64.b64encode(_seal(json.dumps(inside).encode(), key)).decode("ascii"))
        else:
            found.append(None)
    columns = [rejects.column(name) for name in ("reason", "source", "position")]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(sizes, pa.int64()), pa.array(found, pa.utf8())], schema=LETTER_SCHEMA
    )


def all_with_letters(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of rejects in the form of ``LETTER_SCHEMA``; those of readings have neither a size nor a letter."""
    absent = {"size": pa.nulls(batch.num_rows, pa.int64()), "letter": pa.nulls(batch.num_rows, pa.utf8())}
    columns = [batch.column(name) if name in batch.schema.names else absent[name] for name in LETTER_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=LETTER_SCHEMA)


def _content(messages: Messages, number: int, most: int) -> dict[str, Any]:
    """A message as plain JSON: bytes as base64, and no more of it than is allowed."""
    payload, key, headers = messages.payloads[number] or b"", messages.keys[number], messages.headers[number]
    beside = len(key or b"") + sum(len(name) + len(value or b"") for name, value in headers)
    cut = len(payload) > most or beside > most
    return {
        "topic": messages.topics[number],
        "stamp_us": int(messages.stamps_us[number]),
        "key": None if beside > most else _text(key),
        "headers": [] if beside > most else [[name, _text(value)] for name, value in headers],
        "payload": _text(payload[:most]),
        "cut": cut,
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def open_letter(letter: str, private_key: bytes) -> dict[str, Any]:
    """What a letter holds: the reject, and the message with its bytes as base64.

    Args:
        letter: as it stands in the rejects.
        private_key: 32 bytes.

    Raises:
        LetterError: it cannot be opened with this key, or what was encrypted is no letter.
        ImportError: the library is not installed.
    """
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - of the extra
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415 - of the extra

    own = X25519PrivateKey.from_private_bytes(private_key)
    try:
        inside = json.loads(_suite().decrypt(base64.b64decode(letter, validate=True), own, _INFO))
    except (InvalidTag, ValueError, RecursionError):
        raise LetterError("this is no letter for this key, or it is damaged") from None
    if not _is_content(inside):
        raise LetterError("what was encrypted is no letter")
    return inside


def _is_content(inside: Any) -> bool:
    """Whether this is what :func:`with_letters` encrypts; whoever has the public key can encrypt anything."""
    if not isinstance(inside, dict) or inside.keys() != _CONTENT.keys():
        return False
    found: dict[str, Any] = inside
    return all(kind(found[name]) for name, kind in _CONTENT.items())


def _is_text(given: Any) -> bool:
    return type(given) is str


def _is_number(given: Any) -> bool:
    return type(given) is int


def _is_bytes(given: Any) -> bool:
    """Whether this is base64."""
    if type(given) is not str:
        return False
    try:
        base64.b64decode(given, validate=True)
    except ValueError:
        return False
    return True


def _is_bytes_or_none(given: Any) -> bool:
    return given is None or _is_bytes(given)


def _are_headers(given: Any) -> bool:
    return isinstance(given, list) and all(map(_is_header, cast("list[Any]", given)))


def _is_header(given: Any) -> bool:
    if not isinstance(given, list) or len(pair := cast("list[Any]", given)) != _PAIR:
        return False
    name, value = pair
    return _is_text(name) and _is_bytes_or_none(value)


_PAIR = 2

#: What a letter holds, all of it always.
_CONTENT: dict[str, Callable[[Any], bool]] = {
    "reason": _is_text,
    "source": _is_text,
    "position": _is_number,
    "size": _is_number,
    "topic": _is_text,
    "stamp_us": _is_number,
    "key": _is_bytes_or_none,
    "headers": _are_headers,
    "payload": _is_bytes,
    "cut": lambda given: type(given) is bool,
}


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


def _seal(data: bytes, public_key: bytes) -> bytes:
    """Encrypt.

    Raises:
        SettingsError: the library is not installed on this machine.
        ValueError: nothing can be encrypted to the key.
    """
    try:
        return _suite().encrypt(data, _public(public_key), _INFO)
    except ImportError:
        raise SettingsError([f"rejects.encrypted: {_EXTRA}"]) from None


def _public(key: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415 - of the extra

    return X25519PublicKey.from_public_bytes(key)


__all__ = [
    "KEY_BYTES",
    "MOST_LETTERS",
    "LetterError",
    "all_with_letters",
    "check_letters",
    "new_keys",
    "open_letter",
    "with_letters",
]
