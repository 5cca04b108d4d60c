"""A live job whose windows are local days, over the night in which New York puts its clock forward."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest

from quiltstream.pipelines.live import command
from quiltstream.store import Store, StoreAddress

from ..jobs import Job, Row, readings, write_csv
from ..live_jobs import TrueHistograms, made, run

ZONE = ZoneInfo("America/New_York")
SLOTS = {"interval": "30min", "origin": "2024-03-01T00:00Z", "timezone": "America/New_York"}


def days_of(rows: list[Row], first: int, last: int) -> dict[tuple[int, str], list[int]]:
    """Local day of March and street -> counts, from the readings alone."""
    found = {(day, street): [0] * 5 for day in range(first, last + 1) for street in ("north", "south")}
    for home, stamp, kwh in rows:
        day = dt.datetime.fromisoformat(stamp).astimezone(ZONE).day
        if first <= day <= last:
            level = sum(kwh * 2000 >= edge for edge in (250, 500, 1000, 2000))
            found[day, "north" if home < "m4" else "south"][level] += 1
    return found


def rows_of(one: Job) -> dict[tuple[int, str], dict[str, Any]]:
    rows = [row for path in (one.folder / "releases").iterdir() for row in pq.read_table(path).to_pylist()]
    found = {(row["window_start"].astimezone(ZONE).day, row["key"]): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_a_live_run_continues_over_a_day_of_23_hours_despite_late_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PrivateHistograms", TrueHistograms)
    one = made(tmp_path, slots=SLOTS, windows={"size": "day", "start": "2024-03-08", "stop": "2024-03-10"})
    truth = readings(14)
    write_csv(tmp_path / "inbox" / "0.csv", [row for row in truth if row[1] < "2024-03-11"])
    assert run(one).code == 0
    assert {key: row["counts"] for key, row in rows_of(one).items()} == days_of(truth, 8, 9)
    # the job is begun again with a later end; readings of days on record come again, others of them come late
    text = one.settings.read_text(encoding="utf-8")
    one.settings.write_text(text.replace("2024-03-10", "2024-03-13"), encoding="utf-8")
    before = {path.name: path.read_bytes() for path in (tmp_path / "releases").iterdir()}
    rest = [row for row in truth if row[1] >= "2024-03-11"]
    late = [(home, stamp, 1.5) for home, stamp, _ in truth if stamp < "2024-03-09T12"]
    write_csv(tmp_path / "inbox" / "1.csv", late)
    write_csv(tmp_path / "inbox" / "2.csv", rest)
    done = run(one).ended(0)
    found = rows_of(one)
    assert {key: row["counts"] for key, row in found.items()} == days_of(truth, 8, 12)
    assert {key[0]: row["slots"] for key, row in found.items()} == {8: 48, 9: 48, 10: 46, 11: 48, 12: 48}
    assert done.said("on record until 2024-03-13T04:00:00Z")
    assert {name: (tmp_path / "releases" / name).read_bytes() for name in before} == before
    with Store(StoreAddress(f"sqlite:///{one.ledger}")) as store:
        assert store.verify().defects == ()
        assert [len(range(entry.window_start, entry.window_stop)) for entry in store.entries()] == [48, 48, 46, 48, 48]
