"""Connectors and payload formats, one table each: those of this package, and those that other distributions add.

A distribution adds one by an entry point whose name is the name in settings, and whose object is a :class:`Connector`
or a :class:`PayloadFormat`. It is imported when settings give that name, or when all of them are listed:

>>> from quiltstream.schemas.settings.connectors import CONNECTORS
>>> CONNECTORS["kafka"].module
'quiltstream.pipelines.connectors.kafka'
>>> CONNECTOR_PLUGINS.offered("kafka")
()

The object names a module for the work, which is imported by a job only: a settings file is checked without the client
of a broker.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

from pydantic import Field, create_model

from .base import Section, SettingsError

#: The version of what this package and a plug-in expect of each other.
CONTRACT = 1

#: What a plug-in may be called.
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


class ConnectorSection(Section):
    """The settings of a source or a sink that is no files."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it reads or writes, in words, without a secret."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that tell apart what is read and written there: no sink may have a name of the source."""
        return (self.place,)


class NoSettings(Section):
    """The section of a payload format without settings."""


@dataclass(frozen=True, slots=True)
class Connector:
    """A source, a sink, or both."""

    # full name of the module with the functions ``source(settings, group)`` and ``sink(settings, field, given)``: see
    # ``quiltstream.pipelines.plugins``
    module: str
    source: type[ConnectorSection] | None = None  # settings of the source; ``None`` without one
    sink: type[ConnectorSection] | None = None  # settings of the sink; ``None`` without one
    contract: int = CONTRACT  # the version of the contract that it was written for


@dataclass(frozen=True, slots=True)
class PayloadFormat:
    """A way to write the payload of a message."""

    # full name of the module with the function ``parser(section)``, which gives the function from a payload to its
    # plain value
    module: str
    section: type[Section] = NoSettings  # its settings
    contract: int = CONTRACT  # the version of the contract that it was written for


Kind = TypeVar("Kind", Connector, PayloadFormat)


@dataclass(frozen=True, slots=True)
class Plugin(Generic[Kind]):
    """What a distribution adds, imported."""

    name: str  # in settings
    what: str  # ``connector`` or ``payload format``
    distribution: str  # name and version of the distribution
    made: Kind  # the object of its entry point

    @property
    def text(self) -> str:
        """The plug-in in words."""
        return f"the {self.what} {self.name!r} of {self.distribution}"

    def imported(self, *functions: str) -> ModuleType:
        """The module for the work, with the functions that it must have.

        Raises:
            SettingsError: it cannot be imported, or lacks a function; the message names the distribution.
        """
        try:
            module = import_module(self.made.module)
        except Exception as error:
            raise SettingsError([_broken(self.text, self.made.module, error)]) from error
        lacking = [one for one in functions if not callable(getattr(module, one, None))]
        if lacking:
            raise SettingsError(
                [f"{self.text}: module {self.made.module} lacks the function {lacking[0]}(); ask its author for it"]
            )
        return module


def _broken(text: str, where: str, error: Exception) -> str:
    # other errors' texts may quote anything; that of a failed import names a module
    why = f"{type(error).__name__}: {error}" if isinstance(error, ImportError) else type(error).__name__
    return f"{text} cannot be imported from {where} ({why}); install what it needs, or uninstall the distribution"


@dataclass(frozen=True, slots=True)
class Plugins(Generic[Kind]):
    """The plug-ins of one kind."""

    group: str  # of the entry points
    what: str  # what messages call one
    made_of: type[Kind]  # class of an entry point's object

    def offered(self, name: str) -> tuple[EntryPoint, ...]:
        """The entry points of a name; nothing is imported."""
        return tuple(entry_points(group=self.group, name=name))

    @property
    def names(self) -> tuple[str, ...]:
        """The names that distributions add, in their order; nothing is imported."""
        return tuple(sorted({one.name for one in entry_points(group=self.group)}))

    def named(self, name: str) -> Plugin[Kind] | None:
        """The plug-in of a name; ``None`` without one.

        Raises:
            SettingsError: two distributions add one of that name; or it cannot be imported, or is not what the contract
                asks for. The message names the distribution.
        """
        found = self.offered(name)
        if not found:
            return None
        if len(found) > 1:
            raise SettingsError(
                [f"{name!r} is a {self.what} of {' and of '.join(map(_distribution, found))}; uninstall all but one"]
            )
        point = next(iter(found))
        text = f"the {self.what} {name!r} of {_distribution(point)}"
        if _NAME.fullmatch(name) is None:
            raise SettingsError([f"{text}: a name has up to 40 small letters, digits, _ and -; ask its author for one"])
        try:
            made = point.load()
        except Exception as error:
            raise SettingsError([_broken(text, point.value, error)]) from error
        if not isinstance(made, self.made_of):
            raise SettingsError(
                [f"{text}: {point.value} is a {type(made).__name__}, not a {self.made_of.__name__}; ask its author"]
            )
        if made.contract != CONTRACT:
            raise SettingsError(
                [
                    f"{text} is written for contract {made.contract}, and this quiltstream has contract {CONTRACT}; "
                    "install a version of it, or of quiltstream, that fits"
                ]
            )
        return Plugin(name, self.what, _distribution(point), made)

    def all(self) -> Iterator[tuple[str, Plugin[Kind] | SettingsError]]:
        """Every plug-in by its name, imported, or the error that it has."""
        for name in self.names:
            try:
                found = self.named(name)
            except SettingsError as error:
                yield name, error
            else:
                if found is not None:
                    yield name, found


def _distribution(point: EntryPoint) -> str:
    return "an unknown distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"


#: The connectors and payload formats that other distributions add.
CONNECTOR_PLUGINS = Plugins("quiltstream.connectors", "connector", Connector)
PAYLOAD_PLUGINS = Plugins("quiltstream.payloads", "payload format", PayloadFormat)


def checked_section(name: str, section: type[Section], given: Any) -> Section:
    """The settings of a plug-in, checked; the name of the setting begins the place of a mistake.

    Raises:
        ValidationError: of pydantic, with the place of every mistake behind the name.
    """
    form: Any = create_model("Settings", __base__=Section, given=(section, Field(alias=name)))
    return form.model_validate({name: given}).given
