"""The MQTT library's client, with its own reading of messages replaced by :mod:`.packets`.

The library refuses some strings that MQTT 5 allows and brokers pass on, and breaks on what it does not know. It has no
public way to say what is to become of such a message, so a part of it is replaced that is not public:
``_packet_handle``, which it calls with each whole packet in ``_in_packet``. ``_send_pubrec`` is used as well. A version
that has these no longer is refused at the start, and one that does not call them at its first message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..failures import CommandError
from .packets import PUBLISH, PUBREL, Arrived, PacketError, packet_id, publish_of

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
        mqtt: the library, as :func:`~.libraries.paho` gives it.
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


__all__ = ["PRIVATE", "PRIVATE_KEYS", "made_client"]
