"""Each shipped alert on a job's real pages at a real Prometheus: silent while all is well, and firing in its fault.

The lengths of time in the rules are sixty times shorter here, so that an hour that is well takes a minute, and the data
are of the present: slots of a second, windows of ten.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import publish

from quiltstream.schemas.slots import format_instant
from quiltstream.store.store import Store

from ..deploy.flink_files import PROMETHEUS
from .gateway_job import GatewayProcess, Meters, to_folder
from .live_bench import NAMES, Bench, Running
from .mosquitto import MosquittoBroker
from .processes import Processes, accepts, alive, free_ports, stopped
from .prometheus import Prometheus
from .test_live_restart import prisms_of
from .test_prometheus import place_of

#: Seconds of an hour of the rules.
HOUR = 60.0

#: Of a second, for times in microseconds.
SECONDS = 1_000_000


LIVE = {"poll": "500ms", "idle": "20s", "metrics_port": 0}


class Homes:
    """Put a reading of every series into the inbox each second, with its time, until they are told not to.

    Args:
        bench: whose inbox it is.

    Attributes:
        wrong: how many lines of each file hold no number.
        late: how many hold a reading of the minute before.
        paused: whether nothing is sent for now.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._over = threading.Event()
        self.wrong = self.late = 0
        self.paused = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send no more."""
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        number, last = 0, int(time.time())
        while not self._over.wait(0.5):
            now = int(time.time())
            if now == last or self.paused:
                continue
            rows = [
                {"series": name, "time": second * SECONDS, "value": 100.0}
                for second in range(max(last + 1, now - 5), now + 1)
                for name in NAMES
            ]
            rows += [{"series": NAMES[0], "time": now * SECONDS, "value": "much"} for _ in range(self.wrong)]
            rows += [{"series": NAMES[0], "time": (now - 60) * SECONDS, "value": 1.0} for _ in range(self.late)]
            self._bench.put(f"{number:06}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
            number, last = number + 1, now


@pytest.fixture
def page() -> Iterator[tuple[Processes, int]]:
    """Where the ledger's page will be."""
    processes, (port,) = Processes("page"), free_ports(1)
    yield processes, port
    processes.close()


def schedule_now() -> dict[str, Any]:
    """Windows of ten seconds from now on."""
    begin = int(time.time()) // 10 * 10
    start, stop = (format_instant(at * SECONDS) for at in (begin, begin + 3600))
    return {
        "slots": {"interval": "1s", "origin": start},
        "windows": {"size": "10s", "start": start, "stop": stop, "lateness": "2s"},
    }


def present(bench: Bench, **live: object) -> None:
    """Settings of windows of ten seconds from now on."""
    bench.settings(
        **schedule_now(),
        live={name: value for name, value in (LIVE | live).items() if value is not None},
    )


def serve_ledger(page: tuple[Processes, int], bench: Bench) -> str:
    """Serve the ledger's page as the guide says; where."""
    processes, port = page
    processes.start("page", [sys.executable, PROMETHEUS / "ledger_metrics.py", bench.ledger, str(port)])
    processes.wait_for("page", "listens", lambda: accepts(port), 60)
    return f"127.0.0.1:{port}"


def kill_runners(bench: Bench, job: Running, times: int) -> None:
    """Kill a job's Prism again and again, each soon after it was begun."""
    for _ in range(times):
        (prism,) = bench.until(lambda: prisms_of(job), "a runner has the job")
        time.sleep(1.5)
        os.kill(prism, signal.SIGKILL)
        bench.until(lambda prism=prism: not alive(prism), "it ends")


def test_alerts_on_prism_fire_for_each_fault_and_not_in_a_healthy_hour(
    bench: Bench, prometheus_program: Path, page: tuple[Processes, int]
) -> None:
    (port,) = free_ports(1)
    present(bench, metrics_port=port)  # the same for each command that a supervisor begins
    job = bench.start(supervised=True)
    meters = Homes(bench)
    bench.until(lambda: any(one["kind"] == "metrics" for one in job.said), "the job says where its page is")
    bench.until(lambda: bench.windows() > 0, "a window is on record")
    prometheus = Prometheus(
        prometheus_program, {"live": [place_of(job)], "ledger": [serve_ledger(page, bench)]}, hour=HOUR
    )

    def fires(*names: str) -> None:
        bench.until(lambda: set(names) <= prometheus.fired(600), f"{names} fire")

    try:
        prometheus.start()
        bench.until(lambda: prometheus.up() and not prometheus.wrong_rules(), "every rule is evaluated")
        bench.until(lambda: prometheus.values("quiltstream_live_readings_total"), "readings are a metric")
        windows, begun = bench.windows(), time.monotonic()
        bench.until(lambda: time.monotonic() - begun > 1.2 * HOUR, "an hour has passed")
        assert prometheus.fired(600) == set()
        assert bench.windows() > windows + 3
        # of six readings one is no number
        meters.wrong = 1
        fires("QuiltstreamRejects")
        meters.wrong = 0
        # nothing is sent
        meters.paused, begun = True, time.monotonic()
        bench.until(lambda: time.monotonic() - begun > 1.5 * HOUR, "it is silent for long")
        fires("QuiltstreamSourceSilent")
        meters.paused = False
        # the runner ends again and again
        assert "QuiltstreamJobRestarts" not in prometheus.fired(600)
        kill_runners(bench, job, 5)
        fires("QuiltstreamJobRestarts")
        # it stands still, when it has the job again
        windows = bench.windows()
        bench.until(lambda: bench.windows() > windows, "windows go on")
        assert "QuiltstreamWindowOverdue" not in prometheus.alerts("firing")
        with stopped(bench.until(lambda: prisms_of(job), "a runner has the job")):
            bench.until(
                lambda: "QuiltstreamWindowOverdue" in prometheus.alerts("firing"), "a runner that stands still is told"
            )
        # charges are declared lost, and the ledger goes
        with Store(bench.ledger) as store:
            store.note_history_lost("homes", releases=1)
        fires("QuiltstreamAccountIncomplete")
        job.kill()
        fires("QuiltstreamJobAway")
        Path(bench.ledger.removeprefix("sqlite:///")).rename(bench.folder / "elsewhere.db")
        fires("QuiltstreamLedgerAway")
        assert prometheus.wrong_rules() == {}
    finally:
        meters.close()
        prometheus.close()


def test_alerts_fire_when_the_budget_ends_soon_and_when_windows_are_refused(
    bench: Bench, prometheus_program: Path, page: tuple[Processes, int]
) -> None:
    bench.settings(**schedule_now(), live=LIVE, privacy={"epsilon": 1.0, "budget": 0.5})
    bench.start()
    homes = Homes(bench)
    bench.until(lambda: bench.windows() > 0, "a window is on record")
    prometheus = Prometheus(prometheus_program, {"ledger": [serve_ledger(page, bench)]}, hour=HOUR)
    told = {"QuiltstreamBudgetEndsSoon", "QuiltstreamBudgetSpent"}
    try:
        prometheus.start()
        bench.until(lambda: told <= prometheus.fired(600), "both alerts fire")
        assert prometheus.fired(600) == told
    finally:
        homes.close()
        prometheus.close()


def counts_at(gateway: GatewayProcess) -> str:
    """Where the page of a gateway is."""
    return "127.0.0.1:" + re.findall(r"counts are at 127\.0\.0\.1:(\d+)", gateway.log)[-1]


def test_gateway_alerts_fire_for_each_fault_and_not_in_a_healthy_hour(
    mosquitto: MosquittoBroker, prometheus_program: Path
) -> None:
    pytest.importorskip("confluent_kafka", reason="the delivery target that is away is Kafka")
    one = GatewayProcess(to_folder(mosquitto.port))
    away = to_folder(mosquitto.port, to={"kafka": {"servers": "127.0.0.1:9", "topic": "readings"}}, topics=["held/+"])
    away["mqtt"]["client_id"] = "gateway-2"
    # its delivery target is away, which it notices only with a message
    held = GatewayProcess(away)
    meters: list[Meters] = []
    prometheus: Prometheus | None = None
    try:
        one.start()
        held.start()
        meters.append(Meters(mosquitto.port, range(10**9), rate=50))
        prometheus = Prometheus(prometheus_program, {"gateway": [counts_at(one), counts_at(held)]}, hour=HOUR)
        asked = prometheus

        def fires(name: str) -> None:
            one.wait_until(f"{name} fires", lambda: name in asked.fired(600), 120)

        prometheus.start()
        one.wait_until("every rule is evaluated", lambda: asked.up() and not asked.wrong_rules())
        begun, before = time.monotonic(), one.metrics()["acknowledged_total"]
        one.wait_until("an hour has passed", lambda: time.monotonic() - begun > 1.2 * HOUR, 2 * HOUR)
        assert prometheus.fired(600) == set()
        assert one.metrics()["acknowledged_total"] > before + 100
        publish.single("held/m1", b"1", qos=1, hostname="127.0.0.1", port=mosquitto.port)  # Kafka does not take it
        fires("QuiltstreamGatewayAway")
        assert "QuiltstreamGatewayLoses" not in prometheus.fired(600)
        held.kill()
        mosquitto.stop()
        for path in mosquitto.store.iterdir():
            path.unlink()
        mosquitto.start()
        fires("QuiltstreamGatewayLoses")
        assert prometheus.wrong_rules() == {}
    finally:
        for meter in meters:
            meter.give_up()
        for gateway in (one, held):
            gateway.close()
        if prometheus is not None:
            prometheus.close()
