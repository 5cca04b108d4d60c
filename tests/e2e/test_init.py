"""``quiltstream init`` at real brokers: nothing is left there, and a job runs by what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiltstream.schemas.settings.job import read_settings

from ..pipelines.jobs import call
from .kafka import KafkaBroker
from .test_check_messages import groups_of

pytestmark = pytest.mark.e2e

START = 1_772_323_200


def test_init_writes_settings_from_a_topic_and_commits_no_offsets(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.topic(2)
    bodies = [{"meterId": f"m{at % 4}", "time": START + at // 4 * 900, "power": at} for at in range(80)]
    kafka.send(topic, [(at % 2, json.dumps(one).encode()) for at, one in enumerate(bodies)])
    groups, settings = groups_of(kafka), tmp_path / "settings.yaml"
    done = call("init", "--from-topic", topic, "--servers", kafka.servers, "-o", settings, "--messages", "60")
    assert done.code == 0, done.err
    assert groups_of(kafka) == groups
    read = read_settings(settings)
    assert read.readings is not None
    assert read.readings.model_dump(mode="json", exclude_defaults=True) == {
        "each": "payload",
        "series": "meterId",
        "time": "time",
        "value": "power",
    }
    assert read.slots.interval == "15min"
    tried = json.loads(call("check", "--json", settings, "--from-topic", "20").out)
    assert [len(one["readings"]) for one in tried] == [1] * 20
    assert groups_of(kafka) == groups
