"""The command line as a whole: help, start-up, exit codes, streams."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from quiltstream.pipelines import ExitCode
from quiltstream.pipelines.cli import ledger, main
from quiltstream.privacy.models.markov_chain import MarkovChain
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.states import StateSpace

from ..forked import COMMAND, forker
from ..loading import load
from .jobs import call, fork, job, readings, spawn, write_csv


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


ALL = commands(main)


def test_the_commands_are_those_of_the_documents() -> None:
    assert {" ".join(path) for path in ALL} == {
        "demo",
        "init",
        "check",
        "fit",
        "run",
        "plan",
        "show",
        "report",
        "ledger",
        "ledger show",
        "ledger export",
        "ledger belief",
        "ledger budget",
        "ledger drift",
        "ledger backup",
        "ledger verify",
        "gateway",
        "schema",
    }


def test_the_commands_and_exit_codes_of_the_documents_are_those_of_the_program(repository: Path) -> None:
    page = (repository / "docs" / "cli.md").read_text(encoding="utf-8")
    assert load(repository / "docs" / "cli_tables.py").with_tables(page) == page, "run docs/cli_tables.py"
    assert page.count("| `quiltstream ") >= 17
    assert f"| {ExitCode.STORE.value} | {ExitCode.STORE.text} |" in page


def test_the_version_option_prints_the_version() -> None:
    done = call("--version").ended(0)
    assert re.fullmatch(r"quiltstream \d+\.\d+\.\d+\S*\n", done.out)


IMPORTS = """
import sys
from quiltstream.pipelines.cli import main
try:
    main(prog_name="quiltstream")
finally:
    print(sorted(name for name in ("apache_beam", "numpy", "pyarrow", "sqlalchemy", "pydantic") if name in sys.modules))
"""


@pytest.mark.night
def test_a_plan_from_a_model_imports_neither_beam_nor_sqlalchemy(tmp_path: Path) -> None:
    chain, by_hand = MarkovChain([[0.9, 0.1], [0.4, 0.6]]).to_dict(), Provenance(method="by hand")
    model = Model(belief=chain, states=StateSpace((1.0,)), interval_us=60_000_000, provenance=by_hand)
    model.save(tmp_path / "m.json")
    done = spawn("plan", "--model", "m.json", cwd=tmp_path, program=IMPORTS).ended(0)
    assert done.out.splitlines()[-1] == "['numpy', 'pyarrow', 'pydantic']"


@pytest.mark.night
def test_showing_a_ledger_does_not_import_beam(tmp_path: Path) -> None:
    assert call("run", job(tmp_path).settings).code == 0
    done = spawn("ledger", "show", "settings.yaml", cwd=tmp_path, program=IMPORTS).ended(0)
    assert "apache_beam" not in done.out.splitlines()[-1]


def test_a_usage_error_ends_with_exit_code_2() -> None:
    for words in (("fly",), ("run",), ("run", "a.yaml", "--runner=FlinkRunner"), ("ledger", "show")):
        assert call(*words).code == 2


@pytest.mark.night
def test_an_unexpected_failure_exits_with_1_and_shows_its_text_with_debug_only(tmp_path: Path) -> None:
    job(tmp_path)
    broken = (
        "import logging\nlogging.disable()\n"  # what Beam says where it is imported before the command
        "from quiltstream.pipelines.commands import init\n"
        "def fail(*_):\n    raise KeyError('the value 17')\n"
        "init.guess = fail\n"
        "from quiltstream.pipelines.cli import main; main()"
    )
    quiet = fork("init", "readings.csv", "-o", "x.yaml", cwd=tmp_path, program=broken)
    assert (quiet.code, quiet.out) == (1, "")
    assert quiet.err.startswith("Error: KeyError at quiltstream.pipelines.commands.init, line ")
    assert "17" not in quiet.err.split("line ")[1].split(";")[1]
    loud = fork("init", "readings.csv", "-o", "x.yaml", "--debug", cwd=tmp_path, program=broken).ended(1)
    assert "Traceback" in loud.err
    assert "the value 17" in loud.err


@pytest.mark.night
def test_results_are_printed_to_stdout_and_stderr_stays_empty_without_a_terminal(tmp_path: Path) -> None:
    job(tmp_path)
    done = spawn("run", "settings.yaml", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out


@pytest.mark.night
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"privacy": {"epsilon": -1}}, 2),
        ({"privacy": {"epsilon": 1.0, "budget": 0.001}}, 3),
        ({"ledger": "sqlite:///settings.yaml"}, 4),
        ({"source": {"parquet": "readings.csv"}}, 5),
    ],
)
def test_a_process_ends_with_the_documented_code(tmp_path: Path, changes: dict[str, Any], code: int) -> None:
    job(tmp_path, **changes)
    done = fork("run", "settings.yaml", cwd=tmp_path)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("Error: ")
    assert "Traceback" not in done.err


#: Commands that print by each way there is, rich, print and bytes; what they read is there.
PRINTING = (
    ("--help",),
    ("schema",),
    ("ledger", "show", "ledger.db"),
    ("show", "releases.jsonl"),
    ("show", "releases.jsonl", "--tidy"),
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = job(tmp_path_factory.mktemp("published"), sink={"jsonl": "releases.jsonl"})
    assert call("run", made.settings).code == 0
    return made.folder


def ended(folder: Path, words: tuple[str, ...], stdout: int) -> tuple[int, str]:
    """The exit code of a command with that standard output, and what it says on stderr."""
    begun = [*forker().client, COMMAND, *words]
    done = subprocess.run(begun, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.night
@pytest.mark.parametrize("words", PRINTING)
def test_standard_output_on_a_full_disk_is_named_with_exit_code_6(published: Path, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        code, err = ended(published, words, full.fileno())
    assert code == ExitCode.SINK
    said = "Error: standard output: cannot be written (No space left on device); make room or send it elsewhere"
    assert err.startswith(said)
    assert len(err.splitlines()) == 1


@pytest.mark.night
@pytest.mark.parametrize("words", PRINTING)
def test_a_closed_pipe_ends_every_command_without_a_word(published: Path, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert ended(published, words, writer) == (ExitCode.PIPE, "")
    finally:
        os.close(writer)


@pytest.mark.night
@pytest.mark.parametrize("live", [False, True])
def test_library_messages_are_on_stderr_only_with_the_debug_option(tmp_path: Path, *, live: bool) -> None:
    """A step, a thread of a runner while the job runs, and one after it."""
    if live:
        (tmp_path / "inbox").mkdir()
        write_csv(tmp_path / "inbox" / "0.csv", readings(6))
        windows = {"size": "1d", "start": "2024-03-01", "stop": "2024-03-06"}
        given: dict[str, Any] = {"source": {"csv": "inbox/*.csv"}, "windows": windows, "sink": {"parquet": "releases"}}
        job(tmp_path, **given, live={"poll": "10ms"})
    else:
        job(tmp_path)
    broken = (
        "import logging, threading\n"
        "logging.getLogger().addHandler(logging.NullHandler())\n"  # Beam is imported before the command can say so
        "from apache_beam.utils import retry\n"
        "from quiltstream.pipelines.live import job as build\n"
        "from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner\n"
        "import apache_beam as beam\n"
        "build.live_pipeline = lambda options: beam.Pipeline(runner=FnApiRunner(), options=options)\n"
        "from quiltstream.transforms.aggregate.release import ReleaseHistograms\n"
        "def fail(*_, **__):\n    raise KeyError('meter-17')\n"
        "def thread():\n"
        "    one = threading.Thread(target=retry.with_exponential_backoff(num_retries=0)(fail))\n"
        "    one.start(); one.join()\n"
        "def process(self, *_, **__):\n    thread(); fail()\n"
        "ReleaseHistograms.process = process\n"
        "from quiltstream.pipelines.cli import main\n"
        "try:\n    main()\nfinally:\n    thread()\n"
    )
    words = ("run", *(["--live"] if live else []), "settings.yaml")
    quiet = fork(*words, cwd=tmp_path, program=broken).ended(1)
    assert quiet.err.startswith("Error: ")
    assert "Traceback" not in quiet.err
    assert "meter-17" not in quiet.err + quiet.out
    assert "meter-17" in fork(*words, "--debug", cwd=tmp_path, program=broken).err


def test_every_page_of_help_fits_a_screen() -> None:
    pages = {(): main} | {(name,): one for name, one in main.commands.items()}
    pages |= {("ledger", name): one for name, one in ledger.commands.items()}
    lines = {words: len(call(*words, "--help").ended(0).out.splitlines()) for words in pages}
    assert {words: count for words, count in lines.items() if count > 30} == {}
