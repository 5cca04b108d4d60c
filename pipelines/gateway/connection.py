"""The MQTT connection: kept up with backoff, and turned by its owner's own loop.

Everything happens in :meth:`Connection.turn`, in the thread that calls it: no message comes while the owner is not
ready for one, and the number of the connection cannot change between a look at it and an acknowledgement.

The library refuses some properties that MQTT 5 allows and brokers pass on, such as a string with U+FEFF. It ends the
connection without a packet id that could be acknowledged, and the broker sends the message again in the next one. That
one is therefore made with MQTT 3.1.1, in which messages have no properties. The session of a client id is the same one
(tried with Mosquitto 2.0.11). After a minute MQTT 5 is used again, as soon as every message is acknowledged.

By MQTT 3.1.1 the broker learns neither the receive maximum nor the largest packet of the session: its own limit bounds
how many messages are under way, and a packet that is too large is read before it is dropped. The session does not
expire until MQTT 5 is used again.

Subscriptions ask for QoS 1. A session can have one of QoS 2 from another client of its id. The library answers such a
message with PUBREC before it is delivered, and the broker does not send it again: it is lost with the process, or with
a change of the version.
"""

from __future__ import annotations

import importlib
import logging
import random
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any, NamedTuple

from ...schemas.errors import QuiltstreamError
from ..errors import CommandError, ExitCode


class Arrived(NamedTuple):
    """A message of the broker."""

    topic: str  # its topic, or empty where that is no UTF-8
    payload: bytes  # the body
    mid: int  # its packet id; 0 with QoS 0
    qos: int  # 0, 1 or 2
    dup: bool  # whether the broker says that it may have sent it before
    retain: bool  # whether the broker had kept it for new subscribers
    content_type: str = ""  # what the publisher says the body is, or empty; always empty by MQTT 3.1.1


def optional_library(name: str, extra: str) -> Any:
    """A module of an optional library, which an extra installs.

    Raises:
        CommandError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CommandError(
            f"the gateway needs {name.partition('.')[0]}, which is not installed: pip install 'quiltstream[{extra}]'"
        ) from None


def paho() -> Any:
    """What is used of the MQTT library, by the names that it has there.

    Raises:
        CommandError: it is not installed.
    """
    client = optional_library("paho.mqtt.client", "mqtt")
    return SimpleNamespace(
        Client=client.Client,
        MQTTv311=client.MQTTv311,
        MQTTv5=client.MQTTv5,
        CallbackAPIVersion=optional_library("paho.mqtt.enums", "mqtt").CallbackAPIVersion,
        PacketTypes=optional_library("paho.mqtt.packettypes", "mqtt").PacketTypes,
        Properties=optional_library("paho.mqtt.properties", "mqtt").Properties,
        SubscribeOptions=optional_library("paho.mqtt.subscribeoptions", "mqtt").SubscribeOptions,
    )


@dataclass
class Backoff:
    """Counts tries."""

    first: float = 0.5  # seconds that the first wait has at most
    longest: float = 30.0  # seconds that any wait has at most
    draw: Callable[[], float] = random.random  # a number in [0, 1); the tests' own
    tries: int = 0  # how many waits there were in a row

    def wait(self) -> float:
        """Seconds to wait before the next try: between half of the current length and all of it.

        >>> patience = Backoff(draw=lambda: 0.0)
        >>> [patience.wait() for _ in range(8)]
        [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
        """
        # the exponent is bounded, because a broker may be away for weeks
        length = min(self.longest, self.first * 2 ** min(self.tries, 32))
        self.tries += 1
        return length * (0.5 + 0.5 * self.draw())

    def reset(self) -> None:
        """Begin anew: the last try went well."""
        self.tries = 0


#: Reasons of a broker that stay until somebody changes the settings or the broker, and what to do.
_LASTING = {
    0x84: "the broker does not speak MQTT 5; use one that does",
    0x85: "the client id is not allowed; change it",
    0x86: "the user or the password is wrong; look at mqtt.user and mqtt.password",
    0x87: "not authorised; give this user the right to it at the broker, or set mqtt.user and mqtt.password",
    0x8A: "this client is banned at the broker; ask its operator",
    0x8C: "the broker wants another way of authentication than user and password or a certificate",
    0x8E: "another client has taken over the session: two use one client id; give each gateway its own",
    0x8F: "the broker does not allow this topic filter; change it",
    0x95: "a packet is larger than the broker takes; raise its limit",
    0x9B: "the broker does not do QoS 1; use one that does",
    0x9E: "the broker does not do shared subscriptions; leave $share out",
    0xA1: "the broker does not do subscription identifiers",
    0xA2: "the broker does not allow wildcards; name each topic",
}

#: Those of them that may pass at a broker that took the same session before: its passwords or rights are being changed.
_OF_LOGINS = frozenset({0x86, 0x87})

#: From here on a code tells of a failure.
FAILURE = 0x80

#: What the library ends a connection with that brought a packet it cannot read.
UNREADABLE = 0x82


def lasting(code: int) -> str | None:
    """What an operator has to do about a reason code, or ``None`` if it is no failure or may pass.

    >>> lasting(0x86)
    'the user or the password is wrong; look at mqtt.user and mqtt.password'
    >>> lasting(0x88) is None  # the server is unavailable
    True
    """
    return _LASTING.get(code)


_LOG = logging.getLogger("quiltstream.gateway")

#: Packets that are read in one turn at most.
_BATCH = 200

#: Seconds of a connection after which the next one is tried at once again.
_STABLE_S = 5.0

#: Connections in a row that were shorter, after which it is said why that may be.
_SHORT = 3

#: Connections in a row that ended with a packet that cannot be read, after which it is left to an operator, and
#: seconds of a connection after which the next such packet is the first of a row again.
_UNREADABLE = 5
_CALM_S = 600.0

#: How OpenSSL names what a broker has against a certificate.
_ALERT = re.compile(r"\[SSL: ([A-Z0-9]{1,9}_ALERT_(?:UNKNOWN_CA|ACCESS_DENIED|[A-Z_]{0,20}CERTIFICATE[A-Z_]{0,20}))\]")

_NOT_READ = "sent what the MQTT library cannot read"

#: Seconds from one try to return from MQTT 3.1.1 to MQTT 5 to the next, and for how many of them at most nothing is
#: read, so that what is unacknowledged can come to an end also under load.
_PLAIN_S = 60.0
_DRAIN_S = 5.0
_CONNECT_S = 10.0

_POLL_IN = select.POLLIN | select.POLLERR | select.POLLHUP


class BrokerError(QuiltstreamError):
    """The broker refuses for a reason that time does not mend; the message is for the operator."""


class Login(NamedTuple):
    """What a gateway shows to a broker, and by what it knows the broker."""

    user: str | None  # who we are
    password: str | None  # how we show it
    tls: ssl.SSLContext | None  # the context, or ``None`` for no TLS


@dataclass(frozen=True)
class Session:
    """The parameters of an MQTT session."""

    host: str  # where it is
    port: int  # its port
    client_id: str  # the name of the session
    keepalive: int = 30  # seconds of silence after which the connection is dead
    expiry: int = 0  # seconds that the session outlives its connection; 0 for none, which also begins with none
    filters: tuple[str, ...] = ()  # topic filters to subscribe to
    unsubscribe: tuple[str, ...] = ()  # filters that the session may still have and is to lose
    send_retained: bool = False  # whether the broker is to send what it retains, for a subscription that is new
    receive_maximum: int = 1_000  # messages that may be unacknowledged
    packet: int = 16 << 20  # bytes of the largest packet that the broker may send
    user: str | None = None  # who we are
    password: str | None = None  # how we show it
    tls: ssl.SSLContext | None = None  # the context, or ``None`` for no TLS
    patient: bool = True  # whether a connection that cannot be made, or ends, is made again for as long as it takes
    # reads user, password and the files of TLS anew, for each connection but the first; ``None``: they stay
    login: Callable[[], Login] | None = None

    def __repr__(self) -> str:
        """Without the password."""
        return f"Session({self.client_id!r} at {self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class State:
    """What of the connections so far decides how the next one is made."""

    plain: bool = False  # whether it is made by MQTT 3.1.1
    short: int = 0  # those in a row that were soon over after the broker had answered to the subscriptions
    unreadable: int = 0  # those in a row that ended with a packet that cannot be read


@dataclass(frozen=True, slots=True)
class Ending:
    """A connection that has ended, or was not made."""

    connected: bool = False  # whether the broker had taken it
    ready: bool = False  # whether the broker had answered to the subscriptions
    unreadable: bool = False  # whether a packet that cannot be read was its end
    seconds: float = 0.0  # how long it lasted


class Action(Enum):
    """What follows a connection."""

    PLAIN = auto()  # one by MQTT 3.1.1, at once
    RETRY = auto()  # one after a wait
    GIVE_UP = auto()  # none


def next_state(state: State, ending: Ending) -> tuple[State, Action]:
    """What follows a connection that ended."""
    others = ending.connected and not ending.unreadable
    unreadable = 0 if others or (ending.ready and ending.seconds >= _CALM_S) else state.unreadable
    unreadable += ending.unreadable
    short = 0 if ending.ready and ending.seconds >= _STABLE_S else state.short + ending.ready
    plain = ending.unreadable or state.plain
    if state.plain and not ending.connected:
        plain = False  # the broker may not take MQTT 3.1.1
    if unreadable >= _UNREADABLE:
        action = Action.GIVE_UP
    else:
        action = Action.PLAIN if plain and not state.plain and ending.connected else Action.RETRY
    return State(plain, short, unreadable), action


class Connection:
    """A connection of one session, made again for as long as it takes.

    Args:
        session: its parameters.
        on_message: called with each message.

    Attributes:
        connected: whether there is a connection now; the broker may send before it has answered to subscriptions.
        ready: whether it has.
        epoch: number of the connection; a packet id means something within one.
        reconnects: connections after the first.
        fresh: connections after the first for which the broker had no session.
        refused: whether the broker, which took the session before, does not take user, password or filters now, or one
            side does not take the other's certificate.
    """

    def __init__(self, session: Session, on_message: Callable[[Arrived], None] | None = None) -> None:
        self._session = session
        self._mqtt = paho()
        self._backoff = Backoff()
        self._due = 0.0
        self._since = 0.0
        self._closing = False
        self._not_taken = False
        self._accepted = False
        self._tried = False
        self._alert: str | None = None
        self._advice: str | None = None
        self._raised: Exception | None = None
        self._subscriptions_kept = False
        self._unacknowledged: set[int] = set()
        self._wrong: str | None = None
        self._last_misc = 0.0
        self._packets = 0
        self._unanswered: dict[int, Sequence[str]] = {}
        self._on_message = on_message
        self.connected = False
        self.ready = False
        self.epoch = 0
        self.reconnects = 0
        self.fresh = 0
        self.refused = False
        self._renew(State())

    @property
    def where(self) -> str:
        """The broker, for messages."""
        return f"MQTT broker {self._session.host}:{self._session.port}"

    def turn(self, seconds: float, *, room: Callable[[], bool] | None = None) -> None:
        """Connect if it is time to, and read and write what can be.

        Args:
            seconds: how long to wait for something to do.
            room: whether a further message may be read; called before each. Without it nothing is held back.

        Raises:
            BrokerError: the broker refuses for good.
        """
        self._check()
        if self._client.socket() is None:
            self._connect_if_due()
        if self._client.socket() is None:
            time.sleep(max(0.001, min(seconds, self._due - time.monotonic())))
        elif self._draining and not self._unacknowledged and not self._client.want_write():
            self._return()
        else:
            self._exchange(seconds, room)
            self._check()

    def _exchange(self, seconds: float, room: Callable[[], bool] | None) -> None:
        """Read and write what can be."""
        client, sock, reading = self._client, self._client.socket(), self._may_read(room)
        poll = select.poll()
        poll.register(sock, (select.POLLIN if reading else 0) | (select.POLLOUT if client.want_write() else 0))
        pending = reading and isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
        event = dict(poll.poll(0 if pending else seconds * 1_000)).get(sock.fileno(), 0)
        if reading and (pending or event & _POLL_IN):
            self._read(room)
        elif event & (select.POLLERR | select.POLLHUP):
            # held back and the other end is gone: nothing more is to be read from there
            client.disconnect()
        # another one if that has ended the connection with a packet that cannot be read
        client = self._client
        if client.want_write():
            client.loop_write()
        now = time.monotonic()
        if now - self._last_misc > 0.5:  # noqa: PLR2004 - half a second
            self._last_misc = now
            client.loop_misc()

    def ack(self, packet: int, qos: int) -> None:
        """Acknowledge a message of the present connection; it is written with the next turn."""
        self._unacknowledged.discard(packet)
        self._client.ack(packet, qos)

    def close(self, seconds: float = 2.0) -> None:
        """Write what is waiting and say good-bye; the session stays at the broker."""
        client = self._client
        self._closing = True
        if client.socket() is None:
            return
        client.disconnect()
        until = time.monotonic() + seconds
        while client.socket() is not None and time.monotonic() < until:
            poll = select.poll()
            poll.register(client.socket().fileno(), select.POLLOUT)
            poll.poll(100)
            client.loop_write()

    def _check(self) -> None:
        if self._wrong is not None:
            raise BrokerError(self._wrong)

    def _renew(self, state: State) -> None:
        """Go on with a new client of the library."""
        mqtt, session, self._state = self._mqtt, self._session, state
        self._client = client = mqtt.Client(
            callback_api_version=mqtt.CallbackAPIVersion.VERSION2,
            client_id=session.client_id,
            protocol=mqtt.MQTTv311 if state.plain else mqtt.MQTTv5,
            clean_session=session.expiry == 0 if state.plain else None,
            # else the library itself goes on to MQTT 3.1 at a broker that does not take 3.1.1
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = _CONNECT_S
        if session.user is not None:
            client.username_pw_set(session.user, session.password)
        if session.tls is not None:
            client.tls_set_context(session.tls)
        client.on_connect = self._noting(self._connected)
        client.on_disconnect = self._noting(self._disconnected)
        client.on_subscribe = self._noting(self._subscribed)
        client.on_message = self._noting(self._message)
        # with these set, packets are collected for the next turn instead of written one by one where they arise
        client.on_socket_register_write = _nothing
        client.on_socket_unregister_write = _nothing
        about: dict[str, Any] = {}
        if not state.plain:
            properties = mqtt.Properties(mqtt.PacketTypes.CONNECT)
            properties.SessionExpiryInterval = session.expiry
            properties.ReceiveMaximum = session.receive_maximum
            properties.MaximumPacketSize = session.packet
            about = {"clean_start": session.expiry == 0, "properties": properties}
        # this connects nothing yet
        client.connect_async(session.host, session.port, keepalive=session.keepalive, **about)

    def _connect_if_due(self) -> None:
        if time.monotonic() < self._due:
            return
        self._read_login()
        self._alert = None
        self._client.on_log = self._logged
        try:
            self._client.reconnect()
        except ssl.SSLCertVerificationError as error:
            self._no_tls(
                f"its certificate is not accepted ({error.verify_message})", "look at mqtt.tls.ca and mqtt.host"
            )
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            self._later(f"ended the TLS handshake ({type(error).__name__}): does mqtt.port speak TLS?")
        except ssl.SSLError as error:
            self._no_tls(f"TLS cannot be set up ({error.reason})", "look at mqtt.port and mqtt.tls")
        except OSError as error:
            self._later(f"cannot be reached ({_kind(error)})")

    def _read_login(self) -> None:
        """Read anew what may have been changed since the last try; the library takes no second context of TLS."""
        session, first = self._session, not self._tried
        self._tried = True
        if first or session.login is None:
            return
        try:
            login = session.login()
        except CommandError as error:
            # a file that is just being replaced may be missing or half written
            _LOG.warning("%s; what was read before is used", error)
            return
        self._session = replace(session, user=login.user, password=login.password, tls=login.tls)
        self._renew(self._state)

    def _logged(self, _: Any, __: Any, ___: Any, text: str) -> None:
        """Keep what TLS says against a certificate after the handshake: the library tells it to its log alone."""
        found = _ALERT.search(text)
        if found is not None:
            self._alert = found[1]

    def _no_tls(self, what: str, advice: str) -> None:
        """The handshake was refused by either side.

        At a broker that took the session before, as a login that it took before: certificates expire and are replaced.

        Raises:
            BrokerError: the broker has not taken the session before.
        """
        if not self._accepted:
            raise BrokerError(f"{self.where}: {what}; {advice}") from None
        self.refused = True
        self._later(_refused_by(what, advice))

    def _later(self, why: str) -> None:
        if not self._session.patient:
            self._wrong = f"{self.where} {why}"
            return
        wait = self._backoff.wait()
        self._due = time.monotonic() + wait
        _LOG.warning("%s %s; trying again in %.1f s (try %d)", self.where, why, wait, self._backoff.tries)

    @property
    def _draining(self) -> bool:
        """Whether MQTT 3.1.1 is to be left as soon as nothing is unacknowledged."""
        age = time.monotonic() - self._since
        return self._state.plain and self.ready and age >= _PLAIN_S and age % _PLAIN_S < _DRAIN_S

    def _may_read(self, room: Callable[[], bool] | None) -> bool:
        return not self._draining and (room is None or room())

    def _return(self) -> None:
        """Leave MQTT 3.1.1; the next turn connects by MQTT 5."""
        _LOG.info("%s: connecting by MQTT 5 again", self.where)
        client = self._client
        client.on_disconnect = None
        client.disconnect()
        client.loop_write()
        _close(client)
        self.connected = self.ready = False
        self._due = 0.0
        self._renew(State(short=self._state.short))

    def _read(self, room: Callable[[], bool] | None) -> None:
        client = self._client
        for _ in range(_BATCH):
            before = self._packets
            try:
                client.loop_read()
            except Exception as error:
                if error is self._raised:
                    raise
                # the library has not ended the connection, and would read the same packet for ever
                _LOG.warning("%s: the MQTT library raised %s", self.where, type(error).__name__)
                client.on_disconnect = None
                _close(client)
                self._ended(unreadable=True)
                return
            if self._packets == before or not self._may_read(room):
                return

    def _connected(self, client: Any, _: Any, flags: Any, reason: Any, ___: Any) -> None:
        self._not_taken = reason.value >= FAILURE
        if self._not_taken:
            self._fail(reason, "does not take the connection", before=self._accepted)
            return
        self.connected = True
        self.epoch += 1
        self._since = time.monotonic()
        again = self.epoch > 1
        self.reconnects += again
        if self._session.expiry and not flags.session_present:
            self.fresh += again
            (_LOG.warning if again else _LOG.info)(
                "%s: connected, and it had no session of ours%s",
                self.where,
                ": what was published while we were away is lost" if again else "",
            )
        else:
            _LOG.info("%s: connected", self.where)
        self._unanswered = {}
        self._unacknowledged.clear()
        self._subscriptions_kept &= flags.session_present
        if not (self._state.plain and self._subscriptions_kept):
            self._subscribe(client)
        if not self._unanswered:
            self._taken()

    def _taken(self) -> None:
        """The broker has taken login and filters."""
        self.ready = self._accepted = True
        self.refused = False
        self._client.on_log = None  # it would write out each message

    def _subscribe(self, client: Any) -> None:
        if self._session.unsubscribe:
            client.unsubscribe(list(self._session.unsubscribe))
        handling = 1 if self._session.send_retained else 2
        for filter_ in self._session.filters:
            asked = 1 if self._state.plain else self._mqtt.SubscribeOptions(qos=1, retainHandling=handling)
            _, number = client.subscribe([(filter_, asked)])
            self._unanswered[number] = filter_

    def _subscribed(self, client: Any, _: Any, number: int, reasons: Sequence[Any], __: Any) -> None:
        filter_ = self._unanswered.pop(number, "")
        for reason in reasons:
            if reason.value >= FAILURE:
                self._fail(reason, f"does not take the subscription {filter_!r}", before=self._accepted)
                client.disconnect()
                return
        if not self._unanswered:
            self._subscriptions_kept = True
            self._taken()
            _LOG.info("%s: subscribed to %d topic filter(s)", self.where, len(self._session.filters))

    def _noting(self, call: Callable[..., None]) -> Callable[..., None]:
        """What the library calls; an error of it is known by its identity, and is none of a packet."""

        def noted(*given: Any) -> None:
            try:
                call(*given)
            except Exception as error:
                self._raised = error
                raise

        return noted

    def _message(self, _: Any, __: Any, message: Any) -> None:
        self._packets += 1
        if message.qos:
            self._unacknowledged.add(message.mid)
        if self._on_message is None:
            return
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        kind = getattr(message.properties, "ContentType", "")
        self._on_message(
            Arrived(topic, bytes(message.payload), message.mid, message.qos, message.dup, message.retain, kind)
        )

    def _disconnected(self, _: Any, __: Any, flags: Any, reason: Any, ___: Any) -> None:
        by_server = flags.is_disconnect_packet_from_server
        if by_server:
            self._fail(reason, "ended the connection", before=self._accepted)
        # the library gives the same reason where the broker does not take the connection
        self._ended(unreadable=reason.value == UNREADABLE and not by_server and not self._not_taken)

    def _ended(self, *, unreadable: bool) -> None:
        ending = Ending(self.connected, self.ready, unreadable, time.monotonic() - self._since)
        self.ready = self.connected = self._not_taken = False
        before = self._state
        self._state, action = next_state(before, ending)
        if ending.ready and not self._state.short:
            self._backoff.reset()
        if unreadable or self._state.plain is not before.plain:
            self._renew(self._state)
        if action is Action.GIVE_UP:
            self._wrong = (
                f"{self.where} sends what cannot be read as MQTT ({_UNREADABLE} connections in a row ended with it); "
                "look at mqtt.host and mqtt.port, at the broker and at what stands between. Messages stay at the broker"
            )
        if self._wrong is not None or self._closing:
            return
        if self._alert is not None and self._accepted and self._advice is None:
            self.refused = True
            self._advice = _refused_by(f"TLS cannot be set up ({self._alert})", "look at mqtt.tls.cert")
        if action is Action.PLAIN:
            # at once, also for an owner that is not patient
            self._due = 0.0
            _LOG.warning("%s %s; connecting by MQTT 3.1.1, which has no properties", self.where, _NOT_READ)
        else:
            self._later(_why(self._session, self._state, ending, self._advice))
        self._advice = None

    def _fail(self, reason: Any, what: str, *, before: bool) -> None:
        """Note a reason code that stays; say one that may pass, as that of a right which was there before."""
        advice = lasting(reason.value)
        if before and reason.value in _OF_LOGINS:
            self.refused = True
            self._advice = f"{what} ({reason}), which it did before: {advice}"
        elif advice is not None:
            self._wrong = f"{self.where} {what} ({reason}): {advice}"
        elif reason.value:
            _LOG.warning("%s %s (%s)", self.where, what, reason)


def _close(client: Any) -> None:
    """Close the socket of a client that is not used any more."""
    if (sock := client.socket()) is not None:
        sock.close()


def _refused_by(what: str, advice: str) -> str:
    """What is wrong with TLS at a broker that could be used before."""
    return f"cannot be used: {what}, and it could be before; {advice}"


def _why(session: Session, state: State, ending: Ending, advice: str | None) -> str:
    """How a connection ended: as the broker says, if it does."""
    if ending.unreadable:
        return _NOT_READ
    if advice is not None:
        return advice
    why = "is not there any more" if ending.ready else "ended the connection before it was set up"
    if not ending.ready and session.tls is not None:
        # since TLS 1.3 a client's certificate is judged when its handshake is over, and the library swallows why
        why += ": does it want a certificate, or another one, as mqtt.tls.cert?"
    elif state.short >= _SHORT:
        # some brokers end a connection without a word when another client takes its session over
        why += f", soon after the connection was made, as before: does another client use {session.client_id!r}?"
    elif not ending.ready:
        why += ": does it want TLS, as mqtt.tls?"
    return why


def _nothing(*_: Any) -> None:
    """What the library is to do when it wants to write: wait for the next turn."""


def _kind(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    return "no answer" if isinstance(error, TimeoutError) else error.strerror or type(error).__name__


#: Bytes of all messages that :func:`listen` returns, and seconds until the broker has answered.
_MOST_BYTES = 1 << 26
_ANSWER_S = 10.0
#: Seconds of one turn of the connection.
_TURN_S = 0.1


def listen(session: Session, most: int, seconds: float) -> list[tuple[Arrived, int]]:
    """The messages that a broker sends to a new subscriber: those that it has kept, and those that come meanwhile.

    The session ends with the connection, so the broker keeps nothing for it.

    Args:
        session: where and who; it is not patient, and its session does not outlive the connection.
        most: how many messages end the look.
        seconds: how long it lasts at most, from the answer to the subscriptions on.

    Returns:
        Each message, and when it arrived, microseconds since 1970.

    Raises:
        CommandError: the broker cannot be reached or refuses, or does not answer in time.
    """
    heard: list[tuple[Arrived, int]] = []
    held = 0

    def take(message: Arrived) -> None:
        nonlocal held
        if message.qos:
            connection.ack(message.mid, message.qos)
        if len(heard) < most and held < _MOST_BYTES and message.topic:
            held += len(message.payload)
            heard.append((message, time.time_ns() // 1_000))

    connection = Connection(replace(session, expiry=0, send_retained=True, patient=False), take)
    try:
        until = time.monotonic() + _ANSWER_S
        while not connection.ready:
            if time.monotonic() > until:
                raise CommandError(f"{connection.where} does not answer within {_ANSWER_S:g} s", ExitCode.SOURCE)
            connection.turn(_TURN_S)
        until = time.monotonic() + seconds
        while len(heard) < most and held < _MOST_BYTES and time.monotonic() < until:
            connection.turn(_TURN_S)
    except BrokerError as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    finally:
        connection.close()
    return heard
