"""``quiltstream run``: what it publishes, says and ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiltstream.pipelines.commands.run import publish
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store.specs import layout_of
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.registration import register

from ..jobs import HOMES, Job, call, change, job, readings, write_csv
from ..live_jobs import drafts


@pytest.mark.night
def test_a_second_run_publishes_the_same_rows_and_reports_no_charge(copy: Job) -> None:
    first = copy.sink.read_bytes()
    done = call("run", copy.settings).ended(0)
    assert copy.sink.read_bytes() == first
    assert done.said("Nothing was charged: every row was on record already")
    assert done.said("0 newly on record, 7 on record before, of 7")


@pytest.mark.night
def test_the_summary_as_json_holds_the_numbers_and_nothing_else_is_printed(tmp_path: Path) -> None:
    done = call("run", job(tmp_path).settings, "--json")
    said = json.loads(done.out)
    assert (said["windows"], said["windows_published"], said["rows"], said["naive_loss"]) == (7, 7, 14, 7.0)
    tallies = {"readings": 2016, "duplicates": 0, "outside_schedule": 288, "rejected": {}, "values_told_by_totals": 0}
    assert said["operator_only"] == tallies
    assert done.err == ""


@pytest.mark.night
def test_roster_and_ends_derived_from_the_data_are_printed_and_frozen(tmp_path: Path) -> None:
    made = job(tmp_path, roster=None, group_by=None, windows={"size": "1d"})
    call("run", made.settings).ended(
        0, "roster: 6 series", "windows.start: 2024-03-01T00:00:00Z", "windows.stop: 2024-03-09T00:00:00Z"
    )
    before = made.sink.read_bytes()
    write_csv(tmp_path / "readings.csv", readings(days=12, homes=["m1", "new"]))
    assert call("run", made.settings).code == 0
    assert made.sink.read_bytes() == before
    change(made, windows={"size": "1d", "start": "2024-03-02"})
    call("run", made.settings).ended(
        4, "windows.start is '2024-03-02T00:00:00Z', but on record it is '2024-03-01T00:00:00Z'"
    )
    assert made.sink.read_bytes() == before


@pytest.mark.night
@pytest.mark.parametrize("roster", ["roster.csv", None], ids=["registered before the data", "registered by the job"])
def test_a_lost_history_stays_on_record(tmp_path: Path, roster: str | None) -> None:
    made = job(tmp_path, roster=roster, group_by=None)
    call("run", made.settings)
    made.ledger.unlink()
    for rest in tmp_path.glob("ledger.db-*"):
        rest.unlink()
    assert call("run", made.settings, "--history-lost").code == 0
    assert json.loads(call("run", made.settings, "--json").out)["history_lost"] is True
    assert call("run", made.settings).said("History lost: by the operator's word")
    shown = call("ledger", "show", made.ledger)
    assert shown.said("charges made elsewhere are missing from this account")
    assert shown.said("history declared lost: 42 releases were found that are not on record")
    call("ledger", "export", made.ledger, "-o", tmp_path / "public")
    (account,) = json.loads((tmp_path / "public" / "domains.json").read_text(encoding="utf-8"))
    assert (account["name"], account["history_lost"]) == ("streets", True)


@pytest.mark.night
def test_a_sink_with_rows_of_another_query_is_not_replaced(tmp_path: Path) -> None:
    made = job(tmp_path, privacy={"epsilon": 0.5, "budget": 2.0})
    call("run", made.settings)
    before = made.sink.read_bytes()
    change(made, query="another")
    done = call("run", made.settings)
    assert (done.code, made.sink.read_bytes()) == (2, before)
    assert done.said("rows of daily over streets, which this job would replace")


@pytest.mark.parametrize("runner", ["FlinkRunner", "apache_beam.runners.SparkRunner"])
def test_a_file_ledger_is_refused_on_a_runner_that_spreads_over_hosts(tmp_path: Path, runner: str) -> None:
    made = job(tmp_path)
    (tmp_path / "readings.csv").unlink()
    call("run", made.settings, "--", f"--runner={runner}").ended(2, "may spread over several machines")
    assert not made.ledger.exists()


@pytest.mark.night
def test_a_runner_of_this_machine_may_be_named(tmp_path: Path) -> None:
    made = job(tmp_path)
    call("run", made.settings, "--", "--runner=FnApiRunner").ended(0)
    assert len(made.rows()) == 14


@pytest.mark.night
def test_noise_free_rows_need_the_hook_and_never_share_a_ledger_with_real_ones(tmp_path: Path) -> None:
    made = job(tmp_path)
    settings = read_settings(made.settings)
    publish(settings, PrivateHistograms(settings, noise="none"))
    rows = made.rows()
    assert {row.mechanism for row in rows} == {"none"}
    assert all(sum(row.counts) == 144 for row in rows)
    call("run", made.settings).ended(4, "noise-free rows of tests")


def test_a_dry_run_prints_the_plan_and_reads_and_writes_nothing(tmp_path: Path) -> None:
    made = job(tmp_path)
    (tmp_path / "readings.csv").unlink()
    call("run", "--dry-run", made.settings).ended(0, "it publishes every window (exit code 0)")
    assert not made.ledger.exists()
    assert not made.sink.exists()


@pytest.mark.night
def test_a_dry_run_as_json_agrees_with_what_the_run_then_charges(tmp_path: Path) -> None:
    made = job(tmp_path, privacy={"epsilon": 0.3, "budget": 0.32, "guarantee": "window"})
    said = json.loads(call("run", "--dry-run", "--json", made.settings).out)
    result = json.loads(call("run", "--json", made.settings).out)
    assert said["admitted"] == result["windows_published"]
    assert said["budget"] == 0.32
    row = made.rows()[0]
    assert (row.half_width_95, row.epsilon_dp) == (said["half_width_95"], said["epsilon_dp"])
    assert row.noise_law == said["noise_law"] == "discrete-laplace-zero-sum"
    assert all(sum(one.counts) == one.total for one in made.rows())
    after = json.loads(call("run", "--dry-run", "--json", made.settings).out)
    assert after["account"]["loss"] == result["loss_after"]


@pytest.mark.night
def test_a_dry_run_warns_of_a_model_estimated_from_the_series_it_protects(tmp_path: Path) -> None:
    made = job(tmp_path, model="model.json")
    call("fit", made.settings, "--belief", "pooled")
    assert call("run", "--dry-run", made.settings).said("estimated from 6 series that it is to protect")
    call("run", made.settings).ended(0, "hold only given the model")
    assert all(row.given_model for row in made.rows())
    assert set(HOMES) == {"m1", "m2", "m3", "m4", "m5", "m6"}


@pytest.mark.night
def test_a_run_after_a_killed_one_reports_the_windows_that_were_charged(tmp_path: Path) -> None:
    """Of windows that are charged, also where the killed run drew the first block of each."""
    made = job(tmp_path / "job")
    histograms = PrivateHistograms(read_settings(made.settings))
    registration = register(histograms.plan)
    begun = [
        one for one in drafts(histograms, registration) if one.shard == layout_of(registration, one.window).occupied[0]
    ]
    assert len(begun) == 5
    with Store(histograms.plan.address, create=True) as store:
        store.publish(registration, begun)
    done = call("run", "--json", made.settings).ended(0)
    said = json.loads(done.out)
    assert (said["windows_published"], said["windows_completed"], said["rows_published"]) == (7, 5, 14)


@pytest.mark.night
@pytest.mark.parametrize(("missing", "told"), [("public", True), ({"break": "2h"}, True), ("state", False)])
def test_rejected_values_visible_in_public_totals_are_reported(tmp_path: Path, missing: object, told: bool) -> None:
    rows = readings()
    for at, value in ((5, "abc"), (7, ""), (9, "nan")):
        rows[at] = (*rows[at][:2], value)
    made = job(tmp_path, rows, missing=missing)
    done = call("run", "--all", made.settings).ended(0)
    short = min(row.total or 0 for row in made.rows())
    assert short == (3 * 48 - 3 if told else 3 * 48)
    assert done.said("3 values rejected: each leaves its cell missing, and a published total tells how many") == told
    assert done.said("a published total tells how many, those of rejected values included") == told


def test_a_dry_run_with_much_to_say_fits_a_screen_and_says_where_the_rest_is(tmp_path: Path) -> None:
    units = {"series": "meter", "time": "ts", "value": "kwh", "unit": "kWh"}
    ahead = {"size": "1d", "start": "2024-03-01", "stop": "2190-03-08T12:00"}
    made = job(tmp_path, model="stand-in", windows=ahead, readings=units)
    done, every = call("run", "--dry-run", made.settings), call("run", "--dry-run", "--all", made.settings)
    assert len(done.out.splitlines()) <= 20
    assert done.said("--all")
    for text in ("fill no window", "days ahead", "readings.scale is 1"):
        assert every.said(text)


def test_what_is_printed_fits_a_screen_and_names_one_band(copy: Job) -> None:
    dry, done = call("run", "--dry-run", copy.settings).ended(0), call("run", copy.settings).ended(0)
    assert len(dry.out.splitlines()) <= 20
    assert len(done.out.splitlines()) <= 20
    band = copy.rows()[0].half_width_95
    assert dry.said(f"each count within {band:,} (95 %)")
    assert done.said(f"each count within {band:,} (95 %)")
    assert done.said("a guess of 50 % becomes at most")
    assert json.loads(call("show", copy.sink, "--json").ended(0).out)["half_width"] == band
