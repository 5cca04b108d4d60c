"""How fast a live job reads Kafka: from the topic to released rows, in one process, by form and size of messages.

Run as ``python benchmarks/kafka.py``. It starts a broker of its own, fills a topic of three partitions for each line of
the table, and runs a job over it on Prism, in a process of its own. Rates are from the first message that is fetched to
the last row on record; the rows go to a topic as well. The broker runs on the same machine.

Below the table: how long after the last message that a window waits for its rows are in the sink's topic, where a
window's messages come each second: from the stamp that the producer gave the message to those that the broker gave
the rows.
"""

from __future__ import annotations

import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from confluent_kafka import Producer

from quiltstream.pipelines.connectors.kafka import Topics, topic_of
from quiltstream.pipelines.live.runner import live_pipeline
from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.slots import parse_instant
from quiltstream.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.completeness import Steps
from quiltstream.transforms.kafka.sink import SendReleases
from quiltstream.transforms.kafka.source import KafkaReader
from quiltstream.transforms.sinks import single_object_head
from quiltstream.transforms.sources.reader import PollingPolicy

sys.path.insert(0, str(Path(__file__).parent.parent))  # the broker is the tests' own
from tests.e2e.kafka import KafkaBroker, find_kafka

SERIES, GROUPS, SHARDS, PARTITIONS, WINDOWS = 1000, 10, 2, 3, 20
INTERVAL_MS = 1_800_000
ORIGIN_MS = 1_577_836_800_000  # 2020-01-01T00:00Z

_VALUES = [{"name": "ts", "type": "long"}, {"name": "kwh", "type": "double"}]
_NAMES = [{"name": "meter", "type": "string"}, {"name": "feeder", "type": "string"}]
_MANY = [{"name": "readings", "type": {"type": "array", "items": {"type": "record", "name": "One", "fields": _VALUES}}}]
AVRO, AVRO_MANY = ({"type": "record", "name": "Reading", "fields": [*_NAMES, *values]} for values in (_VALUES, _MANY))


@dataclass(frozen=True)
class Load:
    """What a topic holds.

    Attributes:
        name: in the table.
        messages: how many.
        each: readings in a message.
        avro: whether they are single objects of Avro, else JSON.
    """

    name: str
    messages: int
    each: int = 1
    avro: bool = False

    @property
    def slots(self) -> int:
        """Slots that the readings fill, whole windows of them."""
        return self.messages * self.each // SERIES

    @property
    def schema(self) -> dict[str, Any] | None:
        """The Avro schema of its messages."""
        if not self.avro:
            return None
        return AVRO_MANY if self.each > 1 else AVRO


LOADS = (
    Load("JSON, 1 reading", 1_000_000),
    Load("JSON, 16 readings", 250_000, each=16),
    Load("Avro, 1 reading", 1_000_000, avro=True),
    Load("Avro, 16 readings", 250_000, each=16, avro=True),
    Load("a window a second", 100_000),
)

#: The last one, whose messages come while it runs; seconds that its job has to begin.
_LIVE = len(LOADS) - 1
_BEGIN_S = 10.0


def payloads(load: Load) -> Iterator[tuple[int, bytes]]:
    """Partitions and messages, slot by slot; a message of several readings has those of several slots."""
    random = np.random.default_rng(1)
    encode = encoder(load)
    for first in range(0, load.slots, load.each):
        values = random.uniform(0, 5, (SERIES, load.each)).round(3).tolist()
        for series, mine in enumerate(values):
            meter, feeder = f"meter-{series:04d}", f"feeder-{series % GROUPS}"
            times = [ORIGIN_MS + (first + slot) * INTERVAL_MS + 1 for slot in range(load.each)]
            rows = [{"ts": time_, "kwh": value} for time_, value in zip(times, mine, strict=True)]
            whole = {"meter": meter, "feeder": feeder} | ({"readings": rows} if load.each > 1 else rows[0])
            yield series % PARTITIONS, encode(whole)


def encoder(load: Load) -> Callable[[dict[str, Any]], bytes]:
    """How a load's messages become bytes."""
    if load.schema is None:
        return lambda message: json.dumps(message).encode()
    head, schema = single_object_head(load.schema), fastavro.parse_schema(load.schema)

    def encode(message: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, message)
        return head + stream.getvalue()

    return encode


def settings_of(load: Load, servers: str, topic: str, sink: str, folder: Path) -> Settings:
    """The job over a topic."""
    rows = "\n".join(f"meter-{one:04d},feeder-{one % GROUPS}" for one in range(SERIES))
    (folder / "roster.csv").write_text(f"meter,feeder\n{rows}\n", encoding="utf-8")
    readings: dict[str, Any] = {
        "each": "payload.readings" if load.each > 1 else "payload",
        "series": "payload.meter",
        "time": "ts",
        "value": "kwh",
        "time_unit": "ms",
        "scale": 2000,
    }
    return Settings.parse(
        {
            "source": {"kafka": {"servers": servers, "topic": topic}},
            "readings": readings
            | ({} if load.schema is None else {"payload": "avro-single", "avro_schemas": [load.schema]}),
            "slots": {"interval": "30min", "origin": "2020-01-01"},
            "states": {"edges": [500, 1000, 2000, 5000], "unit": "W"},
            "model": {"pi_min": 0.05, "gap": 0.3},
            "windows": {"size": f"{load.slots // WINDOWS * 30}min", "start": "2020-01-01"},
            "privacy": {"epsilon": 1.0},
            "group_by": "feeder",
            "roster": {"file": "roster.csv", "series": "meter"},
            "shards": SHARDS,
            "sink": {"kafka": {"servers": servers, "topic": sink}},
            "query": "load",
            "most_error": 1e6,  # what is timed here is not how useful the rows are
            "domain": "bench",
            "ledger": f"sqlite:///{folder / 'ledger.db'}",
        },
        folder,
    )


class Clocks:
    """When the first message was fetched and the last row put on record, in this process."""

    begun: float = 0.0
    released: dict[int, float] = {}  # noqa: RUF012 - the process's own


def watched() -> None:
    """Note when messages are fetched and rows are put on record."""
    publish, read = Store.publish, KafkaReader.read

    def noted(self: Store, registration: Any, drafts: Any) -> Any:
        records = publish(self, registration, drafts)
        Clocks.released.update((draft.window.start, time.monotonic()) for draft in drafts)
        return records

    def begun(self: KafkaReader) -> Any:
        now = time.monotonic()
        piece = read(self)
        if piece is not None and piece.rows and not Clocks.begun:
            Clocks.begun = now
        return piece

    Store.publish = noted  # type: ignore[method-assign]
    KafkaReader.read = begun  # type: ignore[method-assign]


def job(load: Load, servers: str, topic: str, sink: str) -> float:
    """Run a job over a topic; seconds."""
    watched()
    with tempfile.TemporaryDirectory() as name:
        settings = settings_of(load, servers, topic, sink, Path(name))
        # the last slot's readings are the last there are: what they open is not waited for
        end = (ORIGIN_MS + (load.slots - 1) * INTERVAL_MS) * 1_000
        histograms = PrivateHistograms(settings)
        steps = Steps.of(histograms.plan.grid, histograms.plan.schedule)
        pace = PollingPolicy(ORIGIN_MS * 1_000, poll_s=0.1, end_us=end, steps=steps)
        given: Any = (settings.source, settings.sink)
        pipeline = live_pipeline(PipelineOptions([]))
        decoded = pipeline | "Read" >> Topics(settings, given[0].kafka).read(pace)
        published = decoded.readings | "Publish" >> histograms
        _ = published.releases | "Sink" >> SendReleases(topic_of(settings, given[1].kafka))
        result: Any = pipeline.run()
        result.wait_until_finish()
    if len(Clocks.released) < WINDOWS - 1:
        sys.exit(f"{load.name}: {len(Clocks.released)} of {WINDOWS - 1} windows were released")
    return max(Clocks.released.values()) - Clocks.begun


def measured(number: int, *words: str, meanwhile: Callable[[], None] = lambda: None) -> float:
    """A measurement in a process of its own, while something else is done here."""
    command = [sys.executable, __file__, str(number), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        meanwhile()
        out, err = process.communicate()
    if process.returncode:
        sys.exit(err[-4000:])
    return float(out.splitlines()[-1])


def delays(broker: KafkaBroker) -> list[float]:
    """Seconds from the last message that each window waits for to its rows in the sink's topic."""
    load = LOADS[_LIVE]
    topic = broker.topic(PARTITIONS)
    sink = broker.topic(1, cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    width = load.slots // WINDOWS

    def send() -> None:
        # one producer that has its connections, as a bridge has: those of a new one take half a second
        producer = Producer({"bootstrap.servers": broker.servers, "enable.idempotence": True})
        producer.produce(broker.topic(1), b"")
        producer.flush()
        time.sleep(_BEGIN_S)
        messages = payloads(load)
        for _ in range(WINDOWS):
            for partition, value in islice(messages, width * SERIES):
                producer.produce(topic, value, partition=partition)
            if producer.flush(60):
                sys.exit("the broker did not take every message")
            time.sleep(1.0)

    measured(_LIVE, broker.servers, topic, sink, meanwhile=send)
    # a window waits for the first reading behind it on each partition
    passed: dict[tuple[int, int], int] = {}
    for one in broker.read(topic):
        window = (json.loads(one.value())["ts"] - ORIGIN_MS) // INTERVAL_MS // width - 1
        place = (window, one.partition())
        passed[place] = min(passed.get(place, one.timestamp()[1]), one.timestamp()[1])
    sent: dict[int, int] = {}
    for one in broker.read(sink):
        start = parse_instant(json.loads(one.value())["window_start"]) // 1_000
        window = (start - ORIGIN_MS) // INTERVAL_MS // width
        sent[window] = max(sent.get(window, 0), one.timestamp()[1])
    waited = {window: max(passed[window, one] for one in range(PARTITIONS)) for window in sent if (window, 0) in passed}
    return sorted((sent[window] - stamp) / 1e3 for window, stamp in waited.items())


def main() -> None:
    """Measure every load and print the table."""
    broker = KafkaBroker(find_kafka())
    try:
        broker.start()
        print(f"{SERIES:,} series in {GROUPS} groups, {PARTITIONS} partitions, one lane, {WINDOWS} windows")
        print(f"{'':20}{'messages':>10}{'to rows k/s':>13}{'readings k/s':>14}")
        for number, load in enumerate(LOADS[:_LIVE]):
            topic, sink = broker.topic(PARTITIONS), broker.topic(1, cleanup_policy="compact")
            broker.send(topic, payloads(load))
            rate = load.messages / measured(number, broker.servers, topic, sink) / 1e3
            print(f"{load.name:20}{load.messages:10,}{rate:13.0f}{rate * load.each:14.0f}", flush=True)
        found = delays(broker)
        print(f"delay of {len(found)} windows: median {statistics.median(found):.2f} s, longest {found[-1]:.2f} s")
    finally:
        broker.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # by its name, so that Beam's workers find what is defined here
        this: Any = import_module(Path(__file__).stem)
        print(this.job(this.LOADS[int(sys.argv[1])], *sys.argv[2:]))
    else:
        main()
