"""A sink without room: its own exit code, the folder by name, and nothing lost."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from quiltstream.pipelines.connectors import files
from quiltstream.pipelines.connectors.job_io import Output
from quiltstream.pipelines.errors import AwayError, ExitCode
from quiltstream.pipelines.live import job as build
from quiltstream.pipelines.live import restarts
from quiltstream.pipelines.live.restarts import failure_of
from quiltstream.schemas.table_files import write_parts
from quiltstream.transforms import sinks

from ..jobs import call, job
from ..live_jobs import made, published, run

SINK = Output("sink", "/there/releases", files=True)
REJECTS = Output("rejects", "/there/rejects", files=True)

#: What Beam makes of an error in a worker of another process.
WRAPPED = "Traceback\nOSError: [Errno {}] Error writing bytes to file: secret [while running 'Sink/Write-ptransform-7']"


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left: secret")


@pytest.mark.parametrize("output", [SINK, REJECTS], ids=lambda one: one.field)
def test_a_job_waits_for_room_on_the_disk_of_a_worker_and_the_folder_is_named(output: Output) -> None:
    error = RuntimeError(WRAPPED.format(errno.ENOSPC).replace("Sink", output.step))
    failure = failure_of(error, (SINK, REJECTS))
    assert isinstance(failure, AwayError)
    assert (failure.code, failure.part) == (ExitCode.SINK, "sink")
    said = f"{output.field}: {output.place} could not be written, because no room is left on its disk: make room there"
    assert str(failure) == said
    # as it comes where the runner's handle was asked for what failed
    asked = failure_of(error)
    asked.__cause__ = error
    assert asked.code == ExitCode.FAILURE
    assert str(failure_of(asked, (SINK, REJECTS))) == str(failure)


def test_another_failure_of_the_write_step_has_its_own_kind_and_the_same_code() -> None:
    failure = failure_of(RuntimeError(WRAPPED.format(errno.EIO)), (SINK,))
    assert failure.code == ExitCode.SINK
    assert str(failure).startswith("sink: /there/releases could not be written (OSError). The rows are on record: mend")
    assert "secret" not in str(failure)


def test_a_failure_of_another_step_is_not_attributed_to_the_sink() -> None:
    error = RuntimeError(WRAPPED.format(errno.ENOSPC).replace("Sink/Write", "Publish/Release"))
    assert failure_of(error, (SINK,)).code == ExitCode.FAILURE


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.usefixtures("ending")
def test_a_disk_that_is_full_already_ends_the_job_before_anything_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, live: bool
) -> None:
    one = made(tmp_path) if live else job(tmp_path)
    monkeypatch.setattr(files, "try_folder", no_room)
    done = run(one) if live else call("run", one.settings)
    done.ended(
        6,
        f"sink: {tmp_path}/releases",
        "no room is left on its disk. Nothing was charged by this run: make room there, or name another",
    ).hid("secret")
    assert not one.ledger.exists()


class Failed:
    """What a runner's handle says of a job that failed after it was begun."""

    state = PipelineState.FAILED

    def __init__(self, error: Exception) -> None:
        self.error = error

    def wait_until_finish(self) -> None:
        raise self.error


class Begun(beam.Pipeline):
    """One whose failures come after it was begun, as those of a runner for endless jobs do."""

    def run(self, *given: Any, **named: Any) -> Any:
        try:
            return super().run(*given, **named)
        except (OSError, RuntimeError) as error:
            return Failed(error)


def begun(options: PipelineOptions) -> beam.Pipeline:
    return Begun(runner=FnApiRunner(), options=options)


@pytest.mark.night
def test_a_live_job_waits_for_room_on_its_sinks_disk_and_writes_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path, live={"poll": "10ms", "restarts": 0})
    monkeypatch.setattr(build, "live_pipeline", begun)
    monkeypatch.setattr(restarts, "_FIRST_WAIT_S", 0.001)
    write, tries = write_parts, list[str]()

    def full_for_a_while(path: str, *given: Any) -> None:
        tries.append(path)
        if len(tries) <= 4:
            no_room()
        write(path, *given)

    monkeypatch.setattr(sinks, "write_parts", full_for_a_while)
    done = run(one, "--json").ended(0)
    said = [json.loads(line) for line in done.out.splitlines()]
    (waiting,) = [line["text"] for line in said if line["kind"] == "waiting"]
    where = f"sink: {tmp_path}/releases could not be written, because no room is left on its disk"
    assert waiting.startswith(f"{where}: make room there. The job waits")
    assert "restart" not in {line["kind"] for line in said}
    assert [line["text"] for line in said if line["kind"] == "resumed"] == ["the sink goes on"]
    assert len(tries) > 4
    assert len(published(one)) == said[-1]["rows"] > 0
    # a first start does not wait: blocks on record have no file, and the disk is full before the job begins
    next((tmp_path / "releases").iterdir()).unlink()
    monkeypatch.setattr(sinks, "write_parts", no_room)
    done = (
        run(one, "--json")
        .ended(6, "The rows are on record: make room there, or name another, and run again; it is given what it lacks")
        .hid("secret")
    )
