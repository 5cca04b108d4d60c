"""``readings.absent``: a slot without a reading has this value while its series is in the roster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Settings

from ..transforms.test_histograms import EDGES, batches, publish, settings
from ..transforms.test_slot_classes import AUTUMN, GROUPS, readings
from .test_cases import REST

COLUMNS = {"series": "household", "time": "ts", "value": "w"}


@pytest.mark.parametrize(
    ("changes", "bins", "of_absent"),
    [
        pytest.param({}, 5, 0, marks=pytest.mark.night),
        ({"by": "hour", "group_by": "group", "bins": [500.0, 2000.0]}, 3, 0),
        pytest.param({"readings": COLUMNS | {"absent": 700.0}}, 5, 2, marks=pytest.mark.night),
    ],
)
def test_cells_without_a_reading_count_in_the_bin_of_the_value(
    tmp_path: Path, changes: dict[str, Any], bins: int, of_absent: int
) -> None:
    """Beside the same job that counts them in no bin: every row has them in one bin more, and all of its slots."""
    frame = readings(20131014)
    given = batches(frame, 500, GROUPS if "group_by" in changes else None)
    found: dict[str, dict[Any, Any]] = {}
    for name, extra in (("gaps", {"readings": COLUMNS}), ("filled", {"readings": COLUMNS | {"absent": 0.0}} | changes)):
        folder = tmp_path / name
        folder.mkdir()
        job = settings(folder, windows=AUTUMN, **(changes | extra))
        found[name] = {(row.window_start, row.key): row for row in publish(given, job, folder)}
    assert found["gaps"].keys() == found["filled"].keys()
    fuller = 0
    for key, gaps in found["gaps"].items():
        before = np.array(gaps.counts).reshape(-1, bins)
        after = np.array(found["filled"][key].counts).reshape(-1, bins)
        more = after - before
        assert (np.delete(more, of_absent, axis=1) == 0).all()
        assert (more[:, of_absent] >= 0).all()
        assert found["filled"][key].total == after.sum()
        fuller += int(more.sum())
    totals = {row.total // (2 if "group_by" in changes else 1) for row in found["filled"].values()}
    assert fuller > 0
    assert len(totals) <= 2, "every key has all slots of its window for each of its members"


@pytest.mark.parametrize("missing", ["state", {"break": "2h"}])
def test_another_rule_for_missing_cells_beside_it_is_refused(missing: Any) -> None:
    whole = REST | {
        "source": {"csv": "x.csv"},
        "readings": COLUMNS | {"absent": 0},
        "slots": {"interval": "30min"},
        "states": {"edges": EDGES},
        "missing": missing,
    }
    with pytest.raises(SettingsError, match=r"readings\.absent"):
        Settings.parse(whole)
    # what holds or counts leaves no cell without a value beside it
    whole |= {"readings": COLUMNS | {"absent": 0, "register": "net"}, "missing": "public"}
    assert Settings.parse(whole).space.gap_state == 0
