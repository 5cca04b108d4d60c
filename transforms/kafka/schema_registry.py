r"""Schema registries with Confluent's interface: schemas by number, and numbers of schemas.

A schema never changes under its number, and a schema keeps its number, so each is requested once in a worker, and every
run sends the same row as the same bytes. A number without a schema there is requested again after a while.
While the registry does not answer, messages wait.

A client belongs to one worker and is made at the first request, with the secrets read then. What an error
says is our own text: a registry's own may quote anything.

>>> wire_head(258)
b'\x00\x00\x00\x01\x02'
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from ...schemas.settings.secrets import Option, SecretError, resolved
from ..payloads.messages import SourceAwayError
from .client import LOG, KafkaUnavailableError

#: Of a client whose requests are made again anyway.
_PATIENCE = {"timeout": 5, "max.retries": 1}

_NOT_FOUND = 404
#: Of what a registry does not find, 40401 and the like say more; a server that is no registry has 404 alone.
_REGISTRYS = 100
_CLIENT_ERRORS = range(400, 500)
#: Of a login that is missing or not taken.
_NO_LOGIN = 401
#: Among the client's errors these pass: a timeout, and too many questions.
_PASSING = frozenset({408, 429})
#: Answers to a schema that is to be registered.
_REFUSED = {
    409: "it refuses the schema (409), which does not fit another one under the same subject",
    422: "it refuses the schema (422)",
}


def new_client(options: Mapping[str, Any]) -> Any:
    """A client of Confluent's."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise KafkaUnavailableError(
            "the schema registry needs confluent-kafka with its registry client; pip install 'quiltstream[kafka]'"
        ) from None
    try:
        return SchemaRegistryClient.new_client(dict(options))
    except (ValueError, TypeError) as error:
        # the text of such an error quotes the value
        raise KafkaUnavailableError(
            f"the options of the schema registry are refused ({type(error).__name__}); check their names and values"
        ) from None


@dataclass
class RegistryAccess:
    """A registry; a plain value that travels to any worker, where it has a client of its own."""

    url: str
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])
    client: Callable[[Mapping[str, Any]], Any] = field(default=new_client, repr=False)
    _client: Any = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Clients and caches belong to a worker and do not travel."""
        made = [one for one in fields(self) if not one.init]
        return self.__dict__ | {one.name: one.default if one.default is not MISSING else {} for one in made}

    def call(self, request: Callable[[Any], Any]) -> Any:
        """What the client answers to a request.

        Raises:
            LookupError: the registry does not have what is requested.
            KafkaUnavailableError: it does not answer, or not to us, or it refuses what it is given.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - an extra

        passing, login = True, False
        try:
            if self._client is None:
                self._client = self.client({**_PATIENCE, **resolved(self.options), "url": self.url})
            return request(self._client)
        except SchemaRegistryError as error:
            code = int(error.http_status_code)
            if code == _NOT_FOUND and (error.error_code or 0) // _REGISTRYS == _NOT_FOUND:
                raise LookupError("the registry has no such schema") from None
            passing, login = code not in _CLIENT_ERRORS or code in _PASSING, code == _NO_LOGIN
            why = _REFUSED.get(code, f"it answers with {code}")
            if code == _NOT_FOUND:
                why += "; check registry.url"
            elif not passing and code not in _REFUSED:
                why += "; check registry.options"
        except (SecretError, KafkaUnavailableError) as error:
            passing, why = False, str(error)
        except Exception as error:  # noqa: BLE001 - of the client's HTTP library, whichever that is
            why = f"it does not answer ({type(error).__name__})"
        raise KafkaUnavailableError(f"the schema registry {self.url}: {why}", passing=passing, login=login)


#: Seconds before a number without a schema is requested again, and how many are remembered.
_AGAIN_S = 60.0
_MOST_UNKNOWN = 10_000


@dataclass
class RegistrySchemas(RegistryAccess):
    """Number to schema; a plain value that travels to any worker, where it has a client and a cache of its own."""

    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    _known: dict[int, Any] = field(default_factory=dict[int, Any], init=False, repr=False, compare=False)
    #: Number to when it is requested again, in seconds.
    _unknown: dict[int, float] = field(default_factory=dict[int, float], init=False, repr=False, compare=False)

    def __call__(self, number: int) -> Any:
        """The writer's schema as plain JSON, the types that it refers to put in."""
        if number in self._known:
            return self._known[number]
        if self.clock() < self._unknown.get(number, float("-inf")):
            raise LookupError("no Avro schema has that number")
        try:
            schema = self._known[number] = self._fetched(number)
        except LookupError:
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown[number] = self.clock() + _AGAIN_S
            raise
        return schema

    def _fetched(self, number: int) -> Any:
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

    def _answer(self, request: Callable[[Any], Any]) -> Any:
        try:
            return self.call(request)
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
        typed = [{**one, "type": _with_types(one["type"], named, defined, space)} for one in schema["fields"]]
        return {**schema, "fields": typed}
    key = {"array": "items", "map": "values"}.get(str(schema["type"]), "type")
    return {**schema, key: _with_types(schema[key], named, defined, space)}


def wire_head(number: int) -> bytes:
    """What stands before an Avro body in the wire format of Confluent's."""
    return b"\0" + number.to_bytes(4, "big")


def subject_of(topic: str) -> str:
    """Where the schema of a topic's values is registered: Confluent calls it the strategy of the topic's name."""
    return f"{topic}-value"


def text_of(schema: Mapping[str, Any]) -> str:
    """A schema as it is registered: another text of the same schema might have another number."""
    return json.dumps(schema, separators=(",", ":"))


@dataclass
class RegistryNumbers(RegistryAccess):
    """Schema to number; a plain value that travels to any worker, where it has a client and a cache of its own."""

    auto_register: bool = True
    _numbers: dict[tuple[str, str], int] = field(
        default_factory=dict[tuple[str, str], int], init=False, repr=False, compare=False
    )

    def number(self, subject: str, schema: Mapping[str, Any]) -> int:
        """The number of a schema under a subject; requested once."""
        place = (subject, text_of(schema))
        if place not in self._numbers:
            self._numbers[place] = self._fetched(*place)
        return self._numbers[place]

    def _fetched(self, subject: str, text: str) -> int:
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - an extra

        schema = Schema(text, "AVRO")
        try:
            return int(self.call(lambda client: client.lookup_schema(subject, schema)).schema_id)
        except LookupError:
            if not self.auto_register:
                raise KafkaUnavailableError(
                    f"the schema registry {self.url}: it does not have the schema of the rows under {subject}, and "
                    "registry.auto_register is false; register it, or set that to true"
                ) from None
        try:
            return int(self.call(lambda client: client.register_schema(subject, schema)))
        except LookupError:
            raise KafkaUnavailableError(
                f"the schema registry {self.url}: it does not take the schema of the rows under {subject}"
            ) from None
