"""Questions to a schema registry that speaks Confluent's interface, and what its answers mean.

A client belongs to one worker and is made where the first question is asked, with the secrets read then. What an error
says is our own text: a registry's own may quote anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...schemas.secrets import Option, SecretError, resolved
from .client import KafkaUnavailableError

#: Of a client that is asked again anyway.
_PATIENCE = {"timeout": 5, "max.retries": 1}

_NOT_FOUND = 404
#: Of what a registry does not find, 40401 and the like say more; a server that is no registry has 404 alone.
_REGISTRYS = 100
_CLIENT_ERRORS = range(400, 500)
#: Among the client's errors these pass: a timeout, and too many questions.
_PASSING = frozenset({408, 429})
#: Answers to a schema that is to be registered.
_REFUSED = {
    409: "it refuses the schema (409), which does not fit another one under the same subject",
    422: "it refuses the schema (422)",
}


def new_client(options: Mapping[str, Any]) -> Any:
    """A client of Confluent's.

    Raises:
        KafkaUnavailableError: an option is wrong, or the package is not here.
    """
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
class AskedRegistry:
    """A registry to be asked; a plain value that travels to any worker, where it has a client of its own.

    Attributes:
        url: of the registry.
        options: of Confluent's client, secrets by their place.
        client: makes a client; the tests' own.
    """

    url: str
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])
    client: Callable[[Mapping[str, Any]], Any] = field(default=new_client, repr=False)
    _client: Any = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """The client belongs to a worker and does not travel."""
        return {**self.__dict__, "_client": None}

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """What the client answers to a question.

        Raises:
            LookupError: the registry does not have what is asked for.
            KafkaUnavailableError: it does not answer, or not to us, or it refuses what it is given.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - an extra

        passing = True
        try:
            if self._client is None:
                self._client = self.client({**_PATIENCE, **resolved(self.options), "url": self.url})
            return question(self._client)
        except SchemaRegistryError as error:
            code = int(error.http_status_code)
            if code == _NOT_FOUND and (error.error_code or 0) // _REGISTRYS == _NOT_FOUND:
                raise LookupError("the registry has no such schema") from None
            passing = code not in _CLIENT_ERRORS or code in _PASSING
            why = _REFUSED.get(code, f"it answers with {code}")
            if code == _NOT_FOUND:
                why += "; check registry.url"
            elif not passing and code not in _REFUSED:
                why += "; check registry.options"
        except (SecretError, KafkaUnavailableError) as error:
            passing, why = False, str(error)
        except Exception as error:  # noqa: BLE001 - of the client's HTTP library, whichever that is
            why = f"it does not answer ({type(error).__name__})"
        raise KafkaUnavailableError(f"the schema registry {self.url}: {why}", passing=passing)


__all__ = ["AskedRegistry", "new_client"]
