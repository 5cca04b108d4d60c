"""What the brokers in a thread have in common: they take one connection after the other, and read whole packets."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator


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
