"""Messages of confluent-kafka as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Any

import numpy as np

from ...schemas.readings import RejectReason
from ...schemas.slots import parse_instant
from ..common.rejects import Rejects
from ..formats.rows import Decoded
from ..payloads.messages import Headers, MessageDecoder, Messages, rejects_of
from ..sources.contract import SourceBatch, source_batch_of
from .partitions import Place, name_of_place

_YEAR_1971_US = parse_instant("1971-01-01")

#: The kind of a stamp that the broker made; ``TIMESTAMP_LOG_APPEND_TIME`` of confluent-kafka, which is an extra.
_THE_BROKERS = 2

#: The header by which the gateway says that the MQTT broker may have sent a message before.
REPEATED = ("mqtt-dup", b"1")


#: confluent-kafka gives a broken list and an error at once for headers that it cannot read: Python notices that where a
#: method is called in this way, and not always where it is called by its name.
_HEADERS = methodcaller("headers")

#: In the place of headers that cannot be read; they must not be asked for again.
_ILLEGIBLE: list[tuple[str, bytes | None]] = [("illegible", None)]


def headers_of(message: Any) -> Headers | None:
    """The headers of a message of confluent-kafka; ``None`` if one has a name that is no UTF-8, which loses all."""
    try:
        found = _HEADERS(message)
    except (UnicodeDecodeError, SystemError):
        message.set_headers(_ILLEGIBLE)
        return None
    return None if found is _ILLEGIBLE else found or ()


def decoded_by(decoder: MessageDecoder, group: list[Any]) -> tuple[Messages, list[Decoded]]:
    """Messages of confluent-kafka as columns, and what a decoder makes of them.

    Those whose headers cannot be read are rejects: it is unknown what they say of series and time, nor whether they say
    that the message may have come before. Tombstones are none, whatever their headers.

    Raises:
        SourceAwayError: what the decoder needs is away.
    """
    headers = [headers_of(one) for one in group]
    messages = messages_of(group, headers)
    legible = np.array(
        [had is not None or body is None for had, body in zip(headers, messages.payloads, strict=True)], np.bool_
    )
    if legible.all():
        return messages, decoder.decode(without_second_times(messages))
    readable = [one for one, can in zip(group, legible.tolist(), strict=True) if can]
    decoded = decoder.decode(without_second_times(messages_of(readable))) if readable else []
    bad = rejects_of(RejectReason.MALFORMED_ROW, messages, np.flatnonzero(~legible))
    return messages, [*decoded, Decoded(None, 0, (bad,))]


def lost_at(place: Place, offset: int, position: str, until_us: int | None) -> SourceBatch:
    """What says that messages of a partition are lost: one reject.

    Args:
        place: the partition.
        offset: the first of them.
        position: where to go on.
        until_us: windows that start before it may lack readings.
    """
    name, damaged = name_of_place(place), Rejects(RejectReason.DAMAGED_SOURCE, np.array([offset], dtype=np.int64))
    lost = source_batch_of(name, [Decoded(None, 0, (damaged,))], position, settled=False)
    return replace(lost, source=name, lost_us=until_us)


def messages_of(group: list[Any], headers: Sequence[Headers | None] | None = None) -> Messages:
    """Messages of confluent-kafka as columns; their headers are asked for unless they are given."""
    count = len(group)
    stamps = np.fromiter((one.timestamp()[1] for one in group), np.int64, count)
    return Messages(
        payloads=[one.value() for one in group],
        topics=[group[0].topic()] * count,
        keys=[one.key() for one in group],
        headers=[one or () for one in (map(headers_of, group) if headers is None else headers)],
        stamps_us=np.where(stamps < 0, -1, stamps * 1_000),
        positions=np.fromiter((one.offset() for one in group), np.int64, count),
    )


def came_us(group: Sequence[Any]) -> int | None:
    """When the last of some messages of confluent-kafka came, by the broker's clock.

    ``None`` unless the broker stamped them all: other stamps are the producers', and say nothing for certain.
    """
    # stamps cost a call each: in most topics they are all the producers', and the first message says so
    if not group or group[0].timestamp()[0] != _THE_BROKERS:
        return None
    stamps = [one.timestamp() for one in group]
    return _set(1_000 * max(at for _, at in stamps)) if all(kind == _THE_BROKERS for kind, _ in stamps) else None


def sent_us(messages: Messages) -> int | None:
    """When the last of some messages was stamped; ``None`` without a stamp, or by a clock that was never set."""
    return _set(int(messages.stamps_us.max(initial=-1)))


def _set(latest_us: int) -> int | None:
    return latest_us if latest_us >= _YEAR_1971_US else None


def without_second_times(messages: Messages) -> Messages:
    """The same, but for the stamps of those that may have come before.

    Such a stamp is not when the message came first: a reading without a time of its own would be counted in two slots,
    and the second is a copy, which no belief about the series explains. So it has none, and is rejected.
    """
    repeated = [REPEATED in one for one in messages.headers]
    if not any(repeated):
        return messages
    return replace(messages, stamps_us=np.where(repeated, -1, messages.stamps_us))


__all__ = ["REPEATED", "came_us", "decoded_by", "headers_of", "lost_at", "messages_of", "sent_us"]
