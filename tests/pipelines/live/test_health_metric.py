"""The watchdog's findings as a metric: what the page says, and where it is served."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator

import pytest

from quiltstream.pipelines.live.watchdog import HEALTH_METRICS, Cause, HealthMetrics, HealthReport, health_page
from quiltstream.schemas.readings import RejectReason


def samples(page: str) -> dict[str, float]:
    """Name with labels, and value, of every line of a page."""
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
    return {name.removeprefix("quiltstream_live_"): float(value) for name, value in lines}


def causes(page: str) -> set[str]:
    """The causes that hold."""
    found = {name: value for name, value in samples(page).items() if name.startswith("trouble")}
    assert set(found.values()) <= {0.0, 1.0}
    assert len(found) == len(Cause)
    return {name.split('"')[1] for name, value in found.items() if value}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    HEALTH_METRICS.reset()
    yield
    HEALTH_METRICS.reset()


def test_a_healthy_job_has_every_cause_at_zero() -> None:
    board = HealthMetrics(now=lambda: 100.0)
    board.begin()
    board.note(HealthReport(frozenset(), 1.5, 1_356_998_400_000_000))
    assert causes(board.text()) == set()
    found = {name: value for name, value in samples(board.text()).items() if not name.startswith("trouble")}
    assert found == {
        "running": 1.0,
        "begun_total": 1.0,
        "looked_seconds": 100.0,
        "worker_silent_seconds": 1.5,
        "clock_seconds": 1_356_998_400.0,
    }


def test_the_page_shows_the_last_health_report_and_counts_over_all_runners() -> None:
    at = [100.0]
    board = HealthMetrics(now=lambda: at[0])
    assert "looked_seconds" not in samples(board.text())
    board.begin()
    board.note(HealthReport(frozenset({Cause.NO_WORKER, Cause.LEDGER}), 31.0))
    assert causes(board.text()) == {"no-worker", "ledger-away"}
    at[0] = 107.0
    board.end(failed=True)
    # between two runners: nobody has the job, and why is told
    assert causes(board.text()) == {"job-failed"}
    assert samples(board.text())["running"] == 0
    board.begin()
    assert causes(board.text()) == set()
    assert samples(board.text())["begun_total"] == 2
    assert samples(board.text())["looked_seconds"] == 107.0
    board.end(failed=False)
    assert (causes(board.text()), samples(board.text())["running"]) == (set(), 0.0)


def test_the_page_has_the_runners_counts_of_readings_and_rejects_over_all_runners() -> None:
    board = HealthMetrics()
    board.begin()
    # a runner that tells no counters is not one that has read nothing
    board.note(HealthReport(), {})
    board.note(HealthReport(), None)
    assert not [name for name in samples(board.text()) if "total" in name and name != "begun_total"]
    counts = {"polls": 3, "decoded-readings": 100, "rejected-late": 20, "duplicates": 4, "outside-schedule": 5}
    board.note(HealthReport(), counts)
    board.note(HealthReport(), None)
    found = samples(board.text())
    assert (found["readings_total"], found['rejected_total{reason="late"}']) == (100, 20)
    assert (found["duplicates_total"], found["outside_schedule_total"]) == (4, 5)
    assert (found["sources_left_out_total"], found["blocks_incomplete_total"]) == (0, 0)
    reasons = {name.split('"')[1] for name in found if name.startswith("rejected_total")}
    assert reasons == {reason.value for reason in RejectReason}
    # the next runner counts from 0
    board.end(failed=True)
    board.begin()
    assert samples(board.text())["readings_total"] == 100
    board.note(HealthReport(), {"polls": 1, "decoded-readings": 7, "rejected-too-large": 1, "sources-left-out": 2})
    found = samples(board.text())
    assert (found["readings_total"], found['rejected_total{reason="late"}']) == (107, 20)
    assert (found['rejected_total{reason="too-large"}'], found["sources_left_out_total"]) == (1, 2)


def test_health_metrics_are_served_on_the_loopback_address_during_the_command() -> None:
    said: list[tuple[str, str]] = []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with health_page(0, lambda kind, text: said.append((kind, text))):
        ((kind, text),) = said
        port = int(re.fullmatch(r"the watchdog's verdict is at 127\.0\.0\.1:(\d+)/metrics", text)[1])  # type: ignore[index]
        assert kind == "metrics"
        HEALTH_METRICS.begin()
        HEALTH_METRICS.note(HealthReport(frozenset({Cause.RUNNER})))
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert causes(answer.read().decode()) == {"runner-away"}
        with socket.socket() as other:
            assert other.connect_ex(("127.0.0.2", port)) != 0
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", port)) != 0
