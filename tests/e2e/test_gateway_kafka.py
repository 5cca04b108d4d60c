"""The gateway between a real Mosquitto and a real Kafka: nothing is lost when either, or the gateway, is killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from .gateway_job import GatewayProcess, Meters, Start, number_of, to_folder
from .kafka import PASSWORD, USER, KafkaBroker
from .mosquitto import MosquittoBroker


@pytest.fixture(autouse=True)
def running(kafka: KafkaBroker) -> Iterator[None]:
    """A Kafka broker that a failed test left killed runs again for the next one."""
    yield
    if not kafka.runs:
        kafka.start()


def to_kafka(mosquitto: MosquittoBroker, servers: str, topic: str, **kafka: Any) -> dict[str, Any]:
    return to_folder(mosquitto.port, to={"kafka": {"servers": servers, "topic": topic} | kafka})


def numbers(kafka: KafkaBroker, topic: str) -> Counter[int]:
    """How often each message is in a topic."""
    return Counter(number_of(message.value()) for message in kafka.read(topic))


def acknowledged(one: GatewayProcess, count: int) -> None:
    """Wait until a gateway has acknowledged so many in this life, and nothing is under way."""

    def all_there() -> bool:
        metrics = one.metrics()
        return metrics["acknowledged_total"] >= count and metrics["in_flight"] == 0

    one.wait_until(f"{count} acknowledged", all_there, 90)


def test_a_gateway_and_a_kafka_broker_that_are_killed_lose_nothing(
    mosquitto: MosquittoBroker, kafka: KafkaBroker, start_gateway: Start
) -> None:
    topic = kafka.topic()
    one = start_gateway(to_kafka(mosquitto, kafka.servers, topic))
    meters = Meters(mosquitto.port, range(12_000), rate=1_000)
    time.sleep(2)
    one.kill()
    one.start()
    time.sleep(1)
    kafka.kill()
    time.sleep(2)
    one.kill()
    one.start()
    kafka.start()
    confirmed = meters.join()
    one.wait_until("nothing under way", lambda: one.metrics()["in_flight"] == 0, 90)
    until = time.monotonic() + 60
    while len(found := numbers(kafka, topic)) < 12_000 and time.monotonic() < until:
        time.sleep(0.5)
    assert one.stop() == 143
    assert confirmed == set(range(12_000))
    assert found.keys() == confirmed
    assert "nothing is lost" in one.log
    print(f"of 12,000 messages {sum(found.values()) - 12_000} are there more than once")  # noqa: T201 - what was measured


def test_a_wrong_password_for_kafka_ends_the_gateway_and_the_right_one_does_not(
    mosquitto: MosquittoBroker, kafka: KafkaBroker, start_gateway: Start
) -> None:
    topic = kafka.topic()
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": {"file": "secret"},
    }
    settings = to_kafka(mosquitto, kafka.sasl_servers, topic, options=options)
    wrong = start_gateway(settings, "counts are at", {"secret": "something-else"})
    assert wrong.ended() == 2
    assert f"Kafka topic '{topic}': _AUTHENTICATION; look at forward.to.kafka" in wrong.log
    assert "something-else" not in wrong.log
    right = start_gateway(settings, files={"secret": PASSWORD})
    Meters(mosquitto.port, range(10)).join()
    acknowledged(right, 10)
    stranger = settings["forward"]["to"]["kafka"]["options"]
    stranger["sasl.username"] = "stranger"
    settings["mqtt"]["client_id"] = "gateway-2"
    refused = start_gateway(settings, files={"secret": PASSWORD})
    Meters(mosquitto.port, range(10)).join()
    assert refused.ended(90) == 2, refused.log
    assert f"Kafka topic '{topic}': TOPIC_AUTHORIZATION_FAILED" in refused.log or "_UNKNOWN_TOPIC" in refused.log


def test_a_message_that_is_too_large_for_the_topic_stays_at_the_mqtt_broker(
    mosquitto: MosquittoBroker, kafka: KafkaBroker, start_gateway: Start
) -> None:
    topic = kafka.topic(max_message_bytes="5000")
    one = start_gateway(to_kafka(mosquitto, kafka.servers, topic, options={"compression.type": "none"}))
    Meters(mosquitto.port, range(10)).join()
    acknowledged(one, 10)
    Meters(mosquitto.port, [10], size=100_000).join()
    assert one.ended() == 2
    assert f"Kafka topic '{topic}': MSG_SIZE_TOO_LARGE" in one.log
    kafka.set(topic, "max.message.bytes", "1000000")
    one.start()
    acknowledged(one, 1)
    assert one.stop() == 143
    assert numbers(kafka, topic).keys() == set(range(11))
