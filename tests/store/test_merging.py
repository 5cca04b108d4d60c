"""Ledgers that were kept apart are united: every charge of each of them counts, and no published row is lost."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.schemas.slots import Schedule
from quiltstream.store import BudgetRefused, Store, StoreError, tables
from quiltstream.store.errors import ChargeMismatch
from quiltstream.store.queries import BlockName
from quiltstream.store.specs import BlockToPublish

from ..present import present
from .calendar_contract import by_calendar
from .forging import reseal
from .merges import address, content, fill, recomputed, united
from .proofs import never
from .samples import BELIEF, domain, drafts, query, seen


def test_the_same_charge_in_two_copies_is_one(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=3)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    fill(copy, windows=5)
    both = content(united(tmp_path / "both.db", first, copy))
    assert both == content(copy)
    assert both != content(first)


def test_blocks_published_by_any_ledger_are_found_in_the_merged_ledger(tmp_path: Path) -> None:
    """Second charges, second draws of one charge, and blocks that were paid for by a charge that was flagged."""
    first, second = fill(tmp_path / "a.db", windows=2), fill(tmp_path / "b.db", windows=3)
    third = Path(shutil.copy(first, tmp_path / "c.db"))
    fill(first, windows=4, shards=(0,))
    fill(third, windows=4, shards=(1,))
    left: list[BlockName] = []
    for path in (first, second, third):
        with Store(address(path)) as store:
            left += [BlockName(one.entry.entry_id, one.shard, one.digest) for one in store.records("homes", "weekly")]
    strange: list[dict[str, Any]] = [{"shard": 9}, {"entry_id": "0" * 32}, {"digest": "0" * 32}]
    both = united(tmp_path / "both.db", first, second, third)
    again = united(tmp_path / "again.db", both, third)
    for path in (both, again):
        with Store(address(path)) as store:
            found = store.block_numbers([*left, *(left[0]._replace(**one) for one in strange)])
            assert [one is None for one in found] == [False] * len(left) + [True] * len(strange)


def test_a_ledger_merged_with_itself_is_unchanged(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=4)
    before = content(first)
    assert content(united(tmp_path / "once.db", first, first)) == before
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    assert content(united(tmp_path / "twice.db", first, copy)) == before
    with Store(address(tmp_path / "twice.db"), create=True) as store:
        assert (store.summary("homes").closed, store.summary("homes").flagged_charges) == (False, 0)


def test_a_window_charged_in_both_ledgers_counts_twice_with_both_blocks_kept(tmp_path: Path) -> None:
    share = 0.25
    paths = [fill(tmp_path / f"{name}.db", windows=2, share=share) for name in "ab"]
    before = [path.read_bytes() for path in paths]
    both = united(tmp_path / "both.db", *paths)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db", "both.db"]
    with Store(address(both), create=True) as store:
        said = store.summary("homes")
        assert (said.charged, said.flagged_charges, said.flagged_blocks, said.closed) == (2, 2, 4, False)
        assert said.naive == 4 * share
        assert said.loss == recomputed(both)
        held = present(store.registered("homes", "weekly"))
        spans = [(w.start, w.stop, held.query.epsilon_dp) for w in list(held.query.schedule.windows())[:2]]
        assert said.loss == Ledger(BELIEF).replay([*spans, *spans]) > Ledger(BELIEF).replay(spans)
        assert len({entry.entry_id for entry in store.entries()}) == 4
        assert [entry.sequence for entry in store.entries()] == [1, 2, 3, 4]
        values = seen(store.records("homes", "weekly"))
        others = seen(store.flagged("homes", "weekly"))
        for path in paths:
            with Store(address(path), create=True) as source:
                for place, row in seen(source.records("homes", "weekly")).items():
                    assert row in (values[place], others[place])
        assert values.keys() == others.keys()
        assert all(values[place] != others[place] for place in values)


def test_the_rows_of_a_merged_ledger_are_the_published_rows(tmp_path: Path) -> None:
    """Byte for byte, the loss that was printed into them included; a shard that only one of the two has is taken."""
    first = fill(tmp_path / "a.db", windows=3, shards=(0,), share=0.25)
    second = fill(tmp_path / "b.db", windows=3, shards=(1,), share=0.25)
    published = []
    for path in (first, second):
        with Store(address(path), create=True) as store:
            published += [batch.to_pylist() for batch in store.releases("homes", "weekly")]
    with Store(address(united(tmp_path / "both.db", first, second)), create=True) as store:
        rows = [batch.to_pylist() for batch in store.releases("homes", "weekly")]
        assert sorted(rows, key=repr) == sorted(published, key=repr)
        held = present(store.registered("homes", "weekly"))
        assert store.flagged("homes", "weekly") == []
        again = store.publish(
            held,
            [
                replace(one, draw=never)
                for one in drafts(held, list(itertools.islice(held.query.schedule.windows(), 3)))
            ],
        )
        assert seen(again) == seen(store.records("homes", "weekly"))
        assert {i for batch in rows for row in batch for i in [row["release_id"]]} == {
            row["release_id"] for batch in published for row in batch
        }


def test_a_merged_ledger_continues_after_the_last_window_of_its_inputs(tmp_path: Path) -> None:
    paths = [fill(tmp_path / f"{name}.db", windows=n, share=0.25) for name, n in (("a", 2), ("b", 3))]
    both = united(tmp_path / "both.db", *paths)
    with Store(address(both), create=True) as store:
        held = store.register(domain(), query(share=0.25))
        assert not held.fresh
        missing = list(store.missing(held))
        assert [window.start for window, _ in missing] == [240, 240, 288, 288, 336, 336]
        records = store.publish(held, drafts(held))
        assert [record.fresh for record in records] == [False] * 6 + [True] * 6
        assert [entry.sequence for entry in store.entries()] == list(range(1, 9))
        assert store.summary("homes").loss == recomputed(both) <= held.reserved_loss <= 1
        assert store.entries()[-1].loss_after == recomputed(both)


def test_a_loss_above_the_budget_closes_the_domain(tmp_path: Path) -> None:
    """Alone each of the two is within its budget, together they are not."""
    paths = [fill(tmp_path / f"{name}.db", windows=3, budget=0.5) for name in "ab"]
    both = united(tmp_path / "both.db", *paths)
    with Store(address(both), create=True) as store:
        said = store.summary("homes")
        assert said.closed
        assert said.loss == recomputed(both) > said.budget == 0.5
        assert said.remaining == said.unreserved == 0.0
        held = store.register(domain(budget=0.5), query())
        windows = list(held.query.schedule.windows())
        refused = store.publish(held, [BlockToPublish(windows[-1], 0, never)])
        assert refused[0].block is None
        assert "closed" in refused[0].entry.rule
        assert refused[0].entry.loss_after >= refused[0].entry.loss_before > 0.5
        # what was published is published
        assert not any(record.fresh for record in store.publish(held, drafts(held, windows[:3])))
        with pytest.raises(BudgetRefused):
            store.register(domain(budget=0.5), query("another", share=0.01))
        assert store.summary("homes").loss == said.loss
    shown = CliRunner().invoke(main, ["ledger", "show", str(both)])
    assert shown.exit_code == 0
    assert "nothing is charged any more" in shown.output
    assert "3 charges and 6 blocks beside those of record" in shown.output


def test_a_budget_raised_above_the_loss_opens_the_domain_and_no_refused_window(tmp_path: Path) -> None:
    both = united(tmp_path / "both.db", *(fill(tmp_path / f"{name}.db", windows=3, budget=0.5) for name in "ab"))
    with Store(address(both), create=True) as store:
        held = present(store.registered("homes", "weekly"))
        windows = list(held.query.schedule.windows())
        store.publish(held, [BlockToPublish(windows[3], 0, never)])
        assert not store.raise_budget("homes", 3.0).closed
        records = store.publish(held, drafts(held))
        assert [record.window for record in records if record.block is None] == [windows[3]] * 2
        assert store.summary("homes").loss == recomputed(both) <= 3.0
    again = content(united(tmp_path / "again.db", both, tmp_path / "a.db"))
    assert again == content(both)


def test_a_charge_of_other_content_under_one_id_is_kept_counted_and_flagged(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2, share=0.25)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    with Store(address(copy), create=True) as store, store._database().write() as connection:
        changed = tables.charges.update().where(tables.charges.c.sequence == 1)
        connection.execute(changed.values(epsilon_dp=tables.charges.c.epsilon_dp * 2))
        reseal(connection)
    both = united(tmp_path / "both.db", first, copy)
    with Store(address(both), create=True) as store:
        said = store.summary("homes")
        assert (said.flagged_charges, said.flagged_blocks) == (1, 2)
        assert said.loss == recomputed(both) > store.entries()[0].loss_after
        first_id = store.entries()[0].entry_id
        assert store.entries()[1].entry_id.startswith(f"{first_id}~")
        # the one that its query paid for is of record, so the job goes on
        held = store.register(domain(), query(share=0.25))
        assert len(store.publish(held, drafts(held))) == 12
    with Store(address(copy), create=True) as store, pytest.raises(ChargeMismatch):
        store.publish(held, drafts(held))
    assert content(united(tmp_path / "again.db", copy, united(tmp_path / "once.db", copy, first))) == content(
        united(tmp_path / "third.db", first, copy)
    )


def test_another_value_under_one_charge_is_kept_and_flagged(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    other = fill(tmp_path / "other.db", windows=2)
    with Store(address(other), create=True) as store, store._database().read() as connection:
        blocks = connection.execute(sa.select(tables.releases.c.block).order_by(tables.releases.c.id)).scalars().all()
    with Store(address(copy), create=True) as store, store._database().write() as connection:
        changed = tables.releases.update().where(tables.releases.c.id == 1)
        connection.execute(changed.values(block=blocks[0], created_us=tables.releases.c.created_us + 1))
        reseal(connection)
    both = united(tmp_path / "both.db", copy, first)
    with Store(address(both), create=True) as store, Store(address(first), create=True) as of_record:
        said = store.summary("homes")
        assert (said.flagged_charges, said.flagged_blocks) == (1, 1)
        assert said.loss == recomputed(both) > of_record.summary("homes").loss
        # the earlier one is of record
        assert seen(store.records("homes", "weekly")) == seen(of_record.records("homes", "weekly"))
        with store._database().read() as connection:
            assert connection.scalars(sa.select(tables.flagged_releases.c.reason)).all() == ["conflict"]


def test_diverged_draws_under_one_charge_are_charged_once_per_draw(tmp_path: Path) -> None:
    """A copy made between a charge and its blocks: each ledger draws its own, and all of them were published."""
    paths = [tmp_path / f"{name}.db" for name in "abc"]
    with Store(address(paths[0]), create=True) as store:
        held = store.register(domain(budget=5.0), query(share=0.25, windows=3))
        windows = list(held.query.schedule.windows())
        store.charge_windows(held, windows[:2])
    for path in paths[1:]:
        shutil.copy(paths[0], path)
    for path in paths:
        with Store(address(path), create=True) as store:
            store.publish(held, drafts(held, windows[:2]))
    both, three = united(tmp_path / "ab.db", *paths[:2]), united(tmp_path / "abc.db", *paths)
    spans = [(window.start, window.stop, held.query.epsilon_dp) for window in windows[:2]]
    for path, draws in ((paths[0], 1), (both, 2), (three, 3)):
        with Store(address(path), create=True) as store:
            said = store.summary("homes")
            assert said.loss == pytest.approx(Ledger(BELIEF).replay(spans * draws), rel=1e-12)
            assert said.loss == recomputed(path)
            assert (said.flagged_charges, said.flagged_blocks) == (2 * (draws - 1), 4 * (draws - 1))
    assert content(three) == content(united(tmp_path / "one.db", three))
    assert content(three) == content(united(tmp_path / "turned.db", paths[2], both))


def test_a_window_refused_in_one_and_charged_in_the_other_was_charged(tmp_path: Path) -> None:
    charging = tmp_path / "a.db"
    with Store(address(charging), create=True) as store:
        held = store.register(domain(budget=0.5), query(size=4, windows=6))
        store.publish(held, drafts(held))
        charged = store.summary("homes").charged
    with Store(address(tmp_path / "cut.db"), create=True) as store:
        cut = store.register(domain(budget=0.5), query("first", size=4, windows=2))
        store.publish(cut, drafts(cut))
        held = store.register(domain(budget=0.5), query(size=4, windows=6))
        assert held.admitted_stop is not None
        store.publish(held, drafts(held))
        assert store.summary("homes").refused > 0
        assert store.summary("homes").charged < charged + 2
    paths = (charging, tmp_path / "cut.db")
    both = united(tmp_path / "both.db", *paths)
    with Store(address(both), create=True) as store:
        said = store.summary("homes")
        assert said.charged == charged + 2
        assert said.loss == recomputed(both)
        assert said.closed == (said.loss > 0.5)
    assert content(both) == content(united(tmp_path / "turned.db", *paths[::-1]))


def test_ledgers_with_calendar_days_are_merged(tmp_path: Path) -> None:
    first = tmp_path / "a.db"
    schedule = by_calendar(last="2013-04-20")
    fill(first, schedule=schedule, share=0.2, windows=2)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    fill(copy, schedule=schedule, share=0.2, windows=6)
    longer = united(tmp_path / "longer.db", first, copy)
    assert content(longer) == content(copy)
    other = fill(tmp_path / "b.db", schedule=schedule, share=0.2, windows=4)
    both = united(tmp_path / "both.db", longer, other)
    with Store(address(both)) as store:
        held = present(store.registered("homes", "weekly"))
        assert held.query.schedule == schedule
        assert [len(one.window) for one in store.records("homes", "weekly") if one.shard == 0] == [48] * 3 + [
            46,
            48,
            48,
        ]
        assert len(store.flagged("homes", "weekly")) == 2 * 4
        assert store.verify().defects == ()


def test_ledgers_with_conflicting_calendar_days_are_not_merged(tmp_path: Path) -> None:
    schedule = by_calendar(last="2013-04-20")
    winter = replace(present(schedule.calendar), shifts=((0, 0),))
    first = fill(tmp_path / "a.db", schedule=schedule, share=0.2, windows=2)
    other = Schedule.of_calendar(winter, schedule.start, schedule.stop)
    second = fill(tmp_path / "b.db", schedule=other, share=0.2, windows=2)
    with pytest.raises(StoreError, match=r"others from 2013-03-31 on"):
        united(tmp_path / "both.db", first, second)
    assert not (tmp_path / "both.db").exists()
