"""The shipped rules at a real Prometheus, which scrapes a live job on Prism: while it is well, and in a fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from .kafka import KafkaBroker
from .kafka_topics import TopicBench
from .live_bench import DAY, DAY_US, NAMES, ORIGIN, SLOT, Bench, Running
from .prism import prism_arguments
from .prometheus import Prometheus

PLACE = {name: number % 2 for number, name in enumerate(NAMES)}

#: Of the second partition: their gateway is away for ten hours of the second day.
AWAY = [name for name in NAMES if PLACE[name] == 1]


@pytest.fixture
def bench(tmp_path: Path, prism: Path) -> Any:
    made = Bench(tmp_path / "job", prism_arguments(prism), {})
    yield made
    made.close()


def place_of(job: Running) -> str:
    (text,) = [one["text"] for one in job.said if one["kind"] == "metrics"]
    (place,) = re.findall(r"(127\.0\.0\.1:\d+)/metrics", text)
    return place


def every_slot(begin: int, end: int) -> pl.DataFrame:
    """A reading of every series in each slot of some hours."""
    rows = [(name, ORIGIN + slot * SLOT, 100.0) for slot in range(2 * begin, 2 * end) for name in NAMES]
    return pl.DataFrame(rows, schema=["series", "time", "value"], orient="row")


def test_a_gateway_outage_beyond_idle_is_shown_in_rows_metrics_and_alerts(
    kafka: KafkaBroker, bench: Bench, prometheus_program: Path
) -> None:
    topics = TopicBench(kafka, bench, 2)
    topics.settings(
        windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"},
        live={"poll": "100ms", "idle": "20s", "metrics_port": 0},
    )
    frames = {(begin, end): every_slot(begin, end) for begin, end in ((0, 26), (26, 72), (72, 110))}
    late = 'quiltstream_live_rejected_total{reason="late"}'
    job = bench.start()
    bench.until(lambda: any(one["kind"] == "metrics" for one in job.said), "the job says where its page is")
    prometheus = Prometheus(prometheus_program, {"live": [place_of(job)]})

    def until(names: Sequence[str], last: pl.DataFrame, true: Callable[[], Any], what: str) -> None:
        """Wait while some series go on, by their last readings again, so that their partitions are not silent."""
        again = last.filter(pl.col("series").is_in(names)).tail(len(NAMES))

        def sent() -> Any:
            topics.send(again, PLACE.__getitem__)
            return true()

        bench.until(sent, what)

    try:
        prometheus.start()
        # both gateways send: the first day is closed by what has come, and nothing is amiss
        first, second, third = frames.values()
        topics.send(first, PLACE.__getitem__)
        until(NAMES, first, lambda: bench.windows() == 1, "the first day is on record")
        read = "quiltstream_live_readings_total"
        until(NAMES, first, lambda: sum(prometheus.values(read)) >= len(first), "readings are a metric")
        until(NAMES, first, lambda: prometheus.up() and not prometheus.wrong_rules(), "every rule is evaluated")
        assert prometheus.values(late) == [0.0]
        assert prometheus.alerts("firing", "pending") <= {"QuiltstreamSourceSilent", "QuiltstreamWindowOverdue"}
        # one of the gateways is away, and the other one goes on
        there, kept_back = (second.filter(pl.col("series").is_in(AWAY) == away) for away in (False, True))
        topics.send(there, PLACE.__getitem__)
        others = [name for name in NAMES if name not in AWAY]
        until(others, there, lambda: bench.windows() == 2, "the second day is closed without the one that is away")
        left_out = "quiltstream_live_sources_left_out_total"
        until(others, there, lambda: sum(prometheus.values(left_out)) > 0, "a metric says so")
        # it is back with what it has kept back, of which a part is late
        topics.send(kept_back, PLACE.__getitem__)
        until(NAMES, second, lambda: sum(prometheus.values(late)) > 0, "late readings are a metric")
        until(NAMES, second, lambda: "QuiltstreamRejects" in prometheus.alerts("firing", "pending"), "and an alert")
        assert prometheus.wrong_rules() == {}
        topics.send(third, PLACE.__getitem__)
        assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    finally:
        prometheus.close()
    said = {(row.window_start - ORIGIN) // DAY_US: row.completeness for row in bench.rows()}
    assert said[0] in {"live", "replayed"}
    assert (said[1], said[2]) == ("silent", "live")
    # what came late is missing where the row says so, and nowhere else
    cells = {place: sum(row) for place, row in bench.counts().items()}
    assert {cells[DAY, name] for name in AWAY} == {4}
    assert {count for (slot, name), count in cells.items() if slot in {0, 2 * DAY} or name not in AWAY} == {DAY}
