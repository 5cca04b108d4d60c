"""``quiltstream ledger drift``: whether released rows contradict the belief in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiltstream.privacy import DobrushinBounds, MarkovChain
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.states import StateSpace

from ..jobs import Job, call, job, readings

#: Half of the homes are never above 250 W.
QUIET = [(home, stamp, 0.05 if home < "m6" else value) for home, stamp, value in readings(9)]


def made(folder: Path, rows: Any = None, **changes: Any) -> Job:
    windows = {"size": "1d", "start": "2024-03-01", "stop": "2024-03-09"}
    given = {"windows": windows, "privacy": {"epsilon": 90.0}, "model": {"pi_min": 0.05, "gap": 0.3}}
    return job(folder, readings(9) if rows is None else rows, **(given | changes))


@pytest.mark.night
@pytest.mark.parametrize("by", [None, "hour"])
def test_drift_from_the_belief_is_detected_from_released_rows_alone(tmp_path: Path, by: str | None) -> None:
    one = made(tmp_path, QUIET, model={"pi_min": 0.14, "gap": 0.9}, by=by)
    call("run", one.settings).ended(0)
    for path in (tmp_path / "readings.csv", one.sink):
        path.unlink()
    call("ledger", "drift", one.settings, "streets", "daily").ended(
        0,
        "2024-03-01T00:00:00Z to 2024-03-08T00:00:00Z contradict the belief in force",
        "is less than any chain of the belief explains",
        "1 judged, 1 contradict",
    )


@pytest.mark.night
def test_rows_that_agree_with_the_belief_are_not_reported(tmp_path: Path) -> None:
    one = made(tmp_path)
    call("run", one.settings).ended(0)
    call("ledger", "drift", one.settings, "streets", "daily").ended(0, "1 judged, 0 contradict")
    call("ledger", "drift", one.settings, "streets", "weekly").ended(4, "query 'weekly' of domain 'streets' is not on")


@pytest.mark.night
def test_a_stretch_with_missing_rows_or_a_change_of_belief_is_not_judged(tmp_path: Path) -> None:
    short = made(tmp_path / "short", QUIET, windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-07"})
    call("run", short.settings).ended(0)
    call("ledger", "drift", short.settings, "streets", "daily").ended(0, "0 judged, 0 contradict")
    one = made(tmp_path / "one", QUIET, model={"pi_min": 0.14, "gap": 0.9}, privacy={"epsilon": 90.0, "budget": 900.0})
    call("run", one.settings).ended(0)
    bounds = tmp_path / "bounds.yaml"
    bounds.write_text("{pi_min: 0.13, gap: 0.8}", encoding="utf-8")
    call("ledger", "belief", one.settings, "streets", bounds, "--from", "2024-03-03", "--yes").ended(0)
    call("ledger", "drift", one.settings, "streets", "daily").ended(0, "0 judged, 0 contradict")


@pytest.mark.night
def test_why_no_stretch_can_be_judged_is_said(tmp_path: Path) -> None:
    coarse = made(tmp_path / "coarse", bins=[500])
    chain = DobrushinBounds.of(MarkovChain([[0.9, 0.1], [0.4, 0.6]]))
    model = Model(chain.to_dict(), StateSpace((500.0,), "W"), 1_800_000_000, Provenance(method="test"))
    other = made(tmp_path / "other", states={"edges": [500], "unit": "W"}, model="model.json")
    model.save(tmp_path / "other" / "model.json")
    other.settings.write_text(
        other.settings.read_text(encoding="utf-8").replace(
            "privacy:\n", "privacy:\n  mechanism: forward-backward\n  guarantee: stream\n"
        ),
        encoding="utf-8",
    )
    for one, why in ((coarse, "bins are several states each"), (other, "a belief of kind dobrushin-bounds")):
        call("run", one.settings).ended(0)
        call("ledger", "drift", one.settings, "streets", "daily").ended(2, why)
