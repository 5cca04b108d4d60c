"""Jobs that estimate their model themselves, and what is read of them afterwards."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.privacy.models.serialisation import belief_from_dict
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.store import Store

from ..present import present
from .jobs import START, Done, Job, Row, call, job, readings, write_csv

OTHERS = ("o1", "o2", "o3", "o4")
DAY = 48


def sticky(days: int, homes: Iterable[str], stay: float, seed: int = 1) -> list[Row]:
    """Values that stay in their bin with a probability, else any bin is as likely."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for home in homes:
        level = 0.1
        for slot in range(DAY * days):
            if draw.random() > stay:
                level = draw.choice([0.05, 0.2, 0.4, 0.8, 1.5])
            rows.append((home, (START + slot * dt.timedelta(minutes=30)).isoformat(), level))
    return rows


def made(folder: Path, estimate: dict[str, Any] | None, *, live: bool = True, **changes: Any) -> Job:
    """A job of five days behind twenty over one file, live or not, with other series in a folder beside it."""
    for name in ("inbox", "others"):
        (folder / name).mkdir()
    write_csv(folder / "inbox" / "0.csv", readings(26))
    write_csv(folder / "others" / "0.csv", sticky(20, OTHERS, 0.3))
    given: dict[str, Any] = {
        "source": {"csv": "inbox/*.csv"},
        "windows": {"size": "1d", "start": "2024-03-21", "stop": "2024-03-26"},
        "states": {"edges": [500], "unit": "W"},
        "privacy": {"epsilon": 1.0},
    }
    if live:
        given |= {"sink": {"parquet": "releases"}, "rejects": {"csv": "rejects"}, "live": {"poll": "10ms"}}
    if estimate is not None:
        given["model"] = {"estimate": estimate}
    return job(folder, **(given | changes))


def run(one: Job, *words: str, live: bool = True) -> Done:
    return call("run", *(["--live"] if live else []), one.settings, *words)


def store(one: Job) -> Store:
    return Store(f"sqlite:///{one.ledger}", create=False)


def truth(one: Job) -> float:
    """The loss of all charges under the beliefs on record, by the core alone."""
    with store(one) as ledger:
        held = present(ledger.registered("streets", "daily"))
        account = Ledger(belief_from_dict(held.domain.belief))
        for change in held.domain.changes:
            if change.slot is None:
                account.add_belief(belief_from_dict(change.belief))
            else:
                account.switch(change.slot, belief_from_dict(change.belief))
        charged = [one for one in ledger.entries() if one.decision == "charged"]
        return account.replay((one.window_start, one.window_stop, one.epsilon_dp) for one in charged)


def day_of(row: Release) -> int:
    return (row.window_start // 1_000_000 - int(START.timestamp())) // 86_400


def published(one: Job) -> list[int]:
    """Days of the windows in the sink, once for each."""
    files = sorted((one.folder / "releases").iterdir()) if one.sink.with_suffix("").is_dir() else [one.sink]
    rows = [row for path in files for batch in pq.read_table(path).to_batches() for row in releases_from_batch(batch)]
    return sorted({day_of(row) for row in rows})
