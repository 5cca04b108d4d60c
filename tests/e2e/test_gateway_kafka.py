"""The gateway between a real Mosquitto and a real Kafka: nothing is lost when either, or the gateway, is killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from quiltstream.pipelines.gateway import Message
from quiltstream.pipelines.gateway.delivery import KafkaDelivery

from .gateway_job import GatewayProcess, Meters, Start, number_of, payload_of, to_folder
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
    # with Kafka away it may hold all it can before the broker's answer to the subscription comes
    one.start(": connected")
    kafka.start()
    confirmed = meters.join()
    one.wait_until("nothing under way", lambda: one.metrics()["in_flight"] == 0, 90)
    until = time.monotonic() + 60
    while len(found := numbers(kafka, topic)) < 12_000 and time.monotonic() < until:
        time.sleep(0.5)
    assert one.stop() == 0
    assert confirmed == set(range(12_000))
    assert found.keys() == confirmed
    assert "no broker can be reached" in one.log
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
    assert "Kafka: the credentials are not accepted; look at forward.to.kafka.options" in wrong.log
    assert "something-else" not in wrong.log
    right = start_gateway(settings, files={"secret": PASSWORD})
    Meters(mosquitto.port, range(10)).join()
    acknowledged(right, 10)
    stranger = settings["forward"]["to"]["kafka"]["options"]
    stranger["sasl.username"] = "stranger"
    settings["mqtt"]["client_id"] = "gateway-2"
    refused = start_gateway(settings, "counts are at", {"secret": PASSWORD})
    assert refused.ended() == 2, refused.log
    assert f"Kafka: not authorised to write to the topic '{topic}'" in refused.log or "no topic" in refused.log


def all_had(target: KafkaDelivery, given: list[Message], expected: int) -> None:
    """Offer messages so that they go in one batch, and wait until so many are had."""
    for number, message in enumerate(given):
        assert target.offer(number, message)
    had, until = list[int](), time.monotonic() + 60
    while len(had) < expected:
        assert time.monotonic() < until, had
        had += target.had()
        time.sleep(0.01)


def test_a_batch_refused_for_its_size_loses_only_the_messages_above_the_limit(kafka: KafkaBroker) -> None:
    topic = kafka.topic(max_message_bytes="5000")
    target = KafkaDelivery(kafka.servers, topic, "topic", {"linger.ms": 50, "compression.type": "none"})
    now = time.time_ns() // 1_000
    given = [Message("meters/m1", payload_of(number, 20_000 if number == 7 else 400), now) for number in range(20)]
    all_had(target, given, 19)
    assert target.refused() == [7]
    target.close(5)
    assert [number_of(message.value()) for message in kafka.read(topic)] == [n for n in range(20) if n != 7]


def test_a_clock_briefly_ahead_delays_and_loses_no_message(kafka: KafkaBroker) -> None:
    """The broker refuses a whole batch for stamps that are an hour ahead of its clock, with other words for several."""
    topic, moment = kafka.topic(), range(4, 8)
    target = KafkaDelivery(kafka.servers, topic, "topic", {"linger.ms": 50})
    now = time.time_ns() // 1_000
    given = [
        Message("meters/m1", payload_of(number), now + number + (7_200_000_000 if number in moment else 0))
        for number in range(20)
    ]
    all_had(target, given, 20)
    assert target.refused() == []
    target.close(5)
    found = kafka.read(topic)
    assert [number_of(message.value()) for message in found] == list(range(20))
    stamps = [message.timestamp()[1] for message in found]
    for number in range(20):
        if number in moment:
            assert now // 1_000 <= stamps[number] <= time.time() * 1_000
        else:
            assert stamps[number] == given[number].received_us // 1_000
