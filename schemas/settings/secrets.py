"""Secrets in settings: only where they are, never what they are.

A settings document is shown, kept and copied, so it names a variable of the environment or a file. What is in there is
read by the worker that needs it, when it needs it.

>>> checked_options({"sasl.username": "meters", "sasl.password": {"env": "KAFKA_PASSWORD"}}, {})["sasl.password"]
FromEnvironment(env='KAFKA_PASSWORD')
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ..errors import QuiltstreamError
from ..files import MOST_SECRET_BYTES, read_regular, reason
from .base import Name, Section


class SecretError(QuiltstreamError, RuntimeError):
    """A secret is not where the settings say; the message names the place."""


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
    raise ValueError("a secret does not belong into settings; write {env: VARIABLE} or {file: PATH}")


Secret = Annotated[FromEnvironment | FromFile, BeforeValidator(secret)]
Option = str | int | float | bool | FromEnvironment | FromFile

#: Options of librdkafka and of clients of schema registries that hold secrets.
_SECRET = re.compile(r"password|secret|jaas|token|\.pem$|user\.info$|oauthbearer\.config$|private\.key", re.IGNORECASE)


def _is_open_address(text: str) -> bool:
    """Whether a text is an address with a user or a query, either of which may hold a secret too."""
    behind = text.partition("://")[2]
    return "@" in behind or "?" in behind


def checked_options(given: Any, own: Mapping[str, str]) -> dict[str, Any]:
    """Options of a library as they stand in settings, checked.

    Args:
        given: the options by name.
        own: options that are not the settings' business, and what to do instead.

    Raises:
        ValueError: one is not to be given, is no plain value, or holds a secret in the open; values are not repeated.
    """
    if not isinstance(given, dict):
        raise ValueError("options are a mapping of the library's own names")  # noqa: TRY004 - pydantic reports ValueErrors
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ValueError(f"option {name!r} is no name; options have the library's own names")  # noqa: TRY004 - as above
        if name in own:
            raise ValueError(f"{name} is not to be given; {own[name]}")
        if isinstance(value, (dict, FromEnvironment, FromFile)) or _SECRET.search(name) is not None:
            try:
                checked[name] = secret(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        elif isinstance(value, str) and (_is_open_address(value) or (name.endswith("proxy") and "@" in value)):
            raise ValueError(
                f"{name} is an address with a user or a query, and these may be secret; write {{env: VARIABLE}} or "
                "{file: PATH} in the place of the whole"
            )
        elif isinstance(value, (str, int, float, bool)):
            checked[name] = value
        else:
            raise ValueError(f"{name} is neither text nor a number")
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


__all__ = [
    "FromEnvironment",
    "FromFile",
    "Option",
    "Secret",
    "SecretError",
    "checked_options",
    "filled",
    "located",
    "resolved",
    "secret",
]
