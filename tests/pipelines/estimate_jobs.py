"""Jobs that estimate their model themselves, and what is read of them afterwards."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quiltstream.pipelines import estimation
from quiltstream.pipelines.live import command
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


def made(folder: Path, estimate: dict[str, Any], **changes: Any) -> Job:
    """A live job of eight days over one file, with other series in a folder beside it."""
    for name in ("inbox", "others"):
        (folder / name).mkdir()
    write_csv(folder / "inbox" / "0.csv", readings(9))
    write_csv(folder / "others" / "0.csv", sticky(20, OTHERS, 0.3))
    given: dict[str, Any] = {
        "source": {"csv": "inbox/*.csv"},
        "windows": {"size": "1d", "start": "2024-03-01", "stop": "2024-03-09"},
        "sink": {"parquet": "releases"},
        "rejects": {"csv": "rejects"},
        "live": {"poll": "10ms"},
        "model": {"estimate": estimate},
    }
    return job(folder, **(given | changes))


def run(one: Job, *words: str) -> Done:
    return call("run", "--live", one.settings, *words)


def said(done: Done, kind: str = "model") -> list[str]:
    return [line["text"] for line in map(json.loads, done.out.splitlines()) if line["kind"] == kind]


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


def published(one: Job) -> list[tuple[str, int]]:
    """(query, day) of the windows in the sink, once for each."""
    found: set[tuple[str, int]] = set()
    for path in sorted((one.folder / "releases").iterdir()):
        for batch in pq.read_table(path).to_batches():
            found |= {(row.query, day_of(row)) for row in releases_from_batch(batch)}
    return sorted(found, key=lambda pair: pair[1])


def worse_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other series that mix more slowly turn up before the first estimate."""
    decide = estimation.decide

    def changed(*given: Any) -> Any:
        write_csv(folder / "others" / "1.csv", sticky(60, ["p1", "p2", "p3"], 0.6))
        return decide(*given)

    monkeypatch.setattr(command, "decide", changed)
