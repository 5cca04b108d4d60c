"""The bridge between a broker that keeps a session and a target: what is acknowledged is there, and nothing is lost."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway.targets import Folder, Kafka
from quiltstream.schemas.settings.gateway import FolderTarget, GatewaySettings, KafkaTarget
from quiltstream.schemas.settings.secrets import PseudonymKey

from .keeping_broker import KeepingBroker, text

pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")

from quiltstream.pipelines.gateway.bridge import Bridge

SECRET = "correct horse battery staple"  # noqa: S105 - of this test
TOPIC = "meters/m1/kwh"


def some(count: int) -> dict[int, tuple[str, bytes, bytes]]:
    return {number: (TOPIC, b"", b"%d" % number) for number in range(1, count + 1)}


def records(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.avro")):
        with path.open("rb") as file:
            found += [one for one in fastavro.reader(file) if isinstance(one, dict)]
    return found


@pytest.fixture
def broker() -> Iterator[Callable[..., KeepingBroker]]:
    made: list[KeepingBroker] = []

    def start(messages: Mapping[int, tuple[str, bytes, bytes]], **more: Any) -> KeepingBroker:
        made.append(KeepingBroker(messages, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


def bridge(
    one: KeepingBroker, target: Any, counts: Counter[str], login: Callable[[Any], None] = lambda _: None, **forward: Any
) -> Bridge:
    mqtt = {"host": "127.0.0.1", "port": one.port, "client_id": "g", "packet": 2_000}
    given = {"topics": ["meters/#"], "to": {"folder": {"path": "spool"}}} | forward
    return Bridge(GatewaySettings.parse({"mqtt": mqtt, "forward": given}), target, login, counts)


def folder(path: Path, age: str = "100ms", free: float = 0.0) -> Folder:
    return Folder(str(path), FolderTarget(path=str(path), age=age, free=free))


# What is acknowledged is there


def test_a_message_is_in_a_whole_file_with_its_properties_before_it_is_acknowledged(
    broker: Callable[..., KeepingBroker], counts: Counter[str], tmp_path: Path
) -> None:
    early: list[int] = []
    one = broker(
        some(50) | {51: ("meters/m2/kwh", b"\x03" + text("text/csv"), b"x")},
        heard=lambda number: early.append(number) if len(records(tmp_path)) < 51 else None,
    )
    made = bridge(one, folder(tmp_path), counts)
    one.wait(lambda: not one.waiting, made.turn)
    assert early == []
    found = records(tmp_path)
    assert [record["payload"] for record in found[:50]] == [b"%d" % number for number in range(1, 51)]
    named = {"topic": "meters/m2/kwh", "payload": b"x", "dup": False, "retain": False, "content_type": "text/csv"}
    assert named.items() <= found[50].items()
    assert +counts == {"received": 51, "acknowledged": 51}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*.avro"))


def test_messages_of_a_connection_that_ended_come_again_with_a_flag(
    broker: Callable[..., KeepingBroker], counts: Counter[str], tmp_path: Path
) -> None:
    one = broker(some(20), ends=(1, 2))
    made = bridge(one, folder(tmp_path), counts)
    one.wait(lambda: not one.waiting, made.turn)
    assert {record["payload"] for record in records(tmp_path)} == {b"%d" % number for number in range(1, 21)}
    assert counts["reconnects"] == 2
    assert counts["sessions_lost"] == 0
    assert counts["duplicates"] > 0


@pytest.mark.parametrize("fault", ["full", "gone"])
def test_messages_wait_while_the_disk_takes_none(
    broker: Callable[..., KeepingBroker],
    counts: Counter[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, spool = broker(some(10)), tmp_path / "spool"
    made = bridge(one, folder(spool, free=0.5), counts)
    usage = SimpleNamespace(total=1_000_000, free=499_999 if fault == "full" else 900_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    if fault == "gone":
        spool.rmdir()
        spool.touch()
    one.wait(lambda: "takes nothing" in caplog.text, made.turn)
    for _ in range(5):
        made.turn()
    assert len(one.waiting) == 10
    usage.free = 900_000
    if fault == "gone":
        spool.unlink()
    one.wait(lambda: not one.waiting, made.turn)
    assert len(records(spool)) == 10
    assert caplog.text.count("takes nothing") == 1


def test_a_stop_finishes_what_is_held(
    broker: Callable[..., KeepingBroker], counts: Counter[str], tmp_path: Path
) -> None:
    one = broker(some(5))
    made = bridge(one, folder(tmp_path, age="1h"), counts)
    one.wait(lambda: counts["in_flight"] == 5, made.turn)
    made.finish()
    one.wait(lambda: not one.waiting, lambda: None)
    assert len(records(tmp_path)) == 5


def test_what_a_killed_run_left_is_removed_and_a_place_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / ".a.avro.0.part").write_bytes(b"torn")
    (tmp_path / "other").touch()
    folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    with pytest.raises(CommandError, match=r"forward\.to\.folder .*mount it, or give another") as refusal:
        folder(tmp_path / "other")
    assert refusal.value.exit_code == 2
    with pytest.raises(CommandError) as away:
        folder(Path("/proc/1/none"))
    assert away.value.exit_code == 75


# What the broker sends


def test_a_packet_that_cannot_be_read_comes_by_mqtt_3_1_1(
    broker: Callable[..., KeepingBroker], counts: Counter[str], tmp_path: Path
) -> None:
    one = broker(some(3) | {4: (TOPIC, b"\x26" + text("k") + text("\ufeffv"), b"4")})
    made = bridge(one, folder(tmp_path), counts)
    one.wait(lambda: not one.waiting, made.turn)
    assert one.versions == [5, 4]
    assert {record["payload"] for record in records(tmp_path)} == {b"1", b"2", b"3", b"4"}


def test_a_broker_of_mqtt_3_1_1_is_used_by_it(
    broker: Callable[..., KeepingBroker], counts: Counter[str], tmp_path: Path
) -> None:
    one = broker(some(3), codes=(0x84, 0))
    made = bridge(one, folder(tmp_path), counts)
    one.wait(lambda: not one.waiting, made.turn)
    assert one.versions == [5, 4]


def test_messages_too_large_or_of_no_filter_are_counted_and_acknowledged(
    broker: Callable[..., KeepingBroker], counts: Counter[str], tmp_path: Path
) -> None:
    one = broker(some(1) | {2: (TOPIC, b"", b"x" * 2_001), 3: ("other/m1", b"", b"3")})
    made = bridge(one, folder(tmp_path), counts)
    one.wait(lambda: not one.waiting, made.turn)
    assert [record["payload"] for record in records(tmp_path)] == [b"1"]
    assert (counts["dropped too-large"], counts["dropped other-topic"]) == (1, 1)


@pytest.mark.parametrize(
    ("level", "topic", "made"),
    [
        (2, "meters/m1/kwh", "meters/{m1}/kwh"),
        ([1, 3], "meters/m1/kwh", "{meters}/m1/{kwh}"),
        (2, "meters/Zähler 7/kwh", "meters/{Zähler 7}/kwh"),
        (3, "meters/m1", "meters/m1"),
        (2, "meters//kwh", "meters//kwh"),
        (2, "meters/ /kwh", "meters/ /kwh"),
    ],
)
def test_named_levels_go_on_as_the_pseudonyms_that_a_job_makes_by_the_key(
    broker: Callable[..., KeepingBroker],
    counts: Counter[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    level: Any,
    topic: str,
    made: str,
) -> None:
    monkeypatch.setenv("METER_KEY", SECRET)
    one = broker({1: (topic, b"", b"{}")})
    it = bridge(one, folder(tmp_path), counts, pseudonyms={"env": "METER_KEY", "level": level})
    one.wait(lambda: not one.waiting, it.turn)
    key = PseudonymKey(SECRET.encode())
    parts = {name: key.name(name) for name in ("meters", "m1", "kwh", "Zähler 7")}
    assert [record["topic"] for record in records(tmp_path)] == [made.format(**parts)]
    assert "m1" not in caplog.text
    assert SECRET not in caplog.text + repr(it)


# Refusals


@pytest.mark.parametrize("code", [0x85, 0x86, 0x87, 0x8A, 0x8C])
def test_a_refusal_that_stays_ends_the_gateway_with_2(
    broker: Callable[..., KeepingBroker], counts: Counter[str], tmp_path: Path, code: int
) -> None:
    one = broker({}, codes=(code,))
    made = bridge(one, folder(tmp_path), counts)
    with pytest.raises(CommandError, match=r"does not take the connection.*look at mqtt in the settings") as refusal:
        one.wait(lambda: False, made.turn)
    assert refusal.value.exit_code == 2


def test_a_login_that_was_taken_before_is_tried_on_and_read_anew(
    broker: Callable[..., KeepingBroker], counts: Counter[str], tmp_path: Path
) -> None:
    one = broker(some(3), codes=(0, 0x86, 0x88, 0), ends=(1,))
    passwords = iter(["old", "old", "old", "new"])
    made = bridge(one, folder(tmp_path), counts, lambda client: client.username_pw_set("u", next(passwords)))
    one.wait(lambda: counts["refused"] == 1, made.turn)
    one.wait(lambda: not one.waiting, made.turn)
    assert counts["refused"] == 0
    assert [login.endswith(b"new") for login in one.logins] == [False, False, False, True]


# Kafka


class Library:
    """What is used of the Kafka client; ``refuses`` is the error of a message, by its body."""

    class KafkaException(Exception):  # noqa: N818 - its name there
        """The client's own."""

    def __init__(self, **refuses: str) -> None:
        self.refuses, self.sent, self.options = refuses, list[tuple[Any, ...]](), dict[str, Any]()
        self._reports: list[Callable[[], None]] = []

    def Producer(self, options: dict[str, Any]) -> Library:  # noqa: N802 - its name there
        if "wrong" in options:
            raise ValueError(options["wrong"])
        self.options = options
        return self

    def produce(self, topic: str, value: bytes, key: str, **more: Any) -> None:
        name = self.refuses.get(value.decode())
        error = None if name is None else SimpleNamespace(name=lambda: name)
        self._reports.append(lambda: more["on_delivery"](error, None))
        self.sent.append((topic, value, key, dict(more["headers"])))

    def poll(self, _: float) -> None:
        reports, self._reports = self._reports, []
        for one in reports:
            one()


def kafka(library: Any, **options: Any) -> Kafka:
    return Kafka(KafkaTarget(servers="h:1", topic="readings"), options, library)


def test_a_message_is_acknowledged_when_all_replicas_have_it(
    broker: Callable[..., KeepingBroker], counts: Counter[str]
) -> None:
    library, one = Library(), broker(some(3))
    made = bridge(one, kafka(library), counts)
    one.wait(lambda: not one.waiting, made.turn)
    assert library.options["acks"] == "all"
    assert library.options["enable.idempotence"] is True
    assert library.options["message.timeout.ms"] == 0
    assert [sent[:3] for sent in library.sent] == [("readings", b"%d" % number, TOPIC) for number in (1, 2, 3)]
    headers = library.sent[0][3]
    assert {"mqtt-topic": TOPIC, "mqtt-dup": "0", "mqtt-retain": "0"}.items() <= headers.items()
    assert int(headers["mqtt-received-us"]) > 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("refuses", "code"),
    [
        ({"1": "TOPIC_AUTHORIZATION_FAILED"}, 2),
        ({"1": "_UNKNOWN_TOPIC"}, 2),
        ({"2": "_UNKNOWN_TOPIC"}, 75),
        ({"2": "MSG_SIZE_TOO_LARGE"}, 2),
        ({"1": "INVALID_TIMESTAMP"}, 75),
    ],
)
def test_what_kafka_does_not_take_ends_the_gateway_and_stays_at_the_broker(
    broker: Callable[..., KeepingBroker], counts: Counter[str], refuses: dict[str, str], code: int
) -> None:
    one = broker(some(3))
    made = bridge(one, kafka(Library(**refuses)), counts)
    with pytest.raises(CommandError, match=r"Kafka topic 'readings': .*Messages stay at the broker") as refusal:
        one.wait(lambda: False, made.turn)
    assert refusal.value.exit_code == code
    with suppress(CommandError):
        made.finish()
    assert {int(name) for name in refuses} <= one.waiting.keys()


def test_options_refused_by_the_library_are_not_quoted() -> None:
    with pytest.raises(CommandError, match=r"forward\.to\.kafka\.options: librdkafka does not take them") as refusal:
        kafka(Library(), wrong="hunter2")
    assert "hunter2" not in str(refusal.value)
