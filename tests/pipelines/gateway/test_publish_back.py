"""The way back: which rows are sent, under which topic, and what is remembered of them."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway import DeliveryError
from quiltstream.pipelines.gateway.connection import Connection
from quiltstream.pipelines.gateway.metrics import Dropped, RejectFile, Stall, Tally
from quiltstream.pipelines.gateway.publish_back import (
    Back,
    FolderSource,
    KafkaSource,
    Known,
    ReleasedRow,
    ReleaseSource,
    Sent,
    level_of,
    row_of,
)
from quiltstream.schemas.files import open_regular

from ...present import present
from .fake_kafka import KafkaError, KafkaException

pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")


def row(number: int, key: str = "k", window: int = 1, **more: Any) -> bytes:
    about = {"release_id": f"r{number}", "query": "load", "key": key, "window_stop": f"2013-01-{window:02}T00:00:00Z"}
    return json.dumps(about | more).encode()


def made(number: int, window: int = 1, payload: bytes = b"x", topic: str = "q/k") -> ReleasedRow:
    return ReleasedRow(f"r{number}", topic, f"2013-01-{window:02}", payload)


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[Sent]:
    one = Sent(tmp_path / "sent.db")
    yield one
    one.close()


#: All that Python calls a character, surrogates too, and often those that brokers refuse.
LETTERS = st.characters(codec=None) | st.sampled_from(
    "\x01\x7f\x80\x85\x9f\ud800\udfff\ufdd0\ufdef\ufeff\ufffe\uffff\U0010ffff%/+#$ "
)


def refused(letter: str) -> bool:
    """Whether MQTT 5 forbids a character, or lets a broker refuse it ([1.5.4], [4.7.3]); and U+FEFF."""
    kind = unicodedata.category(letter)
    non_character = 0xFDD0 <= ord(letter) <= 0xFDEF or hex(ord(letter)).endswith(("fffe", "ffff"))
    return kind in {"Cc", "Cs"} or non_character or letter == "\ufeff"


@given(st.text(LETTERS, min_size=1, max_size=80))
def test_a_name_becomes_one_level_and_no_two_names_the_same(name: str) -> None:
    level = level_of(name)
    assert not set("/+#\0") & set(level)
    assert not any(map(refused, level))
    assert unquote(level, errors="surrogatepass") == name


def test_exactly_the_characters_a_broker_may_refuse_are_escaped() -> None:
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        level = level_of(letter)
        assert unquote(level, errors="surrogatepass") == letter
        assert (level != letter) == (refused(letter) or letter in "/+#%"), hex(code)


@pytest.mark.parametrize("field", ["release_id", "window_stop"])
@pytest.mark.parametrize("bad", ["a\0", "a\x85", "\ud800", "\ufeff", "\uffff", "x" * 1_025])
def test_a_row_with_an_unencodable_id_or_window_is_rejected(field: str, bad: str) -> None:
    for value in ("2013-01-08T00:00:00Z", bad):
        about: dict[str, Any] = {field: value}
        assert (row_of(row(1, **about)) is None) == (value == bad)


@pytest.mark.parametrize("key", ["a\x85b", "\ufdd0", "\ufeff", "\ud800", "\uffff", "x" * 1_024])
def test_a_row_of_any_series_and_the_next_row_are_published(sent: Sent, key: str) -> None:
    done = run(sent, [row(1), row(2, key), row(3)])
    assert [json.loads(payload)["key"] for _, payload, _ in done.outlet.published] == ["k", key, "k"]
    assert all(len(topic.encode()) < 4_096 for topic, _, _ in done.outlet.published)
    assert done.tally.sent == 3
    # a name that no broker's topic holds costs its own row
    for long in ("x" * 1_025, "\ud800" * 114):
        assert row_of(row(2, long)) is None


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"no json",
        b"[]",
        b"3",
        b"{}",
        b"\xff",
        b'{"release_id": 1, "query": "q", "key": "k", "window_stop": "s"}',
        b'{"release_id": "1", "query": "q", "key": "", "window_stop": "s"}',
        b"[" * 100_000,
    ],
    ids=len,
)
def test_a_message_that_is_not_a_released_row_is_rejected(bad: bytes) -> None:
    assert row_of(bad) is None


# what is remembered


def test_a_row_is_new_then_sent_and_changed_with_other_values(sent: Sent) -> None:
    assert sent.known([made(1), made(1), made(1, payload=b"y")]) == [Known.NEW, Known.SENT, Known.CHANGED]
    assert sent.known([made(1)]) == [Known.NEW]
    sent.add([made(1)])
    assert sent.known([made(1), made(2), made(1, payload=b"y")]) == [Known.SENT, Known.NEW, Known.CHANGED]
    sent.add([made(1, payload=b"y")])
    assert sent.known([made(1)]) == [Known.SENT]


def test_recorded_sends_are_read_by_the_next_process(tmp_path: Path) -> None:
    first = Sent(tmp_path / "sent.db")
    first.add([made(1, window=5)])
    first.add_file("a.jsonl", 3, 4)
    first.close()
    second = Sent(tmp_path / "sent.db")
    assert second.known([made(1)]) == [Known.SENT]
    assert second.newest([made(2, window=4), made(3, window=5), made(4, window=6), made(5, window=5)]) == [
        False,
        True,
        True,
        False,
    ]
    assert second.file("a.jsonl") == (3, 4)
    second.forget_files(["b.jsonl"])
    assert second.file("a.jsonl") is None
    second.close()


def test_a_state_belongs_to_one_gateway(tmp_path: Path) -> None:
    first = Sent(tmp_path / "sent.db")
    with pytest.raises(CommandError, match=r"back\.state .*another gateway may have it"):
        Sent(tmp_path / "sent.db")
    first.close()


def test_a_state_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sent.db").write_bytes(b"something else" * 100)
    with pytest.raises(CommandError, match=r"back\.state .*no file of a gateway"):
        Sent(tmp_path / "sent.db")


# sources


def test_files_are_read_in_order_once_and_again_only_if_changed(tmp_path: Path, sent: Sent) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "b.jsonl").write_bytes(b"3\n4\n")
    (out / "a.jsonl").write_bytes(b"1\n2\n")
    for other in (".c.jsonl.part", ".d.jsonl", "e.csv", "empty.jsonl"):
        (out / other).write_bytes(b"" if other.startswith("empty") else b"9\n")
    source = FolderSource(out, 0.0, sent)
    found: list[bytes] = []
    for _ in range(6):
        found += source.take(0.01)
        source.done()
    assert found == [b"1", b"2", b"3", b"4"]
    (out / "a.jsonl").write_bytes(b"1\n2\n5\n")
    assert source.take(0.01) == [b"1", b"2", b"5"]
    source.close()
    # it was not done: the next process takes the file again
    again = FolderSource(out, 0.0, sent)
    assert again.take(0.01) == [b"1", b"2", b"5"]
    again.done()
    assert again.take(0.01) == []


def test_a_file_that_is_removed_during_a_look_does_not_turn_the_order_around(
    tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_bytes(name.encode() + b"\n")
    usual = Path.stat

    def stat(path: Path, **given: Any) -> os.stat_result:
        if path.name == "c.jsonl":
            path.unlink(missing_ok=True)
        return usual(path, **given)

    monkeypatch.setattr(Path, "stat", stat)
    source = FolderSource(tmp_path, 0.0, sent)
    found: list[bytes] = []
    for _ in range(6):
        found += source.take(0.01)
        source.done()
    assert found == [b"a", b"b"]


def test_a_long_file_is_read_in_batches_and_recorded_when_complete(tmp_path: Path, sent: Sent) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(b"%d\n" % number for number in range(500)))
    source = FolderSource(tmp_path, 0.0, sent)
    parts = list[list[bytes]]()
    for complete in (False, False, True):
        parts.append(source.take(0.01))
        source.done()
        assert (sent.file("a.jsonl") is not None) == complete
    assert [len(part) for part in parts] == [200, 200, 100]
    assert [int(line) for part in parts for line in part] == list(range(500))


def test_a_missing_folder_is_waited_for(tmp_path: Path, sent: Sent, caplog: pytest.LogCaptureFixture) -> None:
    source = FolderSource(tmp_path / "out", 0.0, sent)
    assert source.take(0.01) == source.take(0.01) == []
    assert caplog.text.count("is not there yet; waiting for the job that makes it") == 1
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.jsonl").write_bytes(b"1\n")
    assert source.take(0.01) == [b"1"]


def test_a_file_that_may_not_be_read_is_named_once_and_tried_again(
    tmp_path: Path, sent: Sent, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(name.encode() + b"\n")

    def closed(path: Path) -> BinaryIO:
        if path.name == "a.jsonl":
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_regular(path)

    source = FolderSource(tmp_path, 0.001, sent)

    def taken() -> list[bytes]:
        found: list[bytes] = []
        for _ in range(12):
            found += source.take(0.01)
            source.done()
        return found

    with monkeypatch.context() as rights:
        rights.setattr("quiltstream.pipelines.gateway.publish_back.open_regular", closed)
        assert taken() == [b"b"]
    assert caplog.messages == [
        f"back.from.folder: {tmp_path / 'a.jsonl'} cannot be read (Permission denied); trying again, and going on with "
        "later files"
    ]
    assert taken() == [b"a"]


def test_a_folder_that_may_not_be_listed_is_logged_once(
    tmp_path: Path, sent: Sent, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"1\n")
    (tmp_path / "b.jsonl").write_bytes(b"2\n")
    source = FolderSource(tmp_path, 0.0, sent)
    assert source.take(0.01) == [b"1"]
    source.done()
    assert source.take(0.01) == [b"2"]
    source.done()

    def closed(path: Path | str) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as rights:
        for module in ("os.listdir", "os.scandir"):  # all ways of looking into a folder lead there
            rights.setattr(module, closed)
        assert source.take(0.01) == source.take(0.01) == []
    assert caplog.messages == [f"back.from.folder: {tmp_path} cannot be read (Permission denied); trying again"]
    # that they were sent is not forgotten
    assert sent.file("a.jsonl") is not None


class FakeConsumer:
    def __init__(self) -> None:
        self.messages: deque[Any] = deque()
        self.committed: list[Any] = []
        self.closed = False
        self.fails = False

    def subscribe(self, topics: list[str]) -> None:
        self.topics = topics

    def consume(self, count: int, _: float) -> list[Any]:
        return [self.messages.popleft() for _ in range(min(count, len(self.messages)))]

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        assert not asynchronous
        if self.fails:
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER))
        self.committed.append(sorted(offsets))

    def close(self) -> None:
        self.closed = True


def record(value: bytes | None, partition: int = 0, offset: int = 0, error: KafkaError | None = None) -> Any:
    return SimpleNamespace(value=lambda: value, partition=lambda: partition, offset=lambda: offset, error=lambda: error)


def kafka_source() -> tuple[KafkaSource, FakeConsumer, dict[str, Any]]:
    consumer, seen = FakeConsumer(), dict[str, Any]()

    def make(settings: dict[str, Any]) -> FakeConsumer:
        seen.update(settings)
        return consumer

    library = SimpleNamespace(
        Consumer=make, KafkaError=KafkaError, KafkaException=KafkaException, TopicPartition=lambda *place: place
    )
    return KafkaSource("h:1", "releases", "g", "m", {"auto.offset.reset": "latest"}, library=library), consumer, seen


def test_offsets_are_committed_only_after_their_rows_are_confirmed() -> None:
    source, consumer, settings = kafka_source()
    assert settings["enable.auto.commit"] is False
    assert settings["group.instance.id"] == "m:releases"
    assert settings["auto.offset.reset"] == "latest"
    consumer.messages.extend([record(b"1", 0, 4), record(b"2", 1, 7), record(None, 0, 5)])
    assert source.take(0.1) == [b"1", b"2"]
    assert consumer.committed == []
    source.done()
    assert consumer.committed == [[("releases", 0, 6), ("releases", 1, 8)]]
    source.done()
    assert len(consumer.committed) == 1
    source.close()
    assert consumer.closed


def test_records_without_a_value_are_skipped_and_committed() -> None:
    source, consumer, _ = kafka_source()
    consumer.messages.append(record(None, 0, 4))
    assert source.take(0.1) == []
    assert consumer.committed == [[("releases", 0, 5)]]


def test_a_failed_offset_commit_does_not_end_the_source(caplog: pytest.LogCaptureFixture) -> None:
    source, consumer, _ = kafka_source()
    consumer.messages.append(record(b"1"))
    consumer.fails = True
    source.take(0.1)
    source.done()
    assert "a position could not be committed (error 6)" in caplog.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KafkaError(KafkaError._AUTHENTICATION), "the credentials or the certificate are not accepted"),
        (
            KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED),
            "not authorised to read the topic 'releases' in this",
        ),
        (KafkaError(82, fatal=True), "another gateway of this group may have the same client id"),
    ],
)
def test_a_permanent_error_of_the_source_is_raised(error: KafkaError, words: str) -> None:
    source, consumer, _ = kafka_source()
    consumer.messages.append(record(None, error=error))
    with pytest.raises(DeliveryError, match=words):
        source.take(0.1)


def test_a_transient_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    source, consumer, _ = kafka_source()
    for _ in range(3):
        consumer.messages.append(record(None, error=KafkaError(KafkaError._TRANSPORT)))
        assert source.take(0.1) == []
    assert caplog.text.count("trying again") == 1


# all of it


class Given(ReleaseSource):
    """A source that gives what the test says."""

    def __init__(self, *parts: list[bytes]) -> None:
        self.parts, self.finished, self.closed = deque(parts), 0, False

    def take(self, seconds: float) -> list[bytes]:  # noqa: ARG002 - the signature is a source's
        return self.parts.popleft() if self.parts else []

    def done(self) -> None:
        self.finished += 1

    def close(self) -> None:
        self.closed = True


class FakeOutlet(Connection):
    """A broker that confirms what the test lets it."""

    def __init__(self) -> None:  # makes no client
        self.connected, self.epoch, self.refused, self.reconnects, self.quota = True, 1, False, 0, 65_535
        self.published: list[tuple[str, bytes, bool]] = []
        self.open: list[int] = []
        self.breaks: deque[int] = deque()
        self.closed, self.most = False, 0
        self.silent = False
        self.back: Back | None = None
        self._packet = 0

    def turn(self, seconds: float, *, room: Callable[[], bool] | None = None) -> None:  # noqa: ARG002 - the signature is a connection's
        if self.breaks and len(self.published) >= self.breaks[0]:
            # the connection breaks with everything under way, and is there again
            self.breaks.popleft()
            self.open.clear()
            self.epoch += 1
            self.reconnects += 1
            return
        self.most = max(self.most, len(self.open))
        while self.open and not self.silent:
            present(self.back).confirmed(self.open.pop(0))

    def publish(self, topic: str, payload: bytes, *, retain: bool, properties: Any = None) -> int:
        assert properties.ContentType == "application/json"
        self.published.append((topic, payload, retain))
        self._packet += 1
        self.open.append(self._packet)
        return self._packet

    def close(self, seconds: float = 2.0) -> None:  # noqa: ARG002 - the signature is a connection's
        self.closed = True


def way(sent: Sent, *parts: list[bytes], retain: bool = True) -> tuple[Given, FakeOutlet, Tally, Back]:
    """What a source gives, to be sent."""
    source, outlet, tally = Given(*parts), FakeOutlet(), Tally()
    outlet.back = Back(source, sent, prefix="out", retain=retain, tally=tally, rejects=RejectFile(None))
    return source, outlet, tally, outlet.back


def run(sent: Sent, *parts: list[bytes], breaks: tuple[int, ...] = (), retain: bool = True) -> Any:
    """Everything that a source gives, sent."""
    source, outlet, tally, back = way(sent, *parts, retain=retain)
    outlet.breaks = deque(breaks)
    back.run(outlet, lambda: not source.parts and source.finished >= len(parts), 1.0)
    assert outlet.closed
    assert source.closed
    return SimpleNamespace(outlet=outlet, tally=tally)


def test_rows_are_published_as_they_are_under_query_and_key(sent: Sent) -> None:
    done = run(sent, [row(1, "m 1"), row(2, "a/b")])
    assert done.outlet.published == [("out/load/m 1", row(1, "m 1"), True), ("out/load/a%2Fb", row(2, "a/b"), True)]
    assert done.tally.sent == 2


def test_a_repeated_row_is_sent_once(sent: Sent) -> None:
    first = run(sent, [row(1), row(1)], [row(1)])
    again = run(sent, [row(1), row(2)])
    assert [payload for _, payload, _ in first.outlet.published + again.outlet.published] == [row(1), row(2)]
    assert (first.tally.known, again.tally.known) == (2, 1)


def test_a_changed_row_and_an_invalid_row_are_not_sent(sent: Sent) -> None:
    done = run(sent, [row(1), row(1, counts=[2]), b"no row"])
    assert [payload for _, payload, _ in done.outlet.published] == [row(1)]
    assert done.tally.dropped == {Dropped.CHANGED: 1, Dropped.NO_RELEASE: 1}


def test_only_the_newest_window_of_a_topic_is_retained(sent: Sent) -> None:
    done = run(sent, [row(1, window=2), row(2, window=1), row(3, "other", window=1)], [row(4, window=3)])
    assert [retain for *_, retain in done.outlet.published] == [True, False, True, True]
    assert not any(retain for *_, retain in run(sent, [row(5, window=9)], retain=False).outlet.published)


def test_windows_of_fractions_of_a_second_are_in_their_order(sent: Sent) -> None:
    stops = [f"2026-01-01T00:00:0{at}Z" for at in ("0.500000", "1", "1.500000", "2", "1.750000")]
    rows = [
        json.dumps({"release_id": str(at), "query": "load", "key": "m", "window_stop": stop}).encode()
        for at, stop in enumerate(stops)
    ]
    done = run(sent, *([one] for one in rows))
    assert [retain for *_, retain in done.outlet.published] == [True, True, True, True, False]


def test_a_full_disk_delays_notes_and_ends_nothing(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quiltstream.pipelines.gateway.publish_back.DISK_RETRY_S", 0.01)
    add, tries = sent.add, []

    def full(rows: Iterable[ReleasedRow]) -> None:
        rows = list(rows)
        tries.append(len(rows))
        if len(tries) < 3:
            raise sqlite3.OperationalError("database or disk is full")
        add(rows)

    monkeypatch.setattr(sent, "add", full)
    done = run(sent, [row(1), row(2)], [row(2), row(3)])
    assert [payload for _, payload, _ in done.outlet.published] == [row(1), row(2), row(3)]
    assert tries == [2, 2, 2, 1]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "database or disk is full" in caplog.text


def test_a_stop_while_the_disk_is_full_leaves_rows_for_the_next_start(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, outlet, tally, back = way(sent, [row(1)])

    def full(rows: object) -> None:  # noqa: ARG001 - the signature is that of ``add``
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(sent, "add", full)
        back.run(outlet, lambda: bool(outlet.published), 0.05)
    assert (tally.sent, source.finished) == (0, 0)
    assert run(sent, [row(1)]).tally.sent == 1


def test_a_note_of_files_that_the_disk_refuses_is_written_later(tmp_path: Path, sent: Sent) -> None:
    (tmp_path / "a.jsonl").write_bytes(row(1) + b"\n")
    source = FolderSource(tmp_path, 60.0, sent)
    assert source.take(0.0) == [row(1)]
    with pytest.MonkeyPatch.context() as disk:
        disk.setattr(sent, "add_file", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("full")))
        with pytest.raises(sqlite3.OperationalError):
            source.done()
    assert sent.file("a.jsonl") is None
    source.done()
    assert sent.file("a.jsonl") is not None


def test_rows_unconfirmed_by_a_broken_connection_are_published_again(sent: Sent) -> None:
    rows = [row(number) for number in range(100)]
    done = run(sent, rows, breaks=(5, 40))
    published = [payload for _, payload, _ in done.outlet.published]
    assert set(published) == set(rows)
    assert not done.outlet.breaks
    assert done.tally.back_reconnects == 2
    assert len(published) > 100
    # the order of a topic is kept: after a break it goes on with the first that is not confirmed
    assert sorted(set(published), key=lambda one: len(published) - published[::-1].index(one)) == rows


def test_unconfirmed_rows_are_bounded_by_the_send_window(sent: Sent) -> None:
    assert 1 < run(sent, [row(number) for number in range(150)]).outlet.most <= 20


def test_no_more_rows_are_unconfirmed_than_the_broker_takes(sent: Sent) -> None:
    source, outlet, tally, back = way(sent, [row(number) for number in range(150)])
    outlet.quota = 3
    back.run(outlet, lambda: source.finished > 0, 1.0)
    assert (outlet.most, tally.sent) == (3, 150)


def test_stopping_gives_up_at_its_timeout_and_records_no_unconfirmed_row(sent: Sent) -> None:
    source, outlet, _, back = way(sent, [row(1)])
    outlet.silent = True
    back.run(outlet, lambda: bool(outlet.published), 0.1)
    assert source.finished == 0
    assert sent.known([ReleasedRow("r1", "load/k", "x", row(1))]) == [Known.NEW]


def test_a_broker_that_confirms_nothing_is_logged(sent: Sent, caplog: pytest.LogCaptureFixture) -> None:
    _, outlet, _, back = way(sent, [row(1), row(2)])
    back._stall = Stall(after=0.0)  # pyright: ignore[reportPrivateUsage] - so that the test is quick
    outlet.silent = True
    back.run(outlet, lambda: len(outlet.published) == 2, 0.1)
    assert caplog.text.count("the broker has confirmed no release for") == 1
    assert "2 are under way" in caplog.text


def test_waiting_for_a_connection_is_not_logged_as_missing_confirmations(
    sent: Sent, caplog: pytest.LogCaptureFixture
) -> None:
    source, outlet, _, back = way(sent, [row(1)])
    back._stall = Stall(after=0.0)  # pyright: ignore[reportPrivateUsage] - so that the test is quick
    outlet.connected = False
    back.run(outlet, lambda: not source.parts, 0.1)
    assert not outlet.published
    assert not caplog.text


def test_the_state_survives_a_kill(tmp_path: Path) -> None:
    """What was noted is on the disk without any good-bye."""
    child = os.fork()
    if child == 0:
        one = Sent(tmp_path / "sent.db")
        one.add([made(number) for number in range(50)])
        os._exit(9)
    os.waitpid(child, 0)
    after = Sent(tmp_path / "sent.db")
    assert set(after.known([made(number) for number in range(50)])) == {Known.SENT}
    after.close()
