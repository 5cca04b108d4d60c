"""The client of the MQTT library, with a reading of PUBLISH packets of its own.

The library refuses some strings that MQTT 5 allows and brokers pass on, and breaks on what it does not know. It has no
public way to say what is to become of such a message, so a part of it is replaced that is not public:
``_packet_handle``, which it calls with each whole packet in ``_in_packet``. ``_send_pubrec`` is used as well. A version
that has these no longer is refused at the start, and one that does not call them at its first message.

A PUBLISH packet of MQTT 5, read for what the gateway uses of it and for no more.

A client that reads everything can be stopped by anything: what it cannot read ends its connection, the broker sends it
again, and so for ever. Here a packet counts as broken only where it cannot be told which message it is. A message whose
properties cannot be read is :attr:`Arrived.malformed`: it has a packet id, and can be acknowledged like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...schemas.errors import QuiltstreamError
from ..errors import CommandError

__all__ = [
    "PRIVATE",
    "PRIVATE_KEYS",
    "PUBLISH",
    "PUBREL",
    "Arrived",
    "PacketError",
    "made_client",
    "packet_id",
    "publish_of",
]


#: The kinds of packets, in the upper half of their first byte.
PUBLISH, PUBREL = 0x30, 0x60

#: Bytes of a variable byte integer at most.
_MOST = 4

_CONTENT_TYPE = 0x03

#: Bytes of the properties of a PUBLISH that have a fixed width: format, expiry, topic alias.
_WIDTHS = {0x01: 1, 0x02: 4, 0x23: 2}

#: Strings or bytes that follow one another in those that say their length: content type, response topic, correlation
#: data, user property.
_PARTS = {_CONTENT_TYPE: 1, 0x08: 1, 0x09: 1, 0x26: 2}

_SUBSCRIPTION = 0x0B


class PacketError(QuiltstreamError):
    """A packet that cannot be told from others: the stream is not MQTT 5."""


class Arrived(NamedTuple):
    """A message of the broker.

    Attributes:
        name: its topic as bytes.
        payload: the body; of a malformed message all that follows its packet id.
        mid: its packet id; 0 with QoS 0.
        qos: 0, 1 or 2.
        dup: whether the broker says that it may have sent it before.
        retain: whether the broker had kept it for new subscribers.
        content_type: what the publisher says the body is, or empty.
        malformed: whether its properties cannot be read.
    """

    name: bytes
    payload: bytes
    mid: int
    qos: int
    dup: bool
    retain: bool
    content_type: str = ""
    malformed: bool = False

    @property
    def topic(self) -> str:
        """Its topic.

        Raises:
            UnicodeDecodeError: it is no UTF-8.
        """
        return self.name.decode()


def publish_of(command: int, packet: bytes) -> Arrived:
    """Read a PUBLISH packet.

    Args:
        command: its first byte.
        packet: what follows its remaining length.

    Raises:
        PacketError: it has no topic, quality of service or packet id that it could be acknowledged by.

    >>> publish_of(0x32, bytes([0, 1]) + b"t" + bytes([0, 7, 0]) + b"body").payload
    b'body'
    """
    qos = command >> 1 & 3
    at = 2 + int.from_bytes(packet[:2], "big")
    name, behind = packet[2:at], at + 2 * (qos > 0)
    if len(packet) < max(2, behind) or qos == 3:  # noqa: PLR2004 - two bits, of which MQTT uses three values
        raise PacketError
    mid = int.from_bytes(packet[at:behind], "big")
    if qos and not mid:
        raise PacketError
    flags = bool(command & 8), bool(command & 1)
    try:
        size, start = _integer(packet, behind, len(packet))
        end = start + size
        kind = _content_type(packet, start, end)
    except ValueError:
        return Arrived(name, packet[behind:], mid, qos, *flags, malformed=True)
    return Arrived(name, packet[end:], mid, qos, *flags, kind)


def packet_id(packet: bytes) -> int:
    """The packet id of a packet that begins with it.

    Raises:
        PacketError: it has none.
    """
    found = int.from_bytes(packet[:2], "big")
    if len(packet) < 2 or not found:  # noqa: PLR2004 - its bytes
        raise PacketError
    return found


def _content_type(packet: bytes, at: int, end: int) -> str:
    """The first content type among the properties; all others are passed over, whatever they hold.

    Raises:
        ValueError: they cannot be read.
    """
    found: bytes | None = None
    if end > len(packet):
        raise ValueError
    while at < end:
        name, start = _integer(packet, at, end)
        at = _behind(packet, name, start, end)
        if name == _CONTENT_TYPE and found is None:
            found = packet[start + 2 : at]
    text = (found or b"").decode()
    if "\0" in text:
        raise ValueError
    return text


def _behind(packet: bytes, name: int, at: int, end: int) -> int:
    """Where a property of that name ends which begins there.

    Raises:
        ValueError: not before the end, or there is none of that name in a PUBLISH.
    """
    if name in _WIDTHS:
        at += _WIDTHS[name]
    elif name == _SUBSCRIPTION:
        _, at = _integer(packet, at, end)
    elif name in _PARTS:
        for _ in range(_PARTS[name]):
            at += 2 + int.from_bytes(packet[at : at + 2], "big")
    else:
        raise ValueError
    if at > end:
        raise ValueError
    return at


def _integer(packet: bytes, at: int, end: int) -> tuple[int, int]:
    """A variable byte integer and where it ends.

    Raises:
        ValueError: it does not end, or not there.
    """
    value = 0
    for place in range(_MOST):
        if at + place >= end:
            break
        byte = packet[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004 - its top bit says that more follows
            return value, at + place + 1
    raise ValueError


#: The parts of the library that are not public: methods of its client, and keys of what it has read.
PRIVATE = ("_packet_handle", "_send_pubrec")
PRIVATE_KEYS = ("command", "packet")

_UNKNOWN = (
    "the gateway does not know this version of paho-mqtt, and would be stopped by messages that it cannot read; "
    "install one that it was tried with: pip install 'paho-mqtt==2.2.*'"
)


def made_client(
    mqtt: Any, on_message: Callable[[Arrived], None], is_own: Callable[[Exception], bool], **options: Any
) -> Any:
    """A client that no message of the broker can stop.

    Args:
        mqtt: the library, as :func:`~.credentials.paho` gives it.
        on_message: called with each message.
        is_own: whether an error was raised by what the library calls back; it is raised, while any other means that a
            packet cannot be read, which ends the connection as a protocol error.
        options: of the library's client.

    Raises:
        CommandError: the library is of a version that is not known.
    """
    known = all(callable(getattr(mqtt.Client, name, None)) for name in PRIVATE)
    client: Any = _class(mqtt, on_message, is_own)(**options) if known else None
    if not set(PRIVATE_KEYS) <= set(getattr(client, "_in_packet", ())):
        raise CommandError(_UNKNOWN)
    client.on_message = _unexpected
    return client


def _class(mqtt: Any, arrived: Callable[[Arrived], None], is_own: Callable[[Exception], bool]) -> Any:
    class Client(mqtt.Client):
        def _packet_handle(self) -> Any:
            command, packet = self._in_packet["command"], self._in_packet["packet"]
            kind = command & 0xF0
            try:
                if kind == PUBLISH:
                    message = publish_of(command, bytes(packet))
                elif kind == PUBREL:
                    # the message itself went on before it was answered
                    return self.ack(packet_id(packet), 2)
                else:
                    return super()._packet_handle()
            except PacketError:
                return mqtt.MQTTErrorCode.MQTT_ERR_PROTOCOL
            except Exception as error:
                if is_own(error):
                    raise
                return mqtt.MQTTErrorCode.MQTT_ERR_PROTOCOL
            arrived(message)
            return mqtt.MQTTErrorCode.MQTT_ERR_SUCCESS

        def received(self, packet: int) -> None:
            """Acknowledge a message of QoS 2: it is had, and may be forgotten when the broker says so."""
            self._send_pubrec(packet)

    return Client


def _unexpected(*_: Any) -> None:
    """What the library calls with a message that it has read itself."""
    raise CommandError(_UNKNOWN)
