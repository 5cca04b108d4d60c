"""``quiltstream run --dry-run``: what is said of the end of a job whose source goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..jobs import call
from ..live_jobs import made

ENDLESS = {"size": "1d", "start": "2024-03-01"}
KAFKA = {"kafka": {"servers": "localhost:1", "topic": "meters"}}


@pytest.mark.parametrize(
    ("words", "source"),
    [(("--live",), {"csv": "inbox/*.csv"}), ((), {"stdin": "csv"}), ((), KAFKA), (("--live",), KAFKA)],
)
def test_the_dry_run_of_a_live_job_prints_a_schedule_without_end(
    tmp_path: Path, words: tuple[str, ...], source: dict[str, Any]
) -> None:
    one = made(tmp_path, windows=ENDLESS, source=source)
    done = call("run", "--dry-run", *words, one.settings).ended(0, "2024-03-01, without end")
    assert not done.said("windows.stop")
    assert not done.said("the last reading")
    said = json.loads(call("run", "--dry-run", "--json", *words, one.settings).out)
    assert (said["endless"], said["last"], said["from_data"]) == (True, None, [])
    assert not one.ledger.exists()


def test_the_dry_run_promises_no_exit_code_where_the_data_end_the_schedule(tmp_path: Path) -> None:
    windows = {"size": "1d", "every": "12h", "start": "2024-03-01"}
    privacy = {"epsilon": 1.0, "budget": 1.2, "guarantee": "window", "mechanism": "mqm-approx"}
    done = call("run", "--dry-run", "--json", made(tmp_path, windows=windows, privacy=privacy).settings).ended(0)
    assert json.loads(done.out)["run"]["code"] is None
    (tmp_path / "no").mkdir()
    nothing = made(tmp_path / "no", windows=windows, privacy={**privacy, "budget": 0.01})
    call("run", "--dry-run", nothing.settings).ended(3, "the budget does not allow even the first window")


def test_a_live_job_without_a_first_window_is_refused_by_the_dry_run_as_by_the_run(tmp_path: Path) -> None:
    one = made(tmp_path, windows={"size": "1d"})
    call("run", "--dry-run", "--live", one.settings).ended(2, "windows.start is missing: a live source never ends")
