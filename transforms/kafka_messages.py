"""Messages of confluent-kafka as columns, and the sizes of those that were rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .messages import Messages


def messages_of(group: list[Any]) -> Messages:
    """Messages of confluent-kafka as columns."""
    count = len(group)
    stamps = np.fromiter((one.timestamp()[1] for one in group), np.int64, count)
    return Messages(
        payloads=[one.value() for one in group],
        topics=[group[0].topic()] * count,
        keys=[one.key() for one in group],
        headers=[one.headers() or () for one in group],
        stamps_us=np.where(stamps < 0, -1, stamps * 1_000),
        positions=np.fromiter((one.offset() for one in group), np.int64, count),
    )


def with_sizes(rejects: pa.RecordBatch, messages: Messages) -> pa.RecordBatch:
    """Rejects with the sizes of their messages in bytes beside them."""
    sizes = np.fromiter((0 if one is None else len(one) for one in messages.payloads), np.int64, len(messages))
    at = np.searchsorted(messages.positions, rejects.column("position").to_numpy(zero_copy_only=False))
    return rejects.append_column("size", pa.array(sizes[np.minimum(at, len(sizes) - 1)], pa.int64()))


__all__ = ["messages_of", "with_sizes"]
