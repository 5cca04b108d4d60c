"""Rows to readings: numbers, and labels as states."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.states import StateSpace
from quiltstream.transforms.formats.rows import Labels, read_values
from quiltstream.transforms.sources.files import ReadReadings, decoder_of

from .decoding import decoded_parts

#: Decimals that are less as floats of 32 bits, among others.
DECIMALS = [str(Decimal(one) / 100) for one in range(1, 1000)]


@pytest.mark.parametrize("scale", [1.0, 2000.0, -1.0])
def test_values_of_32_bits_are_at_the_edges_that_they_were_rounded_from(scale: float) -> None:
    edges = StateSpace(tuple(sorted(float(Decimal(one) * int(scale)) for one in DECIMALS)))
    places = np.arange(1, 1000) if scale > 0 else np.arange(999, 0, -1)
    for kind in (pa.float32(), pa.float64()):
        values, problems = read_values(pa.array([float(one) for one in DECIMALS], kind), scale=scale)
        assert not problems
        assert values.tolist() == [float(one) * scale for one in DECIMALS]
        assert np.array_equal(edges.encode(values), places)


SPACE = StateSpace((), categories=("sleep", "7", "None"))
READINGS = Readings(series="who", time="ts", value="what")
TEXTS = ["sleep", " sleep ", "7", "None", "secret swim", "", "NA", "Sleep", "7"]

#: What becomes of them: a state, or the reason of a reject.
MEANT = [0, 0, 1, 2, "unknown-label", "missing-value", "missing-value", "unknown-label", 1]


def outcome(reader: ReadReadings) -> list[float | str]:
    found: dict[int, float | str] = {}
    for part in decoded_parts(reader):
        for one in part.rejects:
            found |= dict.fromkeys(one.positions.tolist(), one.reason.value)
        if part.readings is not None:
            assert part.rows is not None
            found |= dict(zip(part.rows.tolist(), part.readings["value"].to_pylist(), strict=True))
    return [found[at] for at in sorted(found)]


@pytest.mark.parametrize("quoted", [False, True])
def test_labels_of_csv_are_always_read_as_text(tmp_path: Path, *, quoted: bool) -> None:
    mark = '"' if quoted else ""
    lines = ["who,ts,what", *(f"a,2024-01-{n + 1:02},{mark}{text}{mark}" for n, text in enumerate(TEXTS))]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    assert outcome(ReadReadings(FileSource(csv=str(tmp_path / "x.csv")), READINGS, labels=Labels(SPACE))) == MEANT


def test_labels_of_json_lines_may_be_numbers_without_quotes(tmp_path: Path) -> None:
    values: list[Any] = [*TEXTS[:-1], 7]
    rows = [{"who": "a", "ts": f"2024-01-{n + 1:02}", "what": value} for n, value in enumerate(values)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    source = FileSource(jsonl=str(tmp_path / "x.jsonl"))
    assert outcome(ReadReadings(source, READINGS, labels=Labels(SPACE))) == MEANT


@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8(), pa.string_view()])
def test_text_is_a_number_or_a_label_in_every_layout_of_arrow(kind: pa.DataType) -> None:
    values, problems = read_values(pa.array(["1.5", None, "many", "-2"], kind), scale=2.0)
    assert values[[0, 3]].tolist() == [3.0, -4.0]
    assert [(one.rows.tolist(), one.reason.value) for one in problems if one.rows.any()] == [
        ([False, True, False, False], "missing-value"),
        ([False, True, False, False], "missing-value"),
        ([False, False, True, False], "not-a-number"),
    ]
    states, _ = Labels(SPACE).read(pa.array([TEXTS[0]], kind))
    assert states.tolist() == Labels(SPACE).read(pa.array([TEXTS[0]]))[0].tolist()


@pytest.mark.parametrize("kind", [pa.utf8(), pa.dictionary(pa.int32(), pa.utf8()), pa.large_utf8()])
def test_labels_of_parquet_are_text_or_a_dictionary(tmp_path: Path, kind: pa.DataType) -> None:
    stamps = [f"2024-01-{n + 1:02}" for n in range(len(TEXTS) + 1)]
    columns = {"who": ["a"] * len(stamps), "ts": stamps, "what": pa.array([*TEXTS, None], pa.utf8()).cast(kind)}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    source = FileSource(parquet=str(tmp_path / "x.parquet"))
    assert outcome(ReadReadings(source, READINGS, labels=Labels(SPACE))) == [*MEANT, "missing-value"]


def test_codes_of_parquet_are_labels_by_their_digits(tmp_path: Path) -> None:
    columns = {"who": ["a"] * 3, "ts": ["2024-01-01", "2024-01-02", "2024-01-03"], "what": pa.array([7, 8, None])}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    source = FileSource(parquet=str(tmp_path / "x.parquet"))
    found = outcome(ReadReadings(source, READINGS, labels=Labels(SPACE)))
    assert found == [1, "unknown-label", "missing-value"]


@pytest.mark.parametrize(("other", "state"), [("else", 3), ("7", 1)])
def test_other_is_the_state_of_every_label_that_is_not_listed(tmp_path: Path, other: str, state: int) -> None:
    space = StateSpace((), categories=SPACE.categories, other=other)
    lines = ["who,ts,what", *(f"a,2024-01-{n + 1:02},{text}" for n, text in enumerate(TEXTS))]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    found = outcome(ReadReadings(FileSource(csv=str(tmp_path / "x.csv")), READINGS, labels=Labels(space)))
    assert found == [state if one == "unknown-label" else one for one in MEANT]


def test_a_category_of_any_spelling_is_a_label(tmp_path: Path) -> None:
    space = StateSpace((), categories=("NA", "x"), other="x")
    (tmp_path / "x.csv").write_text(
        "who,ts,what\na,2024-01-01,NA\na,2024-01-02, NA \na,2024-01-03,null\n", encoding="utf-8"
    )
    found = outcome(ReadReadings(FileSource(csv=str(tmp_path / "x.csv")), READINGS, labels=Labels(space)))
    assert found == [0, 0, "missing-value"]


@pytest.mark.night
@pytest.mark.parametrize("other", ["else", "7"])
def test_a_changed_label_moves_the_histogram_by_two_or_not_at_all(other: str) -> None:
    """By enumeration: every series of three cells, every cell, every other label, listed or not."""
    space = StateSpace((), categories=SPACE.categories, other=other)
    labels = [*space.categories, "secret swim", "ski"]
    moves: set[int] = set()
    for path in itertools.product(labels, repeat=3):
        for at, label in itertools.product(range(3), labels):
            changed = [*path[:at], label, *path[at + 1 :]]
            counts: list[npt.NDArray[np.int64]] = []
            for one in (path, changed):
                values, problems = Labels(space).read(pa.array(one))
                assert not problems
                counts.append(np.bincount(space.encode(values), minlength=space.size))
            moves.add(int(np.abs(counts[0] - counts[1]).sum()))
    assert moves == {0, 2}


def test_messages_in_files_hold_no_labels() -> None:
    readings = Readings.model_validate({"recipe": "aws-iot", "value": "what"})
    with pytest.raises(SettingsError, match=r"states\.categories are read from columns of files"):
        decoder_of(FileSource(avro="x.avro"), readings, labels=Labels(SPACE))
