"""Pseudonyms: names of series replaced by keyed hashes, so that no key, row or ledger holds a meter's own name.

A pseudonym is BLAKE2b of the name under a secret key. The same key gives the same pseudonym on every machine and for
ever; who lacks the key cannot try names out. The key itself is in no value that travels: settings say where it is, and
each process that needs it reads it there.

>>> PseudonymKey(b"a secret of at least 16 bytes").name("meter 7")
'931fa1428d64447fb552cd7c270c790d'
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NoReturn

from pydantic import Field, model_validator

from ..files import MOST_SECRET_BYTES, read_regular, reason
from .base import Name, Section, SettingsError

#: Bytes of a key; BLAKE2b takes no more.
SHORTEST_KEY, LONGEST_KEY = 16, 64
_DIGEST_BYTES = 16

#: What a digest is for, so that no name can have the digest that stands for the key.
_OF_NAMES, _OF_KEYS = b"quiltstream-name", b"quiltstream-key"

_HELP = "make one with `openssl rand -hex 32` and give it to every worker"


class Pseudonyms(Section):
    """Where the secret key of the pseudonyms is: in a variable of the environment, or in a file."""

    env: Name | None = Field(default=None, description="variable of the environment on every machine of the job")
    file: str | None = Field(default=None, description="absolute path of a file on every machine of the job")

    @model_validator(mode="after")
    def _one(self) -> Pseudonyms:
        if (self.env is None) is (self.file is None):
            raise ValueError("name exactly one of env and file; the key itself is never a setting")
        if self.file is not None and not Path(self.file).is_absolute():
            raise ValueError("file is not an absolute path; every worker must find it without this file")
        return self

    def key(self, setting: str = "readings.pseudonyms") -> PseudonymKey:
        """Read the key where this process runs.

        Args:
            setting: this section's name, for messages.

        Raises:
            SettingsError: it is not there, too short or too long.
        """
        if self.env is not None:
            where = f"the variable {self.env}"
            if self.env not in os.environ:
                raise SettingsError([f"{setting}: {where} is not set on this machine; {_HELP}"])
            found = os.environb[self.env.encode()]
        else:
            where = f"the file {self.file}"
            try:
                found = read_regular(Path(str(self.file)), MOST_SECRET_BYTES)
            except OSError as error:
                raise SettingsError([f"{setting}: {where} cannot be read here ({reason(error)}); {_HELP}"]) from None
        found = found.strip()
        if not SHORTEST_KEY <= len(found) <= LONGEST_KEY:
            raise SettingsError(
                [
                    f"{setting}: {where} holds a key of {len(found)} bytes on this machine, and a key has "
                    f"{SHORTEST_KEY} to {LONGEST_KEY}; {_HELP}"
                ]
            )
        return PseudonymKey(found)


class PseudonymKey:
    """A secret key; it belongs to one process and is shown nowhere.

    Args:
        secret: 16 to 64 bytes.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def name(self, name: str) -> str:
        """The pseudonym of a name, 32 hexadecimal digits."""
        return self._digest(name.encode("utf-8", "surrogatepass"), _OF_NAMES)

    @property
    def fingerprint(self) -> str:
        """What a ledger keeps to notice another key, 32 hexadecimal digits."""
        return self._digest(b"", _OF_KEYS)

    def _digest(self, data: bytes, person: bytes) -> str:
        return hashlib.blake2b(data, key=self._secret, digest_size=_DIGEST_BYTES, person=person).hexdigest()

    def __repr__(self) -> str:
        return "PseudonymKey(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key of pseudonyms does not travel; every process reads it where its settings say")


__all__ = ["PseudonymKey", "Pseudonyms"]
