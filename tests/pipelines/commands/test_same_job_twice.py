"""The same job twice, killed and run again, and in two processes at once: one set of rows, one charge a window."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.releases import Release
from quiltstream.store.specs import BlockToPublish, Record, Registration, layout_of
from quiltstream.store.store import Store

from ...forked import COMMAND, forker
from ...present import present
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
    with Store(f"sqlite:///{made.ledger}") as store:
        return sorted(Counter(entry.window_start for entry in store.entries()).items())


def check(made: Job, rows: list[Release]) -> None:
    assert len(rows) == 28 * 6
    assert charges(made) == [(12 * n, 1) for n in range(28)]
    with Store(f"sqlite:///{made.ledger}", create=False) as store:
        loss = store.summary("streets").loss
    assert loss == pytest.approx(0.5550, abs=1e-4)  # calibrated to 1 by mqm-approx


@pytest.mark.night
@pytest.mark.parametrize(("place", "number"), [("after", 1), ("before", 2), ("after", 2)])
def test_a_killed_and_repeated_job_publishes_the_record_and_the_rest(tmp_path: Path, place: str, number: int) -> None:
    made = many_windows(tmp_path)
    fork(place, str(number), "run", "settings.yaml", cwd=tmp_path, program=KILLED + COMMAND).ended(-9)
    assert not made.sink.exists()
    with Store(f"sqlite:///{made.ledger}", create=False) as store:
        recorded = [record for record in store.records("streets", "daily") if record.block is not None]
    assert len(recorded) >= (number - 1 if place == "before" else number)
    call("run", made.settings).ended(0)
    rows = made.rows()
    check(made, rows)
    counts = {(row.window_start, row.key): row.counts for row in rows}
    for record in recorded:
        for key, kept in zip(present(record.block).keys, present(record.block).counts.tolist(), strict=True):
            assert counts[record.entry.start_us, key] == tuple(kept)


def with_another(made: Job) -> Path:
    """Settings of the same job with another sink: the ledger is the same, and so is the log of blocks beside them."""
    other = made.folder / "other.yaml"
    text = made.settings.read_text(encoding="utf-8")
    other.write_text(text.replace("releases.parquet", "other.parquet").replace("rejects.csv", "other.csv"), "utf-8")
    return other


@pytest.mark.night
def test_two_processes_at_once_publish_the_same_rows_and_charge_each_window_once(tmp_path: Path) -> None:
    made = many_windows(tmp_path)
    words = [("run", "--json", path.name) for path in (made.settings, with_another(made))]
    running = [start(*one, cwd=tmp_path, begin=forker().client) for one in words]
    said = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    check(made, made.rows())
    assert made.sink.read_bytes() == (tmp_path / "other.parquet").read_bytes()


@pytest.mark.night
def test_each_of_two_racing_jobs_publishes_all_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one publishes everything while the first transaction of this one is on record and no later one."""
    made = many_windows(tmp_path)
    other, said, publish = with_another(made), list[dict[str, Any]](), Store.publish

    def raced(store: Store, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        # whose block counts for its window
        of_windows = [one for one in drafts if one.shard == layout_of(registration, one.window).occupied[0]]
        if said or len(of_windows) < 2:
            return publish(store, registration, drafts)
        said.append({})
        mine = of_windows[: len(of_windows) // 2]
        first = {(one.window, one.shard): one for one in publish(store, registration, mine)}
        said[0] |= json.loads(fork("run", "--json", other, cwd=tmp_path).out)
        rest = publish(store, registration, [draft for draft in drafts if draft not in mine])
        found = first | {(one.window, one.shard): one for one in rest}
        return [found[draft.window, draft.shard] for draft in drafts]

    monkeypatch.setattr(Store, "publish", raced)
    mine = json.loads(call("run", "--json", made.settings).out)
    assert (mine["windows_published"], said[0]["windows_published"]) == (28, 28)
    check(made, made.rows())
    assert made.sink.read_bytes() == (tmp_path / "other.parquet").read_bytes()
    # both remember the one ledger
    assert len({json.loads(one.read_text())["store_id"] for one in tmp_path.glob(".*.quiltstream.json")}) == 1
    again = json.loads(call("run", "--json", made.settings).out)
    assert (again["windows_published"], again["windows_on_record"]) == (0, 28)
