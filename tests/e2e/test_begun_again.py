"""When the test of a live job begins once more: where its runner failed it, and never where something wrong is left.

The jobs here are none of a runner's: a command that says what Prism says, and ends as it may. What is on record was
published before.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiltstream.pipelines.commands.run import publish
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store import Store, tables
from quiltstream.transforms import PrivateHistograms

from ..released import write_rows
from ..store.forging import reseal
from . import live_bench
from .live_bench import Bench, day_of, readings, truth
from .live_contract import MOST_BEGUN, begun_again
from .stamped import stamp

PANIC = "import sys, time; sys.stderr.write('panic in stage.Execute: bundle\\n'); sys.stderr.flush(); "
FRAME = readings(2, seed=90)


class FakeBench(Bench):
    """A place whose jobs are a command of the test's; a file beside says when it has spoken."""

    program = ""

    def start(self, *words: Any, **how: Any) -> live_bench.Running:
        del words, how
        out, err = self.folder / "out.txt", self.folder / "err.txt"
        with out.open("wb") as first, err.open("wb") as second:
            process = subprocess.Popen(
                [sys.executable, "-c", self.program], stdout=first, stderr=second, text=True, start_new_session=True
            )
        self.started.append(self.made(process, out, err))
        return self.started[-1]


@pytest.fixture
def bench(tmp_path: Path) -> FakeBench:
    return FakeBench(tmp_path / "job", [], {})


class Contract:
    """A test that fails the first time, or the first few, with what a job has left behind."""

    def __init__(self, program: str, meanwhile: Callable[[FakeBench], None], failures: int = 1) -> None:
        self.program, self.meanwhile, self.times, self.failures = program, meanwhile, 0, failures

    @begun_again
    def run(self, bench: Any) -> None:
        """Publish two days, and say that something is not as it should be."""
        self.times += 1
        if self.times > self.failures:
            return
        bench.settings(
            windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-03"}, sink={"parquet": "all.parquet"}
        )
        bench.expected = truth(FRAME, range(2))
        for day in range(2):
            bench.put(f"{day}.jsonl", day_of(FRAME, day))
        settings = read_settings(bench.folder / "settings.yaml")
        publish(settings, stamp(PrivateHistograms(settings, noise="none")))
        (bench.folder / "releases").mkdir()
        with Store(bench.ledger, create=False) as store:
            for number, batch in enumerate(store.releases("homes", "load")):
                path = bench.folder / "releases" / f"{number}.parquet"
                write_rows(path, "parquet", pa.Table.from_batches([batch]))
        bench.program = self.program
        bench.start()
        self.meanwhile(bench)
        pytest.fail("this is not as it should be")


def ends(bench: FakeBench) -> None:
    bench.started[-1].wait()


def goes_on(bench: FakeBench) -> None:
    deadline = time.monotonic() + 30
    while not bench.started[-1].err.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def killed(bench: FakeBench) -> None:
    goes_on(bench)
    bench.started[-1].kill()


def waited_for(bench: FakeBench) -> None:
    goes_on(bench)
    bench.until(lambda: False, "what never comes")


def other_truth(bench: FakeBench) -> None:
    ends(bench)
    place, counts = next(iter(bench.expected.items()))
    bench.expected[place] = [counts[0] + 1, *counts[1:]]


def no_truth(bench: FakeBench) -> None:
    ends(bench)
    bench.expected = {}


def other_account(bench: FakeBench) -> None:
    ends(bench)
    with Store(f"sqlite:///{bench.folder}/ledger.db") as store, store._database().write() as connection:
        connection.execute(tables.charges.update().values(loss_after=tables.charges.c.loss_after / 2))
        reseal(connection)


def another_row(bench: FakeBench) -> None:
    ends(bench)
    path = next((bench.folder / "releases").glob("*.parquet"))
    rows = pq.read_table(path)
    pq.write_table(pa.concat_tables([rows, rows]), path)  # `write_rows` writes a row once


@pytest.mark.parametrize(
    ("program", "meanwhile"), [(f"{PANIC}sys.exit(1)", ends), (f"{PANIC}time.sleep(600)", waited_for)]
)
def test_a_job_failing_with_a_known_runner_symptom_is_restarted_by_the_bench(
    bench: FakeBench, monkeypatch: pytest.MonkeyPatch, program: str, meanwhile: Callable[[FakeBench], None]
) -> None:
    if meanwhile is not ends:
        monkeypatch.setattr(live_bench, "PATIENCE", 0.5)
    contract = Contract(program, meanwhile)
    contract.run(bench=bench)
    assert (contract.times, bench.retries) == (2, 1)


def test_a_job_failed_by_its_runner_each_time_is_run_three_times(bench: FakeBench) -> None:
    contract = Contract(f"{PANIC}sys.exit(1)", ends, MOST_BEGUN)
    with pytest.raises(pytest.fail.Exception, match="not as it should be"):
        contract.run(bench=bench)
    bench.close()
    assert (contract.times, bench.retries) == (MOST_BEGUN, MOST_BEGUN - 1)


@pytest.mark.parametrize(
    ("program", "meanwhile"),
    [("import sys; sys.exit(1)", ends), (f"{PANIC}time.sleep(600)", goes_on), (f"{PANIC}time.sleep(600)", killed)],
    ids=["another failure", "runs", "killed by the test"],
)
def test_a_test_failing_for_another_reason_is_not_retried(
    bench: FakeBench, program: str, meanwhile: Callable[[FakeBench], None]
) -> None:
    contract = Contract(program, meanwhile)
    with pytest.raises(pytest.fail.Exception, match="not as it should be"):
        contract.run(bench=bench)
    assert contract.times == 1
    bench.close()


@pytest.mark.parametrize(
    ("meanwhile", "said"),
    [
        (other_truth, "on record, and not the truth"),
        (no_truth, "a test says at its beginning"),
        (other_account, "ledger_equal=False"),
        (another_row, "in the sink, and not on record"),
    ],
)
def test_a_wrong_record_fails_the_test_despite_a_known_runner_symptom(
    bench: FakeBench, meanwhile: Callable[[FakeBench], None], said: str
) -> None:
    contract = Contract(f"{PANIC}sys.exit(1)", meanwhile)
    with pytest.raises(AssertionError, match=said):
        contract.run(bench=bench)
    assert contract.times == 1
