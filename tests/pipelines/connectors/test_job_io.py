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

from quiltstream.pipelines.live import job as build
from quiltstream.transforms import sinks

from ..jobs import call, job
from ..live_jobs import made, published, run


def no_room(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left: secret")


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.usefixtures("ending")
def test_a_disk_that_is_full_already_ends_the_job_before_anything_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, live: bool
) -> None:
    one = made(tmp_path) if live else job(tmp_path)
    monkeypatch.setattr(Path, "touch", no_room)
    done = run(one) if live else call("run", one.settings)
    done.ended(
        75,
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


def test_a_live_job_without_room_in_its_sink_is_begun_again_and_writes_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path)
    monkeypatch.setattr(build, "live_pipeline", begun)
    monkeypatch.setattr(sinks, "write_parts", no_room)
    where = f"sink: {tmp_path}/releases could not be written, because no room is left on its disk"
    run(one, "--json").ended(75, where, "The rows are on record: make room there").hid("secret")
    # blocks on record have no file, and the disk is full before the job begins
    run(one, "--json").ended(75, where, "and run again; it is given what it lacks first").hid("secret")
    monkeypatch.undo()
    monkeypatch.setattr(build, "live_pipeline", begun)
    done = run(one, "--json").ended(0)
    assert len(published(one)) == json.loads(done.out.splitlines()[-1])["rows"] > 0
