"""How long a window waits for its rows on a real Flink cluster: from the reading that completes it to the sink's topic.

Run as ``python benchmarks/latency.py``, with the Python that has the cluster's Beam named as the end-to-end tests have
it (``QUILTSTREAM_FLINK_PYTHON``). The settings are those of ``deploy/flink``, with topics and windows of its own. The
readings of a window are in the topic some time before the one that completes it, which is later than the window's end
by the lateness: the lateness is no part of what is measured. From one such reading to the next it takes a random time,
so that they do not keep step with checkpoints or looks. The time is from the stamp that the producer gave the reading
to the stamp that the broker gave the window's last row. Each line is a job of its own; its first window, which waits
for the job to be set up, is not counted. On Prism: ``kafka.py``.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from sample_ledger import servers

from quiltstream.schemas.slots import parse_instant

ROOT = Path(__file__).absolute().parent.parent

SERIES, WINDOWS, SLOTS = 10, 20, 6
INTERVAL_MS, LATENESS_MS = 1_800_000, 900_000
ORIGIN_MS = 1_577_836_800_000  # 2020-01-01T00:00Z

_PATIENCE_S = 120.0
_ATTEMPTS = 2


@dataclass(frozen=True)
class Pace:
    """How often a job does what rows may wait for.

    Attributes:
        name: in the table.
        checkpoint_ms: from one checkpoint to the next.
        poll: from one look at a topic that had nothing new to the next.
        apart_s: seconds from one window's last reading to the next one's, on average.
    """

    name: str
    checkpoint_ms: int
    poll: str
    apart_s: float


PACES = (
    Pace("docs/streaming.md", 2_000, "1s", 4.0),
    Pace("deploy/flink", 10_000, "10s", 12.0),
    Pace("that with a short poll", 10_000, "1s", 12.0),
)


def settings_of(pace: Pace, servers: str, topics: tuple[str, str, str], ledger: str) -> dict[str, Any]:
    """The shipped settings over these topics."""
    given = yaml.safe_load((ROOT / "deploy" / "flink" / "settings" / "settings.yaml").read_text(encoding="utf-8"))
    del given["group_by"]
    source, sink, rejects = topics
    given["source"]["kafka"] |= {"servers": servers, "topic": source}
    given["readings"] |= {"series": "meter"}
    given["slots"] |= {"origin": "2020-01-01"}
    return given | {
        "sink": {"kafka": {"servers": servers, "topic": sink}},
        "rejects": {"kafka": {"servers": servers, "topic": rejects}},
        "windows": {"size": f"{SLOTS * 30}min", "start": "2020-01-01", "lateness": f"{LATENESS_MS // 60_000}min"},
        "live": given["live"] | {"poll": pace.poll},
        "query": "load",
        "most_error": 1e6,  # what is timed here is not how useful the rows are
        "domain": "bench",
        "ledger": ledger,
    }


def message(series: int, stamp_ms: int) -> tuple[int, bytes]:
    """A reading, to the only partition."""
    return 0, json.dumps({"meter": f"meter-{series}", "ts": stamp_ms, "kwh": 0.25}).encode()


def completes(window: int) -> int:
    """The stamp of the reading that completes a window."""
    return ORIGIN_MS + (window + 1) * SLOTS * INTERVAL_MS + LATENESS_MS + 1_000


def readings(window: int) -> Iterator[tuple[int, bytes]]:
    """What a window gets, but for the reading of its first slot that completed the one before."""
    for slot in range(window * SLOTS, (window + 1) * SLOTS):
        for series in range(SERIES):
            if series or slot % SLOTS or not window:
                yield message(series, ORIGIN_MS + slot * INTERVAL_MS + 1_000)


def sent_of(broker: Any, sink: str) -> dict[int, list[int]]:
    """The stamps of the rows of each window."""
    found: dict[int, list[int]] = {}
    for one in broker.read(sink):
        start = parse_instant(json.loads(one.value())["window_start"]) // 1_000
        found.setdefault((start - ORIGIN_MS) // INTERVAL_MS // SLOTS, []).append(one.timestamp()[1])
    return found


def wait_for(broker: Any, sink: str, windows: int) -> bool:
    """Wait for the rows of the first windows; whether they came."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        found = sent_of(broker, sink)
        if all(len(found.get(window, ())) >= SERIES for window in range(windows)):
            return True
        time.sleep(1.0)
    return False


def drive(pace: Pace, broker: Any, source: str, sink: str) -> list[float] | None:
    """Send the windows' readings to a job that runs; seconds that each waited, or ``None`` where rows are missing."""
    apart = random.Random(1)  # noqa: S311 - when readings come
    for window in range(WINDOWS + 1):
        broker.send(source, readings(window))
        time.sleep(apart.uniform(0.0, pace.apart_s))
        broker.send(source, [message(0, completes(window))])
        if not window and not wait_for(broker, sink, 1):
            return None
        time.sleep(apart.uniform(0.5, 1.0) * pace.apart_s)
    if not wait_for(broker, sink, WINDOWS + 1):
        return None
    stamps = {json.loads(one.value())["ts"]: one.timestamp()[1] for one in broker.read(source)}
    rows = sent_of(broker, sink)
    return sorted((max(rows[window]) - stamps[completes(window)]) / 1e3 for window in range(1, WINDOWS + 1))


def measured(pace: Pace, cluster: Any, broker: Any, server: Any) -> list[float]:
    """Run a job; seconds that each of its windows waited, in their order."""
    for _ in range(_ATTEMPTS):
        source, rejects = broker.topic(1), broker.topic(1)
        sink = broker.topic(1, cleanup_policy="compact", message_timestamp_type="LogAppendTime")
        with tempfile.TemporaryDirectory() as name, servers("postgres_schemas").new_schema(server.url) as ledger:
            folder = Path(name)
            roster = "\n".join(["series", *(f"meter-{series}" for series in range(SERIES)), ""])
            (folder / "roster.csv").write_text(roster, encoding="utf-8")
            given = settings_of(pace, broker.servers, (source, sink, rejects), ledger)
            (folder / "settings.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
            job = cluster.submit(str(Path(__file__).absolute()), str(folder / "settings.yaml"), str(pace.checkpoint_ms))
            found = drive(pace, broker, source, sink)
            cluster.cancel(job)
        if found is not None:
            return found
        print(f"{pace.name}: rows did not come within {_PATIENCE_S:.0f} s, what a source handed back was lost: again")
    return sys.exit(f"{pace.name}: rows do not come")


def hand_over(settings: str, checkpoint_ms: str, options: list[str]) -> None:
    """Hand the job to the cluster as an operator does; in a process with the cluster's Beam."""
    from quiltstream.pipelines.cli import main as command  # noqa: PLC0415 - Beam takes a while to import

    interval = "--checkpointing_interval="
    own = [option for option in options if not option.startswith(interval)]
    command(["run", "--live", settings, "--", *own, interval + checkpoint_ms])


def main() -> None:
    """Start the servers, run every job, print the table."""
    flink, kafka, postgres = servers("flink"), servers("kafka"), servers("postgres")
    server = postgres.PostgresServer(postgres.find_binaries())
    broker = kafka.KafkaBroker(kafka.find_kafka())
    cluster = flink.FlinkCluster(flink.find_flink())
    try:
        broker.start()
        print(f"{SERIES} series, one partition, one lane, one slot, ledger in PostgreSQL; {WINDOWS} windows a line")
        print(f"{'':24}{'checkpoints':>13}{'poll':>7}{'median s':>10}{'longest s':>11}")
        for pace in PACES:
            found = measured(pace, cluster, broker, server)
            print(
                f"{pace.name:24}{pace.checkpoint_ms / 1e3:11.0f} s{pace.poll:>7}"
                f"{statistics.median(found):10.2f}{found[-1]:11.2f}",
                flush=True,
            )
    finally:
        cluster.close()
        broker.close()
        server.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        hand_over(sys.argv[1], sys.argv[2], sys.argv[3:])
    else:
        main()
