"""Live jobs on Prism whose ledger is a PostgreSQL server: what a job and its server suffer, and what is asked after it.

The contract of jobs is asked on Prism with a file, and on Flink with a server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiltstream.store import Store

from ..examined import Tally, every
from ..store.continuity_contract import put_back, rows_of_all
from .flink_bench import PostgresBench, held_release
from .live_bench import DAY, day_of, readings, truth
from .live_contract import LIVE
from .postgres import PostgresServer
from .postgres_schemas import OnPostgres
from .prism import prism_arguments
from .processes import descendants, stopped
from .test_live_continuity import gone_under
from .test_live_watchdog import MINUTE, page_of


@pytest.fixture
def bench(tmp_path: Path, prism: Path, postgres_url: str) -> Iterator[PostgresBench]:
    """An empty place for jobs; whatever was started in it is ended."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    made = PostgresBench(tmp_path / "job", prism_arguments(prism), {"TMPDIR": str(temporary)}, postgres_url)
    made.live = LIVE
    yield made
    made.close()


def test_a_server_killed_within_two_releases_loses_no_row_of_a_job_on_prism(
    bench: PostgresBench, postgres_server: PostgresServer, tally: Tally
) -> None:
    """Nobody touches the job: it waits, or is begun again for what is missing on record."""
    bench.live = {"poll": "100ms"}
    bench.settings(windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-07"})
    frame = readings(6.5, seed=41)
    bench.put("0.jsonl", day_of(frame, 0))
    bench.put("1.jsonl", day_of(frame, 1))
    job = bench.start(supervised=True)
    bench.wait_for(1)
    published: dict[str, str] = {}
    for day in (1, 2):
        with held_release(bench.ledger, day) as held:
            bench.put(f"{day + 1}.jsonl", day_of(frame, day + 1))
            bench.until(held, f"day {day} is being released")
            rows = bench.on_record()
            assert published.items() <= rows.items()
            published = rows
            postgres_server.kill()
            # a job that is begun again may find no server yet
            time.sleep(1.0)
            postgres_server.start()
        bench.wait_for(day + 1)
    for day in range(4, 7):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    assert bench.counts() == truth(frame, range(6))
    tally.take(bench.check(every(DAY, DAY, 6 * DAY), earlier=published))
    assert {one["kind"] for one in job.said} >= {"record", "summary"}


def test_a_server_that_stands_still_is_told_and_waited_for_by_a_job_on_prism(
    bench: PostgresBench, postgres_server: PostgresServer, tally: Tally
) -> None:
    bench.settings(live=LIVE | {"metrics_port": 0})
    frame = readings(4.5, seed=43)
    for day in range(2):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(1)
    published = bench.on_record()
    assert postgres_server.pid is not None
    with stopped([postgres_server.pid, *descendants(postgres_server.pid)]):
        bench.put("2.jsonl", day_of(frame, 2))
        begun = time.monotonic()
        # rows are not asked for here: that would wait, too
        while not page_of(job)["ledger-away"]:
            assert time.monotonic() - begun <= MINUTE, job.said
            time.sleep(0.2)
        time.sleep(5.0)
        assert job.process.poll() is None, job.err.read_text(encoding="utf-8")
        assert page_of(job)["ledger-away"] == 1
    bench.until(lambda: not page_of(job)["ledger-away"], "it is over")
    for day in (3, 4):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    assert bench.counts() == truth(frame, range(4))
    tally.take(bench.check(earlier=published))


@pytest.mark.parametrize("how", ["dropped", "made anew", "restored"])
def test_a_ledger_dropped_under_a_live_job_stops_it_and_nothing_is_redrawn(bench: PostgresBench, how: str) -> None:
    early: list[Any] = []

    def lose() -> None:
        if how == "restored":
            put_back(bench.ledger, early[0])
        else:
            OnPostgres().vanish(bench.ledger)
        if how == "made anew":
            with Store(bench.ledger, create=True) as store:
                assert store.domains() == ()

    gone_under(bench, lambda: early.append(rows_of_all(bench.ledger)), lose)
    assert list((bench.folder / "releases").iterdir()) == []
    if how == "dropped":
        assert OnPostgres().is_bare(bench.ledger)
    elif how == "restored":
        assert rows_of_all(bench.ledger) == early[0]
    else:
        with Store(bench.ledger) as store:
            assert store.domains() == ()
