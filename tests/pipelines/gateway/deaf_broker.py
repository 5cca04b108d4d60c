"""A broker in a thread: it speaks as much of MQTT 5 as a publisher needs, and is silent while a test wants it to be."""

from __future__ import annotations

import socket
import threading

CONNECT, CONNACK, PUBLISH, PUBACK = 1, 2, 3, 4


class DeafBroker:
    """Takes connections one after the other; on the first ones it confirms nothing and hangs up.

    Args:
        patience: for each connection of this kind, after how many messages it hangs up. Later ones are confirmed.

    Attributes:
        heard: the messages of each connection, as (topic and body, packet id, whether flagged as sent before).
    """

    def __init__(self, *patience: int) -> None:
        self.heard: list[list[tuple[bytes, int, bool]]] = []
        self._patience = patience
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

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
                self.heard.append([])
                deaf_until = self._patience[len(self.heard) - 1] if len(self.heard) <= len(self._patience) else None
                self._talk(peer, self.heard[-1], deaf_until)

    def _talk(self, peer: socket.socket, heard: list[tuple[bytes, int, bool]], deaf_until: int | None) -> None:
        stream = peer.makefile("rb")
        while deaf_until is None or len(heard) < deaf_until:
            first = stream.read(1)
            if not first:
                return
            length, shift = 0, 0
            while True:
                byte = stream.read(1)[0]
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:  # its top bit says that more follows
                    break
            body = stream.read(length)
            if first[0] >> 4 == CONNECT:
                peer.sendall(bytes([CONNACK << 4, 3, 0, 0, 0]))
            elif first[0] >> 4 == PUBLISH:
                behind = 2 + int.from_bytes(body[:2], "big")
                packet = int.from_bytes(body[behind : behind + 2], "big")
                heard.append((body[2:behind] + body[behind + 2 :], packet, bool(first[0] & 8)))
                if deaf_until is None:
                    peer.sendall(bytes([PUBACK << 4, 2]) + packet.to_bytes(2, "big"))
