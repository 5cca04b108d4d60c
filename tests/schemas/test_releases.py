from __future__ import annotations

import datetime as dt
import io
from typing import Any, cast

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.schemas.ledger import LEDGER_SCHEMA, LedgerEntry
from quiltstream.schemas.releases import (
    RELEASE_AVRO,
    RELEASE_SCHEMA,
    Release,
    release_batch,
    release_ids,
    releases_from_batch,
    rows_from_batch,
    tidy,
)

from ..released import batch_from_releases

HEADER = {
    "domain": "homes",
    "query": "load",
    "query_digest": "00ff",
    "key_kind": "series",
    "window_start": 1_356_998_400_000_000,
    "window_stop": 1_357_603_200_000_000,
    "window": "week",
    "timezone": "UTC",
    "slots": 336,
    "edges": [250.0, 500.0],
    "unit": "W",
    "missing": "public",
    "scale": 63.5,
    "scale_exact": "127/2",
    "half_width_95": 190,
    "noise_law": "discrete-laplace-zero-sum",
    "epsilon_dp": 0.0315,
    "loss_before": 0.0,
    "loss_after": 0.99,
    "guarantee": "stream",
    "mechanism": "mqm-approx",
    "quilt": (15, None),
    "model_id": "abc",
    "model_provenance": "by hand",
    "given_model": False,
    "completeness": "live",
}


def make_batch() -> pa.RecordBatch:
    return release_batch(
        HEADER,
        ["m1", "m2"],
        members=np.array([1, 1]),
        counts=np.array([[1, -2, 3], [4, 5, 6]]),
        total=np.array([2, 15]),
        estimate=np.array([[0.5, 0.0, 1.5], [4.0, 5.0, 6.0]]),
    )


def test_a_batch_has_the_release_schema_and_its_rows_round_trip():
    batch = make_batch()
    assert batch.schema.equals(RELEASE_SCHEMA, check_metadata=True)
    rows = releases_from_batch(batch)
    assert [r.key for r in rows] == ["m1", "m2"]
    assert rows[0].counts == (1, -2, 3)
    assert rows[0].quilt == (15, None)
    assert rows[0].window_start == HEADER["window_start"]
    assert batch_from_releases(rows).equals(batch)
    assert [Release.from_dict(r.to_dict()) for r in rows] == rows


def test_rows_without_a_public_total_have_no_estimate():
    batch = release_batch(
        HEADER, ["m1"], members=np.array([1]), counts=np.array([[1, 2, 3]]), total=None, estimate=None
    )
    row = releases_from_batch(batch)[0]
    assert row.total is None
    assert row.estimate is None


def make_classed() -> pa.RecordBatch:
    """Two series, two classes, three bins."""
    of_classes = {"by": ["weekend"], "classes": ["workday", "weekend"], "class_slots": [240, 96]}
    counts = np.arange(12).reshape(2, 6)
    return release_batch(
        HEADER | of_classes,
        ["m1", "m2"],
        members=np.array([1, 1]),
        counts=counts,
        total=counts.sum(axis=1),
        estimate=counts.astype(np.float64),
    )


def test_rows_by_class_of_slots_map_each_count_to_its_class():
    batch = make_classed()
    assert batch.schema.equals(RELEASE_SCHEMA, check_metadata=True)
    rows = releases_from_batch(batch)
    assert (rows[1].by, rows[1].classes, rows[1].class_slots) == (("weekend",), ("workday", "weekend"), (240, 96))
    assert batch_from_releases(rows).equals(batch)
    assert [Release.from_dict(r.to_dict()) for r in rows] == rows
    plain = releases_from_batch(make_batch())[0]
    assert (plain.by, plain.classes, plain.class_slots) == (None, None, None)


def instant(time_us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC)


def test_a_tidy_table_has_a_row_for_every_count():
    table = tidy(make_classed())
    assert table.num_rows == 12
    assert table.slice(9, 1).select(table.column_names[:16]).to_pylist() == [
        {
            "domain": "homes",
            "query": "load",
            "key": "m2",
            "window_start": instant(1_356_998_400_000_000),
            "window_stop": instant(1_357_603_200_000_000),
            "class": "weekend",
            "class_slots": 96,
            "bin": "below 250 W",
            "bin_low": None,
            "bin_high": 250.0,
            "count": 9,
            "low_95": -181,
            "high_95": 199,
            "half_width_95": 190,
            "estimate": 9.0,
            "total": 30,
        }
    ]
    plain = tidy(make_batch()).to_pylist()
    assert [row["count"] for row in plain] == [1, -2, 3, 4, 5, 6]
    assert {(row["class"], row["class_slots"]) for row in plain} == {("", 336)}
    assert [row["bin"] for row in plain[:3]] == ["below 250 W", "250 to 500 W", "500 W and above"]


def test_no_row_at_all_is_still_a_batch_of_the_schema():
    batch = release_batch(
        HEADER,
        [],
        members=np.empty(0, dtype=np.int64),
        counts=np.empty((0, 3), dtype=np.int64),
        total=np.empty(0, dtype=np.int64),
        estimate=np.empty((0, 3)),
    )
    assert batch.num_rows == 0
    assert batch.schema.equals(RELEASE_SCHEMA, check_metadata=True)


def avro_round_trip(schema, rows) -> list[dict[str, Any]]:
    buffer = io.BytesIO()
    fastavro.writer(buffer, fastavro.parse_schema(schema), rows)
    buffer.seek(0)
    return cast("list[dict[str, Any]]", list(fastavro.reader(buffer)))


def test_releases_round_trip_through_avro():
    rows = rows_from_batch(make_batch())
    back = avro_round_trip(RELEASE_AVRO, rows)
    for row in back:
        for name in ("window_start", "window_stop"):
            row[name] = int(row[name].timestamp()) * 1_000_000
    assert back == rows


def test_release_ids_are_deterministic_and_depend_on_every_part():
    assert release_ids("d", "q", "x", (0, 1), ["k"]) == ["0dc2a624cf16b29f8beb079d5bb9cf7e"]
    base = release_ids("d", "q", "x", (0, 1), ["k", "l"])
    others = [
        release_ids("e", "q", "x", (0, 1), ["k"]),
        release_ids("d", "r", "x", (0, 1), ["k"]),
        release_ids("d", "q", "y", (0, 1), ["k"]),
        release_ids("d", "q", "x", (0, 2), ["k"]),
    ]
    names = [*base, *(o[0] for o in others)]
    assert len(set(names)) == len(names)
    assert all(len(n) == 32 for n in names)


ENTRIES = st.builds(
    LedgerEntry,
    entry_id=st.text(max_size=8),
    sequence=st.integers(1, 2**60),
    domain=st.text(max_size=8),
    query=st.text(max_size=8),
    query_digest=st.text(max_size=8),
    window_start=st.integers(-(2**60), 2**60),
    window_stop=st.integers(-(2**60), 2**60),
    start_us=st.integers(-(2**60), 2**60),
    stop_us=st.integers(-(2**60), 2**60),
    decision=st.sampled_from(["charged", "refused"]),
    epsilon_dp=st.floats(0, 10),
    loss_before=st.floats(0, 10),
    loss_after=st.floats(0, 10),
    budget=st.floats(0, 10),
    rule=st.text(max_size=8),
    mechanism=st.sampled_from(["mqm-approx", "none"]),
    model_id=st.text(max_size=8),
    given_model=st.booleans(),
)


@pytest.mark.night
@given(st.lists(ENTRIES, max_size=4))
def test_ledger_entries_round_trip_through_arrow(entries):
    rows = [e.to_dict() for e in entries]
    table = pa.Table.from_pylist(rows, schema=LEDGER_SCHEMA)
    assert [LedgerEntry.from_dict(r) for r in table.to_pylist()] == entries


def make_labelled(missing: str, labels: list[str]) -> pa.RecordBatch:
    counts = np.arange(2 * len(labels)).reshape(2, -1)
    return release_batch(
        HEADER | {"edges": None, "unit": "", "missing": missing, "labels": labels},
        ["m1", "m2"],
        members=np.array([1, 1]),
        counts=counts,
        total=counts.sum(axis=1),
        estimate=counts.astype(np.float64),
    )


@pytest.mark.parametrize(
    ("missing", "labels"), [("public", ["sleep", "walk"]), ("state", ["sleep", "walk", "missing"])]
)
def test_rows_of_categories_have_labels_and_no_edges(missing: str, labels: list[str]) -> None:
    batch = make_labelled(missing, labels)
    assert batch.schema.equals(RELEASE_SCHEMA, check_metadata=True)
    rows = releases_from_batch(batch)
    assert (rows[1].edges, rows[1].labels, rows[1].space.labels) == (None, tuple(labels), tuple(labels))
    assert batch_from_releases(rows).equals(batch)
    assert [Release.from_dict(r.to_dict()) for r in rows] == rows
    table = tidy(batch)
    assert table.column("bin").to_pylist() == [*labels, *labels]
    assert table.column("bin_low").null_count == table.column("bin_high").null_count == table.num_rows
    assert releases_from_batch(make_batch())[0].labels is None
