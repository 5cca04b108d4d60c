"""What the tests of payloads share: messages, and their readings and rejects as plain sorted rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Headers, Messages

from ..formats.decoding import Row, plain

#: 2026-01-05T12:00:00Z
NOON_S = 1_767_614_400
NOON_MS, NOON_US, NOON_NS = NOON_S * 1_000, NOON_S * 1_000_000, NOON_S * 1_000_000_000
#: Position of the first message.
FIRST = 1_000


def messages(
    *payloads: bytes | str | None,
    topics: Sequence[str] = (),
    keys: Sequence[bytes | None] = (),
    headers: Sequence[Headers] = (),
    stamps_us: Sequence[int] = (),
) -> Messages:
    """Messages with the given payloads; what is left out is empty."""
    count = len(payloads)
    return Messages(
        payloads=[one.encode() if isinstance(one, str) else one for one in payloads],
        topics=list(topics) or ["meters"] * count,
        keys=list(keys) or [None] * count,
        headers=list(headers) or [()] * count,
        stamps_us=np.array(list(stamps_us) or [-1] * count, dtype=np.int64),
        positions=np.arange(FIRST, FIRST + count),
    )


def decode(readings: Readings, given: Messages, **options: Any) -> tuple[list[Row], list[tuple[int, str]]]:
    """Sorted (series, microseconds, value[, group]) and (number of the message, reason)."""
    return outcome(PayloadDecoder(readings, **options), given)


def outcome(decoder: PayloadDecoder, given: Messages) -> tuple[list[Row], list[tuple[int, str]]]:
    rows: list[Row] = []
    rejects: list[tuple[int, str]] = []
    for part in decoder.decode(given):
        rejects += [(at - FIRST, one.reason.value) for one in part.rejects for at in one.positions.tolist()]
        if part.readings is not None:
            assert part.earliest_us == min(row[1] for row in plain(part.readings))
            rows += plain(part.readings)
    return sorted(rows), sorted(rejects)


def dumped(*payloads: Any, **beside: Any) -> Messages:
    return messages(*[json.dumps(one) for one in payloads], **beside)
