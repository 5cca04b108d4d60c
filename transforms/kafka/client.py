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
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.files import mend_reading, reason
from ...schemas.settings.secrets import Option, SecretError, resolved
from ..sources.contract import BrokerUnavailableError

if TYPE_CHECKING:
    from ..payloads.messages import Headers

#: Logs trouble with brokers, and the lines of librdkafka.
LOG = logging.getLogger("quiltstream.kafka")

_EXTRA = "Kafka needs the package confluent-kafka, which is not installed here; pip install 'quiltstream[kafka]'"

#: Names of errors that end by themselves, or when the broker or the network works again.
_AWAY = {
    "_ALL_BROKERS_DOWN": "no broker answers",
    "_TRANSPORT": "no broker answers",
    "_TIMED_OUT": "no broker answered in time",
    "_TIMED_OUT_QUEUE": "no broker answered in time",
    "_MSG_TIMED_OUT": "no broker took a message in time",
    "REQUEST_TIMED_OUT": "no broker answered in time",
    "_RESOLVE": "the name of a broker cannot be resolved; check the name, and the name service",
    "_WAIT_COORD": "the group's coordinator does not answer yet",
    "COORDINATOR_LOAD_IN_PROGRESS": "the group's coordinator does not answer yet",
    "COORDINATOR_NOT_AVAILABLE": "the group's coordinator does not answer yet",
    "LEADER_NOT_AVAILABLE": "a partition has no leader now",
    "NOT_LEADER_FOR_PARTITION": "a partition's leader is moving",
    "BROKER_NOT_AVAILABLE": "a broker is not available",
    "_BAD_MSG": "what a broker answers cannot be read; it may be larger than receive.message.max.bytes",
}

#: Names of errors whose cause is in the settings or at the broker.
_WRONG = {
    "UNKNOWN_TOPIC_OR_PART": "the topic is not there; make it, or check its name",
    "_UNKNOWN_TOPIC": "the topic is not there; make it, or check its name",
    "_UNKNOWN_PARTITION": "a partition is not there",
    "TOPIC_EXCEPTION": "the topic's name is not allowed",
    "TOPIC_AUTHORIZATION_FAILED": "the user may not use the topic; ask for the right to it",
    "GROUP_AUTHORIZATION_FAILED": "the user may not use the group; ask for the right to it, or leave group out",
    "CLUSTER_AUTHORIZATION_FAILED": "the user may not do this at the cluster; ask for the right to it",
    "SASL_AUTHENTICATION_FAILED": "the broker does not accept user and password",
    "_AUTHENTICATION": "the broker does not accept user and password",
    "UNSUPPORTED_SASL_MECHANISM": "the broker does not offer the sasl.mechanism of the options; set one that it offers",
    "ILLEGAL_SASL_STATE": "the port does not ask who connects; set security.protocol to PLAINTEXT, or to SSL where it "
    "speaks TLS, or name the port that does",
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
    (re.compile(r"Request not valid in current SASL state"), "ILLEGAL_SASL_STATE"),
    (re.compile(r"\balert (?:\w+ )?(?:certificate|unknown ca)\b"), "alert about a certificate"),
)

#: Mechanisms of SASL, which are shown where a broker says that it offers them.
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")

#: Names of errors that say no more than that there is no answer.
_UNANSWERED = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT"})

#: Options of a consumer that follows partitions.
READING: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 65_536,
    # also what a batch may unpack to with zstd, of which 100 kB can stand for gigabytes; a message that a broker takes
    # has at most a megabyte unless it is configured otherwise
    "receive.message.max.bytes": 1 << 28,
    "reconnect.backoff.max.ms": 2_000,
    "socket.keepalive.enable": True,
}

#: A group's name that nothing is committed to; librdkafka wants one.
NO_GROUP = "quiltstream"

#: Options of a consumer that keeps no offsets.
LOOKING = {
    "group.id": NO_GROUP,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}

#: Seconds that brokers have to describe topics before a job begins.
LOOK_S = 5.0

#: confluent-kafka gives a broken list and an error at once for headers that it cannot read: Python notices that where a
#: method is called in this way, and not always where it is called by its name.
_HEADERS = methodcaller("headers")

#: In the place of headers that cannot be read; they must not be read again.
_ILLEGIBLE: list[tuple[str, bytes | None]] = [("illegible", None)]


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
    meaning = _AWAY.get(name) or _WRONG.get(name) or f"Kafka says {name}"
    if name != "UNSUPPORTED_SASL_MECHANISM":
        return meaning
    said = re.findall(r"[\w-]+", _text_of(error).partition("supported mechanisms:")[2])
    offered = [one for one in _MECHANISMS if one in said]
    return f"{meaning} ({', '.join(offered)})" if offered else meaning


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


def _made(kind: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    try:
        return kind(dict(options), logger=LOG)
    except (_client().KafkaException, ValueError, TypeError) as error:
        # the text of such an error quotes the value; of what it says only names of options are repeated
        named = [name for name in sorted({*options, *_OF_SASL}) if _names(_text_of(error), name)]
        which = f": {', '.join(named)}" if named else ""
        files = [name for name in named if _FILES.fullmatch(name)]
        then = _NO_PEM.format(", ".join(files)) if files else "check their names and values against librdkafka's"
        raise KafkaUnavailableError(f"the options of Kafka are refused ({name_of(error)}){which}; {then}") from None


#: Options that name files which librdkafka reads for TLS, and what is said where a client is not made of one.
_FILES = re.compile(r"ssl\.(?:ca|certificate|key|keystore|crl)\.location")
_NO_PEM = (
    "the file that {} names does not hold what TLS needs: certificates and keys as PEM (-----BEGIN ...), a keystore as "
    "PKCS#12, each with its own password in the options"
)

#: Options that an error may name where the settings lack them.
_OF_SASL = ("sasl.mechanism", "sasl.password", "sasl.username")


def _names(text: str, option: str) -> bool:
    """Whether a text names an option, and not a longer one."""
    found = re.search(rf"(?<![\w.]){re.escape(option)}(?!\.?\w)", text) is not None
    return found or (option == "sasl.mechanism" and "Unsupported SASL mechanism" in text)


def _check_files(given: Mapping[str, Any], shown: Mapping[str, Option]) -> None:
    """See that the files of certificates and keys can be read: librdkafka says of one only that it failed."""
    if not str(given.get("security.protocol", "")).upper().endswith("SSL"):
        return
    for name, path in sorted(given.items()):
        # instead of a file of authorities a folder can be named, and "probe" has librdkafka look for them
        if not _FILES.fullmatch(name) or path == "probe" or Path(str(path)).is_dir():
            continue
        try:
            Path(str(path)).open("rb").close()
        except (OSError, ValueError) as error:
            # a path that is a secret in the settings is not shown
            place = f" {path}" if shown.get(name) == path else ""
            raise KafkaUnavailableError(
                f"options.{name}: the file{place} cannot be read ({reason(error)}); "
                f"{mend_reading(error, 'check its path, on every machine that reads it')}"
            ) from None


def topic_partition(topic: str, partition: int, offset: int) -> Any:
    """A place in a topic as confluent-kafka wants it."""
    return _client().TopicPartition(topic, partition, offset)


def headers_of(message: Any) -> Headers | None:
    """The headers of a message of confluent-kafka; ``None`` if one has a name that is no UTF-8, which loses all."""
    try:
        found = _HEADERS(message)
    except (UnicodeDecodeError, SystemError):
        message.set_headers(_ILLEGIBLE)
        return None
    return None if found is _ILLEGIBLE else found or ()


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
        """A consumer."""
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
            _check_files(given, self.options)
        except (SecretError, KafkaUnavailableError) as error:
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
        where = f"brokers {cluster.servers}"
        found = [unavailable(where, one) for one in (*said, error)]
        lasting = next((one for one in found if not one.passing), None)
        if lasting is not None:
            raise lasting from None
        # what says more than that there is no answer comes before it
        raise unavailable(where, next((one for one in said if name_of(one) not in _UNANSWERED), error)) from None
    finally:
        consumer.close()
    for topic, error in errors.items():
        if error is not None:
            raise unavailable(f"topic {topic} at {cluster.servers}", error)
