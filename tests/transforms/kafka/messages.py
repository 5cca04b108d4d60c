"""The least decoder of messages that the tests of Kafka need, and what they send."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from quiltstream.schemas.readings import READING_SCHEMA, RejectReason
from quiltstream.transforms.formats.rows import Decoded
from quiltstream.transforms.payloads.messages import MessageDecoder, Messages, rejects_of

ORIGIN = 1_356_998_400_000_000


def reading(series: str, time: int, value: float = 1.0) -> bytes:
    return json.dumps({"series": series, "time": ORIGIN + time, "value": value}).encode()


class JsonMessages(MessageDecoder):
    """One JSON object is one reading; a tombstone is none; the rest are malformed."""

    def decode(self, messages: Messages) -> list[Decoded]:
        rows: list[dict[str, Any]] = []
        bad: list[int] = []
        for number, payload in enumerate(messages.payloads):
            try:
                if payload is not None:
                    rows.append(json.loads(payload))
            except ValueError:
                bad.append(number)
        rejects = (rejects_of(RejectReason.MALFORMED_ROW, messages, np.array(bad, dtype=np.int64)),) if bad else ()
        if not rows:
            return [Decoded(None, 0, rejects)]
        times = np.array([row["time"] for row in rows], dtype=np.int64)
        columns = [
            pa.array([row["series"] for row in rows]).dictionary_encode(),
            pa.array(times).view(pa.timestamp("us", tz="UTC")),
            pa.array([row["value"] for row in rows], pa.float64()),
        ]
        return [Decoded(pa.RecordBatch.from_arrays(columns, schema=READING_SCHEMA), int(times.min()), rejects)]
