"""A gateway as a process of a test, the meters that publish to it, and what came out at its other end."""

from __future__ import annotations

import re
import sys
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fastavro
import paho.mqtt.client as mqtt
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from .processes import Processes

TOPICS = 50


def payload_of(number: int, size: int = 200) -> bytes:
    """A body that says which message it is."""
    return (b"%d|" % number).ljust(size, b"x")


def number_of(payload: bytes) -> int:
    """Which message a body is of."""
    return int(payload.partition(b"|")[0])


class Meters:
    """Publishes numbered messages with QoS 1 in a thread; the client sends again what a broker did not confirm.

    Args:
        port: the broker's.
        numbers: the messages.
        rate: messages a second at most.
        size: bytes of a message.
        window: messages that may be unconfirmed.
        ca: authority of a broker with TLS.
        own: the meters' own certificate, and its key.

    Attributes:
        confirmed: messages that the broker took over.
        repeated: messages that may have been published more than once, because a connection broke.
    """

    def __init__(
        self,
        port: int,
        numbers: Iterable[int],
        *,
        rate: float = 1e9,
        size: int = 200,
        window: int = 200,
        ca: Path | None = None,
        own: tuple[Path, Path] | tuple[None, None] = (None, None),
    ) -> None:
        self._numbers, self._rate, self._size, self._window = numbers, rate, size, window
        self._open: dict[int, int] = {}  # messages by their packets
        self._acknowledged = deque[int]()
        self._broken = threading.Event()
        self.confirmed: set[int] = set()
        self.repeated: set[int] = set()
        self._client = client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        client.max_inflight_messages_set(window)
        client.reconnect_delay_set(0.05, 0.05)  # pyright: ignore[reportArgumentType] - it waits for parts of a second
        if ca is not None:
            certificate, key = (None if one is None else str(one) for one in own)
            client.tls_set(str(ca), certificate, key)
        client.on_disconnect = lambda *_: self._broken.set()
        client.on_publish = lambda *given: self._acknowledged.append(given[2])
        client.connect_async("localhost", port)
        client.loop_start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self, seconds: float = 120) -> set[int]:
        """Wait until everything is confirmed; the numbers."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"{len(self.confirmed)} messages confirmed, {len(self._open)} not"
        return self.confirmed

    def _run(self) -> None:
        began = time.monotonic()
        for sent, number in enumerate(self._numbers):
            self._wait(lambda sent=sent: len(self._open) < self._window and sent <= self._since(began) * self._rate)
            topic = f"meters/m{number % TOPICS}/readings"
            self._open[self._client.publish(topic, payload_of(number, self._size), qos=1).mid] = number
        self._wait(lambda: not self._open)
        self._client.disconnect()
        self._client.loop_stop()

    @staticmethod
    def _since(began: float) -> float:
        return time.monotonic() - began

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Wait, and note meanwhile what is confirmed and what was open when the connection broke."""
        while True:
            if self._broken.is_set():
                self._broken.clear()
                self.repeated.update(self._open.values())
            if ready():
                return
            if not self._acknowledged:
                time.sleep(0.002)
            while self._acknowledged:
                self.confirmed.add(self._open.pop(self._acknowledged.popleft()))


class GatewayProcess:
    """``quiltstream gateway`` with settings of a test.

    Args:
        settings: the document.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._processes = Processes("gateway")
        self.folder = self._processes.folder
        self.settings = self.folder / "gateway.yaml"
        settings = {"metrics": {"port": 0}} | settings
        self.settings.write_text(yaml.safe_dump(settings), encoding="utf-8")
        self._seen = 0

    def start(self, ready: str = "subscribed to", seconds: float = 60) -> None:
        """Start it, and wait for a line of its log."""
        self._seen = len(self.log)
        command = [sys.executable, "-m", "quiltstream.pipelines.cli", "gateway", self.settings]
        self._processes.start("gateway", command)
        self._processes.wait_for("gateway", ready, lambda: ready in self.log[self._seen :], seconds)

    @property
    def log(self) -> str:
        """What it said so far, in all its lives."""
        path = self._processes.log_of("gateway")
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @property
    def pid(self) -> int:
        """Its process."""
        return self._processes.pid("gateway")

    @property
    def rss(self) -> int:
        """Bytes of memory that it has now."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # pyright: ignore[reportOptionalSubscript] - it is there

    def metrics(self) -> dict[str, float]:
        """Its counts, as Prometheus gets them."""
        port = re.findall(r"counts are at 127\.0\.0\.1:(\d+)", self.log)[-1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name.removeprefix("quiltstream_gateway_"): float(value) for name, value in pairs}

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Wait while it runs."""
        self._processes.wait_for("gateway", what, condition, seconds)

    def kill(self) -> None:
        """End it at once (``kill -9``)."""
        self._processes.kill("gateway")

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        return self._processes.end("gateway")

    def ended(self, seconds: float = 60) -> int:
        """Wait until it ends by itself; its exit code."""
        until = time.monotonic() + seconds
        while self._processes.runs("gateway"):
            assert time.monotonic() < until, self._processes.complaint("gateway", "the gateway did not end")
            time.sleep(0.05)
        return self._processes.end("gateway")

    def close(self) -> None:
        """End it and remove its files."""
        self._processes.close()


#: Starts a gateway with settings, and waits for a line of its log.
Start = Callable[..., GatewayProcess]


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The messages of all sealed segments of a folder."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.avro")):
        with path.open("rb") as file:
            found += [record for record in fastavro.reader(file) if isinstance(record, dict)]
    return found


def tally_of(records: Iterable[dict[str, Any]]) -> Counter[int]:
    """How often each message is there."""
    return Counter(number_of(record["payload"]) for record in records)


def to_folder(port: int, **forward: Any) -> dict[str, Any]:
    """Settings of a gateway that writes files into its folder ``spool``."""
    return {
        "mqtt": {"host": "127.0.0.1", "port": port, "client_id": "gateway-1"},
        "forward": {"topics": ["meters/+/readings"], "to": {"folder": {"path": "spool", "age": "1s"}}} | forward,
    }
