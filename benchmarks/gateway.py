"""How many messages a second a gateway takes at QoS 1, from a real Mosquitto into synced files.

A backlog is published first and drained then, so that the meters do not share the cores; beside it everything at once,
where the cores are shared by meters, broker and gateway. Needs Mosquitto: `python benchmarks/gateway.py [MESSAGES]`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.e2e.gateway_job import GatewayProcess, Meters, records_of, tally_of, to_folder  # noqa: E402 - see above
from tests.e2e.mosquitto import MosquittoBroker, find_mosquitto  # noqa: E402


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
    print(f"{what:<34} {count:>9,} {seconds:>8.2f} {count / seconds:>12,.0f} {cpu / count * 1e6:>12.0f}")


def measure(program: Path, count: int, size: int) -> None:
    """A backlog drained, and everything at once."""
    broker = MosquittoBroker(program, {"autosave_interval": "100000"})
    gateway = GatewayProcess(to_folder(broker.port))
    try:
        gateway.start()
        assert gateway.stop() == 0
        Meters(broker.port, range(count), size=size).join(600)
        gateway.start()
        began = cpu_of(gateway.pid)
        row(f"backlog, {size} bytes", count, acknowledged(gateway, count), cpu_of(gateway.pid) - began)
        began, start = cpu_of(gateway.pid), time.monotonic()
        meters = Meters(broker.port, range(count, 2 * count), size=size)
        acknowledged(gateway, 2 * count)
        row(f"meters and all, {size} bytes", count, time.monotonic() - start, cpu_of(gateway.pid) - began)
        meters.join()
        assert gateway.stop() == 0
        assert tally_of(records_of(gateway.folder / "spool")).keys() == set(range(2 * count))
    finally:
        gateway.close()
        broker.close()


def main() -> None:
    program = find_mosquitto()
    if program is None:
        sys.exit("needs Mosquitto (Debian: apt-get install mosquitto)")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}; every message in a synced file, none lost")
    print(f"{'':<34} {'messages':>9} {'seconds':>8} {'messages/s':>12} {'cpu us each':>12}")
    for size in (200, 2_000):
        measure(program, count, size)


if __name__ == "__main__":
    main()
