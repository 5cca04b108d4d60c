"""Every expression of the dashboard, asked of a real Prometheus over a recorded hour in which things go wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .prometheus import Prometheus

pytestmark = pytest.mark.e2e

PAGE: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "quiltstream.json").read_text(encoding="utf-8")
)
PANELS: list[dict[str, Any]] = [one for one in PAGE["panels"] if one["type"] != "row"]

#: Minutes of the hour in which the ledger, the runner and a partition of the source are away.
AWAY = range(20, 28)
MINUTES = 60

_BEAM = "flink_taskmanager_job_task_operator_quiltstream_"
_LEDGER, _LIVE, _GATEWAY = "quiltstream_ledger_", "quiltstream_live_", "quiltstream_gateway_"
_QUERY = '{domain="feeder",query="daily"}'


def _recorded(begin: float) -> dict[str, Callable[[int], float]]:
    """What is scraped at each minute of an hour that begins then: a job on Prism, one on Flink, a gateway."""

    def away(minute: int) -> float:
        return float(minute in AWAY)

    def late(minute: int) -> float:
        return 9.0 * max(0, minute - AWAY.stop)

    def read(minute: int) -> float:
        return 6000.0 * (minute - len(range(AWAY.start, min(minute, AWAY.stop))))

    found: dict[str, Callable[[int], float]] = {
        f"{_LEDGER}up": lambda m: 1 - away(m),
        f'{_LEDGER}budget_epsilon{{domain="feeder"}}': lambda _: 1,
        f'{_LEDGER}loss_epsilon{{domain="feeder"}}': lambda m: min(1.0, 0.6 + m / 120),
        f'{_LEDGER}reserved_loss_epsilon{{domain="feeder"}}': lambda _: 0.9999,
        f'{_LEDGER}history_lost{{domain="feeder"}}': lambda _: 0,
        f"{_LEDGER}windows_charged{_QUERY}": lambda m: m // 6,
        f"{_LEDGER}windows_refused{_QUERY}": lambda m: max(0, m - 50) // 6,
        f'{_LEDGER}windows_published{_QUERY[:-1]},completeness="unavailable"}}': lambda m: float(m >= AWAY.stop),
        f"{_LEDGER}admitted_until_seconds{_QUERY}": lambda _: begin + 50 * 60,
        f"{_LEDGER}window_due_seconds{_QUERY}": lambda m: begin + 360 * (m // 6 + 1) - 400 - 600 * away(m),
        f"{_LIVE}begun_seconds": lambda m: begin + 60 * AWAY.stop * (m >= AWAY.stop),
        f"{_LIVE}looked_seconds": lambda m: begin + 60 * m - 5,
        f"{_LIVE}worker_silent_seconds": lambda m: 2 + 60 * max(0, m - AWAY.start) * away(m),
        f"{_LIVE}clock_seconds": lambda m: begin + 60 * (AWAY.start if m in AWAY else m) - 30,
        f"{_LIVE}readings_total": read,
        f"{_LIVE}outside_schedule_total": lambda m: 60.0 * m,
        f"{_LIVE}duplicates_total": late,
        f"{_LIVE}blocks_incomplete_total": lambda m: float(m >= AWAY.stop),
        f"{_LIVE}sources_left_out_total": lambda m: float(m >= AWAY.start + 4),
        f'{_LIVE}rejected_total{{reason="late"}}': late,
        f'{_LIVE}rejected_total{{reason="not-a-number"}}': float,
        f'{_LIVE}trouble{{cause="ledger-away"}}': away,
        f'{_LIVE}trouble{{cause="no-worker"}}': away,
        "flink_jobmanager_numRunningJobs": lambda _: 1,
        'flink_jobmanager_job_numRestarts{job_name="flink"}': lambda m: float(m >= AWAY.start),
        'flink_taskmanager_job_task_operator_currentInputWatermark{job_name="flink",'
        'operator_name="Publish_Collect_GroupByKey"}': (
            lambda m: 1000 * (begin + 60 * (AWAY.start if m in AWAY else m) - 90)
        ),
        f'{_BEAM}decoded_readings{{job_name="flink"}}': read,
        f'{_BEAM}outside_schedule{{job_name="flink"}}': lambda m: 60.0 * m,
        f'{_BEAM}duplicates{{job_name="flink"}}': late,
        f'{_BEAM}blocks_incomplete{{job_name="flink"}}': lambda m: float(m >= AWAY.stop),
        f'{_BEAM}sources_left_out{{job_name="flink"}}': lambda _: 0,
        'quiltstream_rejected{job_name="flink",reason="late"}': late,
        f"{_GATEWAY}received_total": lambda m: 6000.0 * m,
        f"{_GATEWAY}acknowledged_total": read,
        f"{_GATEWAY}in_flight": lambda m: 40 + 900 * away(m),
        f'{_GATEWAY}dropped_total{{reason="too-large"}}': lambda m: m // 10,
        f"{_GATEWAY}sessions_lost_total": lambda _: 0,
        f"{_GATEWAY}refused": away,
    }
    for job in ("live", "ledger", "flink", "gateway"):
        found[f'up{{job="{job}",instance="{job}"}}'] = (lambda m: 1 - away(m)) if job == "ledger" else (lambda _: 1)
    return found


def open_metrics(begin: float) -> str:
    """The hour in the text of OpenMetrics: families one after another, each sample with its second."""
    families: dict[str, list[str]] = {}
    for series, value in _recorded(begin).items():
        lines = (f"{series} {value(minute)!r} {begin + 60 * minute:.0f}" for minute in range(MINUTES))
        families.setdefault(series.partition("{")[0], []).extend(lines)
    # gauges all of them: a name of a counter would be changed, and to queries they are the same
    return "".join(f"# TYPE {name} gauge\n" + "\n".join(lines) + "\n" for name, lines in families.items()) + "# EOF\n"


@pytest.fixture(scope="module")
def begin() -> float:
    """When the hour began: whole minutes, so that a query at a minute sees that minute."""
    return time.time() // 60 * 60 - 90 * 60


@pytest.fixture(scope="module")
def prometheus(begin: float, prometheus_program: Path) -> Iterator[Prometheus]:
    server = Prometheus(prometheus_program, {})
    try:
        server.recall(open_metrics(begin))
        server.start()
        yield server
    finally:
        server.close()


Lines = dict[str, list[tuple[float, float]]]


def asked(prometheus: Prometheus, begin: float, expression: str, legend: str) -> Lines:
    """What an expression says over the hour, by the name that the legend gives each line."""
    plain = expression.replace("$__rate_interval", "4m").replace("$domain", ".*")
    found: Lines = {}
    for labels, values in prometheus.over(plain, begin + 120, begin + 60 * (MINUTES - 1)):
        name = legend
        for label, value in labels.items():
            name = name.replace("{{" + label + "}}", value)
        found[name] = values
    return found


def test_every_panel_has_data_and_shows_the_faults_of_the_hour(prometheus: Prometheus, begin: float) -> None:
    shown = {
        one["title"]: [asked(prometheus, begin, target["expr"], target["legendFormat"]) for target in one["targets"]]
        for one in PANELS
    }
    assert [(title, number) for title, lines in shown.items() for number, one in enumerate(lines) if not one] == []

    def at(title: str, name: str, minute: int) -> float:
        line = next(one[name] for one in shown[title] if name in one)
        return dict(line)[begin + 60 * minute]

    assert at("Windows are admitted for", "daily", 40) == pytest.approx(600)
    assert at("Causes", "no-worker", AWAY.start) == 1
    assert at("Causes", "no-worker", AWAY.stop) == 0
    assert at("Overdue", "daily", AWAY.start) > at("Overdue", "daily", AWAY.start - 1)
    assert at("Readings a second", "Prism", 15) == pytest.approx(100)
    assert at("Readings a second", "Prism", AWAY.stop - 2) < 10
    assert at("Rejects a second, by reason", "late", 40) == pytest.approx(0.15)
    assert at("Windows an hour", "daily: refused", 58) > 0
    assert at("Behind", "Prism", AWAY.stop - 1) > 400
