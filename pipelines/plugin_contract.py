"""The contract of connectors and payload formats of other distributions, as tests that their author inherits.

The classes are plain: pytest collects a class that inherits one, and nothing here imports pytest. The plug-in is
installed when its tests run, since it is looked for as a job looks for it. A failure is an ``AssertionError`` that says
what a job would suffer.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ..schemas.readings import RejectReason
from ..schemas.settings.base import SettingsError
from ..schemas.settings.connectors import CONNECTORS
from ..schemas.settings.job import Settings, load_settings
from ..schemas.settings.mappings import PAYLOADS, Readings
from ..schemas.settings.plugins import CONNECTOR_PLUGINS, PAYLOAD_PLUGINS
from ..transforms.payloads.parsing import plugin_parser
from ..transforms.sources.contract import BEGIN, BrokerUnavailableError, PartitionedSource, SourceBatch
from .commands.schema import settings_schema
from .connectors.live import ResentTopic, live_sink, live_source
from .plugins import FollowedMessages

__all__ = ["PayloadContract", "SinkContract", "SourceContract"]

#: Reads without an answer after which a source has nothing.
_LOOKS = 200

_JOB: dict[str, Any] = {
    "readings": {"series": "series", "time": "time", "value": "value"},
    "slots": {"interval": "1min"},
    "states": {"edges": [10]},
    "model": "stand-in",
    "windows": {"size": "1h", "start": "2024-01-01"},
    "privacy": {"epsilon": 1.0},
    "query": "contract",
    "domain": "contract",
}

_LIGHT = """
import sys
from quiltstream.schemas.settings.plugins import CONNECTOR_PLUGINS, PAYLOAD_PLUGINS
found = (CONNECTOR_PLUGINS if sys.argv[1] == "connector" else PAYLOAD_PLUGINS).named(sys.argv[2])
print(" ".join(sorted({"apache_beam", found.made.module} & sys.modules.keys())))
"""


def _imported_with(what: str, name: str) -> str:
    done = subprocess.run([sys.executable, "-c", _LIGHT, what, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the entry point {name!r} cannot be imported alone: {done.stderr}"
    return done.stdout.strip()


def _job(**sections: Any) -> Settings:
    return load_settings(json.dumps({**_JOB, "sink": {"jsonl": "released"}, **sections}))


def _refusal(**sections: Any) -> str:
    try:
        _job(**sections)
    except SettingsError as error:
        return str(error)
    raise AssertionError(f"settings with a mistake are accepted: {sections}")


class _ConnectorContract(ABC):
    """What holds for sources and sinks alike."""

    #: the name in settings
    name: str
    _end: str

    @abstractmethod
    def section(self) -> dict[str, Any]:
        """Settings of a place that is there and empty."""

    def test_it_is_found_by_its_name_without_its_client(self) -> None:
        assert self.name not in CONNECTORS, f"{self.name!r} is a connector of quiltstream, which is taken instead"
        plugin = CONNECTOR_PLUGINS.named(self.name)
        assert plugin is not None, f"no entry point of group {CONNECTOR_PLUGINS.group} is named {self.name!r}"
        assert getattr(plugin.made, self._end) is not None, f"the connector has no {self._end}"
        found = _imported_with("connector", self.name)
        assert not found, f"a settings file with {self.name!r} imports {found}: import it in the module for the work"

    def test_a_setting_that_is_none_is_named_with_its_place(self) -> None:
        text = _refusal(**{self._end: {self.name: {**self.section(), "no_such_setting": 1}}})
        assert f"{self._end}.{self.name}.no_such_setting" in text, text

    def test_its_settings_are_in_the_schema(self) -> None:
        forms = settings_schema()["$defs"]
        owner = {"source": "FileSource", "sink": "FileSink"}[self._end]
        assert self.name in forms[owner]["properties"]

    def test_its_place_holds_no_secret(self) -> None:
        settings = _job(**{self._end: {self.name: self.section()}})
        end = settings.source if self._end == "source" else settings.sink
        assert end is not None
        assert end.section is not None
        assert "@" not in end.section.place
        assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - its own


class SourceContract(_ConnectorContract):
    """The contract of a source whose messages are JSON; one part of it is enough."""

    _end = "source"

    @abstractmethod
    def send(self, payloads: Sequence[bytes]) -> None:
        """Add messages to the place of :meth:`section`; they are there when this returns."""

    def forget(self) -> None:
        """Remove all messages from the place, as its retention does; not called if it is not overridden."""

    def unreachable(self) -> dict[str, Any] | None:
        """Settings of a place that does not answer; ``None`` leaves that test out."""
        return None

    @staticmethod
    def message(number: int, seconds: int | None = None) -> bytes:
        """A message with one reading, whose value is its number, and so many seconds behind the first its time."""
        time = 1_704_067_200 + (number if seconds is None else seconds)
        return json.dumps({"series": "a", "time": time, "value": number}).encode()

    def made(self, section: dict[str, Any] | None = None, **readings: Any) -> PartitionedSource:
        """The source, as it travels to a worker; with another mapping than that of :meth:`message`, if it is given."""
        source = live_source(
            _job(source={self.name: section or self.section()}, readings={**_JOB["readings"], **readings})
        )
        assert isinstance(source, FollowedMessages), "override made() for a source that is no FollowedMessages"
        return pickle.loads(pickle.dumps(source.partitions))  # noqa: S301 - its own

    def pieces(self, position: str, *, most: int = sys.maxsize, **readings: Any) -> list[SourceBatch]:
        """What a reader made at a position gives until it has nothing, or has given so many pieces."""
        reader, found, looks = self.made(**readings).reader(0, position), list[SourceBatch](), 0
        try:
            while len(found) < most and looks < _LOOKS and not (found and found[-1].settled):
                batch = reader.read()
                looks += batch is None
                found += [] if batch is None else [batch]
        finally:
            reader.close()
        return found

    @staticmethod
    def values(pieces: Sequence[SourceBatch]) -> list[float]:
        """The values of the readings."""
        return [value for piece in pieces for one in piece.batches for value in one.column("value").to_pylist()]

    @staticmethod
    def _latest(pieces: Sequence[SourceBatch]) -> dict[int, float]:
        """The value of each minute that has the latest time, as a cell keeps it."""
        rows = [row for piece in pieces for one in piece.batches for row in one.select(["time", "value"]).to_pylist()]
        found = sorted((row["time"].timestamp() - 1_704_067_200, row["value"]) for row in rows)
        return {int(since // 60) + 1: value for since, value in found}

    def test_an_empty_place_has_nothing(self) -> None:
        reader = self.made().reader(0, BEGIN)
        assert reader.read() is None
        assert reader.trouble is None
        reader.close()

    def test_every_message_comes_once_and_the_last_piece_is_settled(self) -> None:
        self.send([self.message(number) for number in range(500)])
        pieces = self.pieces(BEGIN)
        assert sorted(self.values(pieces)) == list(range(500))
        assert [one.settled for one in pieces] == [False] * (len(pieces) - 1) + [True]
        assert not any(one.rejected for one in pieces)

    def test_a_reader_made_at_a_position_goes_on_behind_it(self) -> None:
        position, found = BEGIN, list[float]()
        for begin in range(0, 60, 20):
            self.send([self.message(number) for number in range(begin, begin + 20)])
            pieces = self.pieces(position)
            assert pieces, "messages behind a position are left out"
            found += self.values(pieces)
            position = pieces[-1].position
        assert found == list(range(60))
        assert not self.pieces(position, most=1)

    def test_a_position_gives_the_same_messages_again(self) -> None:
        self.send([self.message(number) for number in range(10)])
        first = self.pieces(BEGIN)
        self.send([self.message(number) for number in range(10, 20)])
        once, again = self.pieces(first[-1].position), self.pieces(first[-1].position)
        assert self.values(once) == self.values(again) == list(range(10, 20))

    def test_a_counter_goes_on_where_a_reader_left_off_or_is_refused(self) -> None:
        register: dict[str, Any] = {"value": {"register": {"path": "value"}}}
        try:
            self.made(**register)
        except SettingsError as error:
            assert "register" in str(error), error  # noqa: PT017 - no pytest here
            return
        found, position = list[SourceBatch](), BEGIN
        for begin in range(0, 40, 10):
            # four readings a slot of a minute, of a counter that rises by one with each; a new reader for each part
            self.send([self.message(number, 15 * number) for number in range(begin, begin + 10)] + [b"{half"])
            pieces = self.pieces(position, **register)
            found += pieces
            assert sum(sum(one.rejected.values()) for one in pieces) == 1, "what is read again is rejected again"
            position = pieces[-1].position
        # the first slot has no reading before it, and the last one is not over
        assert self._latest(found) == dict.fromkeys(range(1, 10), 4.0) | {10: 3.0}, "a rise is lost or counts twice"

    def test_a_message_that_cannot_be_read_is_one_reject(self) -> None:
        self.send([b"{half", self.message(1), b"\xff"])
        pieces = self.pieces(BEGIN)
        assert self.values(pieces) == [1.0]
        assert sum(sum(one.rejected.values()) for one in pieces) == 2  # noqa: PLR2004 - as sent

    def test_what_was_removed_unread_is_told_once_and_remembered(self) -> None:
        if type(self).forget is SourceContract.forget:
            return
        self.send([self.message(number) for number in range(10)])
        first = self.pieces(BEGIN)
        assert all(one.lost_us is None for one in first)
        self.send([self.message(number) for number in range(10, 20)])
        self.forget()
        self.send([self.message(number) for number in range(20, 30)])
        behind = self.pieces(first[-1].position)
        assert self.values(behind) == list(range(20, 30))
        assert behind[-1].lost_us is not None, "windows that lack messages would be published as whole"
        assert sum(one.rejected.get(RejectReason.DAMAGED_SOURCE, 0) for one in behind) == 1
        self.send([self.message(30)])
        later = self.pieces(behind[-1].position)
        assert later[-1].lost_us == behind[-1].lost_us
        assert not later[-1].rejected

    def test_what_was_read_before_it_was_removed_is_not_lost(self) -> None:
        if type(self).forget is SourceContract.forget:
            return
        self.send([self.message(number) for number in range(10)])
        first = self.pieces(BEGIN)
        self.forget()
        self.send([self.message(10)])
        behind = self.pieces(first[-1].position)
        assert self.values(behind) == [10.0]
        assert behind[-1].lost_us is None

    def test_a_place_that_does_not_answer_is_trouble_and_no_silence(self) -> None:
        section = self.unreachable()
        if section is None:
            return
        reader = self.made(section).reader(0, BEGIN)
        try:
            batch = reader.read()
        except BrokerUnavailableError as error:
            raise AssertionError(f"the job would end, though {error} may pass: raise it with passing=True") from error
        assert batch is None
        assert reader.trouble, "silence would close windows while nothing can be read"
        reader.close()


class SinkContract(_ConnectorContract):
    """The contract of a sink that is a :class:`ResentTopic`, or has a :class:`MessageTopic` as its ``topic``."""

    _end = "sink"

    @abstractmethod
    def received(self) -> list[tuple[bytes | None, bytes]]:
        """Key and value of every message at the place."""

    def test_what_is_finished_is_there_with_its_key(self) -> None:
        sink = live_sink(_job(sink={self.name: self.section()}))
        assert isinstance(sink, ResentTopic), "override this test for a sink that is no ResentTopic"
        topic = pickle.loads(pickle.dumps(sink.topic))  # noqa: S301 - its own
        sent = [(f"release-{number}".encode(), f'{{"row":{number}}}'.encode()) for number in range(100)]
        sender = topic.sender(f"sink.{self.name}")
        sender.send((key, value, [("content-type", b"application/json")]) for key, value in sent[:60])
        sender.finish()
        assert sorted(self.received()) == sorted(sent[:60]), "rows are lost or changed although finish() returned"
        sender.send((key, value, []) for key, value in sent[60:])
        sender.finish()
        sender.finish()
        sender.close()
        assert sorted(self.received()) == sorted(sent)


class PayloadContract(ABC):
    """The contract of a payload format."""

    #: the name in settings
    name: str
    #: settings of the format
    section: dict[str, Any] = {}  # noqa: RUF012 - replaced whole by a class that inherits this one

    @abstractmethod
    def examples(self) -> list[tuple[bytes, Any]]:
        """Payloads, and the plain value of each."""

    @abstractmethod
    def garbage(self) -> list[bytes]:
        """Payloads that are none."""

    def _readings(self) -> Readings:
        return Readings.model_validate(
            {"payload": {self.name: self.section}, "series": "series", "time": "time", "value": "value"}
        )

    def test_it_is_found_by_its_name_without_its_library(self) -> None:
        assert self.name not in PAYLOADS, f"{self.name!r} is a format of quiltstream, which is taken instead"
        assert PAYLOAD_PLUGINS.named(self.name) is not None, f"no entry point of group {PAYLOAD_PLUGINS.group}"
        found = _imported_with("payload format", self.name)
        assert not found, f"a settings file with {self.name!r} imports {found}: import it in the module for the work"

    def test_a_setting_that_is_none_is_named_with_its_place(self) -> None:
        given = {**self.section, "no_such_setting": 1}
        text = _refusal(source={"jsonl": "x"}, readings={**_JOB["readings"], "payload": {self.name: given}})
        assert f"readings.payload.{self.name}.no_such_setting" in text, text

    def test_examples_have_their_values(self) -> None:
        payloads, values = zip(*self.examples(), strict=True)
        readings = pickle.loads(pickle.dumps(self._readings()))  # noqa: S301 - its own
        parsed = plugin_parser(readings)(payloads, list(range(len(payloads))))
        assert not parsed.bad, f"examples that are rejected: {sorted(parsed.bad)}"
        assert parsed.values == list(values)

    def test_what_is_no_payload_is_rejected_and_the_others_are_read(self) -> None:
        good, value = self.examples()[0]
        bad = self.garbage()
        parsed = plugin_parser(self._readings())([*bad, good], list(range(len(bad) + 1)))
        assert sorted(parsed.bad) == list(range(len(bad)))
        assert parsed.values == [value]
