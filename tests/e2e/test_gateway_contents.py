"""Messages of every content at a real Mosquitto: none of them stops the gateway."""

from __future__ import annotations

import random
import socket

import pytest

from ..pipelines.gateway.keeping_broker import CONNACK, CONNECT, PUBACK, integer, packet, text
from .gateway_job import GatewayProcess, Start, payload_of, records_of, tally_of, to_folder
from .mosquitto import MosquittoBroker

LETTERS = "ak\ufeff\u0000\u0085\ufdd0\uffff\U0001f600/+#$"


def published(port: int, properties: bytes, payload: bytes, topic: bytes = b"meters/m1/readings") -> bool:
    """Publish one message with QoS 1, byte for byte; whether the broker has taken it."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(packet(CONNECT, text("MQTT") + b"\x05\x02\x00\x3c\x00" + text("")))
        if peer.recv(1) != bytes([CONNACK]):
            return False
        peer.recv(1_000)
        body = text(topic) + b"\0\1" + integer(len(properties)) + properties + payload
        try:
            peer.sendall(packet(0x32, body))
            answer = peer.recv(100)
        except ConnectionError:
            return False
        # with a fifth byte it is a reason, of which those from 0x80 on say that it was not taken
        return answer[:1] == bytes([PUBACK]) and (len(answer) < 5 or answer[4] < 0x80)


def some_properties(draw: random.Random) -> bytes:
    """Properties of a PUBLISH, and sometimes bytes that are none."""
    parts: list[bytes] = []
    for _ in range(draw.randrange(4)):
        letters = text("".join(draw.choices(LETTERS, k=draw.randrange(5))))
        loose = text(draw.randbytes(draw.randrange(4)))
        parts.append(
            draw.choice(
                [
                    b"\x01" + draw.randbytes(1),
                    b"\x02" + draw.randbytes(4),
                    b"\x03" + letters,
                    b"\x08" + letters,
                    b"\x09" + loose,
                    b"\x0b" + draw.randbytes(1),
                    b"\x23" + draw.randbytes(2),
                    b"\x26" + letters + letters,
                    b"\x26" + text("k") + letters,
                    b"\x26" + loose + letters,
                    draw.randbytes(draw.randrange(6)),
                ]
            )
        )
    return b"".join(parts)


@pytest.fixture
def gateway(mosquitto: MosquittoBroker, start_gateway: Start) -> GatewayProcess:
    return start_gateway(to_folder(mosquitto.port))


def test_messages_delivered_by_mosquitto_are_forwarded_with_any_properties(
    mosquitto: MosquittoBroker, gateway: GatewayProcess
) -> None:
    seed = random.SystemRandom().getrandbits(64)
    draw = random.Random(seed)
    # the first is read with its properties, the others are refused by the library
    assert published(mosquitto.port, b"\x03" + text("text/plain"), payload_of(0, 20))
    gateway.wait_until("the first message is there", lambda: gateway.metrics()["acknowledged_total"] == 1)
    special = [
        b"\x03" + text("\ufefftext"),
        b"\x26" + text("k") + text("\ufeffv"),
        b"\x08" + text("\ufeff"),
        b"\x09" + text(b"\xff\0"),
        b"\x01\x01\x02\0\0\0\xff",
    ]
    parts = special + [some_properties(draw) for _ in range(300)]
    taken = {number for number, one in enumerate(parts, 1) if published(mosquitto.port, one, payload_of(number, 20))}
    assert taken >= set(range(1, len(special) + 1))
    last = len(parts) + 1
    assert published(mosquitto.port, b"", payload_of(last, 20), "meters/\ufeff/readings".encode())
    all_of_them = {0, last} | taken

    def found() -> set[int]:
        return set(tally_of(records_of(gateway.folder / "spool")))

    gateway.wait_until("each message is there", lambda: found() >= all_of_them, 120)
    assert (seed, found()) == (seed, all_of_them)
    gateway.wait_until("each is acknowledged", lambda: gateway.metrics()["in_flight"] == 0)
    # if it goes wrong, the seed tells with what; the session was kept by MQTT 3.1.1
    metrics = gateway.metrics()
    assert (seed, metrics["reconnects_total"], metrics["sessions_lost_total"]) == (seed, 1, 0)
    assert gateway.log.count("again by MQTT 3.1.1") == 1
    # the one that was refused and what was under way with it come again
    assert metrics["duplicates_total"] < 30
    assert gateway.stop() == 0
