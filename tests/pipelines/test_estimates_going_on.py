"""Models that a job estimates itself, where the job goes on: settings that change, added windows, other jobs."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiltstream.pipelines import drift, estimation
from quiltstream.pipelines.live import command
from quiltstream.pipelines.on_record import Memory
from quiltstream.privacy.estimation.drift import drift_test
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings.job import read_settings
from quiltstream.schemas.slots import Window
from quiltstream.store import BlockToPublish, NoisyBlock
from quiltstream.store.domain_changes import Estimated
from quiltstream.store.errors import BudgetRefused, ChargeMismatch
from quiltstream.store.specs import BeliefChange, Registration
from quiltstream.transforms.registration import register

from ..present import present
from .estimate_jobs import DAY, made, published, run, said, sticky, store, truth, worse_later
from .jobs import call, change, readings, write_csv

pytestmark = pytest.mark.usefixtures("ending")


def until(day: str) -> dict[str, str]:
    return {"size": "1d", "start": "2024-03-01", "stop": day}


def test_settings_that_contradict_the_recorded_stream_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimate: dict[str, Any] = {"from": {"csv": "others/*.csv"}, "every": "4d"}
    one = made(tmp_path, estimate, privacy={"epsilon": 1.0, "budget": 2.0})
    worse_later(tmp_path, monkeypatch)
    done = run(one, "--json")
    assert "goes on with sigma" in said(done)[0]
    held = one.settings.read_text(encoding="utf-8")
    for changes, text in (
        ({"privacy": {"epsilon": 1.5, "budget": 2.0}}, "privacy.epsilon is 1.5, but on record it is 1.0"),
        ({"windows": {"size": "1d", "start": "2024-03-02", "stop": "2024-03-09"}}, "windows.start is"),
    ):
        change(one, **changes)
        done = run(one)
        assert done.code != 0
        assert done.said(text), done.err
        one.settings.write_text(held, encoding="utf-8")
    change(one, model={"estimate": {"from": {"csv": "others/*.csv"}}}, sink={"parquet": "whole.parquet"}, rejects=None)
    call("run", one.settings).ended(2, "goes on as 'daily@2024-03-05T00:00:00Z' since a stream changed its belief")


def test_the_use_of_estimates_may_be_changed_during_a_stream(tmp_path: Path) -> None:
    estimate: dict[str, Any] = {"from": {"csv": "others/*.csv"}, "every": "4d"}
    one = made(tmp_path, estimate, windows=until("2024-03-05"))
    assert run(one).code == 0
    change(one, windows=until("2024-03-09"), model={"estimate": estimate | {"change": "join"}})
    run(one, "--json").ended(0)
    assert published(one) == [("daily", day) for day in range(8)]


def test_private_counting_continues_with_added_windows_and_fixed_settings(tmp_path: Path) -> None:
    estimate = {"from": "counts", "every": "2d", "start": {"pi_min": 0.05, "gap": 0.3}, "epsilon": 1.0}
    one = made(tmp_path, estimate, windows=until("2024-03-05"), privacy={"epsilon": 1.0})
    assert run(one).code == 0
    change(one, windows=until("2024-03-09"))
    done = run(one, "--json").ended(0)
    assert len(said(done)) == 2
    with store(one) as ledger:
        entries = [entry for entry in ledger.entries() if entry.query == "daily-transitions"]
        assert [entry.window_start for entry in entries] == [0, 2 * DAY, 4 * DAY]
        rows = [row for batch in ledger.releases("streets", "daily-transitions") for row in releases_from_batch(batch)]
        assert all(row.half_width_95 > 2 * row.scale for row in rows)
    for other, text in (
        ({"every": "4d"}, "model.estimate.every is '4d'"),
        ({"epsilon": 0.5}, "model.estimate.epsilon"),
    ):
        change(one, model={"estimate": estimate | other}, privacy={"epsilon": 1.0, "budget": 2.0})
        done = run(one)
        assert done.code != 0
        assert done.said(text), done.err


COUNTS: dict[str, Any] = {"from": "counts", "every": "4d", "start": {"pi_min": 0.05, "gap": 0.3}, "epsilon": 1.0}


def test_counting_beyond_the_budget_is_refused_before_anything_is_on_record(tmp_path: Path) -> None:
    one = made(tmp_path, COUNTS, privacy={"epsilon": 1.0, "budget": 1.0})
    refused = "the first window of query 'daily-transitions' would cost"
    run(one, "--dry-run").ended(3, "exit code 3", "nothing is published")
    done = run(one, "--json").ended(3, refused, "or raise privacy.budget to at least 1.308")
    assert said(done, "start") == []
    with store(one) as ledger:
        # not the job's own query either: a larger budget, or another estimate, is still to be chosen
        assert ledger.registered("streets", "daily") is None
    change(one, privacy={"epsilon": 1.0, "budget": 9.0})
    run(one, "--json").ended(0)
    assert published(one) == [("daily", day) for day in range(8)]


def test_counting_keeps_its_budget_although_another_query_takes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path, COUNTS, privacy={"epsilon": 1.0, "budget": 2.0})
    decide, others = estimation.decide, list[int]()

    def crowded(*given: Any) -> Any:
        with store(one) as ledger:
            held = present(ledger.registered("streets", "daily"))
            taken = 0
            # as much as the budget allows, in smaller and smaller queries
            for halvings in range(30):
                header = held.query.header
                query = replace(held.query, name=f"other-{halvings}", release_epsilon_dp=1 / 2**halvings, header=header)
                with suppress(BudgetRefused):
                    taken += ledger.register(held.domain, query).admitted_stop is None
            others.append(taken)
        return decide(*given)

    monkeypatch.setattr(command, "decide", crowded)
    run(one, "--json").ended(0)
    assert others[0] > 0, "nothing was left that another query could take"
    with store(one) as ledger:
        (entry,) = [entry for entry in ledger.entries() if entry.query == "daily-transitions"]
        assert entry.decision == "charged"
        assert ledger.summary("streets").loss <= 2.0
    assert published(one) == [("daily", day) for day in range(8)]


def test_a_table_is_in_the_block_log_and_counts_the_series_on_record_alone(tmp_path: Path) -> None:
    """Its query, its noise and its roster are the job's; another home is in the roster's file meanwhile."""
    one = made(tmp_path, COUNTS | {"epsilon": 2000.0}, privacy={"epsilon": 1.0, "budget": 9000.0})
    roster = tmp_path / "roster.csv"
    whole = roster.read_text(encoding="utf-8")
    roster.write_text("".join(f"{line}\n" for line in whole.splitlines() if "m6" not in line), encoding="utf-8")
    settings = read_settings(one.settings)
    plan = estimation.active_query(settings, live=True).histograms.plan.opened()
    held = register(plan)
    roster.write_text(whole, encoding="utf-8")
    call("ledger", "backup", one.ledger, "-o", tmp_path / "older.db").ended(0)
    window = Window(0, 4 * DAY)
    found = estimation.estimate_at(settings, present(settings.estimate), plan, held, window)
    assert found.model is not None
    with store(one) as ledger:
        (table,) = (record.block for record in ledger.records("streets", "daily-transitions"))
        assert abs(present(table).counts.sum() - 5 * (4 * DAY - 1)) < 4 * DAY - 1
    assert Memory(settings).lost(history_lost=False) is None
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    (tmp_path / "older.db").rename(one.ledger)
    assert "of query 'daily-transitions'" in present(Memory(settings).lost(history_lost=False))


def test_a_resumed_job_registers_a_counting_query_added_later(tmp_path: Path) -> None:
    """As it is where the job began without estimates."""
    both = {"epsilon": 1.0, "budget": 9.0}
    one = made(tmp_path, {"from": "readings"}, model=COUNTS["start"], privacy=both, windows=until("2024-03-05"))
    assert run(one).code == 0
    change(one, model={"estimate": COUNTS}, windows=until("2024-03-09"))
    run(one, "--json").ended(0)
    with store(one) as ledger:
        assert present(ledger.registered("streets", "daily-transitions")).query.schedule.stop == 8 * DAY
    assert published(one) == [("daily", day) for day in range(8)]


def test_estimates_added_later_start_at_the_current_window(tmp_path: Path) -> None:
    bounds = {"pi_min": 0.19, "gap": 0.99}
    one = made(tmp_path, {"from": "readings"}, model=bounds, privacy={"epsilon": 1.0, "budget": 9.0})
    write_csv(tmp_path / "inbox" / "0.csv", readings(13))
    assert run(one).code == 0
    estimate = {"from": {"csv": "others/*.csv"}, "every": "3d", "start": bounds}
    change(one, model={"estimate": estimate}, windows=until("2024-03-13"))
    run(one, "--json").ended(0)
    with store(one) as ledger:
        # those of the third and the sixth day lie behind what is charged
        (found,) = ledger.estimates("streets", "daily")
        assert found.slot == 9 * DAY
        assert truth(one) <= ledger.summary("streets").reserved_loss <= 9
    assert [day for _, day in published(one)] == list(range(12))


def test_an_estimate_that_conflicts_with_a_commanded_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimate = {"from": {"csv": "others/*.csv"}, "every": "4d"}
    one = made(tmp_path, estimate, privacy={"epsilon": 1.0, "budget": 9.0}, windows=until("2024-03-05"))
    assert run(one).code == 0
    with store(one) as ledger:
        belief = {"kind": "mixing-bounds", "pi_min": 0.18, "gap": 0.9, "gap_kind": "unknown"}
        ledger.change_belief("streets", BeliefChange("switched", belief, "by hand", 6 * DAY))
    change(one, windows=until("2024-03-09"))
    worse_later(tmp_path, monkeypatch)
    done = run(one, "--json").ended(0)
    (text,) = said(done)
    assert "the domain's belief changes at 2024-03-07T00:00:00Z already" in text
    assert published(one) == [("daily", day) for day in range(8)]


def test_an_estimate_that_another_job_made_first_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path, {"from": {"csv": "others/*.csv"}, "every": "4d"}, privacy={"epsilon": 1.0, "budget": 9.0})
    worse_later(tmp_path, monkeypatch)

    estimate_at = estimation.estimate_at

    def raced(*given: Any) -> Any:
        with store(one) as ledger:
            ledger.note_estimate("streets", ("daily", Estimated(4 * DAY, "kept", {}, "daily")))
        return estimate_at(*given)

    monkeypatch.setattr(estimation, "estimate_at", raced)
    done = run(one, "--json").ended(0)
    assert said(done) == ["another job made this estimate first, and it is on record: kept"]
    assert published(one) == [("daily", day) for day in range(8)]
    assert run(one).code == 0


def test_an_initial_model_fitted_on_the_jobs_own_file_is_marked(tmp_path: Path) -> None:
    one = made(tmp_path, {"from": {"csv": "others/*.csv"}, "every": "4d", "start": "start.json"})
    digest = hashlib.blake2b((tmp_path / "inbox" / "0.csv").read_bytes(), digest_size=16).hexdigest()
    origin = Provenance(method="test", series=1, source_digests=(digest,))
    belief = MixingBounds(0.05, 0.3).to_dict()
    Model(belief, None, None, origin).save(tmp_path / "start.json")
    settings = read_settings(one.settings)
    assert estimation.active_query(settings, live=True).histograms.plan.model.provenance.from_protected


def test_a_running_job_cannot_publish_for_its_ended_query_after_a_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path, {"from": {"csv": "others/*.csv"}, "every": "4d"}, privacy={"epsilon": 1.0, "budget": 9.0})
    decide, known = estimation.decide, list[Registration]()

    def noted(*given: Any) -> Any:
        with store(one) as ledger:
            known.append(present(ledger.registered("streets", "daily")))
        write_csv(tmp_path / "others" / "1.csv", sticky(60, ["p1", "p2", "p3"], 0.6))
        return decide(*given)

    monkeypatch.setattr(command, "decide", noted)
    assert run(one).code == 0
    (old,) = known
    with store(one) as ledger:
        before, rows = ledger.entries(), ledger.releases("streets", "daily")
        block = NoisyBlock(("north", "south"), np.zeros(2, dtype=np.int64), np.zeros((2, 5), dtype=np.int64), "live")
        for window in list(old.query.schedule.windows())[3:6]:
            with pytest.raises(ChargeMismatch, match=r"windows\.stop"):
                ledger.publish(old, [BlockToPublish(window, 0, lambda: block)])
        assert ledger.entries() == before
        assert len(list(ledger.releases("streets", "daily"))) == len(list(rows))


def test_drift_tests_are_numbered_over_all_queries_of_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = made(tmp_path, {"from": {"csv": "others/*.csv"}, "every": "8d"}, windows=until("2024-03-17"))
    write_csv(tmp_path / "inbox" / "0.csv", readings(17))
    worse_later(tmp_path, monkeypatch)
    looks: list[tuple[int, int, float]] = []

    def looked(belief: Any, *given: Any, **named: Any) -> Any:
        looks.append((named["look"], named["before"], belief.gap))
        return drift_test(belief, *given, **named)

    monkeypatch.setattr(drift, "drift_test", looked)
    run(one, "--json").ended(0)
    with store(one) as ledger:
        held = ledger.registered("streets", "daily")
        assert held is not None
        gaps = [belief["gap"] for ((_, belief), *_) in [held.domain.histories[0]]]
        assert [look[:2] for look in looks] == [(1, 0), (2, 0)]
        assert looks[0][2] == gaps[0] > looks[1][2]
        # a change by command in the middle of a stretch: nothing holds in all of it
        watch = drift.DriftWatch(ledger, held, None)
        assert watch.judge(1) is not None
        moved = replace(held.domain, changes=(replace(held.domain.changes[0], slot=3 * DAY),))
        assert drift.DriftWatch(ledger, replace(held, domain=moved), None).judge(1) is None
