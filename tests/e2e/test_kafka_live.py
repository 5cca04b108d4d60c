"""Live jobs on Prism, topic in and topic out, against an independent truth."""

from __future__ import annotations

import json
import time
from typing import Any

import polars as pl
import pytest

from .kafka_topics import READINGS, TopicBench, as_it_comes
from .live_bench import HOUR, NAMES, ORIGIN, SLOT, day_of, held, readings
from .test_kafka_source import Real


def hours(frame: pl.DataFrame, start: float, stop: float) -> pl.DataFrame:
    return frame.filter(pl.col("time").is_between(ORIGIN + int(start * HOUR), ORIGIN + int(stop * HOUR) - 1))


def test_topic_to_topic_equals_the_truth_with_disorder_over_several_partitions(kafka, bench):
    """Three partitions on two lanes, one that ends early, a broker that is killed, a partition that is added."""
    topics = TopicBench(kafka, bench, 3)
    rejects: dict[str, Any] = {"kafka": {"servers": kafka.servers, "topic": topics.rejects}}
    windows = {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05", "lateness": "6h"}
    topics.settings({"lanes": 2}, windows=windows, rejects=rejects)
    frame = readings(4.5, seed=21)
    arriving = as_it_comes(frame, 6 * HOUR, seed=22)
    third = len(arriving) // 3
    place = {name: number % 3 for number, name in enumerate(NAMES)}
    job = bench.start()
    topics.send(arriving[:third], place.__getitem__)
    bench.wait_for(1)
    kafka.kill()
    time.sleep(1)
    kafka.start()
    kafka.grow(topics.source, 4)
    # long enough for the lanes to find it: what comes from a partition that nobody knows yet may be late
    time.sleep(3)
    place["e"] = 3
    # twice, as gateways do that are not sure, and bad ones between
    kafka.send(topics.source, [(0, b"{half"), (1, None), (3, b"\xff\xfe"), (3, b'{"series": "e", "time": "soon"}')])
    topics.send(arriving[third:], place.__getitem__)
    topics.send(arriving[-50:], place.__getitem__)
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    topics.check(frame, 4)
    rejected = [one.value() for one in kafka.read(topics.rejects)]
    assert sorted((one["source"], one["size"]) for one in map(json.loads, rejected)) == [
        (f"{topics.source}/0", 5),
        (f"{topics.source}/3", 2),
        (f"{topics.source}/3", 31),
    ]
    assert not any(held in one for one in rejected for held in (b"{half", b'"soon"'))
    said = [one["text"] for one in job.said if one["kind"] == "warning"]
    assert all("half" not in text for text in said)


@pytest.mark.parametrize("hold", [None, "75min"], ids=["latest", "hold"])
def test_a_restarted_job_continues_the_record_and_sends_missing_rows(kafka, bench, hold: str | None):
    word = {} if hold is None else {"readings": READINGS | {"hold": hold}, "missing": "state"}
    topics = TopicBench(kafka, bench, 2)
    windows = {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"}
    topics.settings({"start": "latest"}, windows=windows, **word)
    frame = readings(4.5, seed=24).sort("time")
    job = bench.start()
    bench.until(lambda: "start" in {one["kind"] for one in job.said}, "the job has begun")
    time.sleep(5)  # the end of the topic is where the lanes begin, once they have looked
    topics.send(hours(frame, 0, 60), lambda name: NAMES.index(name) % 2)
    bench.wait_for(2)
    job.kill()
    before = bench.on_record()
    # as if it had been killed between the record and the sink: another topic, with nothing in it
    topics.sink = kafka.topic(2, cleanup_policy="compact")
    topics.settings({"start": "latest"}, windows=windows, **word)
    topics.send(hours(frame, 60, 200), lambda name: NAMES.index(name) % 2)
    again = bench.run()
    assert again.process.returncode == 0, again.err.read_text(encoding="utf-8")
    topics.check(frame, 4, None if hold is None else held(frame, range(4), 5 * SLOT // 2))
    assert before.items() <= bench.on_record().items()
    # and rows that no ledger knows end it before anything is charged
    (bench.folder / "ledger.db").rename(bench.folder / "lost.db")
    lost = bench.run()
    assert lost.process.returncode != 0
    assert "releases that are not on record" in lost.err.read_text(encoding="utf-8")


def test_a_topic_made_anew_is_read_again_and_rows_of_what_it_held_say_unavailable(kafka, bench):
    topics = TopicBench(kafka, bench, 1)
    topics.settings({"discover": "1s"}, windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"})
    frame = readings(4.5, seed=26).sort("time")
    job = bench.start()
    topics.send(hours(frame, 0, 60), lambda _: 0)
    bench.wait_for(2)
    Real(kafka).make_anew(topics.source, 1)
    topics.send(hours(frame, 60, 200), lambda _: 0)
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    found = {(row.window_start - ORIGIN) // (24 * HOUR): row.completeness for row in bench.rows()}
    assert {found[day] for day in (0, 1)} <= {"live", "replayed"}
    assert {found[day] for day in (2, 3)} == {"unavailable"}
    assert "%3|" not in job.err.read_text(encoding="utf-8"), "lines of librdkafka"


def test_a_sink_unavailable_beyond_the_delivery_timeout_loses_no_row(kafka, bench):
    """A message is given up after two seconds here, as after two minutes else, and each bundle fails by that."""
    topics = TopicBench(kafka, bench, 1)
    options = {"delivery.timeout.ms": 2000, "request.timeout.ms": 1000}
    bench.settings(
        windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"},
        sink={"kafka": {"servers": kafka.servers, "topic": topics.sink, "options": options}},
        memory="memory.json",
        live={"poll": "100ms", "metrics_port": 0},
    )
    frame = readings(4.5, seed=27)
    for day in range(2):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start(supervised=True)
    bench.wait_for(1)
    bench.until(lambda: len(topics.sunk()) == len(NAMES), "the first day is in the topic")
    kafka.kill()
    try:
        for day in (2, 3, 4):
            bench.put(f"{day}.jsonl", day_of(frame, day))
        bench.until(lambda: "Error: sink" in job.err.read_text(encoding="utf-8"), "rows were given up")
        time.sleep(10)
        assert job.process.poll() is None
    finally:
        kafka.start()
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    topics.check(frame, 4)
