"""The gateway on a real Mosquitto: nothing that the broker kept is lost, whatever is killed, and memory is bounded."""

from __future__ import annotations

import time
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from .gateway_job import TOPICS, GatewayProcess, Meters, Start, number_of, records_of, tally_of, to_folder
from .mosquitto import CONFIGURATION, MosquittoBroker

#: The number of a message that is published when all others are.
LAST = 10**9


def settled(one: GatewayProcess, count: int) -> bool:
    """Whether a gateway has acknowledged so many, and nothing is under way."""
    metrics = one.metrics()
    return metrics["acknowledged_total"] >= count and metrics["in_flight"] == 0


def drained(one: GatewayProcess, port: int) -> None:
    """Publish a last message and wait until it is in a sealed file: the broker sends it behind everything before."""
    Meters(port, [LAST]).join()
    one.wait_until("the last message is there", lambda: LAST in tally_of(records_of(one.folder / "spool")), 120)


def counts_of(one: GatewayProcess) -> Counter[int]:
    """How often each message is in the sealed files, without the last one."""
    return tally_of(record for record in records_of(one.folder / "spool") if number_of(record["payload"]) != LAST)


def test_messages_are_delivered_once_with_their_properties(mosquitto: MosquittoBroker, start_gateway: Start) -> None:
    one = start_gateway(to_folder(mosquitto.port))
    confirmed = Meters(mosquitto.port, range(2_000)).join()
    one.wait_until("all acknowledged", lambda: settled(one, 2_000))
    assert one.stop() == 0
    records = records_of(one.folder / "spool")
    assert confirmed == set(range(2_000))
    assert tally_of(records) == dict.fromkeys(range(2_000), 1)
    assert {record["topic"] for record in records} == {f"meters/m{n}/readings" for n in range(TOPICS)}
    assert all(abs(record["received"].timestamp() - time.time()) < 600 for record in records)
    assert "stopped: received 2,000" in one.log
    assert "meters/m" not in one.log


def test_a_gateway_killed_or_stopped_and_a_broker_restarted_under_load_lose_nothing(
    mosquitto: MosquittoBroker, start_gateway: Start, request: pytest.FixtureRequest
) -> None:
    one = start_gateway(to_folder(mosquitto.port))
    meters = Meters(mosquitto.port, count(), rate=1_500)
    request.addfinalizer(meters.give_up)
    for _ in range(3):
        time.sleep(1.5)
        one.kill()
        time.sleep(0.3)
        one.start()
    one.wait_until("some acknowledged", lambda: one.metrics()["acknowledged_total"] >= 500)
    assert one.stop() == 0
    # what was under way was finished, and not given up when the patience of `stop` was over
    assert "the next hop did not confirm" not in one.log
    assert not list(Path(one.folder / "spool").glob(".*.open"))
    one.start()
    one.wait_until("some acknowledged", lambda: one.metrics()["acknowledged_total"] >= 500)
    mosquitto.stop()
    one.wait_until("told", lambda: "cannot be reached" in one.log)
    before = len(meters.confirmed)
    mosquitto.start()
    one.wait_until("more is published", lambda: len(meters.confirmed) > before + 1_000)
    confirmed = meters.give_up()
    drained(one, mosquitto.port)
    assert one.metrics()["reconnects_total"] >= 1
    assert one.metrics()["sessions_lost_total"] == 0
    assert one.stop() == 0
    counts = counts_of(one)
    assert confirmed <= counts.keys()
    # twice are those that the meters sent twice, because their own connection broke, and those that came flagged
    flagged = tally_of(record for record in records_of(one.folder / "spool") if record["dup"])
    assert all(times - 1 <= flagged[number] + (number in meters.repeated) for number, times in counts.items())


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
    drained(one, mosquitto.port)
    assert one.stop() == 0
    lost = confirmed - counts_of(one).keys()
    print(f"of {len(confirmed):,} messages that the killed broker had confirmed {len(lost):,} are lost")  # noqa: T201 - what was measured
    # it looks at the count of changes once in a round of its loop, in which every client may have sent its window
    assert len(lost) <= interval + 2 * window


def test_a_gateway_at_its_limit_holds_no_more_and_fetches_nothing_again(
    mosquitto: MosquittoBroker, start_gateway: Start
) -> None:
    """200 MB wait at the broker, the gateway holds its 8 MB; a broken connection is made again once there is room."""
    pytest.importorskip("confluent_kafka", reason="the delivery target that is away is Kafka")
    to = {"kafka": {"servers": "127.0.0.1:9", "topic": "readings"}}
    one = start_gateway(to_folder(mosquitto.port, to=to, limits={"messages": 5_000, "bytes": "8MB", "message": "1MB"}))
    before = one.rss
    Meters(mosquitto.port, range(2_000), size=100_000).join()
    one.wait_until("full", lambda: one.metrics()["bytes_in_flight"] > 8_000_000)
    one.wait_until("told", lambda: "no broker can be reached" in one.log)
    time.sleep(2)
    grown = one.rss - before
    print(f"memory grew by {grown / 1e6:.0f} MB for 8 MB in flight")  # noqa: T201 - what was measured
    assert grown < 60_000_000
    mosquitto.stop()
    one.wait_until("broken", lambda: "is not there any more" in one.log, 30)
    mosquitto.start()
    time.sleep(3)
    metrics = one.metrics()
    assert 8_000_000 < metrics["bytes_in_flight"] < 8_200_000
    assert (metrics["acknowledged_total"], metrics["duplicates_total"]) == (0, 0)
    assert one.log.count(": connected") == 1
    assert one.stop() == 0
    assert "the broker sends them again" in one.log
