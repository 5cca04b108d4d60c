"""What is allowed and most likely not meant is said by the dry run, and by the run where it concerns what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.commands.dry_run import cautions
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms.plan import make_plan

from ..jobs import call, job

COLUMNS = {"series": "meter", "time": "ts", "value": "kwh"}


@pytest.mark.parametrize("words", [("--dry-run",), ()], ids=["dry", "run"])
def test_differing_units_without_a_scale_are_reported(tmp_path: Path, words: tuple[str, ...]) -> None:
    made = job(tmp_path, readings={**COLUMNS, "unit": "W"}, states={"edges": [1, 2], "unit": "kWh"})
    call("run", *words, made.settings).ended(0, "readings.unit is W and states.unit is kWh, but readings.scale is 1")
    found = json.loads(call("run", *words, "--json", made.settings).out)["cautions"]
    assert len(found) == 1


ELSEWHERE = "workers on other machines log the blocks that leave only where"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), False),
        (("--live",), False),
        (("--", "--runner=FlinkRunner"), True),
        (("--live", "--", "--runner=FlinkRunner"), True),
        (("--live", "--", "--runner=FlinkRunner", "--environment_type=LOOPBACK"), False),
        (("--live", "--", "--environment_type=EXTERNAL"), True),
    ],
)
def test_a_dry_run_prints_where_remote_workers_log_published_blocks(
    tmp_path: Path, words: tuple[str, ...], said: bool
) -> None:
    live: dict[str, Any] = {"source": {"csv": str(tmp_path / "readings*.csv")}, "sink": {"parquet": "releases"}}
    done = call("run", "--dry-run", job(tmp_path, **(live if "--live" in words else {})).settings, *words).ended(0)
    assert done.said(ELSEWHERE) == said


@pytest.mark.parametrize(
    "readings", [{"unit": "kWh"}, {"unit": "W", "scale": 0.001}, {}], ids=["alike", "with a factor", "not given"]
)
def test_units_that_fit_are_not_mentioned(tmp_path: Path, readings: dict[str, Any]) -> None:
    made = job(tmp_path, readings={**COLUMNS, **readings}, states={"edges": [1, 2], "unit": "kWh"})
    assert not call("run", "--dry-run", made.settings).said("Look at this first")


def test_an_incomplete_last_window_is_reported_with_the_clock_change(tmp_path: Path) -> None:
    windows = {"size": "1d", "start": "2024-03-30", "stop": "2024-04-02"}
    slots = {"interval": "30min", "origin": "2024-03-30", "timezone": "Europe/London"}
    done = call("run", "--dry-run", job(tmp_path / "a", windows=windows, slots=slots).settings)
    assert done.said(
        "the last 23h before it make no whole window and are left out: the windows end at 2024-04-01T00:00"
    )
    assert done.said("a window of 1d always has 24 hours, and in Europe/London a day has 23 or 25")
    assert not call("run", "--dry-run", job(tmp_path / "b", windows=windows).settings).said("left out")


def test_a_future_end_of_a_batch_job_is_reported(tmp_path: Path) -> None:
    settings = read_settings(job(tmp_path).settings)
    plan = make_plan(settings)
    stop = 1_709_856_000_000_000  # 2024-03-08
    day = 86_400_000_000
    (said,) = cautions(settings, plan, endless=False, now_us=stop - 5 * day)
    assert said.startswith("windows.stop lies 5 days ahead: this run publishes and charges")
    assert cautions(settings, plan, endless=False, now_us=stop) == ()
    assert cautions(settings, plan, endless=True, now_us=stop - 5 * day) == ()
    made = job(tmp_path / "far", windows={"size": "1d", "start": "2024-03-01", "stop": "2224-03-01"})
    assert call("run", "--dry-run", made.settings).said("days ahead")
