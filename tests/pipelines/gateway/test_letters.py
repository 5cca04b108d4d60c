"""Letters of the gateway: dropped messages encrypted to the operator's key, and nothing of them anywhere else."""

from __future__ import annotations

import base64
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.pipelines.gateway.delivery import KafkaDelivery
from quiltstream.pipelines.gateway.forward import Forward
from quiltstream.pipelines.gateway.metrics import MOST_LETTERS, Dropped, RejectFile, Tally
from quiltstream.pipelines.gateway.pseudonyms import TopicNames
from quiltstream.pipelines.gateway.publish_back import Back, Sent
from quiltstream.schemas.dead_letters import Content, Letters, new_keys, open_letter
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.gateway import GatewaySettings
from quiltstream.schemas.settings.secrets import PseudonymKey

from ..jobs import call
from .fake_kafka import Broker, KafkaError
from .test_forward import FakeLine, FakeTarget, incoming, stop_after

pytest.importorskip("cryptography.hazmat.primitives.hpke", reason="the extra encrypted is not installed")

PRIVATE, PUBLIC = new_keys()
TO = Letters(public_key=base64.b64encode(PUBLIC).decode("ascii"))
SECRET = b"Musterstrasse 7"


class Way:
    """A gateway's way with a file of rejects."""

    def __init__(self, folder: Path, letters: Letters | None = TO, target: Any = None, **given: Any) -> None:
        self.path = folder / "rejects.jsonl"
        self.rejects = RejectFile(self.path, letters)
        self.line, self.target, self.tally = FakeLine(), FakeTarget() if target is None else target, Tally()
        limits: dict[str, Any] = {"messages": 100, "bytes_": 10**9, "largest": 10, "retained": False}
        self.forward = Forward(self.target, **limits | given, tally=self.tally, rejects=self.rejects)
        self.line.take = self.forward.take

    def turns(self, *messages: Any, count: int = 2) -> None:
        self.line.waiting.extend(messages)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.forward, "_finish", lambda *_: None)
            self.forward.run(self.line, stop_after(count), 0.0)

    def lines(self) -> list[dict[str, Any]]:
        self.rejects.close()
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]


def test_a_dead_letter_contains_the_message_and_its_line_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    way = Way(tmp_path)
    way.turns(incoming(1, SECRET, topic="meters/m7", content_type="text/plain"))
    (line,) = way.lines()
    letter = line.pop("letter")
    assert (line["reason"], line["bytes"], line["position"]) == ("too-large", len(SECRET), 1)
    for text in (json.dumps(line), caplog.text, way.tally.line(0, 1.0), way.tally.prometheus()):
        assert SECRET.decode() not in text
        assert "m7" not in text
    inside = open_letter(letter, PRIVATE)
    assert base64.b64decode(inside.pop("payload")) == SECRET
    assert inside.pop("stamp_us") > 1_700_000_000_000_000
    assert inside == {
        "reason": "too-large",
        "source": line["source"],
        "position": 1,
        "size": len(SECRET),
        "topic": "meters/m7",
        "key": None,
        "headers": [["content-type", base64.b64encode(b"text/plain").decode()]],
        "cut": False,
    }


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (incoming(1, SECRET), Dropped.TOO_LARGE),
        (incoming(1, SECRET, retain=True), Dropped.RETAINED),
        (incoming(1, SECRET, ""), Dropped.BAD_TOPIC),
    ],
)
def test_every_dropped_message_has_a_dead_letter_and_no_content_without_a_key(
    tmp_path: Path, message: Any, reason: Dropped
) -> None:
    way = Way(tmp_path)
    way.turns(message)
    (line,) = way.lines()
    inside = open_letter(line["letter"], PRIVATE)
    assert (line["reason"], inside["reason"]) == (reason.value, reason.value)
    assert base64.b64decode(inside["payload"]) == SECRET
    (tmp_path / "without").mkdir()
    plain = Way(tmp_path / "without", letters=None)
    plain.turns(message)
    (line,) = plain.lines()
    assert set(line) == {"reason", "topic", "bytes", "time"}
    for one in (tmp_path / "without").iterdir():
        assert SECRET not in one.read_bytes()
        assert base64.b64encode(SECRET) not in one.read_bytes()


def test_a_refused_message_has_a_dead_letter_and_is_held_only_with_a_key(tmp_path: Path) -> None:
    broker = Broker()
    broker.refuse = lambda _: KafkaError(KafkaError.INVALID_RECORD)
    target = KafkaDelivery("localhost:9092", "readings", "topic", {}, library=broker.library)
    way = Way(tmp_path, target=target, largest=1_000)
    way.turns(incoming(1, SECRET), count=4)
    target.close(1.0)
    (line,) = way.lines()
    assert line["reason"] == "refused-by-next-hop"
    assert base64.b64decode(open_letter(line["letter"], PRIVATE)["payload"]) == SECRET
    assert way.tally.in_flight == 0
    for letters, kept in ((TO, True), (None, False)):
        one = Way(tmp_path, letters=letters, largest=1_000)
        one.turns(incoming(1, SECRET))
        (flight,) = one.forward._flights.values()  # pyright: ignore[reportPrivateUsage] - what is held
        assert (flight.kept is not None) is kept
        one.rejects.close()


def test_a_dead_letter_contains_the_pseudonym_instead_of_the_name(tmp_path: Path) -> None:
    key = PseudonymKey(b"correct horse battery staple")
    way = Way(tmp_path, names=TopicNames(key, [2]))
    way.turns(incoming(1, SECRET, topic="meters/m7"), incoming(2, SECRET, topic="meters/m7", retain=True))
    insides = [open_letter(line["letter"], PRIVATE) for line in way.lines()]
    assert [inside["topic"] for inside in insides] == [f"meters/{key.name('m7')}"] * 2
    assert "m7" not in json.dumps(insides)


def test_messages_to_publish_that_are_no_rows_have_dead_letters(tmp_path: Path) -> None:
    pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")
    from .test_publish_back import FakeOutlet, Given  # noqa: PLC0415 - needs the extra

    rejects, sent = RejectFile(tmp_path / "rejects.jsonl", TO), Sent(tmp_path / "sent.db")
    source, outlet = Given([b'{"no": "release"}']), FakeOutlet()
    back = Back(source, sent, prefix="out", retain=False, tally=Tally(), rejects=rejects)
    outlet.back = back
    back.run(outlet, lambda: source.finished > 0, 1.0)
    rejects.close()
    sent.close()
    line = json.loads((tmp_path / "rejects.jsonl").read_text(encoding="utf-8"))
    assert base64.b64decode(open_letter(line["letter"], PRIVATE)["payload"]) == b'{"no": "release"}'


# So many and so much


def test_a_dead_letter_keeps_a_long_message_up_to_the_limit(tmp_path: Path) -> None:
    short = Letters(public_key=TO.public_key, most_bytes=256)
    way = Way(tmp_path, letters=short)
    way.turns(incoming(1, b"x" * 5_000_000))
    (line,) = way.lines()
    inside = open_letter(line["letter"], PRIVATE)
    assert (base64.b64decode(inside["payload"]), inside["cut"], inside["size"]) == (b"x" * 256, True, 5_000_000)
    assert way.path.stat().st_size < 2_000


def test_dead_letters_are_limited_per_minute_and_all_drops_are_reported(tmp_path: Path) -> None:
    now = [1_000.0]
    file = RejectFile(tmp_path / "rejects.jsonl", TO, clock=lambda: now[0])
    content = Content(SECRET, "meters/m7", 1)
    for at in (1_000.0, 1_059.9, 1_060.0):
        now[0] = at
        for _ in range(MOST_LETTERS):
            file.add(Dropped.TOO_LARGE, b"meters/m7", 15, content)
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["position"] for line in lines] == list(range(1, 3 * MOST_LETTERS + 1))
    has = [line["letter"] is not None for line in lines]
    assert has == [True] * MOST_LETTERS + [False] * MOST_LETTERS + [True] * MOST_LETTERS


# The command that opens them, and settings


def test_the_command_opens_dead_letters_and_reports_a_moved_one(tmp_path: Path) -> None:
    way = Way(tmp_path, letters=Letters(public_key=call("letters", "key", tmp_path / "private.key").out.strip()))
    way.turns(incoming(1, SECRET, topic="meters/m7"), incoming(2, b"\xff" * 20, topic="meters/m8"))
    lines = way.lines()
    opened = call("letters", "open", "--key", tmp_path / "private.key", way.path).ended(0)
    assert opened.err == ""
    found = [json.loads(line) for line in opened.out.splitlines()]
    assert [(one["topic"], one["size"]) for one in found] == [("meters/m7", 15), ("meters/m8", 20)]
    assert [one["payload"] for one in found] == [SECRET.decode(), {"base64": base64.b64encode(b"\xff" * 20).decode()}]
    lines[0]["letter"], lines[1]["letter"] = lines[1]["letter"], lines[0]["letter"]
    way.path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert call("letters", "open", "--key", tmp_path / "private.key", way.path).said(
        "2 letters stand in the row of another message"
    )


def document(**encrypted: Any) -> dict[str, Any]:
    rejects = {"file": "rejects.jsonl", "encrypted": encrypted}
    forward = {"topics": ["meters/#"], "to": {"folder": {"path": "spool"}}, "rejects": rejects}
    return {"mqtt": {"host": "localhost", "client_id": "g1"}, "forward": forward}


def check(folder: Path, **encrypted: Any) -> Any:
    pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(document(**encrypted)), encoding="utf-8")
    return call("gateway", "--check", path)


def test_a_gateway_that_runs_writes_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")
    from quiltstream.pipelines.gateway import run  # noqa: PLC0415 - needs the extra
    from quiltstream.pipelines.gateway.run import parts_of  # noqa: PLC0415 - as above

    def messages(_: Any, on_message: Any) -> FakeLine:
        line = FakeLine()
        line.take = on_message
        line.waiting.append(incoming(1, SECRET, retain=True))
        return line

    monkeypatch.setattr(run, "Connection", messages)
    parts = parts_of(GatewaySettings.parse(document(public_key=TO.public_key), folder=tmp_path))
    looks = iter([False, True])
    with run._closing(parts) as (tally, rejects):  # pyright: ignore[reportPrivateUsage] - the way without a broker
        run._forward(parts, tally, rejects, lambda: next(looks))  # pyright: ignore[reportPrivateUsage] - as above
    line = json.loads((tmp_path / "rejects.jsonl").read_text(encoding="utf-8"))
    assert base64.b64decode(open_letter(line["letter"], PRIVATE)["payload"]) == SECRET


def test_the_check_prints_how_much_content_is_kept_encrypted(tmp_path: Path) -> None:
    done = check(tmp_path, public_key=TO.public_key, most_bytes=1024)
    done.ended(0, "rejects.jsonl, with up to 1,024 bytes of each, encrypted")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("short", "forward.rejects.encrypted.public_key: this is no public key"),
        (base64.b64encode(bytes(32)).decode(), "forward.rejects.encrypted.public_key: nothing can be encrypted to it"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_before_the_gateway_begins(tmp_path: Path, key: str, words: str) -> None:
    done = check(tmp_path, public_key=key)
    done.ended(2, words)
    assert [one.name for one in tmp_path.iterdir()] == ["gateway.yaml"]


def test_without_the_library_a_gateway_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.x25519", None)
    done = check(tmp_path, public_key=TO.public_key)
    done.ended(2, "forward.rejects.encrypted: it needs the package cryptography; pip install 'quiltstream[encrypted]'")
    assert [one.name for one in tmp_path.iterdir()] == ["gateway.yaml"]


def test_a_key_without_a_file_is_a_mistake() -> None:
    given = document(public_key=TO.public_key)
    del given["forward"]["rejects"]["file"]
    with pytest.raises(SettingsError, match=r"forward\.rejects.*file"):
        GatewaySettings.parse(given)
