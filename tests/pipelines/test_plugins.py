"""Connectors and payload formats of other distributions: found by name, checked, imported by what uses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import yaml

from quiltstream.pipelines.connectors.live import live_sink, live_source
from quiltstream.pipelines.plugin_contract import PayloadContract, SinkContract, SourceContract
from quiltstream.pipelines.plugins import MessageClient, MessagePartitions, decoder_of
from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import EXAMPLE, Settings, load_settings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import MessageDecoder, Messages, SourceAwayError
from quiltstream.transforms.payloads.parsing import checked_value

from ..installing import install, install_redis_streams
from ..present import present
from .jobs import call

SETTINGS = """
from pydantic import Field
from quiltstream.schemas.settings.base import Section
from quiltstream.schemas.settings.plugins import Connector, ConnectorSection, PayloadFormat


class Pipe(ConnectorSection):
    queue: str = Field(description="name of the queue")
    most: int = Field(default=10, ge=1)

    @property
    def place(self):
        return self.queue


class Marks(Section):
    mark: str = Field(default="|", min_length=1, max_length=1)


PIPE = Connector("pipe_work", source=Pipe, sink=Pipe)
READS = Connector("pipe_work", source=Pipe)
LOST = Connector("no_such_module", source=Pipe)
OLD = Connector("pipe_work", source=Pipe, contract=0)
BARE = Connector("bare_work", source=Pipe)
MARKS = PayloadFormat("marks_work", Marks)
QUEUE = Connector("queue_work", source=Pipe, sink=Pipe)
"""

WORK = """
def source(settings, group):
    return "a pipe"

def sink(settings, field, given):
    return "a pipe"
"""

MARKS = """
def parser(section):
    def parse(payload):
        series, time, value = payload.decode().split(section.mark)
        if series == "odd":
            return {"series": object(), 1: 2}
        return {"series": series, "time": int(time), "value": float(value)}
    return parse
"""

#: A queue in a file: how many messages were removed, and those that are there.
QUEUE = """
import json
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from quiltstream.pipelines.plugins import *
from quiltstream.pipelines.plugins import decoder_of


class Client(MessageClient):
    def __init__(self, path):
        self.path = path

    def fetch(self, position):
        if not self.path.exists():
            raise BrokerUnavailableError("no queue", passing=True)
        removed, there = json.loads(self.path.read_text())
        at = int(position or 0)
        begin = max(at, removed)
        some = there[begin - removed:][:100]
        lost = 1_000_000 * begin if at < removed else None
        if not some and lost is None:
            return None
        n = len(some)
        messages = Messages(
            [one.encode("latin-1") for one in some], ["q"] * n, [None] * n, [()] * n,
            np.full(n, 1_704_067_200_000_000), np.arange(begin, begin + n),
        )
        return Fetched(messages, str(begin + n), settled=begin + n == removed + len(there), lost_us=lost)

    def before(self, position, since_us):
        removed, there = json.loads(self.path.read_text())
        for at in range(removed, int(position)):
            yield Messages(
                [there[at - removed].encode("latin-1")], ["q"], [None], [()], np.full(1, 1_704_067_200_000_000),
                np.arange(at, at + 1),
            )

    def close(self):
        pass


@dataclass(frozen=True)
class Parts(MessagePartitions):
    path: Path

    def name(self, part):
        return "q"

    def client(self, part):
        return Client(self.path)


def source(settings, group):
    path = Path(settings.source.section.queue)
    return FollowedMessages(Parts(decoder_of(settings, group, "source.queue", rereads=True), path), False)


@dataclass(frozen=True)
class Topic(MessageTopic):
    kind = "queue"
    format = "json"
    name: str

    def sender(self, field):
        return Sender(self)


class Sender(MessageSender):
    def __init__(self, topic):
        self.path, self.waiting = Path(topic.name), []

    def send(self, messages):
        self.waiting += [(key.decode(), value.decode()) for key, value, _ in messages]

    def finish(self):
        there = json.loads(self.path.read_text()) if self.path.exists() else []
        self.path.write_text(json.dumps(there + self.waiting))
        self.waiting = []

    def close(self):
        pass


def sink(settings, field, given):
    return ResentTopic(Topic(given.section.queue))
"""

CONNECTORS = {
    "queue": "pipe_settings:QUEUE",
    "pipe": "pipe_settings:PIPE",
    "reads": "pipe_settings:READS",
    "lost": "pipe_settings:LOST",
    "old": "pipe_settings:OLD",
    "bare": "pipe_settings:BARE",
    "wrong": "pipe_settings:Pipe",
    "broken": "broken_settings:PIPE",
    "Pipe": "pipe_settings:PIPE",
}
MODULES = {"pipe_settings": SETTINGS, "pipe_work": WORK, "bare_work": "", "marks_work": MARKS, "queue_work": QUEUE}
BROKEN = "import a_client_that_is_missing\n"


@pytest.fixture(autouse=True, scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    groups = {"quiltstream.connectors": CONNECTORS, "quiltstream.payloads": {"marks": "pipe_settings:MARKS"}}
    install(folder, "pipes", groups, {**MODULES, "broken_settings": BROKEN})
    twice = {"quiltstream.connectors": {"twice": "pipe_settings:PIPE"}}
    install(folder, "first", twice, {})
    install(folder, "second", twice, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        # for the processes that the contract starts
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield folder
    for name in MODULES:
        sys.modules.pop(name, None)


def job(**sections: Any) -> Settings:
    return load_settings(yaml.safe_dump({**yaml.safe_load(EXAMPLE), **sections}))


def refused(**sections: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        job(**sections)
    return str(caught.value)


class TestMarks(PayloadContract):
    name = "marks"
    section = {"mark": ";"}  # noqa: RUF012 - as the contract has it

    def examples(self) -> list[tuple[bytes, Any]]:
        return [(b"a;1;2.5", {"series": "a", "time": 1, "value": 2.5})]

    def garbage(self) -> list[bytes]:
        return [b"", b"a|1|2", b"\xff;;", b"odd;1;2"]


class TestQueue(SourceContract):
    name = "queue"

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "queue"
        self.path.write_text("[0, []]", encoding="utf-8")

    def section(self) -> dict[str, Any]:
        return {"queue": str(self.path)}

    def unreachable(self) -> dict[str, Any]:
        return {"queue": str(self.path.with_name("no-queue"))}

    def send(self, payloads: Sequence[bytes]) -> None:
        removed, there = json.loads(self.path.read_text(encoding="utf-8"))
        self.path.write_text(json.dumps([removed, [*there, *(one.decode("latin-1") for one in payloads)]]))

    def forget(self) -> None:
        removed, there = json.loads(self.path.read_text(encoding="utf-8"))
        self.path.write_text(json.dumps([removed + len(there), []]))


class TestQueueAsSink(SinkContract):
    name = "queue"

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "queue"

    def section(self) -> dict[str, Any]:
        return {"queue": str(self.path)}

    def received(self) -> list[tuple[bytes | None, bytes]]:
        return [(key.encode(), value.encode()) for key, value in json.loads(self.path.read_text(encoding="utf-8"))]


def test_a_section_of_a_plugin_is_checked_as_any_other() -> None:
    settings = job(source={"pipe": {"queue": "q"}}, sink={"pipe": {"queue": "r", "most": 3}})
    assert (present(settings.source).kind, present(settings.source).broker) == ("pipe", "source.pipe")
    assert (present(settings.sink).text, present(settings.sink).is_files) == ("r", False)
    assert "source.pipe.queue is missing" in refused(source={"pipe": {}})
    assert "sink.pipe.most is 0" in refused(sink={"pipe": {"queue": "q", "most": 0}})
    assert "source.pipe.colour is not a setting" in refused(source={"pipe": {"queue": "q", "colour": 1}})
    assert "source.pipe is a text, which is not shown" in refused(source={"pipe": "amqp://secret"})
    assert "2 are given" in refused(source={"pipe": {"queue": "q"}, "jsonl": "x"})
    assert "source.pipes is not a setting" in refused(source={"pipes": {"queue": "q"}})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "cannot be imported from broken_settings:PIPE (ModuleNotFoundError: No module named 'a_client_that"),
        ("wrong", "pipe_settings:Pipe is a ModelMetaclass, not a Connector"),
        ("old", "is written for contract 0, and this quiltstream has contract 1"),
        ("Pipe", "a name has up to 40 small letters"),
    ],
)
def test_a_plugin_that_cannot_be_used_names_its_distribution(name: str, words: str) -> None:
    text = refused(source={name: {"queue": "q"}})
    assert f"the connector {name!r} of pipes 0.1.0" in text
    assert words in text


def test_a_missing_part_of_a_plugin_is_reported_when_a_job_uses_it() -> None:
    assert "of first 0.1.0 and of second 0.1.0" in refused(source={"twice": {"queue": "q"}})
    assert "the connector 'reads' of pipes 0.1.0 has no sink" in refused(sink={"reads": {"queue": "q"}})
    for name, words in (
        ("lost", "of pipes 0.1.0 cannot be imported from no_such_module"),
        ("bare", "of pipes 0.1.0: module bare_work lacks the function source()"),
        ("pipe", "of pipes 0.1.0: source() gives a str, not a LiveSource"),
    ):
        settings = job(source={name: {"queue": "q"}})
        with pytest.raises(SettingsError, match=r"of pipes 0\.1\.0") as caught:
            live_source(settings)
        assert words in str(caught.value)
    with pytest.raises(SettingsError, match=r"sink\(\) gives a str, not a LiveSink"):
        live_sink(job(sink={"pipe": {"queue": "q"}}))


def test_a_sink_at_the_location_of_the_source_is_refused() -> None:
    from quiltstream.pipelines.connectors.job_io import check_topics  # noqa: PLC0415 - used here alone

    pipe = {"pipe": {"queue": "q"}}
    with pytest.raises(SettingsError, match=r"source\.pipe and sink\.pipe name the same topic, q"):
        check_topics(job(source=pipe, sink=pipe))


def test_the_schema_contains_plugin_sections_and_reports_omitted_plugins() -> None:
    done = call("schema").ended(0)
    schema = json.loads(done.out)
    assert schema["$defs"]["FileSource"]["properties"]["pipe"]["$ref"] == "#/$defs/pipe.source"
    assert schema["$defs"]["pipe.source"]["properties"]["most"]["minimum"] == 1
    assert schema["$defs"]["FileSource"]["additionalProperties"] is False
    assert "reads" not in schema["$defs"]["FileSink"]["properties"]
    assert {"const": "marks"} in schema["$defs"]["Readings"]["properties"]["payload"]["anyOf"]
    assert "Left out: the connector 'broken' of pipes 0.1.0 cannot be imported" in done.err


def test_a_counter_in_a_payload_of_a_plugin_is_differenced_as_any_other() -> None:
    counter = {"payload": "marks", "series": "series", "time": "time", "value": {"register": {"path": "value"}}}
    settings = job(source={"kafka": {"servers": "b:9092", "topic": "t"}}, readings=counter)
    times = settings.grid.origin_us // 1_000_000 + np.arange(4) * settings.grid.interval_us // 1_000_000 + 1
    given = [f"a|{time}|{value}".encode() for time, value in zip(times.tolist(), (5, 7, 12, 12.5), strict=True)]
    none: list[Any] = [None] * 4
    messages = Messages(given, [""] * 4, none, [()] * 4, np.zeros(4, np.int64), np.arange(4, dtype=np.int64))
    (decoded,) = PayloadDecoder.of(settings).decode(messages)
    scale = settings.readings.scale if settings.readings is not None else 0.0
    assert sorted(present(decoded.readings).column("value").to_pylist()) == [0.5 * scale, 2 * scale, 5 * scale]


def test_a_source_that_does_not_read_again_refuses_counters() -> None:
    settings = job(source={"pipe": {"queue": "q"}}, readings={**PLAIN, "value": {"register": {"path": "v"}}})
    with pytest.raises(SettingsError, match=r"source\.pipe does not read them again"):
        decoder_of(settings, None, "source.pipe")


PLAIN = {"series": "series", "time": "time"}


def test_a_payload_of_a_plugin_is_read_and_its_rejects_are_counted() -> None:
    plain = {"series": "series", "time": "time", "value": "value"}
    for payload, mark in ((("marks"), b"|"), ({"marks": {"mark": ";"}}, b";"), ({"marks": None}, b"|")):
        settings = job(source={"kafka": {"servers": "b:9092", "topic": "t"}}, readings={**plain, "payload": payload})
        given = [
            mark.join(one) for one in ((b"a", b"1700000000", b"1"), (b"odd", b"0", b"1"), (b"b", b"1700000060", b"2"))
        ]
        none: list[Any] = [None] * 3
        stamps = np.zeros(3, np.int64)
        messages = Messages(given, [""] * 3, none, [()] * 3, stamps, np.arange(3, dtype=np.int64))
        decoded = PayloadDecoder.of(settings).decode(messages)
        batches = [part.readings for part in decoded if part.readings is not None]
        assert [one for batch in batches for one in batch.column("value").to_pylist()] == [1.0, 2.0]
        found = [(one.reason, one.positions.tolist()) for part in decoded for one in part.rejects]
        assert found == [(RejectReason.MALFORMED_ROW, [1])]
    kafka = {"source": {"kafka": {"servers": "b:9092", "topic": "t"}}}
    assert "readings.payload.marks.mark is ''" in refused(
        **kafka, readings={**plain, "payload": {"marks": {"mark": ""}}}
    )
    assert "'marx' is no format; write one of json" in refused(**kafka, readings={**plain, "payload": "marx"})


class Away(MessageDecoder):
    """Needs something that is away."""

    @property
    def lookback_us(self) -> int:
        return 1_000_000

    def decode(self, messages: Messages) -> NoReturn:  # noqa: ARG002 - whatever they are
        raise SourceAwayError("the registry is away")


class OnePart(MessagePartitions, MessageClient):
    """Counts how often it is asked for what was before."""

    looks = 0

    @property
    def parts(self) -> int:
        return 1

    def name(self, part: int) -> str:
        return f"p{part}"

    def client(self, part: int) -> OnePart:  # noqa: ARG002 - the only one
        return self

    def fetch(self, position: str) -> None:  # noqa: ARG002 - whatever it is
        return None

    def before(self, position: str, since_us: int) -> Iterator[Messages]:  # noqa: ARG002 - all of them
        type(self).looks += 1
        yield Messages([b"1"], ["q"], [None], [()], np.zeros(1, np.int64), np.zeros(1, np.int64))

    def close(self) -> None:
        pass


def test_a_look_back_with_a_waiting_decoder_is_not_fetched_at_each_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnePart, "looks", 0)
    reader = OnePart(Away()).reader(0, json.dumps({"at": "1", "stamp": 5}))
    for looks in (1, 2):
        reader._attempts.due = 0.0
        for _ in range(20):
            assert reader.read() is None
        assert (OnePart.looks, reader.trouble) == (looks, "the registry is away")


def test_a_frozen_mapping_holds_the_settings_of_its_payload() -> None:
    plain = {"series": "series", "time": "time", "value": "value", "payload": {"marks": {"mark": ";"}}}
    assert present(job(readings=plain).readings).canonical()["payload"] == {"marks": {"mark": ";"}}


def test_a_plugin_setting_that_is_not_a_json_value_is_refused() -> None:
    assert checked_value({"a": [1, 2.5, "x", None, True, (1,)]}) == {"a": [1, 2.5, "x", None, True, [1]]}
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    for value in (object(), {1: 2}, b"x", {"a": {1, 2}}, deep, np.float64(1)):
        with pytest.raises(ValueError, match=r"\w"):
            checked_value(value)


@pytest.mark.parametrize("place", ["m", "v"])
def test_an_integer_of_many_digits_from_a_plugin_ends_no_job(place: str) -> None:
    """Python refuses to write more than 4,300 digits; JSON has such integers as floats, too."""
    large = checked_value({place: 10**5_000, "n": [-(1 << 64), (1 << 64) - 1]})
    assert large == {place: sys.float_info.max, "n": [-float(1 << 64), (1 << 64) - 1]}
    assert str(large)


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["check", "{file}"], ["run", "{file}", "--dry-run"]])
def test_commands_import_no_plugin_that_the_settings_do_not_name(words: list[str], site: Path, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    mark = f"open({str(noted)!r}, 'a').write(__name__)\n"
    install(tmp_path / "site", "noting", {"quiltstream.connectors": {"noting": "noting:X"}}, {"noting": mark})
    settings = {**yaml.safe_load(EXAMPLE), "model": "stand-in", "roster": "roster.csv", "group_by": None}
    settings |= {"source": {"jsonl": "in/*.jsonl"}, "sink": {"jsonl": "out"}}
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    (tmp_path / "roster.csv").write_text("series\na\n", encoding="utf-8")
    command = [sys.executable, "-m", "quiltstream.pipelines.cli", *(one.format(file=file) for one in words)]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{site}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not noted.exists()


def test_a_dry_run_needs_no_client_of_a_plugin(tmp_path: Path) -> None:
    install_redis_streams(tmp_path / "site")
    (tmp_path / "site" / "redis.py").write_text("raise ImportError('no client')\n", encoding="utf-8")
    text = """
        import sys
        from quiltstream.schemas.settings.job import read_settings
        from pathlib import Path
        found = read_settings(Path(sys.argv[1]))
        print(found.source.section.place, sorted({"redis", "apache_beam", "pyarrow"} & sys.modules.keys()))
    """
    section = {"redis-streams": {"url": "redis://localhost", "streams": ["meters"]}}
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(EXAMPLE), "source": section}), encoding="utf-8")
    command = [sys.executable, "-c", "\n".join(line.strip() for line in text.splitlines()), file]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("meters at redis://localhost ")
    assert "redis'" not in done.stdout.partition(" [")[2]
    section["redis-streams"]["url"] = "redis://me:hush@localhost"
    file.write_text(yaml.safe_dump({**yaml.safe_load(EXAMPLE), "source": section}), encoding="utf-8")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "source.redis-streams.url" in done.stderr
    assert "hush" not in done.stderr.replace(text, "")
