"""The gateway on a real Mosquitto: nothing that the broker kept is lost, whatever is killed, and memory is bounded."""

from __future__ import annotations

import time
from collections import Counter
from itertools import count

import pytest

from .gateway_job import TOPICS, GatewayProcess, Meters, Start, number_of, records_of, tally_of, to_folder
from .mosquitto import CONFIGURATION, MosquittoBroker

#: The number of a message that is published when all others are.
LAST = 10**9


def drained(one: GatewayProcess, port: int) -> Counter[int]:
    """Wait until a last message is in a file, which the broker sends after all others; the tally of the others."""
    Meters(port, [LAST]).join()
    one.wait_until("the last message is there", lambda: LAST in tally_of(records_of(one.folder / "spool")), 120)
    return tally_of(record for record in records_of(one.folder / "spool") if number_of(record["payload"]) != LAST)


def test_messages_are_delivered_once_with_their_properties(mosquitto: MosquittoBroker, start_gateway: Start) -> None:
    one = start_gateway(to_folder(mosquitto.port))
    assert Meters(mosquitto.port, range(2_000)).join() == set(range(2_000))
    one.wait_until("all acknowledged", lambda: one.metrics()["acknowledged_total"] == 2_000)
    assert one.stop() == 143
    records = records_of(one.folder / "spool")
    assert tally_of(records) == dict.fromkeys(range(2_000), 1)
    assert {record["topic"] for record in records} == {f"meters/m{n}/readings" for n in range(TOPICS)}
    assert all(abs(record["received"].timestamp() - time.time()) < 600 for record in records)
    assert "stopped: received 2,000" in one.log
    assert "meters/m" not in one.log


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


def test_a_broker_that_is_restarted_under_a_gateway_is_connected_to_again(
    mosquitto: MosquittoBroker, start_gateway: Start, request: pytest.FixtureRequest
) -> None:
    one = start_gateway(to_folder(mosquitto.port))
    meters = Meters(mosquitto.port, count(), rate=1_500)
    request.addfinalizer(meters.give_up)
    one.wait_until("some acknowledged", lambda: one.metrics()["acknowledged_total"] >= 500)
    mosquitto.stop()
    one.wait_until("told", lambda: "cannot be reached" in one.log)
    before = len(meters.confirmed)
    mosquitto.start()
    one.wait_until("more is published", lambda: len(meters.confirmed) > before + 1_000)
    confirmed = meters.give_up()
    counts = drained(one, mosquitto.port)
    assert one.metrics()["reconnects_total"] >= 1
    assert one.metrics()["sessions_lost_total"] == 0
    assert one.stop() == 143
    assert confirmed <= counts.keys()


def test_a_killed_broker_loses_no_more_of_a_backlog_than_its_configuration_allows(
    mosquitto: MosquittoBroker, start_gateway: Start
) -> None:
    """Mosquitto acknowledges from memory; `autosave_interval` bounds what that costs."""
    (interval,) = (
        int(line.split()[1])
        for line in CONFIGURATION.read_text(encoding="utf-8").splitlines()
        if line.startswith("autosave_interval ")
    )
    one = start_gateway(to_folder(mosquitto.port))
    one.kill()
    window = 200
    meters = Meters(mosquitto.port, range(100_000), window=window)
    until = time.monotonic() + 120
    while len(meters.confirmed) < 10_000:
        assert time.monotonic() < until, f"{len(meters.confirmed)} messages confirmed"
        time.sleep(0.01)
    mosquitto.kill()
    confirmed = meters.give_up()
    mosquitto.start()
    one.start()
    lost = confirmed - drained(one, mosquitto.port).keys()
    assert one.stop() == 143
    print(f"of {len(confirmed):,} messages that the killed broker had confirmed {len(lost):,} are lost")  # noqa: T201 - what was measured
    # it looks at the count of changes once in a round of its loop, in which every client may have sent its window
    assert len(lost) <= interval + 2 * window


def test_a_gateway_at_its_limit_holds_no_more(mosquitto: MosquittoBroker, start_gateway: Start) -> None:
    """200 MB wait at the broker while Kafka is away; the gateway holds its 64 MiB, and ends in order."""
    pytest.importorskip("confluent_kafka", reason="the target that is away is Kafka")
    one = start_gateway(to_folder(mosquitto.port, to={"kafka": {"servers": "127.0.0.1:9", "topic": "readings"}}))
    before = one.rss
    Meters(mosquitto.port, range(2_000), size=100_000).join()
    one.wait_until("full", lambda: one.metrics()["in_flight"] > 64 * 10)
    one.wait_until("told", lambda: "nothing is lost" in one.log)
    time.sleep(2)
    grown = one.rss - before
    print(f"memory grew by {grown / 1e6:.0f} MB")  # noqa: T201 - what was measured
    assert grown < 150_000_000
    assert 640 < one.metrics()["in_flight"] < 700
    assert one.metrics()["acknowledged_total"] == 0
    assert one.stop() == 143
    assert "the broker sends them again" in one.log
    assert "rdkafka" not in one.log
    assert one.log.count("nothing is lost") < 10
