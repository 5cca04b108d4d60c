"""Clients of Kafka brokers: how they are made, what their errors mean, and whether topics are there.

confluent-kafka is an extra. Secrets are put in place where a client is made and nowhere else; what an error says is our
own text by the error's name, because a broker's own text may quote anything.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...schemas.errors import ExitCode
from ...schemas.settings.secrets import Option, SecretError, resolved
from ..sources.contract import BrokerUnavailableError

#: Logs trouble with brokers, and at the level DEBUG the lines of librdkafka.
LOG = logging.getLogger("quiltstream.kafka")

_EXTRA = "Kafka needs the package confluent-kafka, which is not installed here; pip install 'quiltstream[kafka]'"

#: Names of errors that end by themselves, or when the broker or the network works again.
_AWAY = {
    **dict.fromkeys(("_ALL_BROKERS_DOWN", "_TRANSPORT"), "no broker answers"),
    **dict.fromkeys(("_TIMED_OUT", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT"), "no broker answered in time"),
    "_MSG_TIMED_OUT": "no broker took a message in time",
    "_RESOLVE": "the name of a broker cannot be resolved; check the name, and the name service",
    "LEADER_NOT_AVAILABLE": "a partition has no leader now",
    "NOT_LEADER_FOR_PARTITION": "a partition's leader is moving",
    "_BAD_MSG": "what a broker answers cannot be read; it may have more bytes than receive.message.max.bytes",
}

#: Names of errors whose cause is in the settings or at the broker.
_WRONG = {
    **dict.fromkeys(("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"), "the topic is not there; make it, or check its name"),
    "_UNKNOWN_PARTITION": "a partition is not there",
    "TOPIC_EXCEPTION": "the topic's name is not allowed",
    "TOPIC_AUTHORIZATION_FAILED": "the user may not use the topic; ask for the right to it",
    "GROUP_AUTHORIZATION_FAILED": "the user may not use the group; ask for the right to it, or leave group out",
    "CLUSTER_AUTHORIZATION_FAILED": "the user may not do this at the cluster; ask for the right to it",
    **dict.fromkeys(("SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION"), "the broker does not accept user and password"),
    "UNSUPPORTED_SASL_MECHANISM": "the broker does not offer the sasl.mechanism of the options; set one that it offers",
    "alert about a certificate": "the broker asks for a client's certificate, or does not accept the one it is given; "
    "set ssl.certificate.location and ssl.key.location",
    "_SSL": "the encrypted connection cannot be made; check certificates and security.protocol",
    "_INVALID_ARG": "an option is not one of librdkafka, or its value is none",
    "_BAD_COMPRESSION": "a batch cannot be unpacked, or has more bytes than receive.message.max.bytes then; raise that "
    "option and the workers' memory, or delete the partition's records up to behind the batch",
    "MSG_SIZE_TOO_LARGE": "a message is larger than the broker or the topic takes",
}

#: Those of them that say that a login or a certificate is not taken.
_LOGINS = frozenset({"SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "alert about a certificate", "_SSL"})

#: What a text of librdkafka's says that its error's name does not: the name of the error behind it. No text is shown.
_BEHIND = (
    (re.compile(r"Unsupported SASL mechanism"), "UNSUPPORTED_SASL_MECHANISM"),
    (re.compile(r"\balert (?:\w+ )?(?:certificate|unknown ca)\b"), "alert about a certificate"),
)

#: Names of errors that say no more than that there is no answer.
_UNANSWERED = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT"})

#: A group's name that nothing is committed to; librdkafka wants one.
NO_GROUP = "quiltstream"

#: Options of a consumer that keeps no offsets.
LOOKING: Mapping[str, Any] = {
    "group.id": NO_GROUP,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}

#: Options of a consumer that follows partitions.
READING: Mapping[str, Any] = {
    **LOOKING,
    "enable.auto.offset.store": False,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    "queued.min.messages": 100_000,
    # what waits, an answer as it unpacks (zstd makes 32,000 bytes of one) and what is decoded are 256 MB at most. A
    # broker gives one batch at least, whatever its size; small answers cost little where it is near
    "queued.max.messages.kbytes": 32_768,
    "fetch.max.bytes": 2_048,
    "fetch.message.max.bytes": 2_048,
    "message.max.bytes": 1_000,  # of producers; librdkafka wants no more of it than of a fetch
    # also what a batch may unpack to with zstd; a message that a broker takes has at most a megabyte unless it is
    # configured otherwise
    "receive.message.max.bytes": 1 << 26,
    "reconnect.backoff.max.ms": 2_000,
    "socket.keepalive.enable": True,
}

#: Seconds that brokers have to describe topics before a job begins.
LOOK_S = 5.0


class KafkaUnavailableError(BrokerUnavailableError):
    """Brokers of Kafka cannot be used.

    Attributes:
        login: whether they do not take the login, or one side does not take the other's certificate.
    """

    def __init__(self, text: str, *, passing: bool = False, login: bool = False) -> None:
        super().__init__(text, passing=passing)
        self.login = login


class KafkaAwayError(KafkaUnavailableError):
    """Brokers of Kafka, or their schema registry, did not answer for as long as a worker waits for them."""

    exit_code = ExitCode.AWAY


def _inner(error: Any) -> Any:
    return error.args[0] if isinstance(error, Exception) and error.args else error


def name_of(error: Any) -> str:
    """The name of an error of confluent-kafka, or of what one of its exceptions carries."""
    inner = _inner(error)
    return str(inner.name()) if callable(getattr(inner, "name", None)) else type(error).__name__


def _text_of(error: Any) -> str:
    """What librdkafka says of an error. It may quote anything: it is looked through and never shown."""
    inner = _inner(error)
    return str(inner.str()) if callable(getattr(inner, "str", None)) else str(inner)


def _cause_name(error: Any) -> str:
    """The name of an error, or of the one behind it that only its text tells."""
    text = _text_of(error)
    return next((name for pattern, name in _BEHIND if pattern.search(text)), name_of(error))


def meaning_of(error: Any) -> str:
    """What an error means, without a word of the broker's own."""
    name = _cause_name(error)
    return _AWAY.get(name) or _WRONG.get(name) or f"Kafka says {name}"


def is_passing(error: Any) -> bool:
    """Whether an error may go away by itself."""
    return _cause_name(error) not in _WRONG


def is_login(error: Any) -> bool:
    """Whether an error says that a login or a certificate is not taken."""
    return _cause_name(error) in _LOGINS


def is_kafkas(error: BaseException) -> bool:
    """Whether an error is of the client, and not a mistake of this program."""
    return type(error).__module__.startswith(("cimpl", "confluent_kafka"))


def unavailable(what: str, error: Any) -> KafkaUnavailableError:
    """An error as one that can be shown."""
    return KafkaUnavailableError(f"{what}: {meaning_of(error)}", passing=is_passing(error), login=is_login(error))


@contextmanager
def as_unavailable(what: str) -> Generator[None]:
    """Errors of the client as ones that can be shown; a mistake of this program stays what it is."""
    try:
        yield
    except Exception as error:
        if not is_kafkas(error):
            raise
        raise unavailable(what, error) from None


def _client() -> Any:
    try:
        import confluent_kafka  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise KafkaUnavailableError(_EXTRA) from None
    return confluent_kafka


def new_consumer(options: Mapping[str, Any]) -> Any:
    """A consumer of confluent-kafka."""
    return _made(_client().Consumer, options)


def new_producer(options: Mapping[str, Any]) -> Any:
    """A producer of confluent-kafka."""
    return _made(_client().Producer, options)


def new_admin(options: Mapping[str, Any]) -> Any:
    """An administrator's client of confluent-kafka."""
    _client()
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra

    return _made(AdminClient, options)


class _Librdkafka:
    """Takes the lines of librdkafka, which quote brokers, and of which each error has a line of our own."""

    @staticmethod
    def log(_level: int, text: str, *words: Any) -> None:
        """Keep a line for who looks for it."""
        LOG.debug(text, *words)


def _made(kind: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    try:
        return kind(dict(options), logger=_Librdkafka)
    except (_client().KafkaException, ValueError, TypeError) as error:
        # the text of such an error quotes the value; of what it says only names of options are repeated
        text = _text_of(error)
        named = [name for name in sorted(options) if re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", text)]
        then = "check their names and values against librdkafka's, and the files that they name"
        which = f": {', '.join(named)}" if named else ""
        raise KafkaUnavailableError(f"the options of Kafka are refused ({name_of(error)}){which}; {then}") from None


def topic_partition(topic: str, partition: int, offset: int) -> Any:
    """A place in a topic as confluent-kafka wants it."""
    return _client().TopicPartition(topic, partition, offset)


@dataclass(frozen=True)
class Cluster:
    """Where brokers are and how to talk to them: a plain value that travels to any worker, without secrets."""

    servers: str  # HOST:PORT, with commas between
    # librdkafka's, secrets by their place
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])
    consumer: Callable[[Mapping[str, Any]], Any] = field(default=new_consumer, repr=False)
    producer: Callable[[Mapping[str, Any]], Any] = field(default=new_producer, repr=False)
    admin: Callable[[Mapping[str, Any]], Any] = field(default=new_admin, repr=False)

    def consume(self, own: Mapping[str, Any], said: Callable[[Any], None] | None = None) -> Any:
        """A consumer, with our own options and what hears of its errors."""
        return self.consumer(self._options(own, said))

    def produce(self, own: Mapping[str, Any], said: Callable[[Any], None] | None = None) -> Any:
        """A producer, as above."""
        return self.producer(self._options(own, said))

    def administer(self) -> Any:
        """An administrator's client, as above."""
        return self.admin(self._options({}, None))

    def _options(self, own: Mapping[str, Any], said: Callable[[Any], None] | None) -> dict[str, Any]:
        try:
            given = resolved(self.options)
        except SecretError as error:
            raise KafkaUnavailableError(f"Kafka at {self.servers}: {error}") from None
        heard = {} if said is None else {"error_cb": said}
        return {**own, **given, "bootstrap.servers": self.servers, **heard}


def look(cluster: Cluster, topics: Iterable[str]) -> None:
    """See that topics are there; whether their messages may be read is known only when they are read."""
    said: list[Any] = []
    consumer = cluster.consume(LOOKING, said.append)
    try:
        errors = {topic: consumer.list_topics(topic, timeout=LOOK_S).topics[topic].error for topic in topics}
    except Exception as error:
        if not is_kafkas(error):
            raise
        consumer.poll(0)  # the client passes on the reasons that it has when it is polled
        # what lasts comes first, then what says more than that there is no answer
        found = next((one for one in (*said, error) if not is_passing(one)), None)
        found = found or next((one for one in said if name_of(one) not in _UNANSWERED), error)
        raise unavailable(f"brokers {cluster.servers}", found) from None
    finally:
        consumer.close()
    for topic, error in errors.items():
        if error is not None:
            raise unavailable(f"topic {topic} at {cluster.servers}", error)
