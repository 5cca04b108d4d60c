"""The same job twice, killed and run again, and in two processes at once: one set of rows, one charge a window."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from quiltstream.schemas.releases import Release
from quiltstream.store.store import Store

from ...forked import COMMAND, forker
from ..jobs import Job, call, fork, job, start

#: Kills its own process at the n-th call of Store.publish, just before or just after the transaction.
KILLED = """
import os, signal, sys
from quiltstream.store.store import Store
place, number, calls, publish = sys.argv.pop(1), int(sys.argv.pop(1)), 0, Store.publish
def killed(self, registration, drafts):
    global calls
    calls += 1
    if calls == number and place == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    records = publish(self, registration, drafts)
    if calls == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return records
Store.publish = killed
"""


def many_windows(folder: Path) -> Job:
    """28 windows of six series: more blocks than one transaction takes."""
    return job(
        folder,
        group_by=None,
        windows={"size": "6h", "start": "2024-03-01", "stop": "2024-03-08"},
        privacy={"epsilon": 1.0, "budget": 1.0},
    )


def charges(made: Job) -> list[tuple[int, int]]:
    with sqlite3.connect(made.ledger) as connection:
        return connection.execute(
            "select window_start, count(*) from quiltstream_charges group by window_start order by window_start"
        ).fetchall()


def check(made: Job, rows: list[Release]) -> None:
    assert len(rows) == 28 * 6
    assert charges(made) == [(12 * n, 1) for n in range(28)]
    with Store(f"sqlite:///{made.ledger}", create=False) as store:
        loss = store.summary("streets").loss
    assert loss == pytest.approx(0.5550, abs=1e-4)  # calibrated to 1 by mqm-approx


@pytest.mark.parametrize(("place", "number"), [("after", 1), ("before", 2), ("after", 2)])
def test_a_killed_and_repeated_job_publishes_the_record_and_the_rest(tmp_path: Path, place: str, number: int) -> None:
    made = many_windows(tmp_path)
    killed = fork(place, str(number), "run", "settings.yaml", cwd=tmp_path, program=KILLED + COMMAND)
    assert killed.code == -9
    assert not made.sink.exists()
    with Store(f"sqlite:///{made.ledger}", create=False) as store:
        recorded = [record for record in store.records("streets", "daily") if record.block is not None]
    assert len(recorded) >= (number - 1 if place == "before" else number)
    again = call("run", made.settings)
    assert again.code == 0, again.err
    rows = made.rows()
    check(made, rows)
    counts = {(row.window_start, row.key): row.counts for row in rows}
    for record in recorded:
        assert record.block is not None
        for key, kept in zip(record.block.keys, record.block.counts.tolist(), strict=True):
            assert counts[record.entry.start_us, key] == tuple(kept)


def test_two_processes_at_once_publish_the_same_rows_and_charge_each_window_once(tmp_path: Path) -> None:
    made = many_windows(tmp_path)
    other = tmp_path / "other.yaml"
    text = made.settings.read_text(encoding="utf-8")
    other.write_text(text.replace("releases.parquet", "other.parquet").replace("rejects.csv", "other.csv"), "utf-8")
    running = [start("run", name, cwd=tmp_path, begin=forker().client) for name in ("settings.yaml", "other.yaml")]
    said = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    check(made, made.rows())
    assert made.sink.read_bytes() == (tmp_path / "other.parquet").read_bytes()
