"""No content of a message ends the connection, and what cannot be told from others ends it a few times only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway.connection import (
    PRIVATE,
    PRIVATE_KEYS,
    Arrived,
    BrokerError,
    Connection,
    PacketError,
    Session,
    made_client,
    paho,
    publish_of,
)

from .blunt_broker import BluntBroker, integer, packet, publish, text

mqtt = pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")
PACKETS = pytest.importorskip("paho.mqtt.packettypes").PacketTypes
PROPERTIES = pytest.importorskip("paho.mqtt.properties").Properties

CONTENT = b"\x03" + text("text/plain")

#: What MQTT 5 allows in a PUBLISH, and what of it the library refuses.
ALLOWED: dict[str, tuple[bytes, str]] = {
    "none": (b"", ""),
    "content type": (CONTENT, "text/plain"),
    "content type with U+FEFF": (b"\x03" + text("\ufefftext"), "\ufefftext"),
    "content type of non-characters": (b"\x03" + text("\ufdd0\uffff"), "\ufdd0\uffff"),
    "user property with U+FEFF": (b"\x26" + text("k") + text("\ufeffv") + CONTENT, "text/plain"),
    "user property twice": (b"\x26" + text("k") + text("v") + b"\x26" + text("k") + text("v"), ""),
    "response topic with U+FEFF": (b"\x08" + text("\ufeff"), ""),
    "response topic with a wildcard": (b"\x08" + text("a/#"), ""),
    "correlation data": (b"\x09" + text(b"\xff\0"), ""),
    "format and expiry": (b"\x01\x01\x02\0\0\0\x09" + CONTENT, "text/plain"),
    "subscription identifiers": (b"\x0b\x01\x0b\xff\xff\xff\x7f" + CONTENT, "text/plain"),
    "topic alias": (b"\x23\0\x05" + CONTENT, "text/plain"),
}

#: What it does not allow and can be read all the same.
READABLE: dict[str, tuple[bytes, str]] = {
    "format of 7": (b"\x01\x07", ""),
    "content type twice": (CONTENT + b"\x03" + text("x"), "text/plain"),
    "user property of no UTF-8": (b"\x26" + text(b"\xff") + text(b"\xed\xa0\x80") + CONTENT, "text/plain"),
    "topic alias of 0": (b"\x23\0\0", ""),
    "subscription identifier of 0": (b"\x0b\0", ""),
}

#: What cannot be read.
MALFORMED = {
    "content type of no UTF-8": b"\x03" + text(b"\xff"),
    "content type with a surrogate": b"\x03" + text(b"\xed\xa0\x80"),
    "content type with U+0000": b"\x03" + text("a\0"),
    "unknown property": b"\x7f\x01",
    "property of a CONNECT": b"\x11\0\0\0\1",
    "content type that is cut": CONTENT[:-1],
    "length that is cut": b"\x03\0",
    "user property without a value": b"\x26" + text("k"),
    "expiry that is cut": b"\x02\0",
    "identifier without an end": b"\xff\xff\xff\xff\x01",
    "subscription identifier without an end": b"\x0b\xff",
}

#: Bodies of PUBLISH packets of which nobody can tell what they are, with QoS 1 where nothing else is said.
BROKEN = {
    "nothing": packet(0x32, b""),
    "half a length": packet(0x32, b"\0"),
    "a topic that is longer than the packet": packet(0x32, b"\xff\xff" + b"x" * 40),
    "no packet id": packet(0x32, text("a") + b"\0"),
    "packet id 0": packet(0x32, text("a") + b"\0\0\0"),
    "QoS 3": packet(0x36, text("a") + b"\0\1\0"),
}


def body_of(whole: bytes) -> bytes:
    """A packet without its first byte and length."""
    at = 1
    while whole[at] & 0x80:
        at += 1
    return whole[at + 1 :]


def message(name: bytes, payload: bytes, mid: int, **more: Any) -> Arrived:
    about: dict[str, Any] = {"qos": 1, "dup": False, "retain": False} | more
    return Arrived(name, payload, mid, **about)


@pytest.mark.parametrize(("properties", "kind"), [*ALLOWED.values(), *READABLE.values()], ids=[*ALLOWED, *READABLE])
def test_a_message_whose_properties_can_be_read_is_read(properties: bytes, kind: str) -> None:
    found = publish_of(0x3B, body_of(publish(9, properties, b"body", "z/ä".encode())))
    assert found == message("z/ä".encode(), b"body", 9, dup=True, retain=True, content_type=kind)
    assert found.topic == "z/ä"


@pytest.mark.parametrize("properties", MALFORMED.values(), ids=MALFORMED)
def test_a_message_with_unreadable_properties_is_malformed_with_topic_and_id(
    properties: bytes,
) -> None:
    found = publish_of(0x32, body_of(publish(9, properties, b"body")))
    assert (found.topic, found.mid, found.qos, found.malformed) == ("meters/m1", 9, 1, True)


@pytest.mark.parametrize("behind", [b"", b"\x05abc", b"\xff\xff\xff\xff\x01", b"\x80"])
def test_properties_that_are_longer_than_the_packet_make_a_message_malformed(behind: bytes) -> None:
    assert publish_of(0x32, text("a") + b"\0\x09" + behind) == message(b"a", behind, 9, malformed=True)


@pytest.mark.parametrize("whole", BROKEN.values(), ids=BROKEN)
def test_an_unreadable_packet_is_an_error(whole: bytes) -> None:
    with pytest.raises(PacketError):
        publish_of(whole[0], body_of(whole))


def test_a_message_of_qos_0_has_no_packet_id() -> None:
    assert publish_of(0x30, text("a") + b"\0" + b"body") == message(b"a", b"body", 0, qos=0)


@given(
    st.sampled_from(["", "text/plain", "ä"]),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3),
    st.binary(max_size=200),
    st.booleans(),
)
def test_properties_packed_by_another_mqtt_library_are_read(
    kind: str, user: list[tuple[str, str]], correlation: bytes, expires: bool
) -> None:
    made = PROPERTIES(PACKETS.PUBLISH)
    if kind:
        made.ContentType = kind
    for one in user:
        made.UserProperty = one
    made.CorrelationData = correlation
    if expires:
        made.MessageExpiryInterval = 3_600
    found = publish_of(0x32, text("t") + b"\0\x07" + made.pack() + b"body")
    assert found == message(b"t", b"body", 7, content_type=kind)


@settings(max_examples=2_000)
@given(st.integers(0x30, 0x3F), st.binary(max_size=60))
@example(0x32, b"\0\1a\0\1\xff\xff\xff\x7f")
def test_arbitrary_bytes_give_a_message_or_a_packet_error(command: int, body: bytes) -> None:
    try:
        found = publish_of(command, body)
    except PacketError:
        return
    assert isinstance(found.payload, bytes)
    assert found.qos == command >> 1 & 3
    assert bool(found.mid) == bool(found.qos)
    assert text(found.name) == body[: 2 + len(found.name)]
    assert body.endswith(found.payload)


@pytest.mark.assures(
    "gateway",
    "No content of a message ends the connection: unreadable properties or a missing topic cost that message only",
)
@settings(max_examples=2_000)
@given(st.binary(max_size=60))
def test_a_framed_message_with_any_properties_can_be_acknowledged(properties: bytes) -> None:
    found = publish_of(0x32, body_of(publish(9, properties, b"body")))
    assert (found.topic, found.mid, found.payload[-4:]) == ("meters/m1", 9, b"body")
    assert found.malformed or found.payload == b"body"


# at a broker


class Heard:
    """A connection that acknowledges what it hears."""

    def __init__(self, broker: BluntBroker, **about: Any) -> None:
        self.messages: list[Arrived] = []
        self.connection = Connection(
            Session("127.0.0.1", broker.port, "c", filters=("#",), **about), on_message=self.hear
        )
        self.connection._backoff.longest = 0.01  # pyright: ignore[reportPrivateUsage] - so that the test is quick

    def hear(self, message: Arrived) -> None:
        self.messages.append(message)
        if message.qos:
            self.connection.ack(message.mid)

    def turn(self) -> None:
        self.connection.turn(0.01)


def go_on(turn: Callable[[], None]) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        turn()


def at(broker: BluntBroker, call: Callable[[Heard], None]) -> Heard:
    heard = Heard(broker)
    try:
        call(heard)
    finally:
        heard.connection.close()
        broker.close()
    return heard


@pytest.mark.assures(
    "gateway",
    "No content of a message ends the connection: unreadable properties or a missing topic cost that message only",
)
def test_no_properties_end_the_connection_and_every_message_is_acknowledged() -> None:
    """All at once, so that each is read with what the one before it left behind."""
    parts = [*(one for one, _ in (*ALLOWED.values(), *READABLE.values())), *MALFORMED.values(), b""]
    broker = BluntBroker(
        [publish(number, one, b"%d" % number) for number, one in enumerate(parts, 1)]
        + [publish(99, topic=b"meters/\xff"), publish(100, topic=b""), publish(101, topic="\ufeff".encode())]
    )
    numbers = [*range(1, len(parts) + 1), 99, 100, 101]
    heard = at(broker, lambda one: broker.wait([(0x40, number) for number in numbers], one.turn))
    assert [one.mid for one in heard.messages] == numbers
    assert [one.malformed for one in heard.messages].count(True) == len(MALFORMED)
    assert (heard.connection.epoch, heard.connection.reconnects) == (1, 0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=12)), min_size=1, max_size=60))
def test_random_properties_and_topics_do_not_end_the_connection(parts: list[tuple[bytes, bytes]]) -> None:
    broker = BluntBroker([publish(number, one, b"", topic) for number, (one, topic) in enumerate(parts, 1)])
    heard = at(broker, lambda one: broker.wait([(0x40, number + 1) for number in range(len(parts))], one.turn))
    assert heard.connection.epoch == 1


def test_a_message_of_qos_2_is_forwarded_and_answered_when_confirmed() -> None:
    """The session may have a subscription of somebody else; an answer for QoS 1 would end the connection."""
    broker = BluntBroker([publish(5, first=0x34), packet(0x62, b"\0\5"), publish(5)])
    heard = at(broker, lambda one: broker.wait([(0x50, 5), (0x70, 5), (0x40, 5)], one.turn))
    assert [one.qos for one in heard.messages] == [2, 1]
    # taken over and not had yet: not a word, or a gateway that is killed would have lost it
    broker = BluntBroker([publish(5, first=0x34), publish(6)])
    silent = Heard(broker)
    silent.connection._on_message = lambda one: silent.connection.ack(6) if one.mid == 6 else None  # pyright: ignore[reportPrivateUsage] - it is the test's
    broker.wait([(0x40, 6)], silent.turn)
    silent.connection.close()
    broker.close()


@pytest.mark.assures(
    "gateway",
    "A packet that is no MQTT is tried again a few times, then ends the gateway with a message",
)
@pytest.mark.parametrize(
    "whole",
    [
        *BROKEN.values(),
        packet(0x62, b""),
        packet(0xF0, b""),
        packet(0x40, b""),
        packet(0x90, b"\0"),
        packet(0xE0, b"\x82\x05\x1f" + text("\ufeff")),
        b"\x32\xff\xff\xff\xff\xff",
    ],
    ids=lambda whole: whole[:8].hex(),
)
def test_a_broken_packet_is_retried_a_few_times_and_then_ends_the_gateway(
    whole: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker = BluntBroker([publish(1), whole])
    heard = Heard(broker)
    with pytest.raises(BrokerError, match=r"sends what is no packet of MQTT 5 \(5 connections in a row"):
        go_on(heard.turn)
    heard.connection.close()
    broker.close()
    # what came before it was read each time
    assert [one.mid for one in heard.messages] == [1] * 5
    assert caplog.text.count("sent what is no packet of MQTT 5; trying again in") == 4


def test_a_server_that_is_no_mqtt_broker_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    broker = BluntBroker([], instead=b"\xf0\x05hello")
    heard = Heard(broker)
    with pytest.raises(BrokerError, match=r"look at mqtt\.host and mqtt\.port"):
        go_on(heard.turn)
    broker.close()
    assert "hello" not in caplog.text


def test_broken_packets_are_counted_only_if_nothing_else_is_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(Session("127.0.0.1", 1, "c"))
    unreadable, lost = SimpleNamespace(value=0x82), SimpleNamespace(value=0x80)
    ours = SimpleNamespace(is_disconnect_packet_from_server=False)
    clock = [0.0]
    monkeypatch.setattr("quiltstream.pipelines.gateway.connection.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def ended(reason: Any, seconds: float = 1.0) -> None:
        connection._connected(None, None, SimpleNamespace(session_present=True), SimpleNamespace(value=0), None)  # pyright: ignore[reportPrivateUsage] - what the library calls
        clock[0] += seconds
        connection._disconnected(None, None, ours, reason, None)  # pyright: ignore[reportPrivateUsage] - as above
        connection._check()  # pyright: ignore[reportPrivateUsage] - as a turn does

    for _ in range(3):
        for _ in range(4):
            ended(unreadable)
        ended(lost)
        for _ in range(4):
            ended(unreadable)
        ended(unreadable, 601.0)
        for _ in range(3):
            ended(unreadable)
        ended(lost)
    for _ in range(4):
        ended(unreadable)
    with pytest.raises(BrokerError):
        ended(unreadable)


def test_an_internal_error_is_not_reported_as_a_broken_packet() -> None:
    broker = BluntBroker([publish(1)])
    heard = Heard(broker)

    def taken(message: Arrived) -> None:
        raise IndexError(message.mid)

    heard.connection._on_message = taken  # pyright: ignore[reportPrivateUsage] - it is the test's
    with pytest.raises(IndexError):
        go_on(heard.turn)
    heard.connection.close()
    broker.close()
    broker = BluntBroker([packet(0x40, b"\0\1")], subscribed=False)
    failed: list[int] = []

    def confirmed(number: int) -> None:
        failed.append(number)
        raise KeyError(number)

    connection = Connection(Session("127.0.0.1", broker.port, "c"), on_sent=confirmed)

    def turn() -> None:
        if connection.connected and not failed:
            connection.publish("t", b"1", retain=False)
        connection.turn(0.01)

    with pytest.raises(KeyError):
        go_on(turn)
    connection.close()
    broker.close()
    assert failed == [1]


# the library


def test_replaced_internals_of_the_library_exist_and_are_called() -> None:
    """What is not public may go: then the gateway has to be looked at before that version is allowed."""
    for name in PRIVATE:
        assert callable(vars(mqtt.Client)[name])
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    assert set(PRIVATE_KEYS) <= set(client._in_packet)
    read: list[Arrived] = []
    made = made_client(
        paho(),
        read.append,
        lambda _: False,
        callback_api_version=mqtt.CallbackAPIVersion.VERSION2,
        protocol=mqtt.MQTTv5,
    )
    waiting = bytearray(publish(3, CONTENT))

    def take(count: int) -> bytes:
        taken = bytes(waiting[:count])
        del waiting[:count]
        return taken

    made._sock, made._sock_recv = object(), take
    assert made.loop_read() == 0
    made._sock = None
    assert read == [message(b"meters/m1", b"1", 3, content_type="text/plain")]


@pytest.mark.parametrize("gone", PRIVATE)
def test_a_library_without_the_replaced_internals_is_refused_at_the_start(gone: str) -> None:
    names = {name: None if name == gone else (lambda *_: None) for name in PRIVATE}
    known = SimpleNamespace(**vars(paho()) | {"Client": type("Client", (), names)})
    with pytest.raises(CommandError, match="does not know this version of paho-mqtt"):
        made_client(known, lambda _: None, lambda _: False)


def test_a_library_that_bypasses_the_replacement_ends_the_gateway_with_a_reason() -> None:
    made = made_client(paho(), lambda _: None, lambda _: False, callback_api_version=mqtt.CallbackAPIVersion.VERSION2)
    with pytest.raises(CommandError, match="does not know this version of paho-mqtt"):
        made.on_message(None, None, None)


def test_a_length_is_encoded_as_in_the_mqtt_specification() -> None:
    assert [integer(value) for value in (0, 127, 128, 268_435_455)] == [
        b"\0",
        b"\x7f",
        b"\x80\x01",
        b"\xff\xff\xff\x7f",
    ]
