"""What Prometheus scrapes and which metrics its rules go by, for the tests that hold them against what there is."""

from __future__ import annotations

import re
from typing import Any

import yaml

from .flink_files import PROMETHEUS, text

#: How Flink's reporter calls a counter of Beam, before its name.
BEAM = "flink_taskmanager_job_task_operator_quiltstream_"

#: Flink's own metrics that rules and panels use; an end-to-end test sees that its reporter gives them.
FLINKS = {
    "flink_jobmanager_numRunningJobs",
    "flink_jobmanager_job_numRestarts",
    "flink_taskmanager_job_task_operator_currentInputWatermark",
}


def rules() -> list[dict[str, Any]]:
    """Every rule."""
    return [rule for group in yaml.safe_load(text(PROMETHEUS / "rules.yml"))["groups"] for rule in group["rules"]]


def names_in(expression: str) -> set[str]:
    """The metrics of an expression."""
    return set(re.findall(r"\b((?:quiltstream|flink)_\w+|up)\b", re.sub(r'"[^"]*"', "", expression)))


def names_in_rules() -> set[str]:
    """The metrics of all rules."""
    return {name for rule in rules() for name in names_in(rule["expr"])}


def counter(name: str) -> str:
    """What Flink's reporter calls a counter of the documentation."""
    return BEAM + re.sub(r"\W", "_", name)


def scraped() -> list[dict[str, Any]]:
    """What is scraped, and how."""
    return yaml.safe_load(text(PROMETHEUS / "prometheus.yml"))["scrape_configs"]


def steps_for_flink() -> list[dict[str, Any]]:
    """What is done to each metric that Flink gives."""
    (found,) = (one["metric_relabel_configs"] for one in scraped() if one["job_name"] == "flink")
    return found


def relabelled(name: str, labels: dict[str, str], steps: list[dict[str, Any]]) -> tuple[str, dict[str, str]]:
    """What Prometheus makes of a metric."""
    found = {"__name__": name, **labels}
    for step in steps:
        if step.get("action", "replace") == "labeldrop":
            found = {one: value for one, value in found.items() if not re.fullmatch(step["regex"], one)}
            continue
        assert step.get("action", "replace") == "replace"
        match = re.fullmatch(step["regex"], ";".join(found.get(one, "") for one in step["source_labels"]))
        if match:
            found[step["target_label"]] = match.expand(re.sub(r"\$(\d+)", r"\\\1", step.get("replacement", "$1")))
    return found.pop("__name__"), found
