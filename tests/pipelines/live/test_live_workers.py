"""What a live job tells workers that are other processes than the one that submits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.connectors.live import live_source
from quiltstream.pipelines.live import job as build
from quiltstream.pipelines.live.job import stay_of
from quiltstream.pipelines.on_record import Memory
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.aggregate.ledger_access import BlockLog
from quiltstream.transforms.sources.reader import PollingPolicy

from ..jobs import call, job
from ..live_jobs import made

FLINK = ("--runner=FlinkRunner", "--flink_master=localhost:1")
PORTABLE = ("--runner=PortableRunner", "--job_endpoint=localhost:1")


@pytest.mark.parametrize(
    "words",
    [
        (*FLINK, "--environment_type=PROCESS", "--environment_option=process_command=none"),
        (*PORTABLE, "--environment_type=EXTERNAL", "--environment_config=localhost:2"),
        PORTABLE,
    ],
)
def test_standard_input_on_other_processes_is_refused_before_anything_is_charged(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    one = job(
        tmp_path,
        source={"stdin": "csv"},
        windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-06"},
        sink={"parquet": "releases"},
        ledger="postgresql://nobody@localhost:1/nothing",
    )
    call("run", "--live", one.settings, "--", *words).ended(2, "source.stdin can be read in this process only")


def test_workers_receive_absolute_paths_of_the_source_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inbox").mkdir()
    job(tmp_path, source={"csv": "inbox/*.csv"}, sink={"parquet": "releases"})
    monkeypatch.chdir(tmp_path)
    source: Any = live_source(read_settings(Path("settings.yaml"))).read(PollingPolicy(0))
    assert source._source.patterns == (str(tmp_path / "inbox" / "*.csv"),)


@pytest.mark.parametrize(
    ("words", "here"),
    [((), True), (("--environment_type=EXTERNAL", "--environment_config=localhost:2"), False)],
    ids=["threads of this process", "a pool"],
)
def test_workers_receive_the_path_and_locality_of_the_block_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], here: bool
) -> None:
    logs: list[BlockLog] = []
    log = Memory.log

    def noted(memory: Memory, **given: bool) -> BlockLog:
        logs.append(log(memory, **given))
        return logs[-1]

    made(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Memory, "log", noted)
    settings = read_settings(Path("settings.yaml"))
    graph = build.live_job(settings, PrivateHistograms(settings), ["--prism_location=not-started", *words])
    graph.follower.close()
    assert [one.here for one in logs] == [here]
    assert logs[0].paths[0] == str(tmp_path / ".releases.quiltstream.blocks")
    assert [Path(path).parent for path in logs[0].paths] == [tmp_path] * 2


@pytest.mark.parametrize(("poll", "stay"), [(0.1, 5.0), (0.7, 7.0), (1.0, 10.0), (60.0, 10.0)])
def test_a_call_of_the_reader_polls_ten_times_and_blocks_for_ten_seconds_at_most(poll: float, stay: float) -> None:
    assert stay_of(poll) == pytest.approx(stay)
