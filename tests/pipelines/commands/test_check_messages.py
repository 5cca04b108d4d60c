"""``quiltstream check``: what it says of messages, and that it charges, publishes, commits and opens nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.commands import check_messages
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms.kafka.messages import last_messages

from ...transforms.kafka.fake import FakeBroker
from ..jobs import Done, Job, call, job

STAMP = "2024-03-01T12:00:00Z"


def made(folder: Path, **readings: Any) -> Job:
    return job(
        folder,
        [],
        source={"kafka": {"servers": "localhost:1", "topic": "meters"}},
        readings={"unit": "W", "scale": 1, **readings},
        rejects=None,
        sink=None,
    )


def tried(settings: Job, *words: str | Path, code: int = 0) -> list[dict[str, Any]]:
    done = call("check", "--json", settings.settings, *words).ended(code)
    return json.loads(done.out)


def test_a_message_is_shown_as_readings(tmp_path: Path) -> None:
    settings = made(tmp_path, recipe="shelly-gen2")
    before = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "m.json").write_text('{"id": 0, "act_power": 412.5}', encoding="utf-8")
    words = (tmp_path / "m.json", "--topic", "shelly/status/em1:0", "--stamp", STAMP)
    (one,) = tried(settings, *words)
    assert one["readings"] == [["shelly/em1:0", STAMP, 412.5]]
    assert (one["passed"], one["rejected"], one["size"]) == (None, None, 29)
    shown = call("check", settings.settings, *words)
    assert shown.said("Nothing was charged or published, and no ledger was opened.")
    assert {path.name for path in tmp_path.iterdir()} == before | {"m.json"}


def test_lines_with_topics_are_shown_as_read_skipped_or_rejected(tmp_path: Path) -> None:
    settings = made(tmp_path, recipe="tasmota")
    lines = [
        'tele/a/SENSOR {"Time": "2024-03-01T12:00:00", "ENERGY": {"Power": 30}}',
        "tele/a/LWT Online",
        'tele/a/SENSOR {"Time": "2024-03-01T12:00:00", "SI7021": {"Temperature": 20}}',
        'tele/a/SENSOR {"Time": "soon", "ENERGY": {"Power": 30}}',
        'tele/a/SENSOR {"Time": "2024-03-01T12:00:00", "ENERGY": {"Power": "much"}}',
        'tele/a/SENSOR {"Time": ',
    ]
    (tmp_path / "m.txt").write_text("\n".join(lines), encoding="utf-8")
    found = tried(settings, tmp_path / "m.txt", "--topics")
    assert [one["readings"] for one in found] == [[["a", STAMP, 30.0]], [], [], [], [], []]
    assert [one["passed"] for one in found] == [
        None,
        "readings.where does not hold: topic[-1] == 'SENSOR' && payload.ENERGY != null",
        "readings.where does not hold: topic[-1] == 'SENSOR' && payload.ENERGY != null",
        None,
        None,
        None,
    ]
    assert [one["rejected"] and one["rejected"].partition(":")[0] for one in found] == [
        *[None] * 3,
        "unparsable-time",
        "not-a-number",
        "malformed-row",
    ]
    assert call("check", settings.settings, tmp_path / "m.txt", "--topics").said("1 reading, 2 passed over, 3 rejected")


def test_no_reading_ends_with_5_and_a_wrong_call_with_2(tmp_path: Path) -> None:
    settings = made(tmp_path, recipe="tasmota")
    (tmp_path / "m.txt").write_text("x", encoding="utf-8")
    tried(settings, tmp_path / "m.txt", code=5)
    for words, said in (
        (("--topic", "a"), "--stamp, --lines and --topics are of the messages of FILE"),
        ((tmp_path / "m.txt", "--from-topic", "1"), "give a FILE of messages"),
        ((tmp_path / "m.txt", "--stamp", "soon"), "--stamp"),
    ):
        call("check", settings.settings, *words).ended(2, said)
    call("check", settings.settings, tmp_path / "gone.txt").ended(5, "gone.txt: cannot be read")
    (tmp_path / "empty.txt").touch()
    assert call("check", settings.settings, tmp_path / "empty.txt").said("it holds no message")


def test_the_last_messages_of_topics_are_read_and_nothing_is_committed() -> None:
    broker = FakeBroker()
    topics = [broker.topic(partitions=3), broker.topic(partitions=1), broker.topic(partitions=2)]
    for number in range(30):
        log = broker.topics[topics[number % 2]][number % 3 if number % 2 == 0 else 0]
        log.messages.append((str(number).encode(), 1_700_000_000_000 + number))
    found = last_messages(broker.cluster, topics, 4)
    assert [bytes(one or b"") for one in found.payloads] == [b"26", b"27", b"28", b"29"]
    assert found.topics == [topics[0], topics[1]] * 2
    assert broker.groups == {}
    assert len(last_messages(broker.cluster, topics[2:], 4)) == 0


def test_messages_of_a_topic_are_tried_as_those_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings(made(tmp_path, each="payload", series="id", time="ts", value="w").settings)
    broker = FakeBroker()
    broker.send(broker.topic(partitions=1, name="meters"), [(0, b'{"id": "m1", "ts": 1709294400, "w": 7}')])
    monkeypatch.setattr("quiltstream.transforms.kafka.client.Cluster", lambda *_: broker.cluster)
    found = check_messages.messages_of_topics(settings, 5)
    (one,) = check_messages.Trial(settings).of(found)
    assert one.readings == (("m1", STAMP, 7.0),)


def test_check_looks_at_the_last_messages_of_the_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(apart_s: int, **slots: str) -> Done:
        bodies = [b'{"id": "m1", "ts": %d, "w": 7}' % (1_709_294_400 + apart_s * at) for at in range(20)]
        broker = FakeBroker()
        broker.send(broker.topic(partitions=1, name="meters"), [(0, one) for one in (*bodies, b"{", b'{"id": "m2"}')])
        monkeypatch.setattr("quiltstream.transforms.kafka.client.Cluster", lambda *_: broker.cluster)
        settings = made(tmp_path, each="payload", series="id", time="ts", value="w")
        text = settings.settings.read_text(encoding="utf-8")
        settings.settings.write_text(text.replace("slots:", "slots:\n  of: last") if slots else text, encoding="utf-8")
        done = call("check", "--json", settings.settings)
        assert broker.groups == {}
        return done

    found = json.loads(checked(1_800).ended(0).out)
    assert (found["messages"], found["readings"], found["series"], found["step"]) == (22, 20, 1, 1_800_000_000)
    assert [(one["reason"], one["rows"]) for one in found["rejected"]] == [("malformed-row", 1), ("unparsable-time", 1)]
    checked(60).ended(2, "slots.of is missing")
    checked(60, of="last").ended(0)


def test_control_characters_of_messages_and_names_never_reach_the_terminal(tmp_path: Path) -> None:
    controls = "\x1b[2J\x07\x08\x7f\x9b1m\u202e\u2066"
    settings = made(tmp_path, each="payload", series="id", time="ts", value="v", where=f"topic[0] == 'a{controls}'")
    body = json.dumps({"id": "m" + controls, "ts": STAMP, "v": 1})
    (tmp_path / "m.txt").write_text(f"a{controls} {body}\nb{controls} {body}\n", encoding="utf-8")
    for words in ((), ("--json",)):
        done = call("check", *words, settings.settings, tmp_path / "m.txt", "--topics").ended(0)
        assert not set(controls[:1] + controls[4:7] + controls[-2:]) & set(done.out)
        assert "\x9b" not in done.out
    named = [one["readings"][0][0] for one in tried(settings, tmp_path / "m.txt", "--topics") if one["readings"]]
    assert named == ["m" + controls], "what is for machines keeps the name"
    done = call("check", settings.settings, tmp_path / "no\x1b[2J").ended(5).hid("\x1b")
