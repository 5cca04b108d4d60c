"""The MQTT connection, and messages on their way to a target.

One thread does everything. A packet id means something within one connection: what is there after its connection has
gone comes again, with MQTT's flag DUP. Each connection is a new client of the library, with the login as it is then.
By MQTT 3.1.1 the session is the same, and messages have no properties: it is used with brokers that know no other, and
from a packet on that the library cannot read (it refuses U+FEFF in a property, which MQTT 5 allows).
"""

from __future__ import annotations

import select
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from ...schemas.backoff import Backoff
from ...schemas.errors import QuiltstreamError
from ...schemas.files import reason
from ...schemas.settings.gateway import GatewaySettings, levels_of, seconds
from ..errors import CommandError
from .targets import BYTES, LOG, Folder, Kafka

#: Messages that the broker may send without an acknowledgement, messages that are read between two looks at the target,
#: and the pauses between tries to connect.
_UNDER_WAY, _AT_ONCE, _BACKOFF = 5_000, 200, Backoff(0.25, 30.0)

#: Reason codes that stay until somebody changes something, and those that do at a broker that has not taken the session
#: before: later, passwords or certificates are being changed. The library gives 0x82 for a packet that it cannot read.
_LASTING, _UNREADABLE, _LOGIN = {0x85, 0x8A, 0x8C, 0x8E, 0x8F, 0x95, 0x9B, 0x9E, 0xA2}, {0x82, 0x84}, 0xFF
_AT_FIRST = {0x86, 0x87, _LOGIN, *_UNREADABLE}


Login = Callable[[mqtt.Client], None]


class Bridge:
    """Takes messages to a target; ``login`` gives a client user, password and TLS as they are now."""

    def __init__(self, settings: GatewaySettings, target: Folder | Kafka, login: Login, counts: Counter[str]) -> None:
        self._mqtt, self._forward, self._target, self._login = settings.mqtt, settings.forward, target, login
        given = self._forward.pseudonyms
        self._names = {} if given is None else dict.fromkeys(given.level, given.key("forward.pseudonyms"))
        filters = ["/".join(levels_of(one)) for one in self._forward.topics]
        # a session still has filters of earlier settings, in which other levels may have been named
        self._known = lru_cache(1 << 14)(lambda topic: any(mqtt.topic_matches_sub(one, topic) for one in filters))
        self._counts, self._inbox = counts, list[mqtt.MQTTMessage]()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._plain, self._accepted, self._due, self._pauses, self._wrong = False, False, 0.0, _BACKOFF.pauses(), ""

    def turn(self) -> None:
        """Connect if it is time to, read what has come, and let the target go on.

        Raises:
            CommandError: an operator has to change something first, or it is to be begun again.
        """
        if self._full():
            time.sleep(0.02)  # a broker that ends the connection meanwhile sends again what is under way
        elif self._client.socket() is not None:
            self._exchange(self._client)
        elif time.monotonic() >= self._due:
            self._connect()
        else:
            time.sleep(0.05)
        if self._wrong:
            raise CommandError(self._wrong)
        self._target.turn()
        self._client.loop_write()
        self._client.loop_misc()
        self._counts["in_flight"] = self._target.held

    def finish(self) -> None:
        """Finish what is held within five seconds, and say good-bye."""
        until = time.monotonic() + 5
        while self._target.held and time.monotonic() < until:
            self._target.turn(end=True)
            time.sleep(0.005)
        if self._target.held:
            LOG.warning("stopped with %d messages under way; the broker sends them again", self._target.held)
        self._client.disconnect()
        self._client.loop_write()

    def _full(self) -> bool:
        return self._target.held >= 2 * _UNDER_WAY or self._target.size >= BYTES

    def _connect(self) -> None:
        given, plain, self._inbox = self._mqtt, self._plain, []
        more: dict[str, Any] = {}
        own: dict[str, Any] = {"reconnect_on_failure": False, "manual_ack": True, "protocol": mqtt.MQTTv5}
        own |= {"protocol": mqtt.MQTTv311, "clean_session": False} if plain else {}
        self._client = client = mqtt.Client(CallbackAPIVersion.VERSION2, given.client_id, **own)
        client.on_connect, client.on_subscribe, client.on_disconnect = self._connected, self._subscribed, self._ended
        client.on_message = lambda _, __, message: self._inbox.append(message)
        # with these set, acknowledgements are collected for the next turn
        client.on_socket_register_write = client.on_socket_unregister_write = lambda *_: None
        if not plain:
            more = {"clean_start": False, "properties": Properties(PacketTypes.CONNECT)}
            more["properties"].SessionExpiryInterval = min(int(seconds(given.session)), 0xFFFFFFFF)
            more["properties"].ReceiveMaximum, more["properties"].MaximumPacketSize = _UNDER_WAY, given.packet
        try:
            self._login(client)
            client.connect(given.host, given.port_in_use, 30, **more)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            self._trouble("ended the TLS handshake; does mqtt.port speak TLS?")
        except (QuiltstreamError, ssl.SSLError) as error:
            self._trouble(f"cannot be used: {error}", _LOGIN)
        except (OSError, ValueError) as error:
            self._trouble(f"cannot be reached ({reason(error)})")

    def _exchange(self, client: mqtt.Client) -> None:
        sock: Any = client.socket()
        if not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
            select.select([sock], [sock] if client.want_write() else [], [], 0.005 if self._target.held else 0.1)
        for _ in range(_AT_ONCE):
            try:
                client.loop_read()
            except (ValueError, LookupError, TypeError, ArithmeticError, struct.error):
                sock.close()  # else it would read that packet for ever
                self._trouble("sent what the MQTT library cannot read", 0x82)
                return
            if not self._inbox:
                break
            self._take(client, self._inbox.pop())
            if self._full() or client.socket() is None:
                break

    def _take(self, client: mqtt.Client, message: mqtt.MQTTMessage) -> None:
        mid, qos = message.mid, message.qos

        def acknowledge() -> None:
            if qos and client is self._client and client.socket() is not None:
                client.ack(mid, qos)
                self._counts["acknowledged"] += 1

        self._counts["received"] += 1
        self._counts["duplicates"] += message.dup
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        known = self._known(topic)
        if not known or len(message.payload) > self._mqtt.packet:
            self._counts["dropped too-large" if known else "dropped other-topic"] += 1
            acknowledge()
            return
        levels = topic.split("/")
        for level, key in self._names.items():
            if level <= len(levels) and levels[level - 1].strip():  # to a job a blank name is none, and is to stay none
                levels[level - 1] = key.name(levels[level - 1])
        record = {"topic": "/".join(levels), "payload": bytes(message.payload), "received": time.time_ns() // 1_000}
        record |= {"dup": message.dup, "retain": message.retain}
        self._target.put(record | {"content_type": getattr(message.properties, "ContentType", "")}, acknowledge)

    def _connected(self, client: mqtt.Client, _: Any, flags: Any, code: Any, __: Any) -> None:
        if code.is_failure:
            self._trouble(f"does not take the connection ({code})", code.value)
            return
        self._counts["reconnects"] += self._accepted
        self._counts["sessions_lost"] += self._accepted and not flags.session_present
        LOG.info("connected to the MQTT broker, %s a session of ours", "with" if flags.session_present else "without")
        asked: Any = 1 if self._plain else SubscribeOptions(qos=1, retainHandling=2)
        client.subscribe([(one, asked) for one in self._forward.topics])

    def _subscribed(self, client: mqtt.Client, _: Any, __: int, codes: list[Any], ___: Any) -> None:
        for code in codes:
            if code.is_failure:
                self._trouble(f"does not take a subscription ({code}); look at forward.topics", code.value)
                client.disconnect()
                return
        LOG.info("subscribed to %d topic filter(s)", len(codes))
        self._accepted, self._counts["refused"], self._pauses = True, 0, _BACKOFF.pauses()

    def _ended(self, _: Any, __: Any, flags: Any, code: Any, ___: Any) -> None:
        if self._due > time.monotonic():
            return  # it was told already
        if flags.is_disconnect_packet_from_server:
            self._trouble(f"ended the connection ({code})", code.value)
        elif code.value in _UNREADABLE:
            self._trouble("sent what the MQTT library cannot read", code.value)
        else:
            self._trouble("is not there any more" + ("" if self._accepted else "; does it want TLS, or a certificate?"))

    def _trouble(self, what: str, code: int = 0) -> None:
        """Try again after a pause, by MQTT 3.1.1 where that may help; end where somebody has to change something."""
        what = f"MQTT broker {self._mqtt.host}:{self._mqtt.port_in_use} {what}"
        plain, self._plain = self._plain, self._plain or code in _UNREADABLE
        if code in _LASTING or (code in _AT_FIRST and not self._accepted and plain is self._plain):
            self._wrong = f"{what}; look at mqtt in the settings, and at the broker"
        self._counts["refused"] = int(code in _AT_FIRST)
        self._due = time.monotonic() + next(self._pauses)
        LOG.warning("%s; trying again%s", what, " by MQTT 3.1.1" if self._plain else "")
