"""Models that a job estimates itself, once, when it begins: from what, what it costs, and what is on record of it."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiltstream.privacy import MixingBounds
from quiltstream.privacy.models import belief_from_dict, mixing_bounds
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.releases import releases_from_batch

from ..present import present
from .estimate_jobs import DAY, made, published, run, sticky, store, truth
from .jobs import HOMES, Job, call, change, readings, write_csv

pytestmark = pytest.mark.usefixtures("ending")

#: The windows of the jobs, by day; the readings begin twenty days before.
DAYS = list(range(20, 25))

COUNTS: dict[str, Any] = {"from": "counts", "over": "20d", "start": {"pi_min": 0.05, "gap": 0.1}, "epsilon": 200.0}


@pytest.mark.parametrize("live", [True, False])
def test_noisy_counts_are_charged_and_drawn_once_and_the_noise_follows_them(tmp_path: Path, *, live: bool) -> None:
    one = made(tmp_path, COUNTS, live=live)
    run(one, "--json", live=live).ended(0)
    assert published(one) == DAYS
    table, entries = counted_in(one)
    with store(one) as ledger:
        held = present(ledger.registered("streets", "daily-transitions"))
        # with so little noise the table is what plain counting finds, to within its noise
        assert abs(table - plain_counts()).max() <= 20 * float(held.query.scale) + 1
        rows = [row for batch in ledger.releases("streets", "daily-transitions") for row in releases_from_batch(batch)]
        assert {row.key_kind for row in rows} == {"state"}
        assert [(row.total, row.estimate) for row in rows] == [(None, None)] * 2
        assert all(row.half_width_95 > 2 * row.scale for row in rows)
        assert rows[0].key.startswith("0000 from ")
        assert [(one.window_start, one.window_stop) for one in entries] == [(0, 20 * DAY)]
        assert entries[0].epsilon_dp == held.query.epsilon_dp == pytest.approx(4 / float(held.query.scale))
        # the domain believes the estimate from the first window on, and less noise follows from it
        (change_,) = held.domain.changes
        assert change_.slot == 20 * DAY
        assert mixing_bounds(belief_from_dict(change_.belief)).gap > COUNTS["start"]["gap"]
        assert truth(one) == pytest.approx(ledger.summary("streets").loss, rel=1e-12)
        assert ledger.summary("streets").loss <= 201
        assert not ledger.summary("streets").given_model
        sigma = present(ledger.registered("streets", "daily")).query.header["sigma"]
    shown = call("ledger", "show", one.settings).ended(0)
    assert shown.said("belief switched, from 2024-03-21T00:00:00Z on: model")
    assert shown.said("model estimated for query daily: model")
    assert call("ledger", "verify", one.settings).code == 0
    # whoever runs it again finds nothing to do
    write_csv(tmp_path / "inbox" / "0.csv", sticky(26, HOMES, 0.9))
    run(one, live=live).ended(0)
    again, charged = counted_in(one)
    assert (again.tolist(), charged) == (table.tolist(), entries)
    other = made(mkdir(tmp_path / "fixed"), None, live=live, model=COUNTS["start"])
    run(other, live=live).ended(0)
    with store(other) as ledger:
        assert sigma < 0.6 * present(ledger.registered("streets", "daily")).query.header["sigma"]


def counted_in(one: Job) -> Any:
    """The table on record, and its charges."""
    with store(one) as ledger:
        (record,) = ledger.records("streets", "daily-transitions")
        block = present(record.block)
        assert not block.totals.any()
        return block.counts, [entry for entry in ledger.entries() if entry.query == "daily-transitions"]


def plain_counts() -> Any:
    """Transitions of the homes in the first twenty days, in plain Python."""
    table = np.zeros((2, 2), dtype=int)
    before: dict[str, int] = {}
    for home, stamp, value in readings(26):
        if stamp >= "2024-03-21":
            continue
        state = int(2000 * value >= 500)
        if home in before:
            table[before[home], state] += 1
        before[home] = state
    return table


def mkdir(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.night
def test_a_job_that_ends_behind_its_table_goes_on_with_the_table_on_record(tmp_path: Path) -> None:
    """No reading counts in its own windows, and later others have come in the slots that were counted."""
    one = made(tmp_path, COUNTS, live=False)
    write_csv(tmp_path / "inbox" / "0.csv", [row for row in readings(26) if row[1] < "2024-03-21"])
    run(one, live=False).ended(5)
    table, entries = counted_in(one)
    with store(one) as ledger:
        assert ledger.registered("streets", "daily") is None
    write_csv(tmp_path / "inbox" / "0.csv", sticky(26, HOMES, 0.9))
    held = one.settings.read_text(encoding="utf-8")
    for changes, text in (
        ({"over": "3d"}, "model.estimate.over is '3d'"),
        ({"epsilon": 10.0}, "model.estimate.epsilon"),
    ):
        change(one, model={"estimate": COUNTS | changes}, privacy={"epsilon": 1.0, "budget": 201.0})
        run(one, live=False).ended(4, text)
    one.settings.write_text(held, encoding="utf-8")
    roster = (tmp_path / "roster.csv").read_text(encoding="utf-8")
    (tmp_path / "roster.csv").write_text(roster + "m9,north\n", encoding="utf-8")
    run(one, live=False).ended(4, "roster")
    (tmp_path / "roster.csv").write_text(roster, encoding="utf-8")
    run(one, live=False).ended(0)
    again, charged = counted_in(one)
    assert (again.tolist(), charged) == (table.tolist(), entries)
    assert published(one) == DAYS


@pytest.mark.night
@pytest.mark.parametrize("live", [True, False])
def test_a_ledger_that_lost_the_table_is_told_before_another_is_drawn(tmp_path: Path, *, live: bool) -> None:
    one = made(tmp_path, COUNTS, live=live, privacy={"epsilon": 1.0, "budget": 300.0})
    other = made(mkdir(tmp_path / "other"), None, live=False, query="other", ledger=f"sqlite:///{one.ledger}")
    change(other, model=COUNTS["start"], privacy={"epsilon": 1.0, "budget": 300.0})
    run(other, live=False).ended(0)
    call("ledger", "backup", one.ledger, "-o", tmp_path / "older.db").ended(0)
    run(one, live=live).ended(0)
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    (tmp_path / "older.db").rename(one.ledger)
    kept = rows_of(one)
    run(one, live=live).ended(4)
    assert rows_of(one) == kept


def rows_of(job: Job) -> list[Any]:
    """What the ledger has, read beside this process' knowledge of a newer one."""
    with closing(sqlite3.connect(job.ledger)) as ledger:
        return ledger.execute("SELECT domain, seq, key FROM quiltstream_log").fetchall()


def test_counting_beyond_the_budget_is_refused_before_anything_is_on_record(tmp_path: Path) -> None:
    one = made(tmp_path, COUNTS | {"epsilon": 1.0}, live=False, privacy={"epsilon": 1.0, "budget": 0.5})
    for words in (("--dry-run",), ()):
        run(one, *words, live=False).ended(3, "query 'daily', with the counts for its model, would cost")
    assert not one.ledger.exists()


@pytest.mark.night
def test_a_dry_run_draws_nothing_and_says_what_the_counting_costs(tmp_path: Path) -> None:
    one = made(tmp_path, COUNTS, live=False)
    run(one, "--dry-run", live=False).ended(0, "the run counts first, which costs 200 more")
    assert not one.ledger.exists()
    run(one, live=False).ended(0)
    run(one, "--dry-run", live=False).ended(0, "every window is on record")


def test_slots_without_any_reading_are_not_charged(tmp_path: Path) -> None:
    one = made(tmp_path, COUNTS, live=False)
    write_csv(tmp_path / "inbox" / "0.csv", [row for row in readings(26) if row[1] >= "2024-03-21"])
    run(one, live=False).ended(2, "no reading counts in the slots of model.estimate.over")
    assert not one.ledger.exists()


@pytest.mark.night
@pytest.mark.parametrize("live", [True, False])
def test_a_model_of_other_series_is_estimated_once_and_on_record(tmp_path: Path, *, live: bool) -> None:
    one = made(tmp_path, {"from": {"csv": "others/*.csv"}}, live=live)
    run(one, live=live).ended(0)
    with store(one) as ledger:
        known = present(ledger.estimated("streets", "daily"))
        assert present(ledger.registered("streets", "daily")).domain.belief == known["belief"]
        summary = ledger.summary("streets")
        assert not summary.given_model
        assert [event[0] for event in summary.events] == ["model-estimated"]
        assert not any("series_hashes" in event[3] for event in summary.events)
        assert summary.loss == truth(one) <= 1
    write_csv(tmp_path / "others" / "1.csv", sticky(60, ["p1", "p2", "p3"], 0.9))
    run(one, live=live).ended(0)
    with store(one) as ledger:
        assert ledger.estimated("streets", "daily") == known
    change(one, privacy={"epsilon": 1.5, "budget": 1.0})
    run(one, live=live).ended(4, "privacy.epsilon is 1.5, but on record it is 1.0")


@pytest.mark.night
def test_no_series_protected_by_the_domain_is_in_an_estimate_from_outside(tmp_path: Path) -> None:
    """Homes of the roster lie among the others, with a chain that would show."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("without", "with"):
        one = made(mkdir(tmp_path / name), {"from": {"csv": "others/*.csv"}})
        if name == "with":
            write_csv(one.folder / "others" / "9.csv", sticky(60, HOMES, 0.97))
        done = run(one, "--json").ended(0)
        shown = call("ledger", "show", one.settings, "--json", "--all").ended(0)
        with store(one) as ledger:
            model = present(ledger.estimated("streets", "daily"))
            rows = [row for _, query in ledger.queries() for row in ledger.releases("streets", query)]
        told = done.out + shown.out + "".join(str(batch.to_pylist()) for batch in rows)
        count = model["provenance"]["transitions"]
        assert count > 1000
        # by itself: ids, losses and noisy counts have any digits in them
        alone = re.compile(rf"(?<![\w.]){count}(?!\w|\.\d)")
        assert alone.search(f"of {count} transitions")
        assert alone.search(told) is None
        found[name] = model["belief"]
    assert found["with"] == found["without"]


def test_estimates_from_the_protected_series_mark_every_loss_given_the_model(tmp_path: Path) -> None:
    one = made(tmp_path, {"from": "readings"})
    run(one).ended(0)
    with store(one) as ledger:
        assert ledger.summary("streets").given_model
        assert all(entry.given_model for entry in ledger.entries())
        rows = [row for batch in ledger.releases("streets", "daily") for row in releases_from_batch(batch)]
        assert all(row.given_model for row in rows)
        assert {row.model_provenance.split(";")[1].strip() for row in rows} == {"the domain's own readings"}
    assert call("ledger", "show", one.settings).said("given the model")


@pytest.mark.night
@pytest.mark.parametrize(
    ("estimate", "changes", "text"),
    [
        ({"from": "counts", "over": "1d", "epsilon": 1.0}, {}, "start is needed with from: counts"),
        ({"from": {"csv": "others/*.csv"}, "epsilon": 1.0}, {}, "epsilon is needed with from: counts"),
        ({"from": {"csv": "others/*.csv"}}, {"roster": None, "group_by": None}, "name one in roster"),
        (COUNTS, {"roster": None, "group_by": None}, "name a roster file"),
        (COUNTS | {"over": "45min"}, {}, "model.estimate.over"),
        (COUNTS, {"privacy": {"epsilon": 1, "mechanism": "pairwise"}}, "needs privacy.mechanism mqm-approx"),
        (COUNTS, {"windows": {"size": "1d"}}, "windows.start: set it"),
        ({"from": {"csv": "nothing/*.csv"}}, {}, "or give a model file or bounds by hand"),
        ({"from": "readings"}, {"source": {"stdin": "csv"}}, "only files can be"),
        ({"from": "released"}, {}, "none of counts, readings"),
        ({"from": {"csv": "others/*.csv"}, "every": "4d"}, {}, "model.estimate.every is gone: a job estimates once"),
        (
            {"from": {"csv": "others/*.csv"}, "change": "join"},
            {},
            "model.estimate.change is gone: a job estimates once",
        ),
    ],
)
def test_invalid_estimate_settings_are_refused_before_any_record(
    tmp_path: Path, estimate: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    one = made(tmp_path, estimate, **changes)
    run(one).ended(2, text)
    assert not one.ledger.exists()


@pytest.mark.night
def test_a_starting_model_fitted_on_the_jobs_own_file_marks_the_loss(tmp_path: Path) -> None:
    one = made(tmp_path, COUNTS | {"start": "start.json"}, live=False)
    digest = hashlib.blake2b((tmp_path / "inbox" / "0.csv").read_bytes(), digest_size=16).hexdigest()
    origin = Provenance(method="test", series=1, source_digests=(digest,))
    Model(MixingBounds(0.05, 0.1).to_dict(), None, None, origin).save(tmp_path / "start.json")
    run(one, live=False).ended(0)
    with store(one) as ledger:
        assert ledger.summary("streets").given_model
