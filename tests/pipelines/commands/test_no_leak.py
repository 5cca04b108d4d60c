"""Two inputs that differ in the value of one cell look the same from outside, but for the noisy counts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ...forked import COMMAND
from ..jobs import Job, Row, fork, job, readings

PLACE = 333


@dataclass(frozen=True)
class Seen:
    """What can be seen of a run without looking at the noisy counts."""

    job: Job
    code: int
    out: str
    log: list[str]
    files: list[str]


def run(folder: Path, rows: list[Row]) -> Seen:
    """Run a job with all logs on, and the counters in its summary."""
    made = job(folder, rows)
    done = fork("run", "settings.yaml", "--json", "--debug", cwd=folder)
    # addresses of objects, random names and times differ from run to run
    log = sorted(re.sub(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+\.\d+ sec\w*", "?", done.err).splitlines())
    # one name is a digest of the folder's own path
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    files = sorted(re.sub(r"^\.[0-9a-f]{16}\.", ".?.", name) for name in names)
    return Seen(made, done.code, done.out, log, files)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return run(tmp_path_factory.mktemp("before"), readings())


@pytest.mark.night
@pytest.mark.parametrize("value", [12.375, -1e300], ids=["another bin", "below every edge"])
def test_one_changed_cell_changes_no_log_metric_exit_code_file_or_row_count(
    tmp_path: Path, before: Seen, value: float
) -> None:
    rows = readings()
    assert rows[PLACE][2] < 1
    rows[PLACE] = (rows[PLACE][0], rows[PLACE][1], value)
    after = run(tmp_path, rows)
    assert (before.code, after.code) == (0, 0)
    assert after.out == before.out
    assert after.log == before.log
    assert before.log != []
    assert after.files == before.files
    tables = [pq.read_table(seen.job.sink) for seen in (before, after)]
    assert tables[0].num_rows == tables[1].num_rows
    public = [name for name in tables[0].schema.names if name not in {"counts", "estimate"}]
    assert tables[0].select(public).equals(tables[1].select(public))
    assert (before.job.folder / "rejects.csv").read_bytes() == (tmp_path / "rejects.csv").read_bytes()


@pytest.mark.night
def test_a_failure_in_a_worker_shows_neither_the_text_nor_the_traceback_of_a_library(tmp_path: Path) -> None:
    program = """
from quiltstream.transforms.aggregate import encode
def broken(self, batch, registration):
    raise KeyError(f"{batch.column('value')[0].as_py()} of m1")
encode.EncodeCells.process = broken
"""
    job(tmp_path)
    from_worker = fork("run", "settings.yaml", cwd=tmp_path, program=program + COMMAND).ended(1)
    assert from_worker.out == ""
    assert (
        "Error: KeyError in the step 'Publish/Encode/ParDo(EncodeCells)' of the pipeline; its text may quote"
        in from_worker.err
    )
    assert "m1" not in from_worker.err
    assert "Traceback" not in from_worker.err
