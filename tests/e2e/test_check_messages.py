"""``quiltstream check`` at a real broker: the last messages of a topic, and nothing that the broker remembers of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..pipelines.jobs import call, job
from .kafka import KafkaBroker

pytestmark = pytest.mark.e2e


def groups_of(kafka: KafkaBroker) -> set[str]:
    return {group.group_id for group in kafka.admin().list_consumer_groups().result(60).valid}


def test_the_last_messages_of_a_topic_are_tried_and_no_group_is_left(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic, empty = kafka.topic(2), kafka.topic(1)
    bodies = [json.dumps({"id": f"m{at}", "ts": 1_709_294_400 + at, "w": at}).encode() for at in range(20)]
    kafka.send(topic, [(at % 2, body) for at, body in enumerate(bodies)])
    kafka.send(topic, [(0, b"{")])
    settings = job(
        tmp_path,
        [],
        source={"kafka": {"servers": kafka.servers, "topics": [topic, empty]}},
        readings={"each": "payload", "series": "id", "time": "ts", "value": "w"},
        rejects=None,
        sink=None,
    )
    before, groups = {path.name for path in tmp_path.iterdir()}, groups_of(kafka)
    done = call("check", "--json", settings.settings, "--from-topic", "50")
    assert done.code == 0, done.err
    tried = json.loads(done.out)
    assert sorted(one["readings"][0][0] for one in tried if one["readings"]) == sorted(f"m{at}" for at in range(20))
    assert [one["rejected"].partition(":")[0] for one in tried if one["rejected"]] == ["malformed-row"]
    assert groups_of(kafka) == groups
    assert {path.name for path in tmp_path.iterdir()} == before
    assert len(json.loads(call("check", "--json", settings.settings, "--from-topic", "3").out)) == 3
