"""What a client of Kafka says of wrong brokers, security and options, without a secret or a word of a broker's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from quiltstream.transforms.kafka.client import Cluster, KafkaUnavailableError, look, meaning_of

#: What librdkafka 2.11 says, with the broker's own words in it.
SAID: dict[str, tuple[str, str]] = {
    "a mechanism": (
        "_AUTHENTICATION",
        "sasl_plaintext://h:1/bootstrap: SASL SCRAM-SHA-256 mechanism handshake failed: Broker: Unsupported SASL "
        "mechanism: broker's supported mechanisms: PLAIN,secret,SCRAM-SHA-512 (after 302ms in state AUTH_HANDSHAKE)",
    ),
    "a password": (
        "_AUTHENTICATION",
        "sasl_plaintext://h:1/bootstrap: SASL authentication error: Authentication failed: secret (after 326ms)",
    ),
    "no certificate": (
        "_TRANSPORT",
        "ssl://h:1/bootstrap: Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert "
        "number 42 (after 10ms in state APIVERSION_QUERY)",
    ),
    "the broker's certificate": (
        "_SSL",
        "ssl://h:1/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker "
        "certificate could not be verified, verify that ssl.ca.location is correctly configured",
    ),
    "a name": ("_RESOLVE", "no.such:1/bootstrap: Failed to resolve 'no.such:1': Name or service not known"),
}
CLIENTS = "the broker asks for a client's certificate, or does not accept the one it is given"
MEANT = {
    "a mechanism": "does not offer the sasl.mechanism of the options; set one that it offers",
    "a password": "the broker does not accept user and password",
    "no certificate": CLIENTS,
    "the broker's certificate": "the encrypted connection cannot be made; check certificates",
    "a name": "the name of a broker cannot be resolved; check the name",
}
PASSING = {"a name"}
LOGINS = {*SAID} - PASSING - {"a mechanism"}


def error(name: str, text: str) -> KafkaError:
    return KafkaError(getattr(KafkaError, name), text)


class Unanswered:
    """A consumer whose requests are not answered, and that has some errors when it is polled."""

    def __init__(self, options: Mapping[str, Any], errors: list[KafkaError]) -> None:
        self._told: Callable[[KafkaError], None] = options["error_cb"]
        self._errors = errors

    def list_topics(self, *_: Any, **__: Any) -> Any:
        raise KafkaException(error("_TRANSPORT", "Failed to get metadata: Local: Broker transport failure"))

    def poll(self, _: float) -> None:
        for one in self._errors:
            self._told(one)

    def close(self) -> None:
        """There is nothing to close."""


def told_of(
    errors: list[KafkaError], servers: str = "h:1", options: Mapping[str, Any] | None = None, **own: Any
) -> KafkaUnavailableError:
    cluster = Cluster(servers, options or {}, consumer=lambda given: Unanswered(given, errors), **own)
    with pytest.raises(KafkaUnavailableError) as told:
        look(cluster, ["t"])
    return told.value


@pytest.mark.parametrize("kind", SAID)
def test_a_cause_that_only_a_text_of_the_client_tells_has_its_own_sentence(kind: str) -> None:
    said = error(*SAID[kind])
    down = error("_ALL_BROKERS_DOWN", "1/1 brokers are down")
    found = told_of([down, said, down])
    assert MEANT[kind] in str(found)
    assert MEANT[kind] in meaning_of(KafkaException(said))
    assert found.passing == (kind in PASSING)
    assert found.login == (kind in LOGINS)
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"security.protcol": "hunter2"}, "security.protcol"),
        ({"fetch.min.bytes": "hunter2"}, "fetch.min.bytes"),
        ({"security.protocol": "hunter2"}, "security.protocol"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/hunter2"}, "ssl.ca.location"),
    ],
)
def test_an_option_that_is_refused_is_named_without_its_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(KafkaUnavailableError) as told:
        look(Cluster("127.0.0.1:1", options), ["t"])
    assert f"refused (_INVALID_ARG): {named}; check their names and values" in str(told.value)
    assert "hunter2" not in str(told.value)
