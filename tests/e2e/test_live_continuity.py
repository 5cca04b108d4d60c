"""A live job on Prism whose ledger goes, and a supervisor that begins the command again: nothing is drawn twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from quiltstream.store import Store

from ..examined import Tally, every
from .live_bench import DAY, Bench, Running, day_of, readings, truth

DAYS = 6


class VolumeBench(Bench):
    """A bench whose ledger is in a folder of its own, as on a volume."""

    @property
    def volume(self) -> Path:
        return self.folder / "volume"

    @property
    def away(self) -> Path:
        return self.folder / "away"

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.volume / 'ledger.db'}"


@pytest.fixture
def bench_kind() -> type[Bench]:
    return VolumeBench


def moved(bench: VolumeBench) -> None:
    """What is at the ledger's place goes to another folder, as one: so is a volume that is not mounted any more."""
    bench.volume.rename(bench.away)
    bench.volume.mkdir()


def emptied(bench: VolumeBench) -> None:
    moved(bench)
    (bench.volume / "ledger.db").touch()


def truncated(bench: VolumeBench) -> None:
    """In place, under the job that has it open."""
    bench.away.mkdir()
    with Store(bench.ledger) as store:
        store.backup(bench.away / "ledger.db")
    (bench.volume / "ledger.db").write_bytes(b"")


def another(bench: VolumeBench) -> None:
    moved(bench)
    with Store(bench.ledger, create=True) as store:
        assert store.domains() == ()


def older(bench: VolumeBench) -> None:
    moved(bench)
    shutil.copy(bench.folder / "older.db", bench.volume / "ledger.db")


LOSSES: dict[str, Callable[[VolumeBench], None]] = {
    one.__name__: one for one in (moved, emptied, truncated, another, older)
}


def there(bench: VolumeBench) -> dict[str, bytes]:
    """What is at the ledger's place, but for what SQLite keeps beside it."""
    return {one.name: one.read_bytes() for one in bench.volume.iterdir() if one.name == "ledger.db"}


def stopped_for_good(job: Running) -> None:
    assert job.wait() == 4, job.err.read_text(encoding="utf-8")


def gone_under(
    bench: Bench, remember: Callable[[], None], lose: Callable[[], None]
) -> tuple[pl.DataFrame, dict[str, str], Path]:
    """Lose a ledger under a live job, which is to stop for good, also when a supervisor begins it again and again.

    Returns:
        All readings, of which those of the first days were sent; what was on record before; what left the sink.
    """
    bench.settings(windows={"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{DAYS + 1:02}"})
    frame = readings(DAYS + 0.5, seed=27)
    for day in range(3):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(1)
    remember()
    bench.put("3.jsonl", day_of(frame, 3))
    bench.wait_for(3)
    published = bench.on_record()
    # a consumer collects what is in the sink
    sink, collected = bench.folder / "releases", bench.folder / "collected"
    bench.until(lambda: sum(map(len, bench.sunk().values())) == 3 * len(bench.keys), "three windows are in the sink")
    collected.mkdir()
    lose()
    for path in sink.iterdir():
        path.rename(collected / path.name)
    bench.put("4.jsonl", day_of(frame, 4))
    stopped_for_good(job)
    assert "The job stops for good before anything more is published" in job.err.read_text(encoding="utf-8")
    for _ in range(2):
        stopped_for_good(bench.run())
    return frame, published, collected


@pytest.mark.parametrize("loss", LOSSES)
def test_a_ledger_that_vanishes_under_a_live_job_stops_it_and_nothing_is_redrawn(
    bench: VolumeBench, tally: Tally, loss: str
) -> None:
    bench.folder.mkdir()
    bench.volume.mkdir()
    put: list[dict[str, bytes]] = []

    def remember() -> None:
        with Store(bench.ledger) as store:
            store.backup(bench.folder / "older.db")

    def lose() -> None:
        LOSSES[loss](bench)
        put.append(there(bench))

    frame, published, collected = gone_under(bench, remember, lose)
    # what SQLite still had in its log for a file that was cut off under it is no ledger either
    assert loss == "truncated" or there(bench) == put[0]
    sink = bench.folder / "releases"
    assert not {path.name for path in sink.glob("*.parquet")} & {path.name for path in collected.iterdir()}
    # the operator puts the ledger back with all that it held
    shutil.rmtree(bench.volume)
    bench.away.rename(bench.volume)
    for day in (5, 6):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    last = bench.run()
    assert last.process.poll() == 0, last.err.read_text(encoding="utf-8")
    assert bench.counts() == truth(frame, range(DAYS))
    tally.take(bench.check(every(DAY, DAY, DAYS * DAY), earlier=published))
    for path in collected.iterdir():
        assert path.read_bytes() == (sink / path.name).read_bytes()
