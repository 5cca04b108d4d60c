"""A broker in a thread that says what a test wants, byte for byte, and notes what is answered."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from .threaded_broker import ThreadedBroker, packets

CONNECT, CONNACK, PUBACK, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x40, 0x80, 0x90


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
    number: int, properties: bytes = b"", payload: bytes = b"1", topic: bytes = b"meters/m1", first: int = 0x32
) -> bytes:
    """A PUBLISH packet with QoS 1."""
    return packet(first, text(topic) + number.to_bytes(2, "big") + integer(len(properties)) + properties + payload)


class BluntBroker(ThreadedBroker):
    """Takes connections one after the other and says the same on each.

    Args:
        says: what it sends behind its answer to the subscription, or to the connection if there is none.
        subscribed: whether it waits for a subscription.
        instead: sent in place of all this when a connection is there.

    Attributes:
        answers: packets of each connection that are no CONNECT, SUBSCRIBE or DISCONNECT, as (first byte, packet id).
    """

    def __init__(self, says: Sequence[bytes], *, subscribed: bool = True, instead: bytes = b"") -> None:
        self.answers: list[list[tuple[int, int]]] = []
        self._says = b"".join(says)
        self._subscribed = subscribed
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
                peer.sendall(self._instead or packet(CONNACK, b"\0\0\0") + (b"" if self._subscribed else self._says))
            elif kind == SUBSCRIBE:
                peer.sendall(packet(SUBACK, body[:2] + b"\0\1") + self._says)
            elif len(body) > 1:
                answers.append((first[0], int.from_bytes(body[:2], "big")))
