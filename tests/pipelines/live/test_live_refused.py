"""``quiltstream run --live``: what it refuses before anything is charged, and where it finds Prism."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live.runner import VARIABLE, prism_program

from ..jobs import Job, call, job
from ..live_jobs import made, run


def made_beside(one: Job) -> set[str]:
    """What of a job is there that only its command makes."""
    return {path.name for path in (one.ledger, one.folder / "releases", one.folder / "rejects") if path.exists()}


@pytest.mark.night
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sink": None}, "sink is missing: it names the folder for the released rows, e.g. {parquet: releases}"),
        ({"windows": {"size": "1d"}}, "windows.start is missing: a live source never ends"),
        ({"windows": {"size": "1d", "start": "0001-01-01"}}, "it starts in 1970 at the earliest"),
        ({"source": None}, "source is missing: it names the files to follow"),
        ({"sink": {"parquet": "roster.csv"}}, "roster.csv"),
        ({"sink": {"parquet": "settings.yaml"}}, "settings.yaml is a file, and a live job adds files to a folder"),
        ({"rejects": {"csv": "settings.yaml"}}, "rejects: "),
        ({"sink": {"csv": "inbox"}}, "source.csv and sink name the same file"),
        ({"rejects": {"csv": "inbox"}}, "source.csv and rejects name the same file"),
        ({"sink": {"parquet": "releases"}, "rejects": {"parquet": "releases"}}, "sink and rejects name the same file"),
    ],
)
@pytest.mark.usefixtures("ending")
def test_a_mistake_in_the_settings_ends_the_job_before_anything_is_on_record(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    one = made(tmp_path, **changes)
    done = run(one).ended(2, said)
    assert done.out == ""
    assert made_beside(one) == set()
    assert one.settings.read_text(encoding="utf-8")


@pytest.mark.usefixtures("ending")
def test_an_occupied_metrics_port_ends_the_command_before_anything_is_on_record(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        one = made(tmp_path, live={"metrics_port": port})
        done = run(one)
    assert (done.code, done.out) == (2, "")
    assert done.said(f"live.metrics_port {port}: cannot be listened on"), done.err
    assert not one.ledger.exists()


def test_a_secret_that_is_not_set_ends_the_command_before_anything_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are in this process, so nobody else could have it."""
    monkeypatch.delenv("QUILTSTREAM_ABSENT", raising=False)
    monkeypatch.setenv(VARIABLE, "/bin/true")
    options = {"sasl.password": {"env": "QUILTSTREAM_ABSENT"}}
    source = {"kafka": {"servers": "127.0.0.1:1", "topic": "t", "options": options}}
    one = made(tmp_path, source=source, readings={"recipe": "edgex", "where": "resourceName == 'power'"})
    run(one).ended(
        2, "source.kafka.options: sasl.password: the environment variable QUILTSTREAM_ABSENT is not set here"
    )
    assert made_beside(one) == set()


@pytest.mark.parametrize("name", ["DirectRunner", "FnApiRunner", "BundleBasedDirectRunner"])
def test_a_runner_that_cannot_run_an_endless_job_is_refused_by_name(tmp_path: Path, name: str) -> None:
    one = made(tmp_path)
    run(one, "--", f"--runner={name}").ended(2, f"--runner={name} cannot run an endless job")
    assert made_beside(one) == set()


def test_standard_input_is_only_for_live_runs(tmp_path: Path) -> None:
    call("run", made(tmp_path, source={"stdin": "csv"}).settings).ended(
        2, "source.stdin is read as it comes: use quiltstream run --live"
    )


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


# Prism


def test_a_missing_prism_is_reported_in_one_line_with_install_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (VARIABLE, "XDG_CACHE_HOME", "GOBIN", "GOPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    one = made(tmp_path)
    done = run(one).ended(2)
    assert done.err.startswith("Error: a live run needs Prism, Beam's local runner, and it is not here.")
    assert f"go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam.__version__}" in done.err
    assert len(done.err.splitlines()) == 1
    assert made_beside(one) == set()


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "place", [f".cache/quiltstream/prism-{beam.__version__}/prism", "go/bin/prism", "on/the/path/prism"]
)
def test_prism_is_found_in_every_documented_location(tmp_path: Path, place: str) -> None:
    there = program(tmp_path / place)
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path / "on/the/path")}
    assert prism_program(environment) == there


def test_the_prism_variable_takes_precedence_and_must_name_a_program(tmp_path: Path) -> None:
    program(tmp_path / "go/bin/prism")
    named = program(tmp_path / "mine")
    environment = {"HOME": str(tmp_path), "PATH": ""}
    assert prism_program(environment | {VARIABLE: str(named)}) == named
    for wrong in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CommandError, match=f"{VARIABLE} names .*, which is no program"):
            prism_program(environment | {VARIABLE: str(wrong)})
