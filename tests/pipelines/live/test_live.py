"""``quiltstream run --live``: what it does and says.

The jobs here end, so that FnApiRunner, which the live command itself refuses, can run them in this process; how live
runners behave is tested on them (``tests/e2e/live_contract.py``).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.commands.run import summary_of
from quiltstream.pipelines.live import command, job
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store import Store
from quiltstream.store.address import StoreAddress, forget
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.aggregate.memory import Memory

from ..jobs import HOMES, readings, write_csv
from ..live_jobs import TrueHistograms, drafts, files, graph_of, made, published, run, true_counts


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_a_live_run_publishes_the_schedule_and_prints_the_batch_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PrivateHistograms", TrueHistograms)
    one = made(tmp_path)
    done = run(one, "--all").ended(0, "What this rests on")
    assert published(one) == true_counts(readings(6), days=5)
    assert done.said("on record until 2024-03-06T00:00:00Z; loss 0.5547")
    assert done.said("5 newly on record, 0 on record before, of 5")
    assert done.said("0.5548 of 1")
    assert done.said(f"{5 * 48 * len(HOMES):,} in the schedule")


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_as_json_every_line_is_an_object_and_the_last_one_is_the_summary(tmp_path: Path) -> None:
    said = [json.loads(line) for line in run(made(tmp_path), "--json").out.splitlines()]
    assert [one["kind"] for one in said] == ["start", "record", "summary"]
    summary = said[-1]
    assert summary["windows_published"] == summary["windows"] == 5
    assert summary["rows"] == 10
    assert summary["operator_only"]["rejected"] == {}


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_a_second_run_publishes_nothing_and_restores_files_missing_in_the_sink(tmp_path: Path) -> None:
    one = made(tmp_path)
    run(one)
    before = files(one)
    for name in sorted(before)[:3]:
        (tmp_path / "releases" / name).unlink()
    run(one).ended(
        0, "3 blocks on record had no file in the sink; now they have", "0 newly on record, 5 on record before, of 5"
    )
    assert files(one) == before


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_an_older_copy_of_the_ledger_stops_the_next_run_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command was killed with its last rows in the sink, whose consumer collects them."""
    one, older, begin = made(tmp_path), tmp_path / "older.db", Memory.begin

    def copied(memory: Memory, store: Store, *given: Any, **more: Any) -> None:
        begin(memory, store, *given, **more)
        store.backup(older)

    with monkeypatch.context() as patched:
        patched.setattr(Memory, "begin", copied)
        assert run(one).code == 0
    collected = files(one)
    assert len(collected) == 10
    for path in (*(tmp_path / "releases").iterdir(), *tmp_path.glob("ledger.db*")):
        path.unlink()
    shutil.copy(older, one.ledger)
    forget(StoreAddress(f"sqlite:///{one.ledger}"))  # this process stands for two
    for _ in range(2):  # a supervisor begins the command again
        run(one).ended(4, "older copy or a restored backup")
        assert files(one) == {}
    assert run(one, "--history-lost").code == 0
    assert files(one).keys() == collected.keys()
    assert run(one).code == 0


@pytest.mark.night
@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize("lost", [0, 4])
def test_an_unrecorded_file_is_found_even_if_another_file_is_missing(tmp_path: Path, lost: int) -> None:
    one = made(tmp_path)
    run(one)
    (tmp_path / "other").mkdir()
    run(made(tmp_path / "other", privacy={"epsilon": 2.0, "budget": 2.0}))
    stranger = next((tmp_path / "other" / "releases").iterdir())
    for path in sorted((tmp_path / "releases").iterdir())[:lost]:
        path.unlink()
    (tmp_path / "releases" / stranger.name).write_bytes(stranger.read_bytes())
    run(one).ended(4, "sink: it holds 1 of 1 release that are not on record")


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_rejects_are_separate_files_without_values(tmp_path: Path) -> None:
    one = made(tmp_path)
    write_csv(tmp_path / "inbox" / "1.csv", [("m1", "never", 1.0), ("stranger", "2024-03-02T00:00:00+00:00", 1.0)])
    run(one).ended(0)
    text = [path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "rejects").iterdir()]
    assert {lines[0] for lines in text} == {"reason,source,position,size"}
    assert sorted(line for lines in text for line in lines[1:]) == [
        "not-in-roster,(after decoding),-1,",
        f"unparsable-time,{tmp_path}/inbox/1.csv,2,",
    ]


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_a_sink_with_releases_unknown_to_the_ledger_is_refused_without_the_flag(tmp_path: Path) -> None:
    one = made(tmp_path)
    run(one)
    before = files(one)
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    run(one).ended(4, "sink: it holds 10 of 10 releases that are not on record")
    assert not one.ledger.exists()
    assert files(one) == before
    assert run(one, "--history-lost").code == 0
    with Store(f"sqlite:///{one.ledger}", create=True) as store:
        assert store.summary("streets").history_lost


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_a_sink_with_another_querys_rows_or_with_no_releases_is_refused(tmp_path: Path) -> None:
    one = made(tmp_path)
    run(one)
    text = one.settings.read_text(encoding="utf-8")
    one.settings.write_text(text.replace("query: daily", "query: other"), encoding="utf-8")
    run(one).ended(2, "holds rows of daily over streets, and a folder is one query's; name another folder")
    one.settings.write_text(text, encoding="utf-8")
    (tmp_path / "releases" / "strange.parquet").write_bytes(b"PAR1")
    run(one).ended(2, "strange.parquet exists and holds no releases")


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_an_endless_schedule_has_no_end_and_its_summary_counts_the_windows_until_now(tmp_path: Path) -> None:
    settings = read_settings(made(tmp_path, windows={"size": "1d", "start": "2024-03-01"}).settings)
    histograms = PrivateHistograms(settings)
    graph = job.live_job(settings, histograms, [])
    assert graph.pace.end_us is None
    registration = graph.follower.registration
    first = [draft for draft in drafts(histograms, registration) if draft.window.start < 3 * 48]
    graph.follower.store.publish(registration, first[:-1])
    # of the third window one shard is missing
    progress, after = graph.follower.look(), graph.follower.record()
    assert progress.until == "2024-03-03T00:00:00Z"
    assert progress.first_missing == 2 * 48
    summary = summary_of(settings, histograms, graph.before, after, None)
    assert (summary["windows"], summary["windows_published"], summary["rows"]) == (2, 2, 4)
    graph.follower.close()


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_windows_charged_by_an_unfinished_job_are_counted_apart_from_new_ones(tmp_path: Path) -> None:
    one = made(tmp_path)
    graph = graph_of(one)
    registration = graph.follower.registration
    of_first = [
        draft
        for draft in drafts(PrivateHistograms(read_settings(one.settings)), registration)
        if draft.window.start == 0
    ]
    assert len(of_first) > 1
    graph.follower.store.publish(registration, of_first[:1])
    graph.follower.close()
    for completed, published_now in ((1, 5), (0, 0)):
        done = run(one, "--json").ended(0)
        summary = json.loads(done.out.splitlines()[-1])
        assert (summary["windows_completed"], summary["windows_published"]) == (completed, published_now)


@pytest.mark.night
@pytest.mark.usefixtures("ending")
def test_settings_without_the_recorded_end_are_refused_with_it(tmp_path: Path) -> None:
    one = made(tmp_path)
    graph_of(one).follower.close()
    one.settings.write_text(one.settings.read_text(encoding="utf-8").replace("  stop: '2024-03-06'\n", ""), "utf-8")
    run(one).ended(2, "windows.stop is left out, and query 'daily' is on record with its end at 2024-03-06")
