"""Brokers in a thread that say what a test wants, byte for byte, and note what is answered."""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x30, 0x40, 0x80, 0x90


class ThreadedBroker(ABC):
    """Listens from the moment that it is made; what it says is up to each."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @abstractmethod
    def talk(self, peer: socket.socket) -> None:
        """Talk to whoever connected; the connection ends with it."""

    def close(self) -> None:
        """Take no more connections; the last one ends with its client."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                self.talk(peer)


def packets(peer: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """The packets of a connection as (first byte, what follows its length), until it ends."""
    stream = peer.makefile("rb")
    while first := stream.read(1):
        length, shift = 0, 0
        while True:
            byte = stream.read(1)[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # its top bit says that more follows
                break
        yield first, stream.read(length)


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


def publish(
    number: int, properties: bytes | None = b"", payload: bytes = b"1", topic: bytes = b"meters/m1", first: int = 0x32
) -> bytes:
    """A PUBLISH packet with QoS 1, of MQTT 5 or, without properties (``None``), of MQTT 3.1.1."""
    told = b"" if properties is None else integer(len(properties)) + properties
    return packet(first, text(topic) + number.to_bytes(2, "big") + told + payload)


def level(connect: bytes) -> int:
    """The version of MQTT that a CONNECT packet asks for: 4 for 3.1.1, or 5."""
    return connect[6]


class BluntBroker(ThreadedBroker):
    """Takes connections one after the other and says the same on each.

    Args:
        says: what it sends behind its answer to the subscription.
        plain: what it sends instead by MQTT 3.1.1; ``None``: it ends such a connection.
        instead: sent in place of all this when a connection is there.

    Attributes:
        versions: the version of each connection, as :func:`level` gives it.
        answers: packets of each connection that are no CONNECT, SUBSCRIBE or DISCONNECT, as (first byte, packet id).
    """

    def __init__(self, says: Sequence[bytes], plain: Sequence[bytes] | None = None, *, instead: bytes = b"") -> None:
        self.versions: list[int] = []
        self.answers: list[list[tuple[int, int]]] = []
        self._says = {5: b"".join(says)} | ({} if plain is None else {4: b"".join(plain)})
        self._instead = instead
        super().__init__()

    def wait(self, answers: Iterable[tuple[int, int]], turn: Callable[[], object]) -> None:
        """Turn a connection until the last connection has heard so much."""
        wanted, until = list(answers), time.monotonic() + 20
        while not self.answers or self.answers[-1] != wanted:
            assert time.monotonic() < until, (self.answers, wanted)
            turn()

    def talk(self, peer: socket.socket) -> None:
        """Say the same as on every connection, and note what is answered."""
        self.answers.append([])
        with suppress(OSError):
            self._talk(peer, self.answers[-1])

    def _talk(self, peer: socket.socket, answers: list[tuple[int, int]]) -> None:
        for first, body in packets(peer):
            kind = first[0] & 0xF0
            if kind == CONNECT:
                version = level(body)
                self.versions.append(version)
                if self._instead:
                    peer.sendall(self._instead)
                elif version not in self._says:
                    return
                else:
                    peer.sendall(packet(CONNACK, bytes(version - 2)))
            elif kind == SUBSCRIBE:
                told = b"\0\1" if self.versions[-1] == 5 else b"\1"
                peer.sendall(packet(SUBACK, body[:2] + told) + self._says[self.versions[-1]])
            elif len(body) > 1:
                answers.append((first[0], int.from_bytes(body[:2], "big")))


class KeepingBroker(ThreadedBroker):
    """Has one session over both versions of MQTT, and sends in each connection what is not acknowledged.

    Args:
        messages: the properties of each message, by its packet id, which is also its body.

    Attributes:
        versions: the version of each connection, as :func:`level` gives it.
        subscribed: in which of them there was a subscription.
        waiting: messages that are not acknowledged.
    """

    def __init__(self, messages: Mapping[int, bytes]) -> None:
        self.versions: list[int] = []
        self.subscribed: list[int] = []
        self.waiting = dict(messages)
        super().__init__()

    def wait(self, true: Callable[[], bool], turn: Callable[[], object]) -> None:
        """Turn a connection until something is so."""
        until = time.monotonic() + 20
        while not true():
            assert time.monotonic() < until, (self.versions, self.waiting)
            turn()

    def talk(self, peer: socket.socket) -> None:
        """Send what is not acknowledged."""
        with suppress(OSError):
            self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        for first, body in packets(peer):
            kind = first[0] & 0xF0
            if kind == CONNECT:
                self.versions.append(level(body))
                had = bool(self.subscribed)
                peer.sendall(packet(CONNACK, bytes([had, 0, 0])[: self.versions[-1] - 2]) + self._sent() * had)
            elif kind == SUBSCRIBE:
                had = bool(self.subscribed)
                self.subscribed.append(len(self.versions))
                told = bytes([0, 1]) if self.versions[-1] == 5 else bytes([1])
                peer.sendall(packet(SUBACK, body[:2] + told) + self._sent() * (not had))
            elif kind == PUBACK:
                self.waiting.pop(int.from_bytes(body[:2], "big"), None)

    def _sent(self) -> bytes:
        plain = self.versions[-1] != 5
        return b"".join(
            publish(number, None if plain else properties, b"%d" % number)
            for number, properties in self.waiting.items()
        )
