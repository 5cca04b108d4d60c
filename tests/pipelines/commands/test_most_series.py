"""How many series a job holds: a limit by setting, which is said, and memory that does not grow with what is sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quiltstream.schemas.roster import MOST_SERIES
from quiltstream.store import Store

from ...forked import COMMAND
from ..jobs import call, job, readings

#: Bytes of data that a command may take which meets far more series than its limit.
ROOM = 1 << 30


def limited(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own that has :data:`ROOM` and no more."""
    set_limit = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({ROOM}, {ROOM})); "
    command = [sys.executable, "-c", set_limit + COMMAND, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def said(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.night
def test_a_roster_of_millions_of_rows_ends_with_the_limit_in_bounded_memory(tmp_path: Path) -> None:
    made = job(tmp_path, group_by=None)
    block = "".join(f"home-{number:07d}\n" for number in range(100_000))
    with (tmp_path / "roster.csv").open("w", encoding="utf-8") as file:
        file.write("series\n")
        for number in range(100):
            file.write(block.replace("home", f"h{number:03d}"))
    done = limited("run", made.settings)
    assert done.returncode == 2, done.stderr
    assert f"it has more than {MOST_SERIES:,} rows, the limit of most_series" in said(done.stderr) or (
        "bytes, and 134,217,728 are the limit" in said(done.stderr)
    )
    assert not made.ledger.exists()


@pytest.mark.night
def test_a_roster_above_the_limit_of_the_settings_is_refused(tmp_path: Path) -> None:
    made = job(tmp_path, most_series=5)
    call("run", made.settings).ended(2, "roster.csv: it has more than 5 rows, the limit of most_series")
    assert call("run", job(tmp_path, most_series=6).settings).code == 0


@pytest.mark.night
def test_series_from_the_data_above_the_limit_end_a_job_before_anything_is_charged(tmp_path: Path) -> None:
    made = job(tmp_path, readings(days=2), roster=None, group_by=None, most_series=5)
    call("run", made.settings).ended(
        2, "source, whose series are the roster: it has more than 5 series, the limit of most_series"
    )
    with Store(f"sqlite:///{made.ledger}") as store:
        assert store.domains() == ()
    made = job(tmp_path, readings(days=2), roster=None, group_by=None, most_series=6)
    assert call("run", made.settings).code == 0


def test_a_fit_over_more_series_than_the_limit_is_refused(tmp_path: Path) -> None:
    made = job(tmp_path, most_series=5, model="model.json", roster=None, group_by=None)
    call("fit", made.settings, "--belief", "pooled").ended(
        2, "source, whose series are counted: it has more than 5 series, the limit of most_series"
    )
    assert not (tmp_path / "model.json").exists()
