"""A broker in a thread: it speaks as much of MQTT 5 as a publisher needs, and is silent while a test wants it to be."""

from __future__ import annotations

import socket

from .threaded_broker import ThreadedBroker, packets

CONNECT, CONNACK, PUBLISH, PUBACK = 1, 2, 3, 4


class DeafBroker(ThreadedBroker):
    """Takes connections one after the other; on the first ones it confirms nothing and hangs up.

    Args:
        patience: for each connection of this kind, after how many messages it hangs up. Later ones are confirmed.

    Attributes:
        heard: the messages of each connection, as (topic and body, packet id, whether flagged as sent before).
    """

    def __init__(self, *patience: int) -> None:
        self.heard: list[list[tuple[bytes, int, bool]]] = []
        self._patience = patience
        super().__init__()

    def talk(self, peer: socket.socket) -> None:
        """Hear what is published, and confirm it if it may."""
        self.heard.append([])
        deaf_until = self._patience[len(self.heard) - 1] if len(self.heard) <= len(self._patience) else None
        heard, found = self.heard[-1], packets(peer)
        while deaf_until is None or len(heard) < deaf_until:
            first, body = next(found, (b"", b""))
            if not first:
                return
            if first[0] >> 4 == CONNECT:
                peer.sendall(bytes([CONNACK << 4, 3, 0, 0, 0]))
            elif first[0] >> 4 == PUBLISH:
                behind = 2 + int.from_bytes(body[:2], "big")
                packet = int.from_bytes(body[behind : behind + 2], "big")
                heard.append((body[2:behind] + body[behind + 2 :], packet, bool(first[0] & 8)))
                if deaf_until is None:
                    peer.sendall(bytes([PUBACK << 4, 2]) + packet.to_bytes(2, "big"))
