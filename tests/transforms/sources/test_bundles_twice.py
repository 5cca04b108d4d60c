"""Steps whose bundles fail once, when they have given all they have: the runner runs them again, and nothing changes.

The runner is the bundle-based one, which does not split; what runs a live reader is therefore the test itself.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, cast

import apache_beam as beam
import numpy as np
import polars as pl
import pytest
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.core import CombineValuesDoFn
from apache_beam.transforms.window import TimestampedValue

from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.table_files import RELEASES, in_one, write_stream
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms, sinks
from quiltstream.transforms.aggregate.collect import CollectCells, SortPanes
from quiltstream.transforms.aggregate.encode import EncodeCells
from quiltstream.transforms.aggregate.release import ChargeAndCount, SumTallies
from quiltstream.transforms.kafka.sink import SendReleases, _Send
from quiltstream.transforms.sinks import Message, single_object_head
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.progress import Restriction
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from ...examined import Tally
from ..test_histograms import ORIGIN
from .streams import DAILY, GROUPS, HOUR, SERIES, Estimator, Tracker, as_it_comes, decoder, put, readings
from .test_live_faults import DAYS, long_settings, play, whole


def plain(value: Any) -> Any:
    """A value that equals another one where these say the same, in the same order or not."""
    if is_dataclass(value):
        return type(value).__name__, [(one.name, plain(getattr(value, one.name))) for one in fields(value)]
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, dict):
        return sorted((repr(key), plain(one)) for key, one in value.items())
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, TaggedOutput):
        return value.tag, plain(value.value)
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value


class Twice:
    """Has each bundle of a step fail once, when it has given all that it has.

    Attributes:
        first: what each bundle that failed had given, by the elements that were in it.
        again: the same of those that did not.
        steps: which steps failed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: type[beam.DoFn]) -> None:
        self.first: dict[tuple[int, ...], str] = {}
        self.again: dict[tuple[int, ...], str] = {}
        self.steps = set[type]()
        self._step = step
        # none of them goes, or another could come by its number
        self._kept = list[Any]()
        for name in ("start_bundle", "process", "finish_bundle"):
            monkeypatch.setattr(step, name, getattr(self, f"_{name}")(getattr(step, name)))

    def _start_bundle(self, start: Any) -> Any:
        def started(dofn: Any) -> Any:
            dofn.noted = ([], [])
            return start(dofn)

        return started

    def _process(self, process: Any) -> Any:
        @wraps(process)
        def noted(dofn: Any, element: Any, *given: Any) -> Iterator[Any]:
            came, gave = dofn.noted
            self._kept.append(element)
            came.append(id(element))
            for one in process(dofn, element, *given) or ():
                gave.append(one)
                yield one

        return noted

    def _finish_bundle(self, finish: Any) -> Any:
        def finished(dofn: Any) -> Iterator[Any]:
            came, gave = dofn.noted
            for one in finish(dofn) or ():
                gave.append(one)
                yield one
            place, said = tuple(came), repr(plain(gave))
            if place and place not in self.first:
                self.first[place] = said
                self.steps.add(type(getattr(dofn, "combinefn", dofn)))
                raise OSError("what the bundle gave was lost")
            if place:
                self.again[place] = said

        return finished


@pytest.mark.parametrize(
    ("steps", "failed"),
    [
        pytest.param([CombineValuesDoFn, SortPanes], {CollectCells, SumTallies, SortPanes}, marks=pytest.mark.night),
        pytest.param([EncodeCells], {EncodeCells}, marks=pytest.mark.night),
        ([ChargeAndCount], {ChargeAndCount}),
    ],
    ids=["collecting, sorting and summing", "encoding", "counting"],
)
def test_every_bundle_of_a_step_is_run_twice_and_changes_nothing(
    tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch, steps: list[type[beam.DoFn]], failed: set[type]
) -> None:
    job = long_settings(tmp_path, group_by="group")
    frame = readings(DAYS, seed=36)
    found = [Twice(monkeypatch, step) for step in steps]
    play(as_it_comes(frame, step_us=12 * HOUR, lateness_us=0, parts=2), job, tmp_path)
    assert set[type]().union(*(twice.steps for twice in found)) == failed
    for twice in found:
        # the second run gave the same
        assert twice.again == twice.first
        assert len(twice.first) >= DAYS
    whole(job, [tmp_path], frame, GROUPS, tally)


@dataclass(frozen=True)
class KeptTopic:
    """A topic whose broker keeps everything in this process."""

    format: Any = "json"
    kept: ClassVar[list[Message]] = []

    def sender(self, field: str) -> KeptSender:
        assert field == "sink.kafka"
        return KeptSender()


class KeptSender:
    """A broker has what was sent once it is asked for, or nothing of it."""

    head = staticmethod(single_object_head)

    def __init__(self) -> None:
        self._sent = list[Message]()

    def send(self, messages: Iterable[Message]) -> None:
        self._sent += messages

    def finish(self) -> None:
        KeptTopic.kept += self._sent
        self._sent = []

    def close(self) -> None:
        """Nothing is open."""


def of_record(job: Settings) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with Store(PrivateHistograms(job, noise="none").plan.address, create=False) as store:
        for batch in store.releases(job.domain, job.query):
            for number, name in enumerate(batch.column("release_id").to_pylist()):
                stream = io.BytesIO()
                write_stream(stream, "jsonl", in_one(RELEASES.table([batch.slice(number, 1)])), RELEASES)
                found[name] = stream.getvalue().rstrip(b"\n")
    return found


@pytest.mark.night
def test_bundles_run_twice_leave_each_row_of_record_once_in_the_sink(
    tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder has the same files as without; a topic has the same messages, each of them twice."""
    job = long_settings(tmp_path, shards=1)
    frame = readings(DAYS, seed=37)
    monkeypatch.setattr(KeptTopic, "kept", [])
    written, sent = Twice(monkeypatch, sinks._WriteBlocks), Twice(monkeypatch, _Send)
    into = (sinks.WriteBlocks(str(tmp_path / "releases"), "jsonl"), SendReleases(cast("Any", KeptTopic())))
    play(as_it_comes(frame, step_us=12 * HOUR, lateness_us=0, parts=2), job, tmp_path, into)
    for twice in (written, sent):
        assert twice.again.keys() == twice.first.keys()
        assert len(twice.first) >= DAYS
    rows = of_record(job)
    files = [path.read_bytes().splitlines() for path in (tmp_path / "releases").iterdir()]
    assert Counter(line for lines in files for line in lines) == Counter(rows.values())
    assert Counter((key, value) for key, value, _ in KeptTopic.kept) == {
        (name.encode(), line): 2 for name, line in rows.items()
    }
    whole(job, [tmp_path], frame, SERIES, tally)


class Calls:
    """A runner that calls a reader, and loses what some of its calls gave.

    Attributes:
        events: what has come of the calls that were kept, and where the watermark stood after each.
        lost: how many calls gave something that was lost, by how they ended.
    """

    def __init__(self, part: ReadPart) -> None:
        self.events: list[Any] = []
        self.lost = Counter[str]()
        self._part = part
        self._at: Any = None
        self.span: Restriction | None = part.initial_restriction(0)

    def turn(self) -> bool:
        """Call it: once to fail while it gives, once to be lost when it has given, and once to be kept.

        Returns:
            Whether it gave anything.
        """
        call, _, _ = self._call()
        if next(call, None) is not None:
            with pytest.raises(OSError, match="lost"):
                call.throw(OSError("lost"))
            self.lost["while it gave"] += 1
        call, tracker, _ = self._call()
        if list(call):
            self.lost["when it had given"] += 1
        call, tracker, estimator = self._call()
        given = list(call)
        tracker.check_done()
        self._at, self.span = estimator.at, tracker.rest
        self.events += [*given, int(estimator.at.micros)]
        return bool(given)

    def _call(self) -> tuple[Any, Tracker, Any]:
        assert self.span is not None
        estimator: Any = Estimator()
        estimator.at = self._at
        tracker = Tracker(self.span)
        return self._part.process(0, tracker, estimator), tracker, estimator


@pytest.mark.night
def test_every_readers_call_repeated_after_a_failure_changes_nothing(tmp_path: Path, tally: Tally) -> None:
    job = long_settings(tmp_path, shards=1)
    frame = readings(DAYS + 1, seed=38)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    feed = ArrivingFiles(decoder(), (str(inbox / "*.jsonl"),))
    part = ReadPart(feed, PollingPolicy(ORIGIN, poll_s=0.001, end_us=ORIGIN + 24 * DAYS * HOUR, steps=DAILY))
    part.setup()
    calls = Calls(part)
    for half in range(2 * DAYS + 2):
        begin = ORIGIN + half * 12 * HOUR
        put(inbox, f"{half:02}.jsonl", frame.filter((pl.col("time") >= begin) & (pl.col("time") < begin + 12 * HOUR)))
        while calls.span is not None and calls.turn():
            pass
    part.teardown()
    assert calls.span is None
    assert min(calls.lost.values()) > 2 * DAYS
    assert set(calls.lost) == {"while it gave", "when it had given"}
    assert all(isinstance(one, int | TimestampedValue) for one in calls.events)
    play(calls.events, job, tmp_path)
    whole(job, [tmp_path], frame, SERIES, tally)
