"""Counters in files: their rises are those of a plain computation, and those that a live job ends with."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.io import WriteToText
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sources.files import ReadReadings, decoder_of
from quiltstream.transforms.sources.series_together import CompareRegisters, LastReadings

from ..formats.decoding import plain
from ..payloads.payloads import NOON_S, messages, outcome
from .test_message_files import SCHEMA

SLOT_S = 900
GRID = SlotGrid(SLOT_S * 1_000_000, 0)
FIRST_SLOT = NOON_S // SLOT_S
SCALE = 4.0

#: (name, second since noon, counter)
Sent = list[tuple[str, int, float]]
Cells = dict[tuple[str, int], float]


def truth(sent: Sent, rollover: float | None) -> Cells:
    """The rise of each slot, one after another."""
    slots: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for name, second, value in sent:
        slots.setdefault((name, (second - 1) // SLOT_S), []).append((second, value))
    found: Cells = {}
    for (name, slot), mine in slots.items():
        earlier = slots.get((name, slot - 1))
        if earlier is None:
            continue
        last = max(value for second, value in mine if second == max(mine)[0])
        before = min(value for second, value in earlier if second == max(earlier)[0])
        rise = last - before
        if rise < 0:
            rise = rise + rollover if rollover is not None and 0 <= rise + rollover <= rollover / 2 else last
        found[name, slot] = rise * SCALE
    return found


def batch(sent: Sent) -> pa.RecordBatch:
    names, seconds, values = zip(*sent, strict=True)
    times = pa.array([(NOON_S + one) * 1_000_000 for one in seconds]).view(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays(
        [pa.array(names).dictionary_encode(), times, pa.array(values, pa.float64())], schema=READING_SCHEMA
    )


def of_files(batches: list[Sent], rollover: float | None) -> Cells:
    shares: dict[int, list[pa.RecordBatch]] = {}
    for one in batches:
        for part, lasts in LastReadings(GRID).process(batch(one)):
            shares.setdefault(part, []).append(lasts)
    compare = CompareRegisters(GRID, SCALE, rollover)
    rows = [row for share in shares.items() for found in compare.process(share) for row in plain(found.value)]
    cells = {(name, time // 1_000_000 // SLOT_S - FIRST_SLOT): value for name, time, value in rows}
    assert len(cells) == len(rows)
    return cells


def of_messages(batches: list[Sent], rollover: float | None) -> Cells:
    register = {"path": "v"} | ({} if rollover is None else {"rollover": rollover})
    readings = Readings.model_validate({"series": "id", "time": "t", "value": {"register": register}, "scale": SCALE})
    decoder = PayloadDecoder(readings, grid=GRID, lateness_us=60 * SLOT_S * 1_000_000)
    kept: dict[tuple[str, int], tuple[int, float]] = {}
    for one in batches:
        sent = [json.dumps({"id": name, "t": NOON_S + second, "v": value}) for name, second, value in one]
        for name, time, value in outcome(decoder, messages(*sent))[0]:
            slot, offset = divmod(time, SLOT_S * 1_000_000)
            cell = (name, slot - FIRST_SLOT)
            kept[cell] = max(kept.get(cell, (-1, 0.0)), (offset, value))
    return {cell: value for cell, (_, value) in kept.items()}


@pytest.mark.assures("payloads", "Increments of registers in files equal a plain computation and those of a live job")
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["m1", "m2", "m3"]), st.integers(0, 9_000), st.integers(0, 400)), min_size=1),
    st.sampled_from([None, 400.0, 90.0]),
    st.randoms(use_true_random=False),
)
def test_rises_of_files_are_those_of_a_plain_computation_and_of_a_live_job(
    given: list[tuple[str, int, int]], rollover: float | None, shuffle: random.Random
):
    """Values fall and rise at will: every way over the end and back to 0, and equal stamps, in any files and order."""
    # slots of a few readings each, some with the same stamp
    sent = [(name, second // 150 * 150, value / 4) for name, second, value in given]
    expected = truth(sent, rollover)
    shuffle.shuffle(sent)
    batches: list[Sent] = [[] for _ in range(shuffle.randrange(1, 6))]
    for one in sent:
        shuffle.choice(batches).append(one)
    batches = [one for one in batches if one]
    assert of_files(batches, rollover) == pytest.approx(expected)
    if all(len({value for n, s, value in sent if (n, s) == (name, second)}) == 1 for name, second, _ in sent):
        assert of_messages(batches, rollover) == pytest.approx(expected)


SENT: Sent = [
    (name, 450 * at + number, (number * 990.0 + at * at) % 1_000)
    for number, name in enumerate(["m1", "m2", "m3"])
    for at in range(13)
]


def read(source: FileSource, readings: Readings, **options: Any) -> list[Any]:
    path = Path(source.patterns[0]).parent / "found.jsonl"
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        decoded: Any = pipeline | ReadReadings(source, readings, grid=GRID, **options)
        lines = decoded.readings | beam.FlatMap(plain) | beam.Map(json.dumps)
        _ = lines | WriteToText(str(path), shard_name_template="")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def expected_cells(rollover: float = 1_000.0) -> Cells:
    return truth(SENT, rollover)


def cells_of(rows: list[Any]) -> Cells:
    found = {(row[0], row[1] // 1_000_000 // SLOT_S - FIRST_SLOT): row[2] for row in rows}
    assert len(found) == len(rows)
    return found


COLUMNS = {"series": "id", "time": "t", "value": {"register": {"column": "v", "rollover": 1_000}}, "scale": SCALE}


def write(folder: Path, format_: str) -> FileSource:
    """The readings in two files, turn by turn."""
    for number in (0, 1):
        rows = [{"id": n, "t": NOON_S + s, "v": v, "feeder": "f"} for n, s, v in SENT[number::2]]
        path = folder / f"{number}.{format_}"
        if format_ == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif format_ == "jsonl":
            path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        elif format_ == "csv":
            with path.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        else:
            fields = [
                {"name": n, "type": k} for n, k in zip(rows[0], ("string", "long", "double", "string"), strict=True)
            ]
            with path.open("wb") as stream:
                fastavro.writer(stream, {"type": "record", "name": "Row", "fields": fields}, rows)
    return FileSource.model_validate({format_: str(folder / f"*.{format_}")})


@pytest.mark.parametrize("format_", ["csv", "jsonl", "parquet", "avro"])
def test_counters_in_columns_of_every_format_give_their_rises(tmp_path: Path, format_: str):
    rows = read(write(tmp_path, format_), Readings.model_validate(COLUMNS))
    assert cells_of(rows) == pytest.approx(expected_cells())


def test_groups_stay_with_the_rises(tmp_path: Path):
    rows = read(write(tmp_path, "jsonl"), Readings.model_validate(COLUMNS), group="feeder")
    assert {row[3] for row in rows} == {"f"}
    assert cells_of([row[:3] for row in rows]) == pytest.approx(expected_cells())


@pytest.mark.parametrize("register", [{"path": "total.v"}, {"column": "v"}])
def test_counters_in_files_of_messages_give_their_rises(tmp_path: Path, register: dict[str, str]):
    for number in (0, 1):
        records = [
            {
                "topic": f"site/{name}",
                "payload": json.dumps({"t": NOON_S + second, "v": value, "total": {"v": value}}).encode(),
                "received": 0,
            }
            for name, second, value in SENT[number::2]
        ]
        with (tmp_path / f"{number}.avro").open("wb") as stream:
            fastavro.writer(stream, SCHEMA, records)
    readings = COLUMNS | {"series": {"topic": 2}, "value": {"register": register | {"rollover": 1_000}}}
    rows = read(FileSource(avro=str(tmp_path / "*.avro")), Readings.model_validate(readings))
    assert cells_of(rows) == pytest.approx(expected_cells())


def test_a_preset_with_a_counter_reads_files_of_messages_as_well(tmp_path: Path):
    records = [
        {
            "topic": "t",
            "payload": json.dumps(
                {
                    "deviceName": name,
                    "origin": (NOON_S + second) * 10**9,
                    "readings": [{"resourceName": "kwh", "value": str(value)}],
                }
            ).encode(),
            "received": 0,
        }
        for name, second, value in SENT
    ]
    with (tmp_path / "a.avro").open("wb") as stream:
        fastavro.writer(stream, SCHEMA, records)
    readings = {"preset": "edgex", "value": {"register": {"name": "kwh", "rollover": 1_000}}, "scale": SCALE}
    rows = read(FileSource(avro=str(tmp_path / "*.avro")), Readings.model_validate(readings))
    assert cells_of(rows) == pytest.approx(expected_cells())


def test_files_without_two_slots_of_a_series_give_nothing(tmp_path: Path):
    (tmp_path / "0.jsonl").write_text(json.dumps({"id": "m1", "t": NOON_S, "v": 1.0}), encoding="utf-8")
    assert read(FileSource(jsonl=str(tmp_path / "0.jsonl")), Readings.model_validate(COLUMNS)) == []


def test_a_rise_beyond_every_number_is_the_largest_one():
    huge = 1.7e308
    assert of_files([[("m1", 1, -huge), ("m1", 1_000, huge)]], None) == {("m1", 1): pytest.approx(1.797e308, rel=1e-3)}


@pytest.mark.parametrize(
    ("readings", "options", "message"),
    [
        (COLUMNS, {}, "a register needs the slots of the settings"),
        (COLUMNS | {"value": {"register": {"path": "v"}}}, {"grid": GRID}, "readings.value is a register"),
        (COLUMNS | {"series": {"topic": 1}}, {"grid": GRID}, "readings.series is topic level 1"),
    ],
)
def test_what_files_cannot_serve_is_refused(
    tmp_path: Path, readings: dict[str, Any], options: dict[str, Any], message: str
):
    source = write(tmp_path, "jsonl")
    with pytest.raises(SettingsError) as caught:
        ReadReadings(source, Readings.model_validate(readings), **options)
    assert message in str(caught.value)


def test_files_that_are_followed_refuse_counters(tmp_path: Path):
    with pytest.raises(SettingsError, match="quiltstream run without --live"):
        decoder_of(write(tmp_path, "jsonl"), Readings.model_validate(COLUMNS))
