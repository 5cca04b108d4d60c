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
