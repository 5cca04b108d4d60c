"""Schemas by their numbers, from a registry that speaks Confluent's interface.

A schema never changes under its number, so each is asked for once in a worker. A number that the registry does not know
is asked for again after a while, because it may be registered later. While the registry does not answer, messages wait.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..messages import SourceAwayError
from .asking import AskedRegistry, new_client
from .client import LOG, KafkaUnavailableError

#: Seconds before a number that the registry did not know is asked for again.
_AGAIN_S = 30.0

#: Numbers without a schema that are remembered: whoever sends many must not fill the memory.
_MOST_UNKNOWN = 10_000


@dataclass
class RegistrySchemas(AskedRegistry):
    """Number to schema; a plain value that travels to any worker, where it has a client and a cache of its own.

    Attributes:
        clock: monotonic seconds; the tests' own.
    """

    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    _known: dict[int, Any] = field(default_factory=dict[int, Any], init=False, repr=False, compare=False)
    _unknown: dict[int, float] = field(default_factory=dict[int, float], init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Client and cache belong to a worker and do not travel."""
        return {**super().__getstate__(), "_known": {}, "_unknown": {}}

    def __call__(self, number: int) -> Any:
        """The writer's schema as plain JSON, the types that it refers to put in.

        Raises:
            LookupError: the registry has no Avro schema of that number.
            SourceAwayError: it does not answer, or not to us.
        """
        if number in self._known:
            return self._known[number]
        if self.clock() < self._unknown.get(number, float("-inf")):
            raise LookupError("no Avro schema has that number")
        try:
            schema = self._asked(number)
        except LookupError:
            self._unknown.pop(number, None)
            if len(self._unknown) >= _MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]  # the one that was asked for longest ago
            self._unknown[number] = self.clock() + _AGAIN_S
            raise
        self._known[number] = schema
        return schema

    def _asked(self, number: int) -> Any:
        found = self._answer(lambda client: client.get_schema(number))
        if (found.schema_type or "AVRO") != "AVRO":
            raise LookupError("the schema of that number is not Avro")
        named: dict[str, Any] = {}
        try:
            self._collect(found, named, set())
            return _with_types(json.loads(found.schema_str), named, set())
        except SourceAwayError:
            raise
        except Exception as error:  # noqa: BLE001 - the schema is anybody's who may register one, and may be any JSON
            raise LookupError(f"the schema of that number cannot be read ({type(error).__name__})") from None

    def _collect(self, schema: Any, named: dict[str, Any], seen: set[tuple[str, int]]) -> None:
        for reference in schema.references or ():
            place = (str(reference.subject), int(reference.version))
            if place in seen:
                continue
            seen.add(place)
            found = self._answer(lambda client, place=place: client.get_version(*place)).schema
            named[str(reference.name)] = json.loads(found.schema_str)
            self._collect(found, named, seen)

    def _answer(self, question: Callable[[Any], Any]) -> Any:
        try:
            return self.ask(question)
        except KafkaUnavailableError as error:
            LOG.warning("%s", error)
            raise SourceAwayError(f"{error}; messages wait for it") from None


def _with_types(schema: Any, named: Mapping[str, Any], defined: set[str], space: str = "") -> Any:
    """A schema with the types that it only names put in where they are named first."""
    if isinstance(schema, str):
        full = schema if "." in schema or not space else f"{space}.{schema}"
        name = next((one for one in (full, schema) if one in named and one not in defined), None)
        if name is None:
            return schema
        defined.add(name)
        return _with_types(named[name], named, defined)
    if isinstance(schema, list):
        return [_with_types(one, named, defined, space) for one in schema]
    if schema["type"] in {"record", "error"}:
        space = str(schema.get("namespace", str(schema["name"]).rpartition(".")[0] or space))
        return {**schema, "fields": [{**one, **_part(one, "type", named, defined, space)} for one in schema["fields"]]}
    key = {"array": "items", "map": "values"}.get(str(schema["type"]), "type")
    return {**schema, **_part(schema, key, named, defined, space)}


def _part(schema: Any, key: str, named: Mapping[str, Any], defined: set[str], space: str) -> dict[str, Any]:
    return {key: _with_types(schema[key], named, defined, space)}


__all__ = ["RegistrySchemas", "new_client"]
