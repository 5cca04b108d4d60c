"""``quiltstream init`` and ``check`` at a real broker: what they find, and nothing that the broker keeps of them."""

from __future__ import annotations

import json
from pathlib import Path

from quiltstream.schemas.settings.job import read_settings

from ..pipelines.jobs import call
from .kafka import KafkaBroker

START = 1_772_323_200


def groups_of(kafka: KafkaBroker) -> set[str]:
    return {group.group_id for group in kafka.admin().list_consumer_groups().result(60).valid}


def test_init_writes_settings_from_a_topic_that_check_reads_and_no_group_is_left(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    bodies = [{"meterId": f"m{at % 4}", "time": START + at // 4 * 900, "power": at} for at in range(80)]
    kafka.send(topic, [(at % 2, json.dumps(one).encode()) for at, one in enumerate(bodies)])
    groups, settings = groups_of(kafka), tmp_path / "settings.yaml"
    call("init", "--from-topic", topic, "--servers", kafka.servers, "-o", settings, "--messages", "60").ended(0)
    read = read_settings(settings)
    assert read.readings is not None
    assert read.readings.model_dump(mode="json", exclude_defaults=True) == {
        "each": "payload",
        "series": "meterId",
        "time": "time",
        "value": "power",
    }
    assert read.slots.interval == "15min"
    kafka.send(topic, [(0, b"{")])
    before = {path.name for path in tmp_path.iterdir()}
    tried = json.loads(call("check", "--json", settings, "--from-topic", "20").ended(0).out)
    assert [one["rejected"].partition(":")[0] for one in tried if one["rejected"]] == ["malformed-row"]
    assert sorted(len(one["readings"]) for one in tried) == [0] + [1] * 19
    assert {path.name for path in tmp_path.iterdir()} == before
    assert groups_of(kafka) == groups
