"""What a run costs in calls of functions, which no other work on the machine changes: a guard of its speed.

The speed itself is measured by ``benchmarks/pipeline.py``. What makes a run slow first is Python that runs once for
each reading, each row or each bin; its calls are counted here, so such a change is noticed where it is made.
"""

from __future__ import annotations

import cProfile
import pstats
import tempfile
from pathlib import Path

import pytest

from quiltstream.pipelines.commands.run import run_job
from quiltstream.schemas.settings.job import read_settings

from ..loading import load

PIPELINE = load(Path(__file__).parents[2] / "benchmarks" / "pipeline.py")


def calls_of(readings: int, series: int) -> int:
    """Calls of a whole run of the benchmark's job, Python's and those of C."""
    with tempfile.TemporaryDirectory() as folder:
        PIPELINE.make(Path(folder), PIPELINE.Case(readings, series))
        settings = read_settings(Path(folder) / "settings.yaml")
        profile = cProfile.Profile()
        summary = profile.runcall(run_job, settings)
        assert summary["rows"] == series * PIPELINE.WINDOWS
        return int(vars(pstats.Stats(profile))["total_calls"])


@pytest.fixture(scope="module")
def least() -> int:
    """The smallest run, behind one that is not counted: whatever is made once for a process is there then."""
    calls_of(10_000, 50)
    return calls_of(10_000, 50)


@pytest.mark.night
def test_the_number_of_python_calls_is_independent_of_the_number_of_readings(least: int) -> None:
    more = calls_of(500_000, 50)
    assert more - least < 0.02 * 490_000, f"{least:,} calls for 10,000 readings, {more:,} for 500,000"


@pytest.mark.night
def test_a_released_row_requires_few_python_calls(least: int) -> None:
    more = calls_of(10_000, 1_000)
    rows = 950 * PIPELINE.WINDOWS
    # 15 of them are Beam's, which takes the size of the names in the registered query, for its cache
    assert more - least < 30 * rows, f"{(more - least) / rows:.1f} calls a row of {PIPELINE.STATES} bins"
