"""Models that a job estimates itself: from what, what becomes of a new one, and what is on record of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiltstream.pipelines import estimation
from quiltstream.pipelines.drift import DriftWatch, published_between
from quiltstream.pipelines.live import command
from quiltstream.privacy import BinaryInterval, DobrushinBounds, MarkovChain, MixingBounds
from quiltstream.privacy.models import belief_from_dict, mixing_bounds
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.slots import Window
from quiltstream.store.specs import BeliefChange

from ..present import present
from ..store.samples import domain
from .estimate_jobs import DAY, day_of, made, published, run, said, sticky, store, truth, worse_later
from .jobs import HOMES, call, readings, write_csv

pytestmark = pytest.mark.usefixtures("ending")


def test_a_model_of_other_series_is_estimated_and_its_changes_are_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path, {"from": {"csv": "others/*.csv"}, "every": "4d"})
    worse_later(tmp_path, monkeypatch)
    done = run(one, "--json").ended(0)
    (text,) = said(done)
    assert "query daily@2024-03-05T00:00:00Z goes on with sigma" in text
    with store(one) as ledger:
        first, second = ledger.estimates("streets", "daily")
        assert (first.outcome, second.outcome, second.slot) == ("first", "switched", 4 * DAY)
        before, after = (mixing_bounds(belief_from_dict(found.model["belief"])) for found in (first, second))
        assert after.gap < before.gap
        summary = ledger.summary("streets")
        assert not summary.given_model
        assert [event[0] for event in summary.events] == [
            "model-estimated",
            "schedule-ended",
            "belief-switched",
            "model-estimated",
        ]
        assert not any("series_hashes" in event[3] for event in summary.events)
    shown = call("ledger", "show", one.settings)
    assert shown.said("schedule ended, query daily: 2024-03-09T00:00:00Z to 2024-03-05T00:00:00Z"), shown.out
    assert shown.said("belief switched, from 2024-03-05T00:00:00Z on: model"), shown.out
    later = "daily@2024-03-05T00:00:00Z"
    assert published(one) == [("daily", day) for day in range(4)] + [(later, day) for day in range(4, 8)]
    assert summary.loss == truth(one) <= 1
    # the noise is calibrated to 1 by the quilts, and costs less
    assert 0.3 < summary.loss <= summary.reserved_loss <= 1
    # whoever runs it again finds nothing to do, and says the same
    again = run(one, "--json").ended(0)
    assert said(again) == []
    assert published(one) == [("daily", day) for day in range(4)] + [(later, day) for day in range(4, 8)]


def test_no_series_ever_protected_by_the_domain_is_in_an_estimate_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Homes of the roster, one of which leaves it on the way, lie among the others with a chain that would show."""
    found: dict[str, list[dict[str, Any]]] = {}
    decide = estimation.decide
    for name in ("without", "with"):
        folder = tmp_path / name
        folder.mkdir()
        one = made(folder, {"from": {"csv": "others/*.csv"}, "every": "4d"})
        if name == "with":
            write_csv(folder / "others" / "9.csv", sticky(60, HOMES, 0.97))

        def leaving(*given: Any, folder: Path = folder) -> Any:
            roster = folder / "roster.csv"
            text = roster.read_text(encoding="utf-8")
            roster.write_text("".join(f"{line}\n" for line in text.splitlines() if not line.startswith("m6")))
            return decide(*given)

        monkeypatch.setattr(command, "decide", leaving)
        done = run(one, "--json").ended(0)
        shown = call("ledger", "show", one.settings, "--json", "--all").ended(0)
        with store(one) as ledger:
            assert not ledger.summary("streets").given_model
            estimates = ledger.estimates("streets", "daily")
            rows = [row for _, query in ledger.queries() for row in ledger.releases("streets", query)]
        told = done.out + shown.out + "".join(str(batch.to_pylist()) for batch in rows)
        found[name] = [estimate.model["belief"] for estimate in estimates]
        for estimate in estimates:
            count = estimate.model["provenance"]["transitions"]
            assert count > 1000
            # by itself: ids, losses and noisy counts have any digits in them
            alone = re.compile(rf"(?<![\w.]){count}(?!\w|\.\d)")
            assert alone.search(f"of {count} transitions")
            assert alone.search(told) is None
    assert found["with"] == found["without"]
    assert len(found["with"]) == 2


def test_an_estimate_within_the_current_belief_changes_nothing(tmp_path: Path) -> None:
    one = made(tmp_path, {"from": {"csv": "others/*.csv"}, "every": "2d"})
    done = run(one, "--json").ended(0)
    assert len(said(done)) == 3
    assert all("the belief in force holds it" in text for text in said(done))
    assert published(one) == [("daily", day) for day in range(8)]
    with store(one) as ledger:
        assert [found.outcome for found in ledger.estimates("streets", "daily")] == ["first", "kept", "kept", "kept"]
        assert truth(one) == ledger.summary("streets").loss <= 1


def test_a_belief_is_added_only_if_the_budget_allows_it(tmp_path: Path) -> None:
    # the stream costs .082 of the belief it starts with, and .298 of the estimate
    for name, budget, outcome in (("large", 9.0, "joined"), ("small", 0.2, "refused")):
        folder = tmp_path / name
        folder.mkdir()
        estimate = {
            "from": {"csv": "others/*.csv"},
            "every": "4d",
            "change": "join",
            "start": {"pi_min": 0.19, "gap": 0.99, "kind": "multiplicative"},
        }
        one = made(folder, estimate, privacy={"epsilon": 1.0, "budget": budget})
        done = run(one, "--json").ended(0)
        assert ("it joined" in said(done)[0]) == (outcome == "joined")
        assert published(one) == [("daily", day) for day in range(8)]
        with store(one) as ledger:
            assert [found.outcome for found in ledger.estimates("streets", "daily")] == [outcome]
            assert truth(one) == ledger.summary("streets").loss <= budget


def test_noisy_counts_of_the_series_are_charged_and_their_totals_are_not_printed(tmp_path: Path) -> None:
    estimate = {"from": "counts", "every": "4d", "start": {"pi_min": 0.05, "gap": 0.3}, "epsilon": 20.0, "level": 0.9}
    one = made(tmp_path, estimate, privacy={"epsilon": 1.0})
    done = run(one, "--json").ended(0)
    assert len(said(done)) == 1
    with store(one) as ledger:
        held = present(ledger.registered("streets", "daily-transitions"))
        (record,) = ledger.records("streets", "daily-transitions")
        assert record.block is not None
        assert record.block.counts.shape == (5, 5)
        assert not record.block.totals.any()
        rows = [row for batch in ledger.releases("streets", "daily-transitions") for row in releases_from_batch(batch)]
        assert {row.key_kind for row in rows} == {"state"}
        assert [row.total for row in rows] == [None] * 5
        assert [row.estimate for row in rows] == [None] * 5
        assert rows[0].key.startswith("0000 from ")
        # with so little noise the table is what plain counting finds, to within its noise
        assert abs(record.block.counts - counted(4)).max() <= 40 * float(held.query.scale) + 1
        entries = [entry for entry in ledger.entries() if entry.query == "daily-transitions"]
        assert [(entry.window_start, entry.window_stop) for entry in entries] == [(0, 4 * DAY)]
        assert truth(one) == ledger.summary("streets").loss
        assert not ledger.summary("streets").given_model


def counted(days: int) -> Any:
    """Transitions of the homes in the first days, in plain Python."""
    table = np.zeros((5, 5), dtype=int)
    before: dict[str, int] = {}
    for home, stamp, value in readings(9):
        if stamp >= f"2024-03-0{1 + days}":
            continue
        state = sum(2000 * value >= edge for edge in (250, 500, 1000, 2000))
        if home in before:
            table[before[home], state] += 1
        before[home] = state
    return table


def test_a_belief_is_estimated_from_released_rows_and_a_given_gap(tmp_path: Path) -> None:
    estimate = {"from": "released", "every": "4d", "start": {"pi_min": 0.01, "gap": 0.3}, "gap": 0.3}
    one = made(tmp_path, estimate, privacy={"epsilon": 400.0})
    done = run(one, "--json").ended(0)
    (text,) = said(done)
    with store(one) as ledger:
        (found,) = ledger.estimates("streets", "daily")
        assert found.outcome in ("kept", "switched"), text
        assert found.model, text
        assert found.model["belief"]["gap"] == pytest.approx(0.27)
        assert 0 < found.model["belief"]["pi_min"] < 0.2
        assert not ledger.summary("streets").given_model


def test_estimates_from_the_protected_series_mark_every_loss_given_the_model(tmp_path: Path) -> None:
    one = made(tmp_path, {"from": "readings"})
    run(one, "--json").ended(0)
    with store(one) as ledger:
        assert ledger.summary("streets").given_model
        assert all(entry.given_model for entry in ledger.entries())
        assert [found.outcome for found in ledger.estimates("streets", "daily")] == ["first"]
        rows = [row for batch in ledger.releases("streets", "daily") for row in releases_from_batch(batch)]
        assert all(row.given_model for row in rows)
        assert {row.model_provenance.split(";")[1].strip() for row in rows} == {"the domain's own readings"}
    assert call("ledger", "show", one.settings).said("given the model")


@pytest.mark.parametrize(
    ("estimate", "changes", "text"),
    [
        ({"from": "counts", "every": "1d", "epsilon": 1.0}, {}, "give start"),
        ({"from": "released", "start": {"pi_min": 0.05, "gap": 0.3}, "gap": 0.3}, {}, "give every"),
        ({"from": "readings", "change": "join"}, {}, "use change: switch"),
        ({"from": {"csv": "others/*.csv"}, "epsilon": 1.0}, {}, "epsilon is needed with from: counts"),
        ({"from": {"csv": "others/*.csv"}, "every": "36h"}, {}, "must be a multiple of that"),
        ({"from": {"csv": "others/*.csv"}}, {"roster": None, "group_by": None}, "name one in roster"),
        (
            {"from": {"csv": "others/*.csv"}, "every": "1d"},
            {"privacy": {"epsilon": 1, "mechanism": "pairwise"}},
            "needs privacy.mechanism mqm-approx",
        ),
        ({"from": {"csv": "nothing/*.csv"}}, {}, "give model.estimate.start"),
        ({"from": "readings"}, {"source": {"stdin": "csv"}}, "only files can be"),
        (
            {"from": {"csv": "others/*.csv"}, "every": "1d"},
            {"source": {"stdin": "csv"}},
            "source.stdin cannot be read again",
        ),
        (
            {"from": {"csv": "others/*.csv"}, "every": "1d"},
            {"source": {"pubsub": {"subscription": "projects/grid-data/subscriptions/meters"}}},
            "set source.pubsub.reread",
        ),
        ({"from": "hearsay"}, {}, "model.estimate"),
    ],
)
def test_invalid_estimate_settings_are_refused_before_any_record(
    tmp_path: Path, estimate: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    one = made(tmp_path, estimate, **changes)
    run(one).ended(2, text)
    assert not one.ledger.exists()


def test_a_batch_job_estimates_once_and_refuses_to_estimate_again(tmp_path: Path) -> None:
    one = made(tmp_path, {"from": {"csv": "others/*.csv"}}, sink={"parquet": "releases.parquet"}, rejects=None)
    call("run", one.settings).ended(0)
    assert len(one.rows()) == 16
    assert call("run", one.settings).code == 0
    other = tmp_path / "other"
    other.mkdir()
    stream = made(other, {"from": {"csv": "others/*.csv"}, "every": "1d"}, sink={"parquet": "releases.parquet"})
    for words in ((), ("--dry-run",)):
        call("run", *words, stream.settings).ended(2, "model.estimate.every is for a stream")
        assert not stream.ledger.exists()
    call("run", "--live", "--dry-run", stream.settings).ended(0)
    assert not stream.ledger.exists()


@pytest.mark.parametrize(("by", "classes"), [([], 1), ("hour", 24)])
def test_rows_of_a_test_period_are_summed_by_key_over_slot_classes(tmp_path: Path, by: Any, classes: int) -> None:
    one = made(tmp_path, {"from": "readings"}, by=by)
    assert run(one).code == 0
    with store(one) as ledger:
        held = present(ledger.registered("streets", "daily"))
        found = present(published_between(ledger, held, Window(2 * DAY, 5 * DAY)))
        assert (found.draws, found.slots) == (3 * classes, 3 * DAY)
        assert found.counts.shape == (2, 5)
        rows = [row for batch in ledger.releases("streets", "daily") for row in releases_from_batch(batch)]
        chosen = [row for row in rows if 2 <= day_of(row) < 5]
        assert found.counts.sum() == sum(sum(row.counts) for row in chosen)
        assert found.totals.tolist() == [3 * DAY * 3] * 2
        assert found.members.tolist() == [3, 3] == [len(HOMES) // 2] * 2
        assert published_between(ledger, held, Window(7 * DAY, 9 * DAY)) is None
        # bins that are several states each tell nothing of a state
        coarse = replace(held, query=replace(held.query, header={**held.query.header, "bins": [500.0]}))
        assert published_between(ledger, coarse, Window(2 * DAY, 5 * DAY)) is None


def test_drift_from_the_belief_is_detected_from_released_rows_alone(tmp_path: Path) -> None:
    """The belief says that no state is rarer than a seventh; half of the homes are never above 250 W."""
    quiet = [(home, stamp, 0.05 if home < "m6" else value) for home, stamp, value in readings(9)]
    one = made(tmp_path, {"from": "readings"}, model={"pi_min": 0.14, "gap": 0.9}, privacy={"epsilon": 90.0})
    write_csv(tmp_path / "inbox" / "0.csv", quiet)
    done = run(one, "--json").ended(0)
    (text,) = said(done, "drift")
    assert "2024-03-01T00:00:00Z to 2024-03-08T00:00:00Z contradict the belief in force" in text
    assert "is less than any chain of the belief explains" in text


def test_rows_that_agree_with_the_belief_are_not_reported(tmp_path: Path) -> None:
    one = made(tmp_path, {"from": "readings"}, model={"pi_min": 0.05, "gap": 0.3}, privacy={"epsilon": 90.0})
    done = run(one, "--json").ended(0)
    assert said(done, "drift") == []


def test_a_job_begun_anew_judges_the_last_stretch_or_states_once_why_none(tmp_path: Path) -> None:
    """The last window of a stretch may be charged after the last look of the job before."""
    one = made(tmp_path, {"from": "readings"}, model={"pi_min": 0.19, "gap": 0.9}, privacy={"epsilon": 90.0})
    quiet = [(home, stamp, 0.05) for home, stamp, _ in readings(9)]
    write_csv(tmp_path / "inbox" / "0.csv", quiet)
    assert run(one).code == 0
    with store(one) as ledger:
        held = present(ledger.registered("streets", "daily"))
        ((kind, _),) = DriftWatch(ledger, held, 7 * DAY).look(7 * DAY)
        assert kind == "drift"
        assert DriftWatch(ledger, held, 7 * DAY - 1).look(7 * DAY - 1) == []
        belief = DobrushinBounds.of(MarkovChain([[0.9, 0.1], [0.4, 0.6]])).to_dict()
        for other, why in (
            (replace(held, query=replace(held.query, multiplicity=2)), "a series is in several groups"),
            (replace(held, query=replace(held.query, header={"bins": [500.0]})), "bins are several states each"),
            (replace(held, domain=replace(held.domain, belief=belief)), "a belief of kind dobrushin-bounds"),
        ):
            watch = DriftWatch(ledger, other, None)
            ((kind, text),) = watch.look(None)
            assert (kind, why in text, watch.look(None)) == ("model", True, [])


def test_a_command_adds_or_switches_to_another_belief(tmp_path: Path) -> None:
    one = made(
        tmp_path, {"from": "readings"}, model={"pi_min": 0.1, "gap": 0.5}, privacy={"epsilon": 1.0, "budget": 9.0}
    )
    assert run(one).code == 0
    model = tmp_path / "second.json"
    assert call("fit", one.settings, "--belief", "pooled", "-o", model, "--smoothing", "0.5").code == 0
    call("ledger", "belief", one.settings, "streets", model, "--yes").ended(0, "of a budget of 9")
    with store(one) as ledger:
        summary = ledger.summary("streets")
        assert summary.loss == truth(one)
        assert summary.given_model
    assert call("ledger", "show", one.settings).said("belief joined: model")
    call("ledger", "belief", one.settings, "streets", model, "--from", "2024-03-20", "--yes").ended(0)
    small = call("ledger", "belief", one.settings, "nowhere", model, "--yes")
    assert small.code != 0
    assert small.said("'nowhere' is not on record")


def test_only_bounds_of_the_account_hold_an_estimate() -> None:
    """A chain on record is one of those that its bounds allow, and another class is not all of them."""
    chain = MarkovChain([[0.9, 0.1], [0.1, 0.9]])
    found = mixing_bounds(chain)
    wider = MixingBounds(found.pi_min / 2, found.gap / 2, kind=found.kind)
    for belief, holds in (
        (wider, True),
        (found, True),
        (chain, False),
        (BinaryInterval((0.5, 0.95), (0.5, 0.95)), False),
        (DobrushinBounds.of(chain), False),
    ):
        joined = BeliefChange("joined", belief.to_dict(), "another")
        narrow = MixingBounds(0.45, 0.9).to_dict()
        assert estimation._held(domain(belief=narrow, changes=(joined,)), found) is holds
        assert estimation._held(domain(belief=belief.to_dict()), found) is holds
