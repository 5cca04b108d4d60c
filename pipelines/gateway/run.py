"""The command ``quiltstream gateway``: its parts from the settings, and messages taken until a stop."""

from __future__ import annotations

import logging
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ...schemas.settings.gateway import Broker, GatewaySettings, KafkaTarget, Level, Tls, seconds
from ...schemas.settings.gateway import Forward as ForwardSettings
from ...schemas.settings.secrets import FromEnvironment, FromFile, SecretError, filled
from ..commands import settled, stop_signals
from ..console import facts, heading, results
from ..errors import CommandError, ExitCode
from ..metrics_page import serve_metrics
from .connection import BrokerError, Connection, Login, Session, paho
from .delivery import DeliveryError, DeliveryTarget, FolderDelivery, KafkaDelivery, kafka
from .forward import Forward
from .metrics import RejectFile, Tally
from .pseudonyms import TopicNames

PathOf = Callable[[str], Path]
"""A path of the settings as seen from here."""

#: The longest session of MQTT 5: as long as the broker keeps anything.
_FOR_EVER = 0xFFFFFFFF

#: Bytes of a text in a packet of MQTT at most ([MQTT 5] 1.5.4).
_LONGEST_TEXT = 0xFFFF


@dataclass(frozen=True)
class Parts:
    """What a gateway is made of."""

    settings: GatewaySettings  # where it comes from
    session: Session  # the session that messages are received in
    options: dict[str, Any] = field(repr=False)  # librdkafka's, with their secrets
    names: TopicNames | None = None  # what of a topic goes on under a pseudonym, with the key; ``None``: nothing

    def target(self) -> DeliveryTarget:
        """The delivery target.

        Raises:
            DeliveryError: it cannot be used.
        """
        to = self.settings.forward.to.chosen
        if isinstance(to, KafkaTarget):
            return KafkaDelivery(to.servers, to.topic, to.key, self.options)
        return FolderDelivery(self.settings.path(to.path), size=to.size, age=seconds(to.age))

    def rejects(self) -> RejectFile:
        """The file of dropped messages.

        Raises:
            CommandError: the file cannot be written.
        """
        given = self.settings.forward.rejects
        return RejectFile(None if given is None else self.settings.path(given))


def parts_of(settings: GatewaySettings) -> Parts:
    """Fill in secrets, read certificates, and find the libraries.

    Raises:
        CommandError: something is missing or cannot be read.
        SettingsError: the key of the pseudonyms is.
    """
    paho()
    broker, given, options = settings.mqtt, settings.forward, dict[str, Any]()
    if given.to.kafka is not None:
        kafka()
        options = options_of("forward.to.kafka.options", given.to.kafka.options, settings.path)
    session = Session(
        **broker_of(broker, settings.path),
        client_id=broker.client_id,
        expiry=min(int(seconds(broker.session)), _FOR_EVER),
        filters=tuple(given.topics),
        unsubscribe=tuple(given.unsubscribe),
        send_retained=given.retained == "forward",
        receive_maximum=receive_maximum(given.limits.messages),
        packet=given.limits.packet,
    )
    names = None if given.pseudonyms is None else TopicNames.read(given.pseudonyms)
    _writable("forward.rejects", settings, given.rejects)
    _writable("forward.to.folder", settings, None if given.to.folder is None else f"{given.to.folder.path}/x")
    return Parts(settings, session, options, names)


def broker_of(broker: Broker, path_of: PathOf) -> dict[str, Any]:
    """What of a :class:`Session` says where the broker is and who we are, with secrets read.

    Raises:
        CommandError: a secret is missing, or a certificate cannot be read.
    """
    return {
        "host": broker.host,
        "port": broker.port_in_use,
        "keepalive": int(seconds(broker.keepalive)),
        **_login(broker, path_of)._asdict(),
        "login": partial(_login, broker, path_of),
    }


def _login(broker: Broker, path_of: PathOf) -> Login:
    """User, password and certificates, as they are now."""
    user, password = broker.user, broker.password
    user = secret_of("mqtt.user", user, path_of) if isinstance(user, (FromEnvironment, FromFile)) else user
    shown = None if password is None else secret_of("mqtt.password", password, path_of)
    for name, text in (("mqtt.user", user), ("mqtt.password", shown)):
        if text is not None and (size := len(text.encode())) > _LONGEST_TEXT:
            raise CommandError(
                f"{name}: it has {size:,} bytes, and MQTT allows {_LONGEST_TEXT:,}; look at what the settings name"
            )
    return Login(user, shown, None if broker.tls is None else tls_context(broker.tls, path_of))


def secret_of(name: str, secret: FromEnvironment | FromFile, path_of: PathOf) -> str:
    """A secret of a setting, from the environment or a file.

    Raises:
        CommandError: there is none.
    """
    try:
        found = secret.located(lambda text: str(path_of(text))).read()
    except SecretError as error:
        raise CommandError(f"{name}: {error}") from None
    if not found:
        raise CommandError(f"{name}: the secret is empty; write it where the settings say")
    try:
        found.encode()
    except UnicodeEncodeError:  # from the environment it comes as any bytes
        raise CommandError(f"{name}: the secret is no text in UTF-8; write it again where the settings say") from None
    return found


def options_of(name: str, options: Mapping[str, Any], path_of: PathOf) -> dict[str, Any]:
    """Options of a library with their secrets filled in."""
    return filled(options, lambda key, secret: secret_of(f"{name}.{key}", secret, path_of))


def tls_context(tls: Tls, path_of: PathOf) -> ssl.SSLContext:
    """The context of a connection that checks the broker's certificate and name.

    Raises:
        CommandError: a file cannot be read, or is no certificate or key.
    """
    ca = None if tls.ca is None else _file("mqtt.tls.ca", tls.ca, path_of)
    cert = None if tls.cert is None else _file("mqtt.tls.cert", tls.cert, path_of)
    key = None if tls.key is None else _file("mqtt.tls.key", tls.key, path_of)
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError:  # one of TLS, or the file was removed meanwhile
        raise CommandError(f"mqtt.tls.ca: {tls.ca} holds no certificate in PEM form") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        try:
            # an encrypted key would make OpenSSL ask at the terminal, for ever
            context.load_cert_chain(cert, key, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError):
            raise CommandError(
                f"mqtt.tls: {tls.cert} and {tls.key or 'the key in it'} are no certificate with its unencrypted key in "
                "PEM form"
            ) from None
    return context


def _file(name: str, text: str, path_of: PathOf) -> Path:
    path = path_of(text)
    if not os.access(path, os.R_OK) or not path.is_file():
        raise CommandError(f"{name}: the file {text} cannot be read")
    return path


def receive_maximum(messages: int) -> int:
    """The receive maximum of the session: messages that the broker may send without an acknowledgement.

    Somewhat fewer than may be held: Mosquitto sends some more than the maximum when a session is taken up again, and at
    the limit itself nothing is read any more, no answer to a ping either.

    >>> receive_maximum(1_000), receive_maximum(10)
    (900, 8)
    """
    return messages - max(2, messages // 10)


def _writable(name: str, settings: GatewaySettings, text: str | None) -> None:
    """Check that a file could be made, without making anything."""
    if text is None:
        return
    path = settings.path(text).absolute()
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()  # a folder above may be closed, or a name be too long
        place = next(parent for parent in path.parents if parent.exists())
        good = place.is_dir() and os.access(place, os.W_OK | os.X_OK) and not path.is_dir()
    except OSError:
        good = False
    if not good:
        raise CommandError(f"{name}: {path} cannot be written; give another place, or the rights to this one")


def facts_of(parts: Parts) -> Iterator[tuple[str, str]]:
    """What a gateway will do, for people."""
    settings, broker = parts.settings, parts.settings.mqtt
    tls = "without TLS" if broker.tls is None else "with TLS"
    user = "nobody" if broker.user is None else f"user {broker.user!r}" if isinstance(broker.user, str) else "a user"
    yield "broker", f"{broker.host}:{broker.port_in_use} {tls}, as {user}"
    yield from _forward_facts(settings, settings.forward)
    port = settings.metrics.port
    yield "metrics", f"a line every {settings.metrics.every}" + ("" if port is None else f", 127.0.0.1:{port}/metrics")
    if broker.tls is None and broker.user is not None and broker.host not in {"localhost", "127.0.0.1", "::1"}:
        yield "mind", "the password goes over the network unencrypted; set mqtt.tls"


def _forward_facts(settings: GatewaySettings, given: ForwardSettings) -> Iterator[tuple[str, str]]:
    """What it will do with messages."""
    broker, limits, to = settings.mqtt, given.limits, given.to.chosen
    session = f"in session {broker.client_id!r}, which the broker keeps for {broker.session}"
    yield "forward", f"{', '.join(given.topics)}, {session}"
    if isinstance(to, KafkaTarget):
        key = f"level {to.key.level} of the topic" if isinstance(to.key, Level) else "the topic"
        yield "to", f"Kafka topic {to.topic!r} at {to.servers}, keyed by {key}"
    else:
        yield "to", f"Avro files in {settings.path(to.path)}, sealed after {to.age}"
    yield (
        "holds",
        f"at most {limits.messages:,} messages and {limits.bytes:,} bytes; drops messages above {limits.message:,} "
        f"bytes, and {'forwards' if given.retained == 'forward' else 'drops'} retained ones",
    )
    yield from _names_of(given)
    if given.rejects is not None:
        yield "rejects", f"{settings.path(given.rejects)}, without content"


def _names_of(given: ForwardSettings) -> Iterator[tuple[str, str]]:
    """What of topics goes on under pseudonyms, and what does not."""
    if given.pseudonyms is None:
        yield "names", "topics go on as they are"
        return
    levels = ", ".join(map(str, given.pseudonyms.level))
    yield "names", f"level {levels} of the topic goes on as a pseudonym; payloads go on as they are"
    clear = given.pseudonyms.in_clear(given.topics)
    if clear:
        yield "mind", f"these go on as they are: {'; '.join(clear)}"


_LOG = logging.getLogger("quiltstream.gateway")


def check(path: Path) -> None:
    """Check a settings file and say what a gateway with it will do; nothing is connected or written.

    Raises:
        SettingsError: a setting is wrong.
        CommandError: a secret, certificate or library is missing, or a place cannot be written.
    """
    parts = parts_of(GatewaySettings.read(path))
    console = results()
    heading(console, f"{path}: a gateway with it")
    facts(console, list(facts_of(parts)))


def run_gateway(path: Path) -> int:
    """Run a gateway until SIGTERM, SIGINT or SIGHUP.

    Returns:
        The exit code; 0 after a signal.

    Raises:
        SettingsError: a setting is wrong.
        CommandError: what only an operator can mend, such as a wrong password or a missing topic.
    """
    parts = parts_of(GatewaySettings.read(path))
    # a list, as an event has a lock, which a signal handler would wait for within its own thread for ever
    stops: list[int] = []
    stop = partial(bool, stops)
    with _logging(), _signals(stops), _closing(parts) as (tally, rejects):
        settled()
        way = _Way(lambda: _forward(parts, tally, rejects, stop), stops)
        way.start()
        _report(tally, stop, seconds(parts.settings.metrics.every))
        for number in filter(None, stops):
            _LOG.info("%s: stopping", signal.Signals(number).name)
        way.join()
        _LOG.info("stopped: %s", tally.line(tally.received, 0.0))
        if way.error is not None:
            raise _said(way.error)
    return ExitCode.OK


class _Way(threading.Thread):
    """The way of messages in a thread of its own, as signals come to the main one; its end stops the gateway."""

    def __init__(self, way: Callable[[], None], stops: list[int]) -> None:
        super().__init__(name="quiltstream-gateway", daemon=True)
        self._way = way
        self._stops = stops
        self.error: Exception | None = None

    def run(self) -> None:
        """Run it."""
        try:
            self._way()
        except Exception as error:  # noqa: BLE001 - it is raised again where the command ends
            self.error = error
        finally:
            self._stops.append(0)


def _said(error: Exception) -> Exception:
    return CommandError(str(error)) if isinstance(error, (BrokerError, DeliveryError)) else error


def _forward(parts: Parts, tally: Tally, rejects: RejectFile, stop: Callable[[], bool]) -> None:
    given = parts.settings.forward
    forward = Forward(
        parts.target(),
        messages=given.limits.messages,
        bytes_=given.limits.bytes,
        largest=given.limits.message,
        retained=given.retained == "forward",
        tally=tally,
        rejects=rejects,
        names=parts.names,
    )
    forward.run(Connection(parts.session, on_message=forward.take), stop, seconds(parts.settings.stop))


def _report(tally: Tally, stop: Callable[[], bool], every: float) -> None:
    """Write a line of counts now and then; signals come to this thread."""
    before, last = 0, time.monotonic()
    while not stop():
        now = time.monotonic()
        if now - last >= every:
            _LOG.info("%s", tally.line(before, now - last))
            before, last = tally.received, now
        time.sleep(min(0.2, every))


@contextmanager
def _closing(parts: Parts) -> Generator[tuple[Tally, RejectFile]]:
    tally, rejects = Tally(), parts.rejects()
    with closing(rejects), ExitStack() as page:
        if parts.settings.metrics.port is not None:
            port = page.enter_context(serve_metrics(parts.settings.metrics.port, tally.prometheus, "metrics.port"))
            _LOG.info("counts are at 127.0.0.1:%d/metrics", port)
        yield tally, rejects


@contextmanager
def _signals(stops: list[int]) -> Generator[None]:
    def stop(number: int, _: FrameType | None) -> None:
        stops.append(number)

    before = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _logging() -> Generator[None]:
    """The gateway's own log on stderr; those of libraries stay away."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level, _LOG.propagate = _LOG.level, False
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        _LOG.setLevel(level)
