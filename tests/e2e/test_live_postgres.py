"""Live jobs on Prism whose ledger is a PostgreSQL server: what a job and its server suffer, and what is asked after it.

The contract of jobs is asked on Prism with a file, and on Flink with a server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from quiltstream.store import Store

from ..examined import Tally, every
from ..store.continuity_contract import put_back, rows_of_all
from .flink_bench import held_release
from .live_bench import DAY, Bench, day_of, readings, truth
from .live_contract import LIVE
from .postgres import PORT, PostgresServer
from .postgres_schemas import OnPostgres, new_schema
from .prism import prism_arguments
from .processes import descendants, stopped
from .test_live_continuity import stopped_for_good
from .test_live_watchdog import MINUTE, page_of


class PostgresBench(Bench):
    """A bench whose ledger is a schema of a server, new each time that it is renewed.

    Args:
        folder: where everything else is.
        options: Beam's options.
        environment: variables of the jobs.
        server: the address of the server's database.
    """

    def __init__(self, folder: Path, options: list[str], environment: dict[str, str], server: str) -> None:
        super().__init__(folder, options, environment)
        self._server = server
        self._stack = ExitStack()
        self._url = self._stack.enter_context(new_schema(server))

    @property
    def ledger(self) -> str:
        return self._url

    def renew(self) -> None:
        super().renew()
        self._url = self._stack.enter_context(new_schema(self._server))

    def close(self) -> None:
        super().close()
        self._stack.close()
        self._stack = ExitStack()

    def spoil_ledger(self) -> int:
        self.settings(ledger=self._url.replace(f"port={PORT}", f"port={PORT + 1}"))
        return 75


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
    days = 5
    bench.settings(
        windows={"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{days + 1:02}"}, live={"poll": "100ms"}
    )
    frame = readings(days + 0.5, seed=28)
    for day in range(2):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(1)
    early = rows_of_all(bench.ledger)
    for day in (2, 3):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    bench.wait_for(3)
    # a consumer collects what is in the sink
    sink, collected = bench.folder / "releases", bench.folder / "collected"
    bench.until(lambda: sum(map(len, bench.sunk().values())) == 3 * len(bench.keys), "three windows are in the sink")
    collected.mkdir()
    if how == "restored":
        put_back(bench.ledger, early)
    else:
        OnPostgres().vanish(bench.ledger)
    if how == "made anew":
        with Store(bench.ledger, create=True) as store:
            assert store.domains() == ()
    for path in sink.iterdir():
        path.rename(collected / path.name)
    for day in (4, 5):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    stopped_for_good(job)
    assert "The job stops for good before anything more is published" in job.err.read_text(encoding="utf-8")
    # a supervisor begins the command again and again
    for _ in range(2):
        stopped_for_good(bench.run())
    assert list(sink.iterdir()) == []
    if how == "dropped":
        assert OnPostgres().is_bare(bench.ledger)
    elif how == "restored":
        assert rows_of_all(bench.ledger) == early
    else:
        with Store(bench.ledger) as store:
            assert store.domains() == ()
