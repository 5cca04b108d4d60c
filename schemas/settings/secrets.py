"""Secrets in settings: only where they are, never what they are; and pseudonyms, which a secret key makes.

A settings document is shown, kept and copied, so it names a variable of the environment or a file, and the worker that
needs the secret reads it there at its first use.

A pseudonym replaces the name of a series by its BLAKE2b under a secret key, so that no key, row or ledger holds a
meter's own name. The same key gives the same pseudonym on every machine and for ever; without the key names cannot be
tried out. No value that travels holds the key.

>>> checked_options({"sasl.username": "meters", "sasl.password": {"env": "KAFKA_PASSWORD"}}, {})["sasl.password"]
FromEnvironment(env='KAFKA_PASSWORD')
>>> PseudonymKey(b"a secret of at least 16 bytes").name("meter 7")
'931fa1428d64447fb552cd7c270c790d'
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BeforeValidator, Field, model_validator

from ..errors import ArgumentError, ExitCode, QuiltstreamError
from ..files import MOST_SECRET_BYTES, read_regular, reason
from .base import Name, Section, SettingsError


class SecretError(QuiltstreamError, RuntimeError):
    """A secret is not where the settings say; the message names the place."""

    exit_code = ExitCode.SETTINGS


class FromEnvironment(Section):
    """A secret in a variable of the environment."""

    env: Name = Field(description="variable of the environment, on every machine that reads it")

    def read(self) -> str:
        """What is there, on this machine.

        Raises:
            SecretError: the variable is not set.
        """
        found = os.environ.get(self.env)
        if found is None:
            raise SecretError(
                f"the environment variable {self.env} is not set here; set it for every process that uses these "
                "settings"
            )
        return found

    def located(self, place: Callable[[str], str]) -> FromEnvironment:  # noqa: ARG002 - as of a file
        """The same: a variable has no folder."""
        return self


class FromFile(Section):
    """A secret in a file, without the end of its last line."""

    file: str = Field(min_length=1, description="path of the file, on every machine that reads it")

    def read(self) -> str:
        """What is there, on this machine.

        Raises:
            SecretError: the file cannot be read.
        """
        try:
            return read_regular(Path(self.file), MOST_SECRET_BYTES).decode("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SecretError(
                f"the file {self.file} with a secret cannot be read here ({reason(error)}); every process that "
                "uses these settings needs it"
            ) from None

    def located(self, place: Callable[[str], str]) -> FromFile:
        """The same with its path as a function places it."""
        return FromFile(file=place(self.file))


def secret(given: Any) -> Any:
    """A secret's place; what is written there instead is not repeated in any message.

    Raises:
        ValueError: it is no place.
    """
    if isinstance(given, (FromEnvironment, FromFile)):
        return given
    if isinstance(given, dict) and len(given) == 1:
        for key, kind in (("env", FromEnvironment), ("file", FromFile)):
            if isinstance(given.get(key), str) and given[key]:
                return kind(**{key: given[key]})
    raise ArgumentError("a secret does not belong into settings; write {env: VARIABLE} or {file: PATH}")


Secret = Annotated[FromEnvironment | FromFile, BeforeValidator(secret)]
Option = str | int | float | bool | FromEnvironment | FromFile

#: Options of librdkafka and of clients of schema registries that hold secrets.
_SECRET = re.compile(r"password|secret|jaas|token|\.pem$|user\.info$|oauthbearer\.config$|private\.key", re.IGNORECASE)


def _is_open_address(text: str) -> bool:
    """Whether a text is an address with a user or a query, either of which may hold a secret too."""
    behind = text.partition("://")[2]
    return "@" in behind or "?" in behind


def checked_options(given: Any, own: Mapping[str, str]) -> dict[str, Any]:
    """Options of a library, checked; ``own`` are those that are not the settings' business, and what to do instead.

    Raises:
        ValueError: one is not to be given, is no plain value, or holds a secret in the open; values are not repeated.
    """
    if not isinstance(given, dict):
        raise ArgumentError("options are a mapping of the library's own names")
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ArgumentError(f"option {name!r} is no name; options have the library's own names")
        if name in own:
            raise ArgumentError(f"{name} is not to be given; {own[name]}")
        if isinstance(value, (dict, FromEnvironment, FromFile)) or _SECRET.search(name) is not None:
            try:
                checked[name] = secret(value)
            except ValueError as error:
                raise ArgumentError(f"{name}: {error}") from None
        elif isinstance(value, str) and (_is_open_address(value) or (name.endswith("proxy") and "@" in value)):
            raise ArgumentError(
                f"{name} is an address with a user or a query, and these may be secret; write {{env: VARIABLE}} or "
                "{file: PATH} in the place of the whole"
            )
        elif isinstance(value, (str, int, float, bool)):
            checked[name] = value
        else:
            raise ArgumentError(f"{name} is neither text nor a number")
    return checked


def filled(options: Mapping[str, Option], at: Callable[[str, FromEnvironment | FromFile], Any]) -> dict[str, Any]:
    """Options with something in the place of each secret, which is asked for by the option's name and the place."""
    return {
        name: at(name, value) if isinstance(value, (FromEnvironment, FromFile)) else value
        for name, value in options.items()
    }


def resolved(options: Mapping[str, Option]) -> dict[str, str | int | float | bool]:
    """Options with the secrets in place: only for the library that wants them.

    Raises:
        SecretError: one is not where it should be.
    """
    return filled(options, lambda _, place: place.read())


def located(options: Mapping[str, Option], place: Callable[[str], str]) -> dict[str, Option]:
    """Options whose secrets' files are placed by a function."""
    return filled(options, lambda _, secret: secret.located(place))


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
            raise ArgumentError("name exactly one of env and file; the key itself is never a setting")
        if self.file is not None and not Path(self.file).is_absolute():
            raise ArgumentError("file is not an absolute path; every worker must find it without this file")
        return self

    def key(self, setting: str = "readings.pseudonyms") -> PseudonymKey:
        """Read the key where this process runs; messages have the setting's name.

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
    """A secret key of 16 to 64 bytes; it belongs to one process and is shown nowhere."""

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
