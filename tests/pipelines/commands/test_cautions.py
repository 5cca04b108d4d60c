"""What is allowed and most likely not meant is said by the dry run, and by the run where it concerns what came out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..jobs import call, job

COLUMNS = {"series": "meter", "time": "ts", "value": "kwh"}


@pytest.mark.night
@pytest.mark.parametrize("words", [("--dry-run",), ()], ids=["dry", "run"])
def test_differing_units_without_a_scale_are_reported(tmp_path: Path, words: tuple[str, ...]) -> None:
    made = job(tmp_path, readings={**COLUMNS, "unit": "W"}, states={"edges": [1, 2], "unit": "kWh"})
    call("run", *words, made.settings).ended(0, "readings.unit is W and states.unit is kWh, but readings.scale is 1")
    found = json.loads(call("run", *words, "--json", made.settings).out)["cautions"]
    assert len(found) == 1
