"""Kafka topics as the places of a live job: what they may hold, and what of the record they lack."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import click
import numpy as np
import numpy.typing as npt

from ..schemas.kafka import KafkaSink
from ..schemas.releases import release_ids
from ..schemas.secrets import located
from ..schemas.settings import FileSink, Settings, SettingsError
from ..schemas.slots import SlotGrid
from ..store.errors import StoreMissing
from ..store.records import Store
from ..store.rows import rows_of
from ..store.specs import Record, Registration
from ..transforms.kafka_client import Cluster, KafkaUnavailableError
from ..transforms.kafka_sink import Sender, Topic, release_messages
from ..transforms.kafka_topic import read_ids
from .exits import ExitCode
from .failures import CommandError

#: Seconds that brokers may be away when a job begins, and the longest pause between two attempts.
_PATIENCE_S = 60.0
_LONGEST_PAUSE_S = 10.0

_Made = TypeVar("_Made")


def cluster_of(settings: Settings, servers: str, options: KafkaSink) -> Cluster:
    """The brokers of a sink; secrets in files are found from the settings' folder."""
    return Cluster(servers, located(options.options, settings.path))


def topic_of(settings: Settings, sink: FileSink) -> Topic | None:
    """The topic that a sink is; ``None`` where it is files."""
    given = sink.kafka
    if given is None:
        return None
    return Topic(cluster_of(settings, given.servers, given), given.topic, given.format)


def check_topics(settings: Settings) -> None:
    """See that no topic is written that is read, or that holds something else of the job.

    Raises:
        SettingsError: one is.
    """
    named: dict[str, str] = {}
    if settings.source is not None and settings.source.kafka is not None:
        named = dict.fromkeys(settings.source.kafka.all_topics, "source.kafka")
    problems: list[str] = []
    for field, sink in (("sink.kafka", settings.sink), ("rejects.kafka", settings.rejects)):
        if sink is not None and sink.kafka is not None:
            other = named.setdefault(sink.kafka.topic, field)
            if other != field:
                problems.append(
                    f"{other} and {field} name the same topic, {sink.kafka.topic}; give {field} a topic of its own"
                )
    if problems:
        raise SettingsError(problems)


def refuse_topics(settings: Settings) -> None:
    """Refuse a job that ends whose settings name topics, which never do.

    Raises:
        SettingsError: they do.
    """
    named = [
        ("source.kafka", None if settings.source is None else settings.source.kafka),
        ("sink.kafka", None if settings.sink is None else settings.sink.kafka),
        ("rejects.kafka", None if settings.rejects is None else settings.rejects.kafka),
        ("source.pubsub", None if settings.source is None else settings.source.pubsub),
        ("sink.pubsub", None if settings.sink is None else settings.sink.pubsub),
        ("rejects.pubsub", None if settings.rejects is None else settings.rejects.pubsub),
    ]
    problems = [
        f"{field} is for live jobs: use quiltstream run --live, or name files"
        for field, given in named
        if given is not None
    ]
    if problems:
        raise SettingsError(problems)


def patiently(field: str, attempt: Callable[[], _Made], *, patience_s: float = _PATIENCE_S) -> _Made:
    """Try something with brokers until they answer, and say so meanwhile.

    Args:
        field: the setting, for messages.
        attempt: what to try.
        patience_s: for how long.

    Raises:
        CommandError: they do not answer for so long, or it cannot be done at all.
    """
    deadline, pause = time.monotonic() + patience_s, 1.0
    while True:
        try:
            return attempt()
        except KafkaUnavailableError as error:
            if not error.passing or time.monotonic() + pause > deadline:
                raise CommandError(
                    f"{field}: {error}. Nothing was charged: mend it and run again", ExitCode.FAILURE
                ) from error
            click.echo(f"{field}: {error}; trying again in {pause:g} s", err=True)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class SinkTopic:
    """What is in the topic that a live job sends its rows to.

    The topic is read to its end once. What is kept of it in memory is eight bytes a row.

    Args:
        settings: the job.
        topic: its sink.
        patience_s: how long the brokers may be away.
    """

    def __init__(self, settings: Settings, topic: Topic, *, patience_s: float = _PATIENCE_S) -> None:
        self._settings = settings
        self._topic = topic
        self._patience_s = patience_s
        self._there: npt.NDArray[np.uint64] | None = None
        self._trimmed = False

    def unknown_ids(self, store: Store) -> list[str]:
        """The names of the releases in the topic that are not of blocks on record.

        Args:
            store: the ledger; it may not be there yet, or not know the query.

        Raises:
            CommandError: the topic cannot be read, or holds something else.
        """
        there = self._look()
        registration = None
        with suppress(StoreMissing):
            registration = store.registered(self._settings.domain, self._settings.query)
        if registration is not None:
            known = [_marks(ids) for _, ids in self._blocks(store, registration)]
            there = np.setdiff1d(there, np.concatenate(known)) if known else there
        if not len(there):
            return []
        strange, found = set(there.tolist()), dict[str, None]()
        self._read(lambda one: found.update({one: None} if _mark(one) in strange else {}))
        return sorted(found)

    def complete(self, store: Store, registration: Registration) -> int:
        """Send the blocks on record that are not there as a whole: a job that was killed may have left some out.

        Of a topic that has lost its beginning to retention, what is older than the first block that is there is not
        missed.

        Returns:
            How many were sent.

        Raises:
            CommandError: the topic cannot be read or written.
        """
        there, begun, sent = self._look(), not self._trimmed, 0
        begun = begun or not len(there)
        sender = Sender(self._topic, "sink.kafka")
        for record, ids in self._blocks(store, registration):
            present = np.isin(_marks(ids), there)
            begun = begun or bool(present.any())
            if begun and not present.all():
                self._send(sender, registration, record)
                sent += 1
        self._finish(sender)
        return sent

    def _send(self, sender: Sender, registration: Registration, record: Record) -> None:
        try:
            sender.send(release_messages(rows_of(registration, record), self._topic.format))
        except KafkaUnavailableError as error:
            raise _unsent(error) from error

    def _finish(self, sender: Sender) -> None:
        try:
            sender.finish()
        except KafkaUnavailableError as error:
            raise _unsent(error) from error
        finally:
            sender.close()

    def _look(self) -> npt.NDArray[np.uint64]:
        if self._there is None:
            marks = array("Q")
            self._trimmed = self._read(lambda one: marks.append(_mark(one)), marks)
            self._there = np.unique(np.frombuffer(marks, dtype=np.uint64)) if marks else np.empty(0, dtype=np.uint64)
        return self._there

    def _read(self, take: Callable[[str], None], marks: array[int] | None = None) -> bool:
        names = (self._settings.domain, self._settings.query)

        def attempt() -> bool:
            if marks is not None:
                del marks[:]
            return read_ids(self._topic, *names, take, patience_s=self._patience_s)

        return patiently("sink.kafka", attempt, patience_s=self._patience_s)

    def _blocks(self, store: Store, registration: Registration) -> Iterator[tuple[Record, list[str]]]:
        names = (registration.domain.name, registration.query.name)
        grid = SlotGrid(**registration.domain.grid)
        for record in store.records(*names):
            if record.block is not None:
                window = (grid.time_of(record.window.start), grid.time_of(record.window.stop))
                yield record, release_ids(*names, registration.digest, window, record.block.keys)


def _mark(release_id: str) -> int:
    """The first half of a release id, as a number."""
    try:
        return int(release_id[:16], 16)
    except ValueError:
        raise KafkaUnavailableError("the topic holds messages that are no releases of quiltstream") from None


def _marks(ids: list[str]) -> npt.NDArray[np.uint64]:
    return np.array([_mark(one) for one in ids], dtype=np.uint64)


def _unsent(error: KafkaUnavailableError) -> CommandError:
    return CommandError(f"{error}. What was charged is on record: mend it and run again", ExitCode.FAILURE)


__all__ = ["SinkTopic", "check_topics", "cluster_of", "patiently", "refuse_topics", "topic_of"]
