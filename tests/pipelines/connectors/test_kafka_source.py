"""How the settings' topics are read: where a run begins, and what is refused before anything is charged."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from quiltstream.pipelines.connectors import kafka as kafka_source
from quiltstream.pipelines.connectors.kafka import Topics, start_of
from quiltstream.pipelines.errors import ExitCode
from quiltstream.pipelines.live.job import pace_of
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.transforms.kafka.partitions import EARLIEST, Start

from ...present import present
from ...transforms.kafka.fake import FakeBroker
from ..jobs import call, job

DAY_US = 86_400_000_000
MARCH_US = 1_709_251_200_000_000  # 2024-03-01T00:00Z
SLOT_US = 1_800_000_000

READINGS = {"each": "payload", "series": "meter", "time": "ts", "value": "kwh", "time_unit": "ms"}


def made(folder: Path, kafka: dict[str, Any], **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "source": {"kafka": {"servers": "127.0.0.1:1", "topic": "meters"} | kafka},
        "readings": READINGS,
        "windows": {"size": "1d", "start": "2024-03-01"},
        "sink": {"parquet": "releases"},
    }
    return read_settings(job(folder, **(given | changes)).settings)


def topics(settings: Settings) -> Topics:
    return Topics(settings, present(present(settings.source).kafka))


def begun(settings: Settings, windows: int) -> Start:
    """Where a run begins with so many windows on record."""
    kafka = present(present(settings.source).kafka)
    schedule = settings.schedule
    slot = list(islice(schedule.windows(), windows + 1))[-1].stop - 1
    return start_of(settings, kafka, pace_of(settings, settings.grid, schedule, settings.grid.time_of(slot)))


@pytest.mark.parametrize(
    ("kafka", "first", "again"),
    [
        ({}, EARLIEST, EARLIEST),
        ({"start": "latest"}, Start("latest"), EARLIEST),
        ({"start": "group", "group": "theirs"}, Start("group"), EARLIEST),
        ({"start": "2024-02-01"}, Start("instant", MARCH_US - 29 * DAY_US), Start("instant", MARCH_US - 29 * DAY_US)),
        ({"reread": "6h"}, EARLIEST, Start("instant", MARCH_US + 2 * DAY_US - DAY_US // 4)),
        ({"reread": "6h", "start": "latest"}, Start("latest"), Start("instant", MARCH_US + 2 * DAY_US - DAY_US // 4)),
        (
            {"reread": "6h", "start": "2024-03-20"},
            Start("instant", MARCH_US + 19 * DAY_US),
            Start("instant", MARCH_US + 19 * DAY_US),
        ),
    ],
)
def test_a_run_without_runner_state_rereads_all_missing_windows(
    tmp_path: Path, kafka: dict[str, Any], first: Start, again: Start
) -> None:
    settings = made(tmp_path, kafka)
    assert begun(settings, 0) == first
    assert begun(settings, 2) == again


def test_a_group_that_a_first_run_begins_at_is_committed_to_by_no_run(tmp_path: Path) -> None:
    settings = made(tmp_path, {"start": "group", "group": "theirs"})
    grid, schedule = settings.grid, settings.schedule
    first, later = (
        topics(settings).partitions(pace_of(settings, grid, schedule, begin))
        for begin in (0, grid.time_of(schedule.first + 3 * schedule.size))
    )
    # a reader that begins at a group commits nothing
    assert (first.start, first.group) == (Start("group"), "theirs")
    assert (later.start, later.group) == (EARLIEST, None)


def test_a_run_starts_before_the_first_missing_local_day_of_any_length(tmp_path: Path) -> None:
    zone = {"interval": "30min", "origin": "2024-03-01T00:00Z", "timezone": "America/New_York"}
    settings = made(tmp_path, {"reread": "6h"}, slots=zone, windows={"size": "day", "start": "2024-03-08"})
    # at 5:00 UTC, and from 2024-03-11 on at 4:00
    days = [7 * DAY_US + 10 * SLOT_US, 8 * DAY_US + 10 * SLOT_US, 9 * DAY_US + 10 * SLOT_US, 10 * DAY_US + 8 * SLOT_US]
    assert begun(settings, 0) == EARLIEST
    assert [begun(settings, number).instant_us for number in (1, 2, 3)] == [
        MARCH_US + day - DAY_US // 4 for day in days[1:]
    ]


def test_a_register_is_read_again_from_before_the_first_missing_window(tmp_path: Path) -> None:
    register = READINGS | {"register": {"gap": "90min"}}
    settings = made(tmp_path, {"reread": "6h"}, readings=register, missing="state")
    grid, schedule = settings.grid, settings.schedule
    slot = schedule.first + 2 * schedule.every + schedule.size - 1
    partitions = topics(settings).partitions(pace_of(settings, grid, schedule, grid.time_of(slot)))
    assert partitions.start == Start("instant", MARCH_US + 2 * DAY_US - DAY_US // 4 - 3 * SLOT_US)


def test_the_partitions_follow_the_settings_and_are_pickled_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QS_TEST_KAFKA", "hunter2")
    (tmp_path / "key").write_text("hunter3\n", encoding="utf-8")
    options = {"sasl.password": {"env": "QS_TEST_KAFKA"}, "ssl.key.password": {"file": "key"}, "fetch.min.bytes": 10}
    settings = made(
        tmp_path,
        {"topic": None, "topics": ["a", "b"], "lanes": 3, "group": "seen", "discover": "1min", "options": options},
    )
    pace = pace_of(settings, settings.grid, settings.schedule, 0)
    partitions = topics(settings).partitions(pace)
    assert (partitions.topics, partitions.lanes, partitions.group, partitions.discover_s) == (
        ("a", "b"),
        3,
        "seen",
        60.0,
    )
    given: list[Any] = []
    replace(partitions.cluster, consumer=given.append).consume({})
    assert given == [
        {
            "sasl.password": "hunter2",
            "ssl.key.password": "hunter3",
            "fetch.min.bytes": 10,
            "bootstrap.servers": "127.0.0.1:1",
        }
    ]
    text = repr(settings) + repr(partitions) + str(pickle.dumps(topics(settings).partitions(pace)))
    assert "hunter" not in text


def test_a_run_that_ends_reads_and_writes_no_topic(tmp_path: Path) -> None:
    made(tmp_path, {}, rejects={"kafka": {"servers": "h:1", "topic": "bad"}})
    call("run", tmp_path / "settings.yaml").ended(2, "source.kafka, rejects.kafka: topics are for live jobs")
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize(
    ("source", "changes", "said"),
    [
        ({"topics": ["meters", "more"]}, {}, "name exactly one of topic, topics"),
        ({"topic": "a b"}, {}, "'a b' is no topic"),
        ({"start": "group"}, {}, "start is group; name it as source.kafka.group"),
        ({"options": {"sasl.password": "hunter2"}}, {}, "sasl.password: a secret does not belong into settings"),
        ({"options": {"group.id": "x"}}, {}, "group.id is not to be given; write it as group"),
        ({"servers": "me:hunter2@h:1"}, {}, "users and passwords belong into options"),
        (
            {},
            {"sink": {"kafka": {"servers": "h:1", "topic": "meters"}}},
            "source.kafka and sink.kafka name the same topic, meters",
        ),
        (
            {},
            {
                "sink": {"kafka": {"servers": "h:1", "topic": "out"}},
                "rejects": {"kafka": {"servers": "h:1", "topic": "out"}},
            },
            "sink.kafka and rejects.kafka name the same topic, out",
        ),
        ({}, {"readings": READINGS | {"payload": "avro"}}, "readings.payload is avro, which needs a schema registry"),
        ({"options": {"no.such.option": "hunter2"}}, {}, "the options of Kafka are refused (_INVALID_ARG)"),
    ],
)
def test_wrong_kafka_settings_are_refused_before_any_record_without_secrets(
    tmp_path: Path, source: dict[str, Any], changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUILTSTREAM_PRISM", "/bin/true")
    given: dict[str, Any] = {
        "source": {"kafka": {"servers": "127.0.0.1:1", "topic": "meters"} | source},
        "readings": READINGS,
        "windows": {"size": "1d", "start": "2024-03-01"},
        "sink": {"parquet": "releases"},
    }
    one = job(tmp_path, **(given | changes))
    call("run", "--live", one.settings).ended(2, said).hid("hunter2")
    assert not one.ledger.exists()


def test_a_refused_login_of_a_source_has_the_exit_code_of_a_sinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor does not try again after the code of wrong settings."""
    broker = FakeBroker()
    broker.away, broker.tells = True, KafkaError._AUTHENTICATION
    monkeypatch.setattr(kafka_source, "_cluster_of", lambda *_: broker.cluster)
    monkeypatch.setenv("QUILTSTREAM_PRISM", "/bin/true")
    one = job(
        tmp_path,
        source={"kafka": {"servers": FakeBroker.servers, "topic": "meters"}},
        readings=READINGS,
        windows={"size": "1d", "start": "2024-03-01"},
        sink={"parquet": "releases"},
    )
    done = call("run", "--live", one.settings)
    assert done.code == ExitCode.FAILURE, done.err
    assert done.said("source.kafka: brokers fake:9092: the broker does not accept user and password. Nothing was charg")
    assert not one.ledger.exists()
