"""How many messages a second a gateway takes at QoS 1, from a real Mosquitto into synced files, or to a real Kafka.

A backlog is published first and drained then, so that the meters do not share the cores; beside it everything at once,
where the cores are shared by meters, broker and gateway. The broker writes its store seldom, because the gateway is
what is measured, and once as it is shipped. Needs Mosquitto, and Kafka if it is there:
`python benchmarks/gateway.py [MESSAGES]`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.e2e.gateway_job import (  # noqa: E402 - see above
    GatewayProcess,
    Meters,
    number_of,
    records_of,
    tally_of,
    to_folder,
)
from tests.e2e.installed import NotInstalledError  # noqa: E402
from tests.e2e.kafka import KafkaBroker, find_kafka  # noqa: E402
from tests.e2e.mosquitto import MosquittoBroker, find_mosquitto  # noqa: E402

#: The broker writes its store seldom.
SELDOM = {"autosave_interval": "1000000"}


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def acknowledged(gateway: GatewayProcess, count: int) -> float:
    """Seconds until a gateway has acknowledged so many messages."""
    began = time.monotonic()
    while gateway.metrics()["acknowledged_total"] < count:
        time.sleep(0.05)
    return time.monotonic() - began


def row(what: str, count: int, seconds: float, cpu: float) -> None:
    print(f"{what:<50} {count:>9,} {seconds:>8.2f} {count / seconds:>12,.0f} {cpu / count * 1e6:>12.0f}")


def measure(what: str, broker: MosquittoBroker, settings: dict[str, Any], count: int, size: int) -> GatewayProcess:
    """A backlog drained, and everything at once; the gateway, stopped."""
    gateway = GatewayProcess(settings)
    gateway.start()
    assert gateway.stop() == 143
    Meters(broker.port, range(count), size=size).join(600)
    gateway.start()
    began = cpu_of(gateway.pid)
    row(f"{what}: backlog", count, acknowledged(gateway, count), cpu_of(gateway.pid) - began)
    began, start = cpu_of(gateway.pid), time.monotonic()
    meters = Meters(broker.port, range(count, 2 * count), size=size)
    acknowledged(gateway, 2 * count)
    row(f"{what}: all at once", count, time.monotonic() - start, cpu_of(gateway.pid) - began)
    meters.join()
    assert gateway.stop() == 143
    return gateway


def to_files(program: Path, count: int, size: int, lines: dict[str, str], what: str) -> None:
    """Into a folder; every message must be there."""
    broker = MosquittoBroker(program, lines)
    try:
        gateway = measure(f"{what}, {size} bytes", broker, to_folder(broker.port), count, size)
        assert tally_of(records_of(gateway.folder / "spool")).keys() == set(range(2 * count))
        gateway.close()
    finally:
        broker.close()


def to_kafka(program: Path, jars: Path, count: int, size: int) -> None:
    """Into a topic; every message must be there."""
    broker, kafka = MosquittoBroker(program, SELDOM), KafkaBroker(jars)
    try:
        kafka.start()
        topic = kafka.topic()
        settings = to_folder(broker.port, to={"kafka": {"servers": kafka.servers, "topic": topic}})
        measure(f"Kafka, {size} bytes", broker, settings, count, size).close()
        assert {number_of(one.value()) for one in kafka.read(topic)} == set(range(2 * count))
    finally:
        kafka.close()
        broker.close()


def main() -> None:
    program = find_mosquitto()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}; every message arrived, none was lost")
    print(f"{'':<50} {'messages':>9} {'seconds':>8} {'messages/s':>12} {'cpu us each':>12}")
    for size in (200, 2_000):
        to_files(program, count, size, SELDOM, "files")
    to_files(program, count, 200, {}, "files, broker as shipped")
    try:
        jars = find_kafka()
    except NotInstalledError as error:
        print(f"Kafka not measured: {error}")
    else:
        to_kafka(program, jars, count, 200)


if __name__ == "__main__":
    main()
