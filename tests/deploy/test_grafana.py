"""The operator's page for Grafana: whole by itself, over metrics that exist, with expressions that Prometheus takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from .flink_files import ROOT, run, text
from .prometheus_files import counter, names_in, names_in_rules
from .test_prometheus import metrics_there_are

PAGE: dict[str, Any] = json.loads(text(ROOT / "deploy" / "grafana" / "quiltstream.json"))
PANELS: list[dict[str, Any]] = [one for one in PAGE["panels"] if one["type"] != "row"]
TARGETS: list[tuple[str, str]] = [(one["title"], target["expr"]) for one in PANELS for target in one["targets"]]


def plain(expression: str) -> str:
    """An expression as Grafana sends it: with its variables filled in."""
    return expression.replace("$__rate_interval", "1m").replace("$domain", ".*")


def test_panels_use_only_existing_metrics_and_all_metrics_of_the_rules() -> None:
    used = {name for _, expression in TARGETS for name in names_in(expression)}
    assert used <= metrics_there_are()
    # an alert leads here: its metric is drawn
    assert names_in_rules() <= used


def test_panels_draw_every_metric_of_a_live_job() -> None:
    used = {name for _, expression in TARGETS for name in names_in(expression)}
    live = {name for name in metrics_there_are() if name.startswith("quiltstream_live_")}
    assert live - used == set()
    # what Flink has no page of a live job for
    assert {counter(name) for name in ("outside-schedule", "duplicates")} <= used


def test_prometheus_accepts_every_panel_expression(tool: Callable[[str], str], tmp_path: Path) -> None:
    asked = [*TARGETS, *(("annotation", one["expr"]) for one in PAGE["annotations"]["list"])]
    rules = [{"record": f"panel:{number}", "expr": plain(expression)} for number, (_, expression) in enumerate(asked)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    assert f"{len(asked)} rules found" in run([tool("promtool"), "check", "rules", str(file)])
