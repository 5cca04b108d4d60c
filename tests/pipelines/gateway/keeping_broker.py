"""A broker in a thread that keeps one session over both versions of MQTT, and sends what is not acknowledged."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

CONNECT, CONNACK, PUBACK, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x40, 0x80, 0x90


def packets(peer: socket.socket) -> Iterator[tuple[int, bytes]]:
    """The packets of a connection as (kind, what follows its length), until it ends."""
    stream = peer.makefile("rb")
    while first := stream.read(1):
        length, shift = 0, 0
        while True:
            byte = stream.read(1)[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # its top bit says that more follows
                break
        yield first[0] & 0xF0, stream.read(length)


def integer(value: int) -> bytes:
    """A variable byte integer."""
    found = bytearray()
    while True:
        value, low = divmod(value, 128)
        found.append(low | (0x80 if value else 0))
        if not value:
            return bytes(found)


def text(value: bytes | str) -> bytes:
    """A string, or bytes, that say their length."""
    value = value.encode() if isinstance(value, str) else value
    return len(value).to_bytes(2, "big") + value


def packet(first: int, body: bytes) -> bytes:
    """A whole packet."""
    return bytes([first]) + integer(len(body)) + body


class KeepingBroker:
    """Takes one filter, and sends in each connection what is not acknowledged, flagged from the second time on.

    Args:
        messages: topic, properties and body of each message, by its packet id.
        codes: how each connection is answered; the last for all that follow.
        ends: connections, from 1, that end behind the messages.
        heard: called with each packet id that is acknowledged.

    Attributes:
        versions: the version of each connection: 4 for 3.1.1, or 5.
        logins: the end of each connection's first packet.
        waiting: messages that are not acknowledged.
    """

    def __init__(
        self,
        messages: Mapping[int, tuple[str, bytes, bytes]],
        *,
        codes: tuple[int, ...] = (0,),
        ends: tuple[int, ...] = (),
        heard: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.waiting, self.versions, self.logins = dict(messages), list[int](), list[bytes]()
        self.codes, self._ends, self._heard, self._sent = codes, ends, heard, set[int]()
        self._subscribed = False
        self._peer: socket.socket | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def wait(self, true: Callable[[], bool], turn: Callable[[], object]) -> None:
        """Turn a bridge until something is so."""
        until = time.monotonic() + 20
        while not true():
            assert time.monotonic() < until, (self.versions, self.waiting)
            turn()

    def close(self) -> None:
        """Take no more connections, and end the last one."""
        if self._peer is not None:
            with suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            self._peer = peer
            with peer, suppress(OSError):
                self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        for kind, body in packets(peer):
            if kind == CONNECT:
                self.versions.append(body[6])
                self.logins.append(body)
                code = self.codes[min(len(self.versions), len(self.codes)) - 1]
                peer.sendall(packet(CONNACK, bytes([self._subscribed, code, 0])[: body[6] - 2]))
                if code:
                    return
            elif kind == SUBSCRIBE:
                self._subscribed = True
                peer.sendall(packet(SUBACK, body[:2] + (b"\0\1" if self.versions[-1] == 5 else b"\1")))
                for number, message in list(self.waiting.items()):
                    peer.sendall(self._publish(number, *message))
                if len(self.versions) in self._ends:
                    return
            elif kind == PUBACK:
                number = int.from_bytes(body[:2], "big")
                self._heard(number)
                self.waiting.pop(number, None)

    def _publish(self, number: int, topic: str, properties: bytes, payload: bytes) -> bytes:
        told = integer(len(properties)) + properties if self.versions[-1] == 5 else b""
        first = 0x32 | 0x08 * (number in self._sent)
        self._sent.add(number)
        return packet(first, text(topic) + number.to_bytes(2, "big") + told + payload)
