"""``quiltstream run --live``: what it refuses before anything is charged, what it says, and how it ends.

The jobs here end, so that FnApiRunner, which the live command itself refuses, can run them in this process; how live
runners behave is tested on them (``tests/e2e/live_contract.py``).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from quiltstream.pipelines import live, live_run
from quiltstream.pipelines.failures import CommandError
from quiltstream.pipelines.following import LiveStanding
from quiltstream.pipelines.live_engine import live_pipeline
from quiltstream.pipelines.live_run import LiveJob
from quiltstream.pipelines.prism import VARIABLE, how_to_get, prism_program
from quiltstream.pipelines.run import summary_of
from quiltstream.schemas.settings import read_settings
from quiltstream.store import Block, Draft, Store
from quiltstream.store.layout import layout_of
from quiltstream.store.specs import Registration
from quiltstream.transforms import PrivateHistograms

from .jobs import HOMES, Done, Job, call, job, readings, write_csv

WINDOWS = {"size": "1d", "start": "2024-03-01", "stop": "2024-03-06"}


def made(folder: Path, days: int = 6, **changes: Any) -> Job:
    """A live job over a folder with one file of some days."""
    (folder / "inbox").mkdir()
    write_csv(folder / "inbox" / "0.csv", readings(days))
    given: dict[str, Any] = {
        "source": {"csv": "inbox/*.csv"},
        "windows": WINDOWS,
        "sink": {"parquet": "releases"},
        "rejects": {"csv": "rejects"},
        "live": {"poll": "10ms"},
    }
    return job(folder, **(given | changes))


def run(one: Job, *words: str) -> Done:
    return call("run", "--live", one.settings, *words)


def files(one: Job) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (one.folder / "releases").iterdir()}


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run live jobs by a runner that ends when their schedule does."""

    def pipeline(options: PipelineOptions) -> beam.Pipeline:
        return beam.Pipeline(runner=FnApiRunner(), options=options)

    monkeypatch.setattr(live, "live_pipeline", pipeline)


# What is refused before anything is charged


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sink": None}, "sink is missing: it names the folder for the released rows, e.g. {parquet: releases}"),
        ({"windows": {"size": "1d"}}, "windows.start is missing: a live source never ends"),
        ({"source": None}, "source is missing: it names the files to follow"),
        ({"source": {"csv": "absent/*.csv"}}, "absent is not there; make it, or check its name"),
        ({"sink": {"parquet": "roster.csv"}}, "roster.csv"),
        ({"sink": {"parquet": "settings.yaml"}}, "settings.yaml is a file, and a live job adds files to a folder"),
        ({"rejects": {"csv": "settings.yaml"}}, "rejects: "),
        ({"sink": {"csv": "inbox"}}, "source.csv and sink name the same file"),
        ({"rejects": {"csv": "inbox"}}, "source.csv and rejects name the same file"),
        ({"sink": {"parquet": "releases"}, "rejects": {"parquet": "releases"}}, "sink and rejects name the same file"),
        ({"live": {"poll": "soon"}}, "live.poll"),
        ({"live": {"idle": "-1h"}}, "live.idle"),
    ],
)
@pytest.mark.usefixtures("ending")
def test_a_mistake_in_the_settings_ends_the_job_before_anything_is_on_record(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    one = made(tmp_path, **changes)
    done = run(one)
    assert done.code == 2
    assert done.said(said), done.err
    assert done.out == ""
    assert not one.ledger.exists()
    assert one.settings.read_text(encoding="utf-8")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.usefixtures("ending")
def test_a_sink_that_cannot_be_written_ends_the_job_before_anything_is_on_record(tmp_path: Path) -> None:
    one = made(tmp_path)
    (tmp_path / "releases").mkdir(mode=0o500)
    done = run(one)
    assert done.code == 2
    assert done.said("cannot be written (PermissionError); nothing was charged")
    assert not one.ledger.exists()


@pytest.mark.usefixtures("ending")
def test_a_sink_whose_folder_cannot_be_made_ends_the_job_before_anything_is_on_record(tmp_path: Path) -> None:
    one = made(tmp_path, sink={"parquet": "roster.csv/releases"})
    done = run(one)
    assert done.code == 2
    assert done.said("cannot be written (NotADirectoryError); nothing was charged"), done.err
    assert not one.ledger.exists()


@pytest.mark.parametrize("name", ["DirectRunner", "FnApiRunner", "BundleBasedDirectRunner"])
def test_a_runner_that_cannot_run_an_endless_job_is_refused_by_name(tmp_path: Path, name: str) -> None:
    one = made(tmp_path)
    done = run(one, "--", f"--runner={name}")
    assert done.code == 2
    assert done.said(f"--runner={name} cannot run an endless job")
    assert not one.ledger.exists()


def test_a_word_that_is_no_option_of_beam_is_told(tmp_path: Path) -> None:
    done = run(made(tmp_path), "--", "inbox")
    assert done.code == 2
    assert done.said("'inbox' is not a Beam option")


def test_standard_input_is_only_for_live_runs(tmp_path: Path) -> None:
    done = call("run", made(tmp_path, source={"stdin": "csv"}).settings)
    assert done.code == 2
    assert done.said("source.stdin is read as it comes: use quiltstream run --live")


@pytest.mark.usefixtures("ending")
def test_a_ledger_that_cannot_be_used_ends_the_job_with_its_own_code(tmp_path: Path) -> None:
    one = made(tmp_path)
    one.ledger.mkdir()
    done = run(one)
    assert done.code == 4
    assert done.out == ""


# Prism


def test_a_missing_prism_is_told_in_one_line_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (VARIABLE, "XDG_CACHE_HOME", "GOBIN", "GOPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    one = made(tmp_path)
    done = run(one)
    assert done.code == 2
    assert done.err.startswith("Error: a live run needs Prism, Beam's local runner, and it is not here.")
    assert f"go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam.__version__}" in done.err
    assert len(done.err.splitlines()) == 1
    assert not one.ledger.exists()


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "place",
    [f".cache/quiltstream/prism-{beam.__version__}/prism", "go/bin/prism", "on/the/path/prism"],
)
def test_prism_is_found_where_it_may_be(tmp_path: Path, place: str) -> None:
    there = program(tmp_path / place)
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path / "on/the/path")}
    assert prism_program(environment) == there


def test_the_variable_comes_before_every_other_place_and_must_name_a_program(tmp_path: Path) -> None:
    program(tmp_path / "go/bin/prism")
    named = program(tmp_path / "mine")
    environment = {"HOME": str(tmp_path), "PATH": ""}
    assert prism_program(environment | {VARIABLE: str(named)}) == named
    for wrong in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CommandError, match=f"{VARIABLE} names .*, which is no program"):
            prism_program(environment | {VARIABLE: str(wrong)})


def test_another_versions_prism_in_the_cache_is_not_taken(tmp_path: Path) -> None:
    program(tmp_path / ".cache/quiltstream/prism-1.0.0/prism")
    with pytest.raises(CommandError) as caught:
        prism_program({"HOME": str(tmp_path), "PATH": ""})
    assert how_to_get() in str(caught.value)


def test_a_live_pipeline_streams_on_prism_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = program(tmp_path / "mine")
    monkeypatch.setenv(VARIABLE, str(there))
    pipeline = live_pipeline(PipelineOptions([]))
    assert type(pipeline.runner).__name__ == "PrismRunner"
    options = pipeline.options.get_all_options()
    assert (options["streaming"], options["prism_location"]) == (True, str(there))
    other = live_pipeline(PipelineOptions(["--runner=PrismRunner", "--prism_location=elsewhere"]))
    assert other.options.get_all_options()["prism_location"] == "elsewhere"


# What it does and says


@pytest.mark.usefixtures("ending")
def test_a_live_run_publishes_the_schedule_and_says_at_its_end_what_a_batch_run_says(tmp_path: Path) -> None:
    one = made(tmp_path)
    done = run(one)
    assert done.code == 0, done.err
    tables = [pq.read_table(path) for path in (tmp_path / "releases").iterdir()]
    rows = sorted((row["window_start"].day, row["key"]) for table in tables for row in table.to_pylist())
    assert rows == [(day, street) for day in range(1, 6) for street in ("north", "south")]
    assert done.said("on record until 2024-03-06T00:00:00Z; loss 1 of 1")
    assert done.said("5 published now, 0 on record before, of 5")
    assert done.said("0 before, 1 after, of 1")
    assert done.said(f"{5 * 48 * len(HOMES):,} in the schedule")


@pytest.mark.usefixtures("ending")
def test_as_json_every_line_is_an_object_and_the_last_one_is_the_summary(tmp_path: Path) -> None:
    said = [json.loads(line) for line in run(made(tmp_path), "--json").out.splitlines()]
    assert [one["kind"] for one in said] == ["start", "record", "summary"]
    summary = said[-1]
    assert summary["windows_published"] == summary["windows"] == 5
    assert summary["rows"] == 10
    assert summary["operator_only"]["rejected"] == {}


@pytest.mark.usefixtures("ending")
def test_a_second_run_publishes_nothing_and_puts_back_the_files_that_the_sink_has_lost(tmp_path: Path) -> None:
    one = made(tmp_path)
    run(one)
    before = files(one)
    for name in sorted(before)[:3]:
        (tmp_path / "releases" / name).unlink()
    done = run(one)
    assert done.code == 0
    assert done.said("3 blocks on record had no file in the sink; now they have")
    assert done.said("0 published now, 5 on record before, of 5")
    assert files(one) == before


@pytest.mark.usefixtures("ending")
def test_the_record_is_gone_through_once_at_the_start_and_a_second_time_only_for_what_the_sink_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path)
    run(one)
    before, taken = files(one), list[tuple[int, int] | None]()
    records = Store.records

    def noted(self: Store, *names: str, after: tuple[int, int] | None = None) -> Any:
        taken.append(after)
        return records(self, *names, after=after)

    monkeypatch.setattr(Store, "records", noted)
    assert graph_of(one).restored == 0
    assert taken == [None]
    last = max(before)
    (tmp_path / "releases" / last).unlink()
    taken.clear()
    assert graph_of(one).restored == 1
    # from the first that is missing on
    assert [after is None or after[0] for after in taken] == [True, 4 * 48]
    assert files(one) == before


@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize("lost", [0, 4])
def test_a_file_that_is_not_of_the_record_is_found_also_where_as_many_are_missing(tmp_path: Path, lost: int) -> None:
    one = made(tmp_path)
    run(one)
    (tmp_path / "other").mkdir()
    other = made(tmp_path / "other", privacy={"epsilon": 2.0, "budget": 2.0})
    run(other)
    stranger = next((tmp_path / "other" / "releases").iterdir())
    for path in sorted((tmp_path / "releases").iterdir())[:lost]:
        path.unlink()
    (tmp_path / "releases" / stranger.name).write_bytes(stranger.read_bytes())
    done = run(one)
    assert done.code == 4
    assert done.said("sink: it holds 1 of 1 release that are not on record"), done.err


@pytest.mark.usefixtures("ending")
def test_a_budget_that_refuses_windows_ends_with_three_and_another_querys_refusal_does_not(tmp_path: Path) -> None:
    one = made(tmp_path, privacy={"epsilon": 1.0, "budget": 0.5})
    done = run(one)
    assert done.code == 3, done.out + done.err
    assert done.said("refused")


@pytest.mark.usefixtures("ending")
def test_rejects_are_files_of_their_own_without_values(tmp_path: Path) -> None:
    one = made(tmp_path)
    write_csv(tmp_path / "inbox" / "1.csv", [("m1", "never", 1.0), ("stranger", "2024-03-02T00:00:00+00:00", 1.0)])
    done = run(one)
    assert done.code == 0, done.err
    text = [path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "rejects").iterdir()]
    assert {lines[0] for lines in text} == {"reason,source,position"}
    assert sorted(line for lines in text for line in lines[1:]) == [
        "not-in-roster,(after decoding),-1",
        f"unparsable-time,{tmp_path}/inbox/1.csv,2",
    ]


@pytest.mark.usefixtures("ending")
def test_a_sink_with_releases_that_the_ledger_does_not_know_is_refused_unless_the_history_is_said_to_be_lost(
    tmp_path: Path,
) -> None:
    one = made(tmp_path)
    run(one)
    before = files(one)
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    done = run(one)
    assert done.code == 4
    assert done.said("sink: it holds 10 of 10 releases that are not on record")
    assert not one.ledger.exists()
    assert files(one) == before
    assert run(one, "--history-lost").code == 0
    with Store(f"sqlite:///{one.ledger}") as store:
        assert store.summary("streets").history_lost


@pytest.mark.usefixtures("ending")
def test_a_sink_with_another_querys_rows_or_with_no_releases_is_refused(tmp_path: Path) -> None:
    one = made(tmp_path)
    run(one)
    text = one.settings.read_text(encoding="utf-8")
    one.settings.write_text(text.replace("query: daily", "query: other"), encoding="utf-8")
    done = run(one)
    assert done.code == 2
    assert done.said("holds rows of daily over streets, and a folder is one query's; name another folder")
    one.settings.write_text(text, encoding="utf-8")
    (tmp_path / "releases" / "strange.parquet").write_bytes(b"PAR1")
    done = run(one)
    assert done.code == 2
    assert done.said("strange.parquet exists and holds no releases")


@pytest.mark.usefixtures("ending")
def test_an_endless_schedule_has_no_end_and_its_summary_counts_the_windows_until_now(tmp_path: Path) -> None:
    one = made(tmp_path, windows={"size": "1d", "start": "2024-03-01"})
    settings = read_settings(one.settings)
    histograms = PrivateHistograms(settings)
    graph = live.live_job(settings, histograms, [])
    assert graph.pace.end_us is None
    registration = graph.follower.registration
    first = [draft for draft in drafts(histograms, registration) if draft.window.start < 3 * 48]
    graph.follower.store.publish(registration, first[:-1])
    # of the third window one shard is missing
    standing, after = graph.follower.look("RUNNING"), graph.follower.record()
    assert standing.until == "2024-03-03T00:00:00Z"
    assert standing.first_missing == 2 * 48
    summary = summary_of(settings, histograms, graph.before, after, None)
    assert (summary.windows, summary.windows_published, summary.rows) == (2, 2, 4)
    graph.follower.close()


@pytest.mark.usefixtures("ending")
def test_settings_that_leave_the_recorded_end_out_are_told_of_it(tmp_path: Path) -> None:
    one = made(tmp_path)
    graph_of(one).follower.close()
    one.settings.write_text(one.settings.read_text(encoding="utf-8").replace("  stop: '2024-03-06'\n", ""), "utf-8")
    done = run(one)
    assert done.code == 2
    assert done.said("windows.stop is left out, and query 'daily' is on record with its end at 2024-03-06"), done.err


def drafts(histograms: PrivateHistograms, registration: Registration) -> list[Draft]:
    """Blocks of zeros for the first windows of a query."""
    schedule, bins = registration.query.schedule, histograms.plan.space.bins
    windows = list(itertools.islice(schedule.windows(), 5))
    made: list[Draft] = []
    for window in windows:
        layout = layout_of(registration, window)
        for shard in layout.occupied:
            keys = layout.keys(shard)
            counts = np.zeros((len(keys), bins), dtype=np.int64)
            block = Block(keys, counts.sum(axis=1), counts, "live")
            made.append(Draft(window, shard, lambda block=block: block))
    return made


# How it ends


class Result:
    """What a runner's handle of a job says, one state after the other."""

    def __init__(self, *states: str | BaseException) -> None:
        self.states = list(states)
        self.cancelled = False

    @property
    def state(self) -> str:
        if self.cancelled:
            return PipelineState.CANCELLED
        found = self.states.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    def cancel(self) -> None:
        self.cancelled = True

    def wait_until_finish(self) -> None:
        raise RuntimeError(
            "Pipeline failed: Traceback\nquiltstream.store.errors.StoreReadOnly: it is read-only\n\nTraceback"
        )


class Pipeline:
    def __init__(self, result: Result, begun: Callable[[], None] = lambda: None) -> None:
        self.result = result
        self.begun = begun

    def run(self) -> Result:
        self.begun()
        return self.result


def graph_of(one: Job) -> LiveJob:
    settings = read_settings(one.settings)
    return live.live_job(settings, PrivateHistograms(settings), [])


@pytest.fixture
def one(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    request.getfixturevalue("ending")
    return made(tmp_path)


def follow(one: Job, pipeline: Pipeline) -> tuple[LiveStanding, str]:
    """The end of a job whose runner is the test's, and what was printed."""
    said: list[str] = []
    graph = replace(graph_of(one), pipeline=pipeline)
    standing, tallies = live_run.follow(graph, lambda kind, text: said.append(f"{kind}: {text}"), look_s=0.0)
    graph.follower.close()
    assert tallies is None
    return standing, "\n".join(said)


def test_a_job_is_followed_until_its_runner_says_that_it_ended(one: Job) -> None:
    standing, said = follow(one, Pipeline(Result("RUNNING", "RUNNING", "DONE")))
    assert (standing.state, standing.until) == ("DONE", None)
    assert [line.partition(":")[0] for line in said.splitlines()] == ["start", "record"]


def test_a_job_that_runs_on_when_its_schedule_is_on_record_is_ended(one: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "_END_S", 0.0)
    settings = read_settings(one.settings)
    histograms = PrivateHistograms(settings)

    def publish() -> None:
        graph = graph_of(one)
        graph.follower.store.publish(graph.follower.registration, drafts(histograms, graph.follower.registration))
        graph.follower.close()

    result = Result(*["RUNNING"] * 9)
    standing, _ = follow(one, Pipeline(result, publish))
    assert result.cancelled
    assert (standing.state, standing.first_missing) == ("DONE", None)


def test_what_a_job_failed_of_is_the_commands_own_error(one: Job) -> None:
    with pytest.raises(CommandError) as caught:
        follow(one, Pipeline(Result("RUNNING", "FAILED")))
    assert (caught.value.code, str(caught.value)) == (4, "it is read-only")


def test_a_runner_that_has_gone_is_told(one: Job) -> None:
    with pytest.raises(CommandError, match=r"the runner has gone away \(OSError\); what is on record stays") as caught:
        follow(one, Pipeline(Result("RUNNING", OSError("secret"))))
    assert caught.value.code == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_job_even_if_its_runner_took_the_signal_for_itself(
    one: Job, number: signal.Signals
) -> None:
    before = signal.getsignal(number)

    class Interrupted(Result):
        @property
        def state(self) -> str:
            if not self.cancelled and not self.states:
                signal.raise_signal(number)
            return super().state

    result = Interrupted("RUNNING")

    def ignore() -> None:
        signal.signal(number, signal.SIG_IGN)

    standing, said = follow(one, Pipeline(result, ignore))
    assert result.cancelled
    assert standing.state == "CANCELLED"
    assert said.splitlines()[-1].endswith("stopped; what is on record stays")
    assert signal.getsignal(number) is before


def test_a_job_that_is_stopped_while_it_starts_ends_too(one: Job) -> None:
    standing, said = follow(one, Pipeline(Result(), lambda: signal.raise_signal(signal.SIGINT)))
    assert standing.state == "CANCELLED"
    assert "stop" in said
