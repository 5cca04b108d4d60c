"""Rows on record that a sink lacks: what is reported, and how recorded blocks are sent again.

What is released is put on record before it is written, so nothing is lost by it: the same rows can be written later.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from ...schemas.releases import release_ids
from ...schemas.settings.connectors import FileSink
from ...schemas.settings.job import Settings
from ...schemas.slots import SlotGrid
from ...store.exports import rows_of
from ...store.specs import Record, Registration
from ...store.store import Store
from ...transforms.sinks import MessageTopic, release_messages
from ...transforms.sources.contract import BrokerUnavailableError
from ..errors import AwayError, CommandError, ExitCode, failed_step

__all__ = ["recorded_blocks", "send_blocks"]


Field = Literal["sink", "rejects"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

#: Where Python and Arrow write the number of an error; it may stand in a path, too. The runner hands on texts only.
_NUMBER = re.compile(r"(?:^(?:[\w.]+: )*|Detail: )\[errno (\d+)\]", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Output:
    """What a step of a graph writes.

    Attributes:
        field: the setting.
        place: folder, file or topic.
        files: whether it is a place for files.
    """

    field: Field
    place: str
    files: bool

    @property
    def step(self) -> str:
        """The step of the graph that writes it."""
        return self.field.capitalize()

    @property
    def kept(self) -> str:
        """What is not lost."""
        return "The rows are on record" if self.field == "sink" else "What was charged is on record"

    def failed(self, error: BaseException) -> str:
        """What went wrong, in words that hold no data."""
        if self.files and is_full(error):
            return f"{self.field}: {self.place} could not be written, because no room is left on its disk"
        _, kind = failed_step(error)
        return f"{self.field}: {self.place} could not be written ({kind or type(error).__name__})"

    def mend(self, error: BaseException) -> str:
        """What to do."""
        return f"{'make room there' if self.files and is_full(error) else 'mend the place'}, or name another"


class SinkError(CommandError):
    """Sink or rejects could not be written.

    Attributes:
        symptom: what went wrong, without the next step.
    """

    def __init__(self, symptom: str, then: str) -> None:
        """Keep the symptom; the message has the next step, too."""
        super().__init__(f"{symptom}. {then}", ExitCode.SINK)
        self.symptom = symptom


def outputs_of(settings: Settings) -> tuple[Output, ...]:
    """What a job's graph writes."""
    named: tuple[tuple[Field, FileSink | None], ...] = (("sink", settings.sink), ("rejects", settings.rejects))
    return tuple(
        Output(field, settings.path(sink.path) if sink.is_files else sink.text, sink.is_files)
        for field, sink in named
        if sink is not None
    )


def output_of(error: BaseException, outputs: tuple[Output, ...]) -> Output | None:
    """What the step writes in which an error was raised; ``None`` if it was in another one."""
    step, _ = failed_step(error)
    return next((one for one in outputs if step.startswith(f"{one.step}/")), None)


def is_full(error: BaseException) -> bool:
    """Whether an error, or the last one in a traceback's text, says that no room is left."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    numbers = _NUMBER.findall(str(error))
    return bool(numbers) and int(numbers[-1]) in _FULL


def not_begun(output: Output, error: OSError) -> SinkError:
    """A job that cannot begin for want of room."""
    return SinkError(output.failed(error), f"Nothing was charged by this run: {output.mend(error)}, and run again")


@contextmanager
def filling(outputs: tuple[Output, ...]) -> Generator[None]:
    """Say of an error within that it was the sink's, which gets what it lacks of the record.

    Raises:
        SinkError: there was one.
    """
    try:
        yield
    except OSError as error:
        sink = next(one for one in outputs if one.field == "sink")
        raise SinkError(
            sink.failed(error), f"{sink.kept}: {sink.mend(error)}, and run again; it is given what it lacks first"
        ) from error


def recorded_blocks(
    store: Store, registration: Registration, after: tuple[int, int] | None = None
) -> Iterator[tuple[Record, int, list[str]]]:
    """Each block on record, when its window starts in microseconds, and the ids of its rows.

    Args:
        store: the ledger.
        registration: the query.
        after: window and shard behind which to begin.
    """
    names = (registration.domain.name, registration.query.name)
    grid = SlotGrid(**registration.domain.grid)
    for record in store.records(*names, after=after):
        if record.block is not None:
            window = (grid.time_of(record.window.start), grid.time_of(record.window.stop))
            yield record, window[0], release_ids(*names, registration.digest, window, record.block.keys)


def send_blocks(topic: MessageTopic, registration: Registration, records: Iterable[Record]) -> int:
    """Send blocks on record to a job's sink.

    Args:
        topic: the sink.
        registration: the query.
        records: what to send; refusals among them have no block, and are passed over.

    Returns:
        How many were sent.

    Raises:
        CommandError: they cannot be sent; :class:`.AwayError` if they can once the brokers are back.
    """
    sender, sent = topic.sender(f"sink.{topic.kind}"), 0
    try:
        for record in records:
            if record.block is not None:
                sender.send(release_messages(rows_of(registration, record), topic.format, sender.head))
                sent += 1
        sender.finish()
    except BrokerUnavailableError as error:
        text = f"{error}. What was charged is on record: mend it and run again"
        if error.passing:
            raise AwayError(text, ExitCode.FAILURE, "sink") from error
        raise CommandError(text, ExitCode.FAILURE) from error
    finally:
        sender.close()
    return sent
