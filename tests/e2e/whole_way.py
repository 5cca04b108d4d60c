"""The parts of the whole way: meters, settings of gateway and job, and the topic of its rows.

The settings are the shipped ones of ``deploy/flink``, with hosts, topics, files and windows of the test's own.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import polars as pl
import pyarrow as pa
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from quiltstream.pipelines.commands.run import publish
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store import Store
from quiltstream.transforms import PrivateHistograms

from ..deploy.flink_files import FLINK
from ..examined import Examined, examine
from ..released import write_rows
from .flink import FlinkCluster
from .flink_bench import FlinkBench
from .gateway_job import GatewayProcess
from .kafka import KafkaBroker
from .live_bench import ORIGIN, SLOT
from .london import DAY, DAYS, FIRST, HOMES, SIZE, START, WINDOWS, to_be_sent
from .mosquitto import MosquittoBroker
from .stamped import unstamped

#: More than what :data:`~.london.SHUFFLED` and what is under way at once put out of order.
_LATENESS = "6h"

#: Messages that the MQTT broker has not confirmed.
_UNDER_WAY = 40

_PATIENCE_S = 120.0

#: The belief: what is released is examined by it.
BOUNDS = {"pi_min": 0.05, "gap": 0.2}


def shipped(name: str) -> dict[str, Any]:
    """A settings file of the deployment."""
    return yaml.safe_load((FLINK / "settings" / name).read_text(encoding="utf-8"))


class London:
    """A meter in each home, a client of the MQTT broker for each; what is not confirmed is kept and sent again.

    Args:
        port: the broker's.
        rows: what they send, as :func:`to_be_sent` gave it.

    Attributes:
        sent: the readings handed over so far: topic and body.
        messages: how many messages these took.
    """

    def __init__(self, port: int, rows: pl.DataFrame) -> None:
        self._days: Sequence[float] = rows["day"].to_list()
        self._rows = rows.select("household", "ts", "kwh").rows()
        self.sent: list[tuple[str, bytes]] = []
        self.messages = 0
        self._open: deque[mqtt.MQTTMessageInfo] = deque()
        self._clients = {home: _client(port, home) for home in HOMES}

    def send(self, day: float) -> None:
        """Publish what is due until then, as fast as the broker confirms; the last few may not be confirmed yet."""
        while len(self.sent) < len(self._rows) and self._days[len(self.sent)] < day:
            home, stamp, kwh = self._rows[len(self.sent)]
            self.sent.append((f"meters/{home}/readings", json.dumps({"ts": stamp, "kwh": kwh}).encode()))
            self._publish(home, self.sent[-1])

    def repeat(self, home: str, day: float) -> None:
        """One meter is not sure of what it sent since then, and sends it again."""
        topic = f"meters/{home}/readings"
        sent = zip(self._days, self.sent, strict=False)
        for again in [one for when, one in sent if when >= day and one[0] == topic]:
            self._publish(home, again)

    def finish(self) -> None:
        """Publish the rest, and wait until the broker has confirmed everything."""
        self.send(float("inf"))
        self._wait(0)

    def close(self) -> None:
        """Say good-bye."""
        while self._clients:  # each closes its sockets when nobody holds it
            _, client = self._clients.popitem()
            client.disconnect()
            client.loop_stop()

    def _publish(self, home: str, message: tuple[str, bytes]) -> None:
        self._open.append(self._clients[home].publish(*message, qos=1))
        self.messages += 1
        self._wait(_UNDER_WAY)

    def _wait(self, count: int) -> None:
        until = time.monotonic() + _PATIENCE_S
        while len(self._open) > count:
            self._open[0].wait_for_publish(1)
            while self._open and self._open[0].is_published():
                self._open.popleft()
            assert time.monotonic() < until, f"{len(self._open)} messages are not confirmed"


def _client(port: int, home: str) -> mqtt.Client:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=home, protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", port, clean_start=False)
    client.loop_start()
    return client


def gateway_settings(mosquitto: MosquittoBroker, kafka: KafkaBroker, readings: str) -> dict[str, Any]:
    """The shipped gateway, between these brokers and topics."""
    document = shipped("gateway.yaml")
    for name in ("tls", "user", "password"):
        del document["mqtt"][name]
    document["mqtt"] |= {"host": "127.0.0.1", "port": mosquitto.port}
    document["forward"]["to"]["kafka"] |= {"servers": kafka.servers, "topic": readings}
    document["metrics"] = {"port": 0}
    return document


class LondonJob(FlinkBench):
    """The shipped job over some homes, without groups, on a cluster."""

    def describe(self, kafka: KafkaBroker, readings: str, releases: str, rejects: str) -> None:
        """Write its settings."""
        self.keys = {home: [home] for home in HOMES}
        servers = {"servers": kafka.servers}
        document = shipped("settings.yaml")
        del document["group_by"]
        document["source"]["kafka"] |= servers | {"topic": readings, "discover": "500ms"}
        document |= {
            "sink": {"kafka": servers | {"topic": releases}},
            "memory": "memory.json",
            "model": BOUNDS,
            "rejects": {"kafka": servers | {"topic": rejects}},
            "live": document["live"] | {"poll": "200ms"},
            "ledger": self.ledger,
        }
        _write(document, self.folder)

    def batch(self, file: Path) -> Store:
        """Run the same settings over a file, without noise and with a ledger of its own; that ledger."""
        folder = self.folder / "batch"
        document = yaml.safe_load((self.folder / "settings.yaml").read_text(encoding="utf-8"))
        del document["rejects"]
        document |= {
            "source": {"parquet": str(file)},
            "readings": {"series": "household", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000},
            "sink": {"jsonl": "releases.jsonl"},
            "ledger": f"sqlite:///{folder / 'ledger.db'}",
        }
        _write(document, folder)
        settings = read_settings(folder / "settings.yaml")
        publish(settings, PrivateHistograms(settings, noise="none"))
        return Store(document["ledger"], create=False)

    def until(self, true: Callable[[], Any], what: str) -> Any:
        """With patience twice: on a loaded machine a job that is taken up again takes more than once."""
        try:
            return super().until(true, what)
        except pytest.fail.Exception:
            return super().until(true, what)

    def store(self) -> Store:
        """The ledger."""
        return Store(self.ledger, create=False)

    def released(self, day: float) -> None:
        """Wait until the windows that end by then are on record, all homes of each."""
        wanted = {(start, home) for start, stop in WINDOWS if stop <= FIRST + day * DAY for home in HOMES}
        self.until(lambda: wanted <= self.counts().keys(), f"the windows of the first {day} days on record")

    def lines(self) -> dict[str, bytes]:
        """What is on record, by release id: each row as the line of JSON that stands for it."""
        found: dict[str, bytes] = {}
        path = self.folder / "row.jsonl"
        with self.store() as store:
            for batch in store.releases("homes", "load"):
                for number, name in enumerate(batch.column("release_id").to_pylist()):
                    write_rows(path, "jsonl", pa.Table.from_batches([batch.slice(number, 1)]))
                    found[name] = path.read_bytes().rstrip(b"\n")
        return found

    def examined(self, earlier: dict[str, str]) -> Examined:
        """What is found of the record and the account, given what was on record at some time before."""
        with self.store() as store:
            return examine(
                store,
                "homes",
                "load",
                belief=MixingBounds(BOUNDS["pi_min"], BOUNDS["gap"]),
                budget=shipped("settings.yaml")["privacy"]["budget"],
                windows=WINDOWS,
                keys=HOMES,
                earlier=earlier,
                retries=self.retries,
            )


def _write(document: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True)
    stop = START + dt.timedelta(days=DAYS)
    own = {
        "slots": document["slots"] | {"origin": "2013-01-01"},
        "windows": {
            "size": f"{SIZE * 30}min",
            "start": f"{START:%Y-%m-%d}",
            "stop": f"{stop:%Y-%m-%d}",
            "lateness": _LATENESS,
        },
        "query": "load",
        "most_error": 1e6,  # what is tested here is not how useful the rows are
        "domain": "homes",
        "shards": 3,
    }
    (folder / "roster.csv").write_text("\n".join(["series", *HOMES, ""]), encoding="utf-8")
    (folder / "settings.yaml").write_text(yaml.safe_dump(document | own), encoding="utf-8")


class Way:
    """All stations, each beside the next: what is between them is theirs.

    Args:
        mosquitto: the MQTT broker.
        kafka: the Kafka broker.
        cluster: runs the job.
        server: address of the PostgreSQL server's database.
        file: the London file.
        folder: for files.

    Attributes:
        dropped: messages that the gateway dropped.
        restored: how often the runner took the job up from a checkpoint.
    """

    def __init__(
        self,
        mosquitto: MosquittoBroker,
        kafka: KafkaBroker,
        cluster: FlinkCluster,
        server: str,
        file: Path,
        folder: Path,
    ) -> None:
        self.mosquitto, self.kafka, self.file = mosquitto, kafka, file
        self.readings, self.releases, self.rejects = kafka.topic(2), kafka.topic(2), kafka.topic(1)
        self.dropped, self.restored = 0.0, 0
        with ExitStack() as stack:
            self.gateway = GatewayProcess(gateway_settings(mosquitto, kafka, self.readings))
            stack.callback(self.gateway.close)
            self.job = LondonJob(folder / "job", cluster, server)
            stack.callback(self.job.close)
            self.job.from_ledger = True
            self.job.describe(kafka, self.readings, self.releases, self.rejects)
            self.meters = London(mosquitto.port, to_be_sent(file))
            stack.callback(self.meters.close)
            self.gateway.start()
            self._stack = stack.pop_all()

    def end(self) -> None:
        """Wait until what is on record is in Kafka, and end job and gateway."""
        record = self.job.on_record()
        self.job.until(lambda: by_name(one.value() for one in self.read(self.releases)).keys() == record.keys(), "rows")
        self.restored = self.job.cluster.checkpoints(self.job.job)["counts"]["restored"]
        self.job.cluster.cancel(self.job.job)
        self.dropped = sum(v for name, v in self.gateway.metrics().items() if name.startswith("dropped_total"))
        assert self.gateway.stop() == 143

    def read(self, topic: str) -> list[Any]:
        """All messages of a topic."""
        return self.kafka.read(topic)

    def close(self) -> None:
        """End everything that was started here."""
        self._stack.close()
        if not self.kafka.runs:
            self.kafka.start()


def account_of(store: Store) -> dict[str, object]:
    """What a ledger says that the domain lost, and by what.

    Left out are the random names of entries, and the digest of the query, which tells where in a message or in a row
    of a file a reading is.
    """
    summary = store.summary("homes")
    names = ("loss", "reserved_loss", "budget", "charged", "refused", "naive")
    told: dict[str, object] = {name: getattr(summary, name) for name in names}
    for number, entry in enumerate(store.entries("homes")):
        kept = {
            name: value for name, value in entry.to_dict().items() if name not in {"entry_id", "query_digest", "chain"}
        }
        told |= {f"entry {number}: {name}": value for name, value in kept.items()}
    return told


def rows_of(store: Store) -> dict[tuple[int, str], Release]:
    """The rows on record by first slot and key."""
    rows = [row for batch in store.releases("homes", "load") for row in releases_from_batch(batch)]
    found = {((row.window_start - ORIGIN) // SLOT, row.key): row for row in rows}
    assert len(found) == len(rows), "a window was published twice"
    return found


def true_counts(row: Release) -> list[int]:
    """A row's counts without the stamp of the draw."""
    return [unstamped(count) for count in row.counts]


def by_name(bodies: Iterable[bytes]) -> dict[str, set[bytes]]:
    """The different bodies of each release, by its id."""
    found: dict[str, set[bytes]] = {}
    for body in bodies:
        found.setdefault(json.loads(body)["release_id"], set()).add(body)
    return found
