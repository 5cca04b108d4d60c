"""The coder of record batches."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.coders.typecoders import registry

from quiltstream.schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA
from quiltstream.schemas.releases import RELEASE_SCHEMA
from quiltstream.transforms.common.batches import RecordBatchCoder


def readings(rows: int, names: int = 1000) -> pa.RecordBatch:
    series = pa.DictionaryArray.from_arrays(
        pa.array(np.arange(rows, dtype=np.int32) % names), pa.array([f"h{i}" for i in range(names)])
    )
    times = pa.array(np.arange(rows)).view(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([series, times, pa.array(np.arange(rows) / 3)], schema=READING_SCHEMA)


def test_beam_finds_the_coder_for_record_batches():
    assert isinstance(registry.get_coder(pa.RecordBatch), RecordBatchCoder)
    assert pickle.loads(pickle.dumps(RecordBatchCoder())) == RecordBatchCoder()


@pytest.mark.parametrize("schema", [READING_SCHEMA, GROUPED_READING_SCHEMA, RELEASE_SCHEMA])
def test_batches_are_decoded_with_schema_and_metadata(schema):
    coder = RecordBatchCoder()
    empty = coder.decode(coder.encode(pa.RecordBatch.from_pylist([], schema=schema)))
    assert empty.schema.equals(schema, check_metadata=True)
    batch = readings(1000)
    again = coder.decode(coder.encode(batch))
    assert again.equals(batch)
    again.validate(full=True)


def test_a_slice_is_encoded_without_its_parent_batch():
    coder, batch = RecordBatchCoder(), readings(100_000, names=10)
    part = batch.slice(50_000, 100)
    encoded = coder.encode(part)
    assert coder.decode(encoded).equals(part)
    assert len(encoded) < 10_000


def test_decoding_copies_no_column():
    encoded = RecordBatchCoder().encode(readings(100_000))
    before = pa.total_allocated_bytes()
    batch = RecordBatchCoder().decode(encoded)
    assert pa.total_allocated_bytes() - before < 100_000
    assert batch.num_rows == 100_000


def test_the_size_is_estimated_without_encoding():
    batch = readings(10_000)
    assert 0.5 < RecordBatchCoder().estimate_size(batch) / len(RecordBatchCoder().encode(batch)) < 2
