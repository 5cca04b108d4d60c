"""The blocks on record, as a live job's sinks name and lack them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...schemas.releases import release_ids
from ...schemas.slots import SlotGrid
from ...store.records import Store
from ...store.rows import rows_of
from ...store.specs import Record, Registration
from ...transforms.broker_errors import BrokerUnavailableError
from ...transforms.message_sink import MessageTopic, release_messages
from ..exits import ExitCode
from ..failures import AwayError, CommandError


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


__all__ = ["recorded_blocks", "send_blocks"]
