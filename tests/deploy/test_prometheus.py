"""Prometheus takes its files, its rules use metrics that there are, and the ledger's page says what the ledger says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.registry import Collector

from quiltstream.pipelines.cli import main
from quiltstream.pipelines.gateway.run import Counts
from quiltstream.pipelines.live.watch import Cause, Health
from quiltstream.schemas.releases import COMPLETENESS
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store.store import Store
from quiltstream.transforms.plan import make_plan
from quiltstream.transforms.registration import register

from ..loading import load
from .flink_files import PROMETHEUS, ROOT, run, text
from .prometheus_files import (
    FLINKS,
    counter,
    names_in_rules,
    rules,
)

page_module = load(PROMETHEUS / "ledger_metrics.py")


def counters() -> dict[str, str]:
    """Counters and distributions of the documentation, by name: ``counter`` or ``distribution``."""
    table = text(ROOT / "docs" / "guides" / "monitoring.md").split("| counter | what it counts |\n")[1].split("\n\n")[0]
    found: dict[str, str] = {}
    for line in table.splitlines()[1:]:
        first = line.split("|")[1]
        for name in re.findall(r"`([^`]+)`", first):
            found[name] = "distribution" if "(distribution)" in first else "counter"
    return found


def test_prometheus_accepts_the_configuration_and_rule_files(tool: Callable[[str], str]) -> None:
    promtool = tool("promtool")
    assert "SUCCESS" in run([promtool, "check", "config", str(PROMETHEUS / "prometheus.yml")])
    assert f"{len(rules())} rules found" in run([promtool, "check", "rules", str(PROMETHEUS / "rules.yml")])


@pytest.mark.night
def test_every_alert_fires_on_its_fault_and_none_on_a_healthy_deployment(tool: Callable[[str], str]) -> None:
    run([tool("promtool"), "test", "rules", str(PROMETHEUS / "rules_test.yml")])
    cases = {one["name"]: one for one in yaml.safe_load(text(PROMETHEUS / "rules_test.yml"))["tests"]}
    fired = set(re.findall(r'alertname="(\w+)"', str(cases["wrong"]["promql_expr_test"])))
    assert fired == {rule["alert"] for rule in rules()}
    # the deployment that is well has every metric: an alert that looks at none would be silent for nothing
    given = {one["series"].split("{")[0] for one in cases["well"]["input_series"]}
    assert names_in_rules() <= given
    assert len(fired) == MOST_ALERTS


#: An operator reads each of them.
MOST_ALERTS = 12


def test_rules_use_only_existing_metrics() -> None:
    used = names_in_rules()
    named = counters()
    beam = {counter(name) for name, kind in named.items() if kind == "counter"}
    assert {"loss-micro-epsilon", "watermark-behind-ms"} == {name for name, kind in named.items() if kind != "counter"}
    assert used <= metrics_there_are()
    assert {name for name in used if name.startswith("flink_")} - beam <= FLINKS
    assert {"quiltstream_rejected", "up", "quiltstream_gateway_dropped_total"} <= used


def metrics_there_are() -> set[str]:
    """Every metric that a gateway, a ledger's page, a live job and Flink give, as it is scraped."""
    gateway = names_of(Counts())
    ledger = {f"quiltstream_ledger_{name}" for name in page_module.METRICS}
    live = names_of(Health(worker_s=1.0, clock_us=1, looked=1.0, counts={"polls": 1}))
    beam = {counter(name) for name, kind in counters().items() if kind == "counter"}
    return {*gateway, *ledger, *live, *beam, *FLINKS, "quiltstream_rejected", "up"}


def names_of(page: Collector) -> set[str]:
    """The metrics of a page."""
    return {one.name for family in page.collect() for one in family.samples}


def test_every_cause_of_the_watchdog_is_told_by_an_alert() -> None:
    expressions = {rule["alert"]: rule["expr"] for rule in rules()}
    assert 'cause!="source-silent"' in expressions["QuiltstreamWindowOverdue"]
    assert f'cause="{Cause.SILENT}"' in expressions["QuiltstreamSourceSilent"]


def ledger(folder: Path, windows: str, privacy: str, *, publish: bool = True) -> Path:
    """A ledger after a run over two days of one meter, or before it; the settings file that names it."""
    hours = [f"2024-03-{day:02}T{hour:02}:00Z,m1,{150 + 750 * (hour % 3 == 0)}" for day in (1, 2) for hour in range(24)]
    (folder / "readings.csv").write_text("\n".join(["time,meter,watt", *hours]), encoding="utf-8")
    settings = folder / "settings.yaml"
    settings.write_text(
        f"""\
source: {{csv: readings.csv}}
readings: {{series: meter, time: time, value: watt}}
slots: {{interval: 1h}}
states: {{edges: [500], unit: W}}
model: {{pi_min: 0.2, gap: 0.5}}
windows: {windows}
privacy: {privacy}
sink: {{jsonl: releases.jsonl}}
query: daily
domain: one "meter"
most_error: 1.0e+6
ledger: sqlite:///{folder}/ledger.db
""",
        encoding="utf-8",
    )
    if not publish:
        extend(settings)
        return settings
    done = CliRunner().invoke(main, ["run", str(settings)])
    assert done.exit_code in {0, 3}, done.output
    return settings


def samples(page: Collector) -> dict[str, float]:
    """Name with the values of its labels, and value, of everything on a page."""
    return {
        "/".join([one.name.removeprefix("quiltstream_ledger_"), *one.labels.values()]): one.value
        for family in page.collect()
        for one in family.samples
    }


DOMAIN = '/one "meter"'
QUERY = f"{DOMAIN}/daily"
MARCH_1 = 1_709_251_200


@pytest.mark.night
def test_the_metrics_page_shows_the_values_of_the_ledger(tmp_path: Path) -> None:
    settings = ledger(tmp_path, "{size: 1d, start: 2024-03-01, stop: 2024-03-03}", "{epsilon: 1.0, budget: 2.0}")
    with Store(f"sqlite:///{tmp_path}/ledger.db", create=False) as store:
        said = store.summary('one "meter"')
    assert samples(page_module.LedgerLook(str(settings))) == {
        "up": 1.0,
        f"budget_epsilon{DOMAIN}": 2.0,
        f"loss_epsilon{DOMAIN}": said.loss,
        f"reserved_loss_epsilon{DOMAIN}": said.reserved_loss,
        f"history_lost{DOMAIN}": 0.0,
        f"windows_charged{QUERY}": 2.0,
        f"windows_refused{QUERY}": 0.0,
        **{f"windows_published{QUERY}/{one}": 2.0 * (one == "live") for one in COMPLETENESS},
    }
    assert 0 < said.loss <= 1.0


def test_the_end_of_the_admitted_windows_is_reported_in_advance(tmp_path: Path) -> None:
    # a window of two days costs .2 alone and .4 where it overlaps the next one
    windows = "{size: 2d, every: 1d, start: 2024-03-01, stop: 2024-03-06}"
    settings = ledger(tmp_path, windows, "{epsilon: 1.0, budget: 0.3}")
    found = samples(page_module.LedgerLook(str(settings)))
    admitted = (found[f"admitted_until_seconds{QUERY}"] - MARCH_1) / 86_400
    assert admitted == found[f"windows_charged{QUERY}"] + 1
    assert found[f"windows_charged{QUERY}"] + found[f"windows_refused{QUERY}"] == 4
    assert found[f"windows_refused{QUERY}"] > 0


@pytest.mark.night
def test_the_end_of_the_first_missing_window_is_reported_and_polled_from_there(tmp_path: Path) -> None:
    settings = ledger(tmp_path, "{size: 1d, start: 2024-03-01, stop: 2024-03-03}", "{epsilon: 1.0, budget: 2.0}")
    look = page_module.LedgerLook(str(settings))
    with Store(f"sqlite:///{tmp_path}/ledger.db", create=False) as store:
        held = store.registered('one "meter"', "daily")
        assert held is not None
        assert list(store.missing(held)) == []
    assert not any(name.startswith("window_due") for name in samples(look))
    # the schedule goes on: its third day is not on record
    longer = text(settings).replace("2024-03-03", "2024-03-04")
    settings.write_text(longer, encoding="utf-8")
    extend(settings)
    found = samples(page_module.LedgerLook(str(settings)))
    assert (found[f"window_due_seconds{QUERY}"] - MARCH_1) / 86_400 == 3


@pytest.mark.night
@pytest.mark.parametrize("by", ["settings", "ledger"])
def test_of_a_query_that_is_no_longer_run_no_window_is_due(by: str, tmp_path: Path) -> None:
    days = "{size: 1d, start: 2024-03-01, stop: 2024-03-03}"
    settings = ledger(tmp_path, days, "{epsilon: 1.0, budget: 2.0}", publish=False)
    asked = {"settings": str(settings), "ledger": f"sqlite:///{tmp_path}/ledger.db"}
    look = page_module.LedgerLook(asked[by])

    def due() -> set[str]:
        look._until = 0.0
        found = samples(look)
        assert found[f"windows_charged{QUERY}"] == 0.0
        return {name.rpartition("/")[2] for name in found if name.startswith("window_due")}

    assert due() == {"daily"}
    # settings are changed while the page is served
    settings.write_text(text(settings).replace("query: daily", "query: again"), encoding="utf-8")
    extend(settings)
    assert due() == ({"again"} if by == "settings" else {"again", "daily"})
    settings.write_text("half", encoding="utf-8")
    assert due() == ({"again"} if by == "settings" else {"again", "daily"})


def extend(settings: Path) -> None:
    """Put a longer schedule on record, and publish nothing of it."""
    register(make_plan(read_settings(settings)))


@pytest.mark.night
def test_the_metrics_page_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ledger(tmp_path, "{size: 1d, start: 2024-03-01, stop: 2024-03-03}", "{epsilon: 1.0}")
    look = page_module.LedgerLook(str(settings))
    first = samples(look)
    (tmp_path / "ledger.db").rename(tmp_path / "elsewhere.db")
    assert samples(look) == first
    monkeypatch.setattr(page_module, "KEPT_S", 0.0)
    look._until = 0.0
    assert samples(look) == {"up": 0.0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a ledger"),
        (["x.db", "port"], "give a ledger"),
        (["x.db", "70000"], "give a ledger"),
        (["nothing.db", "9465"], "nothing.db"),
    ],
)
def test_wrong_arguments_end_the_page_with_two_and_a_reason(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert page_module.main(["ledger_metrics.py", *words]) == 2
    assert said in capsys.readouterr().err
