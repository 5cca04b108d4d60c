"""Files in layouts that meters really send: a folder a case, with settings, input, and what is right.

The inputs are made up, in the layouts of public files; no line is copied from one.

``expected.json`` is what a literal reader of the layout, or a hand, counted: series, cells, the first instant and the
bins. ``readings.csv`` has every cell, and ``rejects.json`` the places of each reason. ``refused.json`` is of a case
that has no right reading: the exit code, words that name the cause, and words of the data that stay hidden. The same
files are read in batch and as files that arrive in a followed folder.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import yaml

from quiltstream.pipelines.commands.check import gather
from quiltstream.pipelines.runners import read_source
from quiltstream.schemas.settings.job import Settings
from quiltstream.transforms.formats.rows import Labels
from quiltstream.transforms.readings.slots import slot_readings, words_of
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.files import HowRead, decoder_of

from ..pipelines.jobs import call
from ..present import present

FOLDERS = sorted((Path(__file__).parent / "cases").iterdir())
READ = [one for one in FOLDERS if not (one / "refused.json").exists()]
REFUSED = [one for one in FOLDERS if (one / "refused.json").exists()]

REST: dict[str, Any] = {
    "states": {"edges": [250, 500, 1000, 2000], "unit": "W"},
    "model": {"pi_min": 0.1, "gap": 0.3},
    "windows": {"size": "7d"},
    "privacy": {"epsilon": 1, "mechanism": "forward-backward"},
    "sink": {"parquet": "out.parquet"},
    "query": "q",
    "domain": "d",
}

Cells = dict[tuple[str, str], float]


class Case(NamedTuple):
    path: Path  # of the settings
    right: Any  # what ``expected.json`` says; ``None`` where every cell is written down
    cells: Cells
    rejects: dict[str, list[str]]

    def check(self, cells: Cells) -> None:
        """See whether cells are the right ones."""
        if self.right is None:
            assert cells.keys() == self.cells.keys()
            np.testing.assert_allclose([cells[one] for one in self.cells], list(self.cells.values()), rtol=1e-9)
            return
        bins = Counter(np.searchsorted(self.right["edges"], list(cells.values()), side="right").tolist())
        found = {
            "series": len({series for series, _ in cells}),
            "cells": len(cells),
            "first": min(time for _, time in cells),
            "bins": [bins[number] for number in range(len(self.right["edges"]) + 1)],
        }
        assert found == {name: self.right[name] for name in found}


def copied(folder: Path, to: Path) -> Path:
    """The settings of a case in a copy of its folder."""
    path = shutil.copytree(folder, to / "case") / "settings.yaml"
    settings = REST | yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


@pytest.fixture(params=READ, ids=[one.name for one in READ])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    path = copied(request.param, tmp_path)

    def said(name: str) -> Any:
        file = path.with_name(name)
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    cells: Cells = {}
    if path.with_name("readings.csv").exists():
        with path.with_name("readings.csv").open(encoding="utf-8", newline="") as file:
            cells = {(one["series"], one["time"]): float(one["value"]) for one in csv.DictReader(file)}
        path.with_name("readings.csv").unlink()  # a pattern may match it
    return Case(path, said("expected.json"), cells, said("rejects.json") or {})


def cells_of(rows: Iterator[tuple[str, int, float]]) -> Cells:
    """The later of two readings of an instant counts, of equal ones any."""
    return {(series, f"{np.datetime64(time, 'us').astype('M8[s]')}Z"): value for series, time, value in rows}


def test_a_case_is_read_right_in_batch(case: Case) -> None:
    settings = Settings.read(case.path)
    source = read_source(settings)
    words = words_of(present(settings.readings), settings.slots.of)
    found = gather(source, settings.grid, words)
    series = (found.names[at] for at in found.series)
    case.check(cells_of(zip(series, found.times.tolist(), found.values.tolist(), strict=True)))
    assert {why.value: [Path(place).name for place in places] for why, (_, places) in found.rejects.items()} == {
        why: places[:3] for why, places in case.rejects.items()
    }
    said = json.loads(call("check", case.path, "--json").ended(0).out)
    assert (said["series"], said["readings"]) == (len(found.names), len(found.series))


def test_a_case_is_read_right_as_arriving_files(case: Case) -> None:
    settings = Settings.read(case.path)
    source, readings = present(settings.source), present(settings.readings)
    if readings.ambiguous == "in-order":
        pytest.skip("the order of a file's rows is not known where files are followed")
    words = words_of(readings, settings.slots.of)
    how: HowRead = {"timezone": settings.slots.timezone, "batch_rows": 100, "words": words}
    how["labels"] = Labels.of(settings.space)
    patterns = tuple(str(case.path.parent / one) for one in source.patterns)
    batches, rejects = list[pa.RecordBatch](), Counter[str]()
    reader = ArrivingFiles(decoder_of(source, readings, **how), patterns).reader(0, "")
    while (found := reader.read()) is not None:
        batches += found.batches
        rejects.update({why.value: count for why, count in found.rejected.items()})
    table = pa.Table.from_batches(batches if words is None else slot_readings(batches, settings.grid, words))
    times = table["time"].cast(pa.int64()).to_pylist()
    case.check(cells_of(zip(table["series"].to_pylist(), times, table["value"].to_pylist(), strict=True)))
    assert rejects == {why: len(places) for why, places in case.rejects.items()}


@pytest.mark.parametrize("folder", REFUSED, ids=[one.name for one in REFUSED])
def test_what_cannot_be_read_is_refused_by_its_cause(folder: Path, tmp_path: Path) -> None:
    right = json.loads((folder / "refused.json").read_text(encoding="utf-8"))
    done = call("check", copied(folder, tmp_path)).ended(right["code"], *right["said"])
    done.hid(*right.get("hidden", ()))
