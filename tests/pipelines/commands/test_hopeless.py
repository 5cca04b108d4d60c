"""``run`` where the noise drowns the counts or the belief is a stand-in, and what the dry run says of it."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ..jobs import Job, call, change, job

ONE: dict[str, Any] = {"windows": {"size": "1d", "start": "2024-03-01", "stop": "2024-03-03"}, "most_error": 0.5}


def course(made: Job, *words: str) -> dict[str, Any]:
    """What a dry run says; its exit code is the one that it says."""
    done = call("run", "--dry-run", "--json", *words, made.settings)
    said = json.loads(done.out)
    assert done.code == (said["run"]["code"] or 0), done.err
    return said


@pytest.mark.night
def test_a_run_with_noise_above_the_limit_charges_nothing_without_consent(tmp_path: Path) -> None:
    made = job(tmp_path, **ONE)
    done = call("run", made.settings).ended(2, "most_error is 0.5")
    assert not made.ledger.exists()
    assert not made.sink.exists()
    said = course(made)
    assert said["run"] == {
        "code": 2,
        "text": "it stops before anything is charged, unless it is run with --accept-noise",
        "more": "",
    }
    assert "\n".join(said["hopeless"]) == done.err.removeprefix("Error: ").replace("\n       ", "\n").strip()
    assert call("run", "--dry-run", made.settings).said("THE NOISE DROWNS THE COUNTS")
    assert course(made, "--accept-noise")["run"]["code"] == 0

    accepted = call("run", "--accept-noise", "--json", made.settings).ended(0)
    summary = json.loads(accepted.out)
    (row, *_) = made.rows()
    assert (summary["scale"], summary["half_width_95"]) == (row.scale, row.half_width_95)
    assert summary["median_share"] == pytest.approx(said["median_share"])
    again = call("run", made.settings)  # on record: nothing is charged, and nothing is asked
    again.ended(0, "each count within")


@pytest.mark.night
def test_a_dry_run_predicts_the_run_on_a_charged_domain(tmp_path: Path) -> None:
    made = job(tmp_path)
    assert course(made)["run"] == {"code": 0, "text": "it publishes every window", "more": ""}
    assert call("run", made.settings).code == 0
    assert course(made)["run"]["text"].startswith("nothing is charged: every window is on record")
    before = made.ledger.read_bytes()
    change(made, query="another", sink={"parquet": "another.parquet"})
    said = course(made)
    assert said["budget"] == 1.0
    assert said["run"]["code"] == 3
    assert said["run"]["text"] == "it publishes the first 1 window, and the rest is refused for ever"
    change(made, privacy={"epsilon": 4.0, "budget": 1.0})
    said = course(made)
    assert said["run"]["code"] == call("run", made.settings).code == 3
    assert said["run"]["text"].startswith("nothing is published: the first window of query 'another' would cost")
    change(made, query="daily", states={"edges": [250], "unit": "W"})
    assert course(made)["run"]["code"] == call("run", made.settings).code == 4
    assert made.ledger.read_bytes() == before


@pytest.mark.night
def test_a_stand_in_belief_is_refused_and_if_accepted_marked_in_every_row(tmp_path: Path) -> None:
    made = job(tmp_path, model="stand-in", windows=ONE["windows"])
    call("run", made.settings).ended(
        2, "model is stand-in: its bounds are made of slots.interval alone", "quiltstream fit SETTINGS --exclude ROSTER"
    )
    assert not made.ledger.exists()
    assert call("run", "--dry-run", made.settings).said("THE BELIEF IS A STAND-IN")
    assert course(made)["run"]["code"] == 2
    assert course(made, "--accept-stand-in")["run"]["code"] == 0
    call("run", "--accept-stand-in", made.settings).ended(0, "THE BELIEF IS A STAND-IN")
    assert {row.model_provenance for row in made.rows()} == {"stand-in: not fitted to any data"}
    assert call("run", made.settings).code == 2


def test_a_dry_run_looks_for_a_lost_ledger_as_a_run_does(copy: Job) -> None:
    copy.ledger.rename(copy.folder / "away.db")
    sink = copy.sink.read_bytes()
    for removed in ((), (copy.sink,), ()):
        for path in removed:
            path.unlink()
        said, done = course(copy)["run"], call("run", copy.settings)
        assert said["code"] == done.code == 4
        assert said["text"].startswith("it stops before anything is charged: ")
        assert done.said(said["text"].removeprefix("it stops before anything is charged: ")), (said, done.err)
        forced = json.loads(call("run", "--dry-run", "--history-lost", "--json", copy.settings).out)["run"]
        assert forced["code"] == 0
        assert "without the history that was lost (--history-lost), and marks the account for ever" in forced["more"]
    for path in copy.folder.glob(".*.quiltstream.*"):
        path.unlink()
    assert course(copy)["run"]["code"] == 0  # nothing tells of a ledger
    copy.sink.write_bytes(sink)
    assert course(copy)["run"]["code"] == call("run", copy.settings).code == 4
    change(copy, sink={"parquet": "away.db"})
    assert course(copy)["run"]["code"] == call("run", copy.settings).code == 2


@pytest.mark.night
def test_a_dry_run_finds_a_ledger_that_cannot_be_written_and_changes_nothing(copy: Job) -> None:
    before = copy.ledger.read_bytes()
    assert course(copy)["run"]["code"] == 0
    assert copy.ledger.read_bytes() == before
    with closing(sqlite3.connect(copy.ledger, isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER no BEFORE UPDATE ON quiltstream_heads BEGIN SELECT raise(ABORT, 'no'); END")
    said, done = course(copy)["run"], call("run", copy.settings)
    assert said["code"] == done.code == 4
    assert done.said(said["text"].removeprefix("it stops before anything is charged: ")), (said, done.err)


@pytest.mark.night
def test_a_dry_run_whose_end_depends_on_data_has_exit_code_0(copy: Job) -> None:
    change(copy, query="another", windows={"size": "1d"}, sink={"parquet": "another.parquet"})
    done = call("run", "--dry-run", "--json", copy.settings)
    assert (done.code, json.loads(done.out)["run"]["code"]) == (0, None)


@pytest.mark.night
def test_a_budget_below_the_first_window_is_reported_with_the_budget_needed(tmp_path: Path) -> None:
    made = job(tmp_path, privacy={"epsilon": 1.0, "budget": 0.1})
    dry, done = call("run", "--dry-run", made.settings), call("run", made.settings)
    assert done.code == 3
    assert not done.said("publish less often")
    needed = re.search(r"add noise \(.*\), or raise privacy\.budget to at least (\S+)$", " ".join(done.err.split()))
    assert needed is not None, done.err
    assert dry.said(f"raise privacy.budget to at least {needed[1]}, or lower privacy.epsilon"), dry.out
    assert dry.said("it does not allow even the first window, which costs ")
    change(made, privacy={"epsilon": 1.0, "budget": float(needed[1])})
    assert call("run", made.settings).said("1 newly on record")


@pytest.mark.night
def test_a_spent_budget_is_reported_with_the_command_that_raises_it_enough(copy: Job) -> None:
    change(copy, query="again", sink={"parquet": "again.parquet"}, privacy={"epsilon": 8.0, "budget": 1.0})
    refused = call("run", copy.settings).ended(3)
    said = " ".join(refused.err.split())
    found = re.search(r"at least (\S+) by `quiltstream ledger budget LEDGER streets (\S+)`, an explicit", said)
    assert found is not None, said
    assert found[1] == found[2]
    assert call("ledger", "budget", copy.ledger, "streets", found[2], "--yes").code == 0
    assert call("run", copy.settings).said("1 newly on record")
