"""The gateway on a real Mosquitto: nothing that a broker kept is lost, whatever is killed, and memory is bounded.

What it does with a message of any content, and what ends it, is asked of a broker of the tests
(``tests/pipelines/gateway``).
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from .certificates import make_certificates
from .gateway_job import GatewayProcess, Meters, Start, number_of, records_of, tally_of, to_folder
from .kafka import KafkaBroker
from .mosquitto import MosquittoBroker

#: The number of a message that is published when all others are.
LAST = 10**9


def drained(one: GatewayProcess, port: int) -> Counter[int]:
    """Wait until a last message is in a file, which the broker sends after all others; the tally of the others."""
    Meters(port, [LAST]).join()
    one.wait_until("the last message is there", lambda: LAST in tally_of(records_of(one.folder / "spool")), 120)
    return tally_of(record for record in records_of(one.folder / "spool") if number_of(record["payload"]) != LAST)


@pytest.mark.parametrize(
    ("kills", "restarts", "messages"), [(3, 1, 6_000), pytest.param(12, 3, 40_000, marks=pytest.mark.night)]
)
def test_a_gateway_killed_and_a_broker_restarted_under_load_lose_nothing(
    mosquitto: MosquittoBroker, start_gateway: Start, kills: int, restarts: int, messages: int
) -> None:
    one, meters, share = start_gateway(to_folder(mosquitto.port)), list[Meters](), -(-messages // kills)
    for kill in range(kills):
        numbers = range(kill * share, min((kill + 1) * share, messages))
        meters.append(Meters(mosquitto.port, numbers, rate=share / 2))
        # while some are acknowledged and others are under way
        one.wait_until("some acknowledged", lambda: one.metrics()["acknowledged_total"] > 0)
        time.sleep(kill % 4 / 10)
        one.kill()
        if kill % (kills // restarts) == 1:
            mosquitto.stop()
            mosquitto.start()
        one.start()
    confirmed = set[int]().union(*(each.join() for each in meters))
    repeated = set[int]().union(*(each.repeated for each in meters))
    counts = drained(one, mosquitto.port)
    assert confirmed == set(range(messages))
    assert one.metrics()["sessions_lost_total"] == 0
    assert one.stop() == 143
    missing, twice = confirmed - counts.keys(), sum(counts.values()) - len(counts)
    print(f"{messages:,} messages, {kills} kills, {restarts} restarts: {len(missing)} missing, {twice} twice")  # noqa: T201 - what was measured
    assert not missing
    # twice are those that the meters sent twice, because their own connection broke, and those that came flagged
    flagged = tally_of(record for record in records_of(one.folder / "spool") if record["dup"])
    assert all(times - 1 <= flagged[number] + (number in repeated) for number, times in counts.items())


def test_a_gateway_and_a_kafka_broker_that_are_killed_lose_nothing(
    mosquitto: MosquittoBroker, kafka: KafkaBroker, start_gateway: Start, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: kafka.runs or kafka.start())
    topic = kafka.topic()
    one = start_gateway(to_folder(mosquitto.port, to={"kafka": {"servers": kafka.servers, "topic": topic}}))
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

    def found() -> set[int]:
        return {number_of(message.value()) for message in kafka.read(topic)}

    one.wait_until("all are in the topic", lambda: len(found()) == 12_000, 60)
    assert one.stop() == 143
    assert found() == confirmed == set(range(12_000))
    assert "nothing is lost" in one.log


def test_a_gateway_at_its_limit_holds_no_more(mosquitto: MosquittoBroker, start_gateway: Start) -> None:
    """200 MB wait at the broker while Kafka is away; the gateway holds its 64 MiB, and ends in order."""
    pytest.importorskip("confluent_kafka", reason="the target that is away is Kafka")
    one = start_gateway(to_folder(mosquitto.port, to={"kafka": {"servers": "127.0.0.1:9", "topic": "readings"}}))
    before = one.rss
    Meters(mosquitto.port, range(2_000), size=100_000).join()
    one.wait_until("full", lambda: one.metrics()["in_flight"] > 64 * 10)
    one.wait_until("told", lambda: "nothing is lost" in one.log)
    time.sleep(2)
    assert one.rss - before < 150_000_000
    assert 640 < one.metrics()["in_flight"] < 700
    assert one.metrics()["acknowledged_total"] == 0
    assert one.stop() == 143
    assert "rdkafka" not in one.log


def test_by_tls_each_side_is_trusted_by_its_certificate_or_the_setting_is_named(
    mosquitto_program: Path, start_gateway: Start, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    make_certificates(tmp_path, "gateway")
    ca, own, key = (str(tmp_path / name) for name in ("ca.pem", "client.pem", "client.key"))
    mine = f"cafile {ca}\ncertfile {tmp_path / 'broker.pem'}\nkeyfile {tmp_path / 'broker.key'}"
    broker = MosquittoBroker(mosquitto_program, {"require_certificate": "true"}, mine)
    request.addfinalizer(broker.close)
    settings = to_folder(broker.port)
    settings["mqtt"] |= {"host": "localhost", "tls": {"ca": str(tmp_path / "other.pem")}}
    stranger = start_gateway(settings, "")
    assert stranger.ended() == 2
    assert "certificate verify failed" in stranger.log
    # it tries on: what the broker does to it cannot be told from what one does that is about to stop
    settings["mqtt"]["tls"] = {"ca": ca}
    refused = start_gateway(settings, "")
    refused.wait_until("told", lambda: "does it want TLS, or a certificate?" in refused.log)
    assert "connected to" not in refused.log
    settings["mqtt"]["tls"] |= {"cert": own, "key": key}
    gateway = start_gateway(settings)
    Meters(broker.port, range(3_000), ca=tmp_path / "ca.pem", own=(Path(own), Path(key))).join()
    gateway.wait_until("all acknowledged", lambda: gateway.metrics()["acknowledged_total"] == 3_000)
    assert gateway.stop() == 143
    assert tally_of(records_of(gateway.folder / "spool")) == dict.fromkeys(range(3_000), 1)
