"""A message that the MQTT library cannot read comes without its properties; what is no MQTT ends the gateway."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway.connection import Arrived, BrokerError, Connection, Session, listen

from ...depth import examples
from .blunt_broker import BluntBroker, KeepingBroker, packet, publish, text

mqtt = pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")

CONTENT = b"\x03" + text("text/plain")

#: What MQTT 5 allows in a PUBLISH and the library reads.
READABLE: dict[str, tuple[bytes, str]] = {
    "none": (b"", ""),
    "content type": (CONTENT, "text/plain"),
    "content type of non-characters": (b"\x03" + text("\ufdd0\uffff"), "\ufdd0\uffff"),
    "user property twice": (b"\x26" + text("k") + text("v") + b"\x26" + text("k") + text("v"), ""),
    "response topic with a wildcard": (b"\x08" + text("a/#"), ""),
    "correlation data": (b"\x09" + text(b"\xff\0"), ""),
    "format and expiry": (b"\x01\x01\x02\0\0\0\x09" + CONTENT, "text/plain"),
    "subscription identifiers": (b"\x0b\x01\x0b\xff\xff\xff\x7f" + CONTENT, "text/plain"),
    "topic alias": (b"\x23\0\x05" + CONTENT, "text/plain"),
}

#: What the library refuses; MQTT 5 allows the first three, and Mosquitto passes them on.
REFUSED = {
    "content type with U+FEFF": b"\x03" + text("\ufefftext"),
    "user property with U+FEFF": b"\x26" + text("k") + text("\ufeffv") + CONTENT,
    "response topic with U+FEFF": b"\x08" + text("\ufeff"),
    "format of 7": b"\x01\x07",
    "content type twice": CONTENT + b"\x03" + text("x"),
    "content type of no UTF-8": b"\x03" + text(b"\xff"),
    "unknown property": b"\x7f\x01",
    "content type that is cut": CONTENT[:-1],
    "identifier without an end": b"\xff\xff\xff\xff\x01",
}

#: PUBLISH packets that no version of MQTT has.
BROKEN = {
    "nothing": packet(0x32, b""),
    "half a length": packet(0x32, b"\0"),
    "a topic that is longer than the packet": packet(0x32, b"\xff\xff" + b"x" * 40),
    "no packet id": packet(0x32, text("a") + b"\0"),
    "QoS 3": packet(0x36, text("a") + b"\0\1\0"),
}


class Heard:
    """The connection acknowledges each message."""

    def __init__(self, port: int) -> None:
        self.messages: list[Arrived] = []
        session = Session("127.0.0.1", port, "c", filters=("#",), expiry=60)
        self.connection = Connection(session, on_message=self.hear)

    def hear(self, message: Arrived) -> None:
        self.messages.append(message)
        if message.qos:
            self.connection.ack(message.mid, message.qos)

    def turn(self) -> None:
        self.connection.turn(0.01)


def go_on(turn: Callable[[], None]) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        turn()


def test_readable_properties_give_the_content_type_in_one_connection() -> None:
    parts = list(READABLE.values())
    broker = BluntBroker([publish(number, one, b"%d" % number) for number, (one, _) in enumerate(parts, 1)])
    heard = Heard(broker.port)
    broker.wait([(0x40, number) for number in range(1, len(parts) + 1)], heard.turn)
    heard.connection.close()
    broker.close()
    assert [one.content_type for one in heard.messages] == [kind for _, kind in parts]
    assert [one.payload for one in heard.messages] == [b"%d" % number for number in range(1, len(parts) + 1)]
    assert broker.versions == [5]


def test_a_topic_of_no_utf8_is_empty_and_the_message_acknowledged() -> None:
    topics = [b"meters/\xff", b"", "\ufeff/ä".encode()]
    broker = BluntBroker([publish(number, topic=topic) for number, topic in enumerate(topics, 1)])
    heard = Heard(broker.port)
    broker.wait([(0x40, 1), (0x40, 2), (0x40, 3)], heard.turn)
    heard.connection.close()
    broker.close()
    assert [one.topic for one in heard.messages] == ["", "", "\ufeff/ä"]


@pytest.mark.parametrize("properties", REFUSED.values(), ids=REFUSED)
def test_a_refused_message_comes_without_properties_by_mqtt_3(
    properties: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    broker = KeepingBroker({1: CONTENT, 2: properties, 3: CONTENT})
    heard = Heard(broker.port)
    broker.wait(lambda: not broker.waiting, heard.turn)
    heard.connection.close()
    broker.close()
    # the session is there still, and is not subscribed by MQTT 3.1.1
    assert broker.versions == [5, 4]
    assert broker.subscribed == [1]
    kinds = {one.payload: one.content_type for one in heard.messages}
    assert (kinds[b"2"], kinds[b"3"]) == ("", "")
    assert caplog.text.count("cannot read; connecting by MQTT 3.1.1") == 1
    assert heard.connection.fresh == 0


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=60))
def test_messages_with_random_properties_are_all_acknowledged(parts: list[bytes]) -> None:
    broker = KeepingBroker(dict(enumerate(parts, 1)))
    heard = Heard(broker.port)
    broker.wait(lambda: not broker.waiting, heard.turn)
    heard.connection.close()
    broker.close()
    assert {one.mid for one in heard.messages} == set(range(1, len(parts) + 1))
    assert broker.versions in ([5], [5, 4])


def test_an_error_of_the_library_that_is_no_malformed_packet_is_survived(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It leaves the connection open and the packet where it was read from."""
    broker = KeepingBroker({1: CONTENT})
    heard = Heard(broker.port)
    real = mqtt.Properties.unpack

    def unpack(given: Any, buffer: bytes) -> Any:
        if CONTENT in buffer:
            raise ArithmeticError
        return real(given, buffer)

    monkeypatch.setattr("paho.mqtt.properties.Properties.unpack", unpack)
    broker.wait(lambda: not broker.waiting, heard.turn)
    heard.connection.close()
    broker.close()
    assert broker.versions == [5, 4]
    assert "the MQTT library raised ArithmeticError" in caplog.text


def test_a_session_that_was_lost_is_subscribed_by_mqtt_3() -> None:
    broker = BluntBroker([publish(1, REFUSED["unknown property"])], [publish(1, None, b"body")])
    heard = Heard(broker.port)
    broker.wait([(0x40, 1)], heard.turn)
    heard.connection.close()
    broker.close()
    assert broker.versions == [5, 4]
    assert [(one.topic, one.payload, one.mid) for one in heard.messages] == [("meters/m1", b"body", 1)]
    assert heard.connection.fresh == 1


def test_the_session_of_an_earlier_gateway_is_subscribed_by_mqtt_3() -> None:
    """The refused message comes before the broker has read the filters, which may be others now."""
    broker = KeepingBroker({1: REFUSED["unknown property"]})
    broker.subscribed.append(0)
    heard = Heard(broker.port)
    broker.wait(lambda: 2 in broker.subscribed and not broker.waiting, heard.turn)
    heard.connection.close()
    broker.close()
    assert broker.versions == [5, 4]


def test_a_message_of_qos_2_is_heard_when_the_broker_releases_it() -> None:
    """The library answers it before: what is confirmed to the broker is not known to be delivered."""
    broker = BluntBroker([publish(5, first=0x34), publish(6), packet(0x62, b"\0\5"), publish(5)])
    heard = Heard(broker.port)
    broker.wait([(0x50, 5), (0x40, 6), (0x70, 5), (0x40, 5)], heard.turn)
    heard.connection.close()
    broker.close()
    assert [(one.mid, one.qos) for one in heard.messages] == [(6, 1), (5, 2), (5, 1)]


@pytest.mark.night
@pytest.mark.parametrize(
    "whole",
    [
        *BROKEN.values(),
        packet(0x62, b""),
        packet(0xF0, b""),
        packet(0x40, b""),
        packet(0x90, b"\0"),
        b"\x32\xff\xff\xff\xff\xff",
    ],
    ids=lambda whole: whole[:8].hex(),
)
def test_a_broken_packet_is_retried_a_few_times_and_then_ends_the_gateway(
    whole: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker = BluntBroker([publish(1), whole], [publish(1, None), whole])
    heard = Heard(broker.port)
    with pytest.raises(BrokerError, match=r"sends what cannot be read as MQTT \(5 connections in a row"):
        go_on(heard.turn)
    heard.connection.close()
    broker.close()
    # what came before it was read each time
    assert [one.mid for one in heard.messages] == [1] * 5
    assert broker.versions == [5, 4, 4, 4, 4]
    assert caplog.text.count("sent what the MQTT library cannot read; trying again in") == 3


@pytest.mark.night
def test_a_busy_broker_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """The library ends such a connection with the reason that it gives where it cannot read a packet."""
    broker = BluntBroker([], instead=packet(0x20, b"\0\x88\0"))
    heard = Heard(broker.port)
    until = time.monotonic() + 20
    while len(broker.versions) < 8:
        assert time.monotonic() < until
        heard.turn()
    heard.connection.close()
    broker.close()
    assert set(broker.versions) == {5}
    assert "does not take the connection" in caplog.text


def test_a_look_at_a_broker_hears_a_message_that_the_library_refuses() -> None:
    broker = BluntBroker(
        [publish(1, REFUSED["unknown property"], first=0x33)], [publish(1, None, b"a", first=0x33), publish(2, None)]
    )
    found = listen(Session("127.0.0.1", broker.port, "c", filters=("#",)), 2, 10.0)
    broker.close()
    assert [(one.payload, one.retain) for one, _ in found] == [(b"a", True), (b"1", False)]
    # and is not patient with what is no MQTT
    broken = packet(0x32, b"")
    broker = BluntBroker([broken], [broken])
    with pytest.raises(CommandError, match="sent what the MQTT library cannot read"):
        listen(Session("127.0.0.1", broker.port, "c", filters=("#",)), 2, 10.0)
    broker.close()


def test_an_internal_error_is_not_reported_as_a_broken_packet() -> None:
    broker = BluntBroker([publish(1)])

    def taken(message: Arrived) -> None:
        raise IndexError(message.mid)

    connection = Connection(Session("127.0.0.1", broker.port, "c", filters=("#",)), on_message=taken)
    with pytest.raises(IndexError):
        go_on(lambda: connection.turn(0.01))
    connection.close()
    broker.close()
