"""Kafka topics as the places of a live job: what they may hold, and what of the record they lack."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

import click
import numpy as np
import numpy.typing as npt

from ...schemas.kafka import KafkaSink
from ...schemas.secrets import Option, SecretError, located, resolved
from ...schemas.settings import FileSink, Settings, SettingsError
from ...store.errors import StoreMissing
from ...store.records import Store
from ...store.specs import Record, Registration
from ...transforms.formats import LETTERS, RELEASES
from ...transforms.kafka.client import Cluster, KafkaUnavailableError
from ...transforms.kafka.look import look_to_write
from ...transforms.kafka.sink import Topic
from ...transforms.kafka.topic import read_ids
from ...transforms.kafka.wire import RegistryNumbers
from ..exits import ExitCode
from ..failures import AwayError, CommandError
from .blocks import recorded_blocks, send_blocks

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
    registry = given.registry
    numbers = None
    if registry is not None:
        options = located(registry.options, settings.path)
        numbers = RegistryNumbers(registry.url, options, auto_register=registry.auto_register)
    return Topic(cluster_of(settings, given.servers, given), given.topic, given.format, numbers)


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
            text = f"{field}: {error}. Nothing was charged: mend it and run again"
            if not error.passing:
                raise CommandError(text, ExitCode.FAILURE) from error
            if time.monotonic() + pause > deadline:
                raise AwayError(text, ExitCode.FAILURE, "sink") from error
            click.echo(f"{field}: {error}; trying again in {pause:g} s", err=True)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def check_written(settings: Settings, *, patience_s: float = _PATIENCE_S) -> None:
    """Look whether the topics of sink and rejects are there and may be written, before anything is on record.

    Where their rows are Avro with the number of a schema, it is asked for, and given to the registry if need be.

    What cannot be sent fails its bundle, and the one after every restart: by then windows may be charged. Where a
    secret is with the workers only, that is said, and the job begins.

    Args:
        settings: the job.
        patience_s: how long the brokers may be away.

    Raises:
        CommandError: one is not, or its brokers do not answer for so long.
    """
    for place, sink in (("sink", settings.sink), ("rejects", settings.rejects)):
        topic = None if sink is None else topic_of(settings, sink)
        if topic is None:
            continue
        field = f"{place}.{topic.kind}"
        if _has_secrets(field, topic.cluster.options, "the topic is not looked at"):
            patiently(field, partial(look_to_write, topic), patience_s=patience_s)
        if topic.numbers is not None and _has_secrets(field, topic.numbers.options, "the schema registry is not asked"):
            ask = partial(topic.head, RELEASES.avro if place == "sink" else LETTERS.avro)
            patiently(field, ask, patience_s=patience_s)


def check_secrets(settings: Settings) -> None:
    """See that every secret of a broker's options is here: of a job whose workers are of this process.

    Raises:
        SettingsError: one is not; a line for each.
    """
    source = None if settings.source is None else settings.source.kafka
    named = (
        ("source.kafka", source),
        ("sink.kafka", None if settings.sink is None else settings.sink.kafka),
        ("rejects.kafka", None if settings.rejects is None else settings.rejects.kafka),
    )
    problems: list[str] = []
    for field, broker in named:
        if broker is None:
            continue
        given = [(f"{field}.options", broker.options)]
        if broker.registry is not None:
            given.append((f"{field}.registry.options", broker.registry.options))
        for place, options in given:
            problems += [
                f"{place}: {name}: {why}"
                for name, option in located(options, settings.path).items()
                if (why := _missing({name: option})) is not None
            ]
    if problems:
        raise SettingsError(problems)


def _missing(options: Mapping[str, Option]) -> str | None:
    """What secret of some options is not here."""
    try:
        resolved(options)
    except SecretError as error:
        return str(error)
    return None


def _has_secrets(field: str, options: Mapping[str, Option], left: str) -> bool:
    """Whether the secrets among some options are here; where they are not, say what is left to the workers."""
    why = _missing(options)
    if why is not None:
        click.echo(f"{field}: {why}; {left} from here", err=True)
    return why is None


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
            known = [_marks(ids) for _, _, ids in recorded_blocks(store, registration)]
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
        return send_blocks(self._topic, registration, self._missed(store, registration))

    def _missed(self, store: Store, registration: Registration) -> Iterator[Record]:
        there = self._look()
        begun = not self._trimmed or not len(there)
        for record, _, ids in recorded_blocks(store, registration):
            present = np.isin(_marks(ids), there)
            begun = begun or bool(present.any())
            if begun and not present.all():
                yield record

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


def _mark(release_id: str) -> int:
    """The first half of a release id, as a number."""
    try:
        return int(release_id[:16], 16)
    except ValueError:
        raise KafkaUnavailableError("the topic holds messages that are no releases of quiltstream") from None


def _marks(ids: list[str]) -> npt.NDArray[np.uint64]:
    return np.array([_mark(one) for one in ids], dtype=np.uint64)


__all__ = ["SinkTopic", "check_written", "cluster_of", "patiently", "topic_of"]
