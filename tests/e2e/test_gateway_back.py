"""Releases go back to a real Mosquitto: each at least once, never with other values, whatever is killed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from .gateway_job import GatewayProcess
from .mosquitto import MosquittoBroker


def row(window: int, key: str, count: int = 7) -> dict[str, Any]:
    """A released row as far as the gateway looks at it, and something that it does not look at."""
    stop = f"2013-{1 + window // 28:02}-{1 + window % 28:02}T00:00:00Z"
    return {"release_id": f"{window}-{key}", "query": "load", "key": key, "window_stop": stop, "counts": [count, 2]}


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """A file that is whole when it appears, as a live job's sink writes it."""
    folder.mkdir(exist_ok=True)
    part = folder / f".{name}.part"
    part.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in rows), encoding="utf-8")
    part.rename(folder / name)


class Reader:
    """Subscribes to the releases for as long as a test goes on, in a session that outlives a broker."""

    def __init__(self, port: int, filter_: str = "released/#") -> None:
        self.found: list[tuple[str, dict[str, Any], bool, str]] = []
        self._up = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="reader", protocol=mqtt.MQTTv5)
        self._client.on_message = self._message
        self._client.on_connect = lambda client, *_: self._subscribe(client, filter_)
        self._client.on_subscribe = lambda *_: self._up.set()
        self._client.reconnect_delay_set(1, 1)
        asked = Properties(PacketTypes.CONNECT)
        asked.SessionExpiryInterval = 3_600
        self._client.connect("127.0.0.1", port, clean_start=False, properties=asked)
        self._client.loop_start()
        assert self._up.wait(20)

    def wait(self, count: int, seconds: float = 60) -> None:
        """Wait for so many different releases."""
        until = time.monotonic() + seconds
        while len({one["release_id"] for _, one, _, _ in self.found}) < count:
            assert time.monotonic() < until, f"{len(self.found)} messages"
            time.sleep(0.05)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        del self._client  # it closes its sockets when nobody holds it, and its callbacks hold us

    def _subscribe(self, client: mqtt.Client, filter_: str) -> None:
        client.subscribe(filter_, qos=1)

    def _message(self, _: Any, __: Any, message: mqtt.MQTTMessage) -> None:
        told = dict(message.properties.json()["UserProperty"])["release_id"]  # pyright: ignore[reportOptionalMemberAccess] - the gateway sets them
        self.found.append((message.topic, json.loads(message.payload), message.retain, told))


@pytest.fixture
def gateway(mosquitto: MosquittoBroker) -> Iterator[GatewayProcess]:
    """A gateway for the way back alone."""
    settings: dict[str, Any] = {
        "mqtt": {"host": "127.0.0.1", "port": mosquitto.port, "client_id": "gateway-1", "keepalive": "5s"},
        "back": {"from": {"folder": {"path": "out", "poll": "100ms"}}, "prefix": "released", "retain": True},
    }
    one = GatewayProcess(settings)
    yield one
    one.close()


def test_each_release_is_published_under_its_query_and_key_and_the_newest_retained(
    mosquitto: MosquittoBroker, gateway: GatewayProcess
) -> None:
    reader = Reader(mosquitto.port)
    gateway.start("connected")
    out = gateway.folder / "out"
    rows = [row(window, key) for window in (3, 4) for key in ("feeder 1", "north/+")]
    write(out, "b.jsonl", rows)
    reader.wait(4)
    # a window that was missing comes late, and a block is written again
    write(out, "a.jsonl", [row(1, "feeder 1")])
    write(out, "c.jsonl", rows)
    reader.wait(5)
    gateway.wait_until("known", lambda: gateway.metrics()["known_total"] == 4)
    reader.close()
    assert len(reader.found) == 5
    assert {topic for topic, *_ in reader.found} == {"released/load/feeder 1", "released/load/north%2F%2B"}
    assert all(told == one["release_id"] for _, one, _, told in reader.found)
    assert sorted((one for _, one, _, _ in reader.found), key=str) == sorted([*rows, row(1, "feeder 1")], key=str)
    late = Reader(mosquitto.port, "released/load/feeder 1")
    late.wait(1)
    late.close()
    assert late.found[-1][1:3] == (row(4, "feeder 1"), True)
    assert gateway.stop() == 0


def test_each_release_is_sent_with_its_values_despite_kills_and_broker_outages(
    mosquitto: MosquittoBroker, gateway: GatewayProcess
) -> None:
    reader = Reader(mosquitto.port)
    out = gateway.folder / "out"
    truth = {one["release_id"]: one for window in range(40) for key in range(50) if (one := row(window, f"k{key}"))}
    for window in range(40):
        write(out, f"{window:03}.jsonl", [one for name, one in truth.items() if name.startswith(f"{window}-")])
    mosquitto.stop()
    gateway.start("(try 3)")
    mosquitto.start()
    reader.wait(1)
    for _ in range(3):
        gateway.kill()
        gateway.start("connected")
        time.sleep(0.3)
    reader.wait(1_000)
    mosquitto.stop()
    gateway.wait_until("told", lambda: "is not there any more; trying again in" in gateway.log)
    mosquitto.start()
    reader.wait(2_000)
    # one that changed after it was published stays as it was published
    write(out, "999.jsonl", [row(0, "k0", count=8), row(0, "k1")])
    gateway.wait_until("told", lambda: gateway.metrics()['dropped_total{reason="changed-release"}'] == 1)
    assert gateway.stop() == 0
    reader.close()
    assert {told: one for _, one, _, told in reader.found} == truth
    assert all(truth[told] == one for _, one, _, told in reader.found)
