"""The coder of record batches: Arrow's own stream format, decoded without copying a column.

Importing this module registers the coder with Beam for ``pyarrow.RecordBatch``. Pickle would copy every buffer on
decoding and, where a batch is a slice, encode what the slice left out.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry

#: What a stream holds besides the buffers: schema, metadata and padding.
_ENVELOPE_BYTES = 1024


class RecordBatchCoder(Coder):
    """``pyarrow.RecordBatch`` as an Arrow IPC stream of one batch, dictionaries included."""

    def encode(self, value: pa.RecordBatch) -> bytes:
        """Write a batch; a slice is written as itself, without what it was cut from."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return sink.getvalue().to_pybytes()

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        """Read a batch; its columns point into ``encoded``."""
        with pa.ipc.open_stream(pa.py_buffer(encoded)) as reader:
            return reader.read_next_batch()

    def is_deterministic(self) -> bool:
        """Equal batches may differ in the order of their dictionaries, so a batch is never a key."""
        return False

    def estimate_size(self, value: pa.RecordBatch) -> int:
        """Size for Beam's byte counters, without encoding."""
        return int(value.get_total_buffer_size()) + _ENVELOPE_BYTES

    def to_type_hint(self) -> Any:
        """The type that the coder is registered for."""
        return pa.RecordBatch

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


registry.register_coder(pa.RecordBatch, RecordBatchCoder)
