"""Files in layouts that meters really send: a folder a case, with settings, input, and the right readings.

``expected.json`` is what a literal reader of the layout, or a hand, counted: series, cells, the first instant and the
bins. The same files are read by ``check``, as a batch job reads them, and as files that arrive in a followed folder.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from quiltstream.schemas.settings.job import Settings
from quiltstream.transforms.readings.slots import words_of
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.files import HowRead, SlotValues, decoder_of

from ..pipelines.jobs import call

CASES = sorted((Path(__file__).parent / "cases").iterdir())

REST: dict[str, Any] = {
    "model": {"pi_min": 0.1, "gap": 0.3},
    "windows": {"size": "7d"},
    "privacy": {"epsilon": 1, "mechanism": "forward-backward"},
    "sink": {"parquet": "out.parquet"},
    "query": "q",
    "domain": "d",
}


@pytest.fixture(params=CASES, ids=[case.name for case in CASES])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The settings of a case in a copy of its folder, and what is right."""
    folder = shutil.copytree(request.param, tmp_path / "case")
    right = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    settings = yaml.safe_load((folder / "settings.yaml").read_text(encoding="utf-8"))
    settings = {"states": {"edges": right["edges"], "unit": "W"}} | REST | settings
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return folder / "settings.yaml", right


def test_a_case_is_read_right_in_batch(case: tuple[Path, dict[str, Any]]) -> None:
    path, right = case
    found = json.loads(call("check", path, "--json").ended(0).out)
    bins = [round(share * found["readings"]) for share in found["bins"].values()]
    assert (found["series"], found["readings"] - found["doubled"], found["first"][:20], bins) == (
        right["series"],
        right["cells"],
        right["first"],
        right["bins"],
    )


def test_a_case_is_read_right_as_arriving_files(case: tuple[Path, dict[str, Any]]) -> None:
    path, right = case
    settings = Settings.read(path)
    assert settings.source is not None
    assert settings.readings is not None
    if settings.readings.ambiguous == "in-order":
        pytest.skip("the order of a file's rows is not known where files are followed")
    words = words_of(settings.readings, settings.slots.of)
    how: HowRead = {"timezone": settings.slots.timezone, "batch_rows": 100, "words": words}
    decoder = decoder_of(settings.source, settings.readings, **how)
    patterns = tuple(str(path.parent / one) for one in settings.source.patterns)
    batches = list[pa.RecordBatch]()
    reader = ArrivingFiles(decoder, patterns).reader(0, "")
    while (found := reader.read()) is not None:
        batches += found.batches
    if words is not None:
        batches = SlotValues(words, settings.grid).of(batches)
    rows = pa.Table.from_batches(batches).to_pylist()
    cells = {(one["series"], one["time"]): one["value"] for one in rows}
    numbers = Counter(np.searchsorted(right["edges"], list(cells.values()), side="right").tolist())
    assert len({series for series, _ in cells}) == right["series"]
    assert len(cells) == right["cells"]
    assert f"{min(time for _, time in cells):%Y-%m-%dT%H:%M:%SZ}" == right["first"]
    assert [numbers[number] for number in range(len(right["bins"]))] == right["bins"]
