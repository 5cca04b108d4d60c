"""Ledgers that were kept apart are united: every charge of each of them counts, and no published row is lost."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiltstream.pipelines.cli import main
from quiltstream.privacy.ledger import Ledger
from quiltstream.privacy.merging import merged
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule
from quiltstream.store import (
    BudgetRefused,
    ChargeMismatch,
    ExportError,
    MergeConflict,
    ModeError,
    SchemaVersionError,
    Store,
    StoreAddress,
    StoreDamaged,
    StoreError,
    StoreMissing,
    schema,
    tables,
)
from quiltstream.store.merging import merge
from quiltstream.store.specs import Draft, Registration
from quiltstream.store.uniting import Charge, join_segments, place_charges

from .contract import never
from .samples import BELIEF, SERIES, domain, drafts, query, seen

Content = dict[str, Any]


def address(path: Path) -> str:
    return f"sqlite:///{path}"


def united(target: Path, *sources: Path) -> Path:
    merge([StoreAddress(address(source)) for source in sources], target)
    return target


def fill(path: Path, *, windows: int = 6, name: str = "weekly", shards: tuple[int, ...] = (0, 1), **spec: Any) -> Path:
    """A ledger in which the first windows of a query are published."""
    budget = spec.pop("budget", 1.0)
    with Store(address(path)) as store:
        held = store.register(domain(budget=budget), query(name, **spec))
        chosen = list(itertools.islice(held.query.schedule.windows(), windows))
        store.publish(held, drafts(held, chosen, shards))
    return path


def content(path: Path) -> Content:
    """All that a ledger holds, with names in place of row numbers."""
    with Store(address(path), create=False) as store, store._database().read() as connection:

        def rows(table: sa.Table) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(sa.select(table)).mappings()]

        domains = {row["id"]: row for row in rows(tables.domains)}
        queries = {row["id"]: row for row in rows(tables.queries)}
        rosters = {row["id"]: row["digest"] for row in rows(tables.rosters)}
        charges = {row["id"]: row["entry_id"] for row in rows(tables.charges)}

        def named(row: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
            found = {key: value for key, value in row.items() if key not in ("id", "sequence")}
            if "domain_id" in found:
                found["domain_id"] = domains[found["domain_id"]]["name"]
            if "query_id" in found:
                found["query_id"] = queries[found["query_id"]]["name"]
            if "roster_id" in found:
                found["roster_id"] = rosters[found["roster_id"]]
            if "charge_id" in found:
                found["charge_id"] = charges[found["charge_id"]]
            return tuple(sorted(found.items()))

        found: Content = {
            table.name: sorted(map(named, rows(table)), key=repr)
            for table in (
                *(tables.charges, tables.flagged_charges, tables.releases, tables.flagged_releases),
                *(tables.queries, tables.domain_events, tables.roster_versions),
            )
        }
        found["budgets"] = {row["name"]: (row["budget"], row["reserved_loss"]) for row in domains.values()}
        found["promised"] = {
            row["name"]: join_segments(
                (one["start"], None if one["stop"] is None else one["stop"] - 1)
                for one in rows(tables.reservations)
                if one["query_id"] == number
            )
            for number, row in queries.items()
        }
    with Store(address(path), create=False) as store:
        found["losses"] = {name: store.summary(name).loss for name in store.domains()}
    return found


def recomputed(path: Path, name: str = "homes") -> float:
    """The loss by the mathematics alone, from the entries of the account."""
    with Store(address(path), create=False) as store:
        entries = [entry for entry in store.entries(name) if entry.decision == "charged"]
    ledger = Ledger(BELIEF)
    return ledger.replay((entry.window_start, entry.window_stop, entry.epsilon_dp) for entry in entries)


def test_the_same_charge_in_two_copies_is_one(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=3)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    fill(copy, windows=5)
    both = content(united(tmp_path / "both.db", first, copy))
    assert both == content(copy)
    assert both != content(first)


def test_a_ledger_united_with_itself_is_itself(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=4)
    before = content(first)
    assert content(united(tmp_path / "once.db", first, first)) == before
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    assert content(united(tmp_path / "twice.db", first, copy)) == before
    with Store(address(tmp_path / "twice.db")) as store:
        assert (store.summary("homes").closed, store.summary("homes").flagged_charges) == (False, 0)


def test_a_window_charged_in_both_costs_twice_and_both_blocks_are_kept(tmp_path: Path) -> None:
    share = 0.25
    paths = [fill(tmp_path / f"{name}.db", windows=2, share=share) for name in "ab"]
    before = [path.read_bytes() for path in paths]
    both = united(tmp_path / "both.db", *paths)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db", "both.db"]
    with Store(address(both)) as store:
        said = store.summary("homes")
        assert (said.charged, said.flagged_charges, said.flagged_blocks, said.closed) == (2, 2, 4, False)
        assert said.naive == 4 * share
        assert said.loss == recomputed(both)
        held = store.registered("homes", "weekly")
        assert held is not None
        spans = [(w.start, w.stop, held.query.epsilon_dp) for w in list(held.query.schedule.windows())[:2]]
        assert said.loss == Ledger(BELIEF).replay([*spans, *spans]) > Ledger(BELIEF).replay(spans)
        assert len({entry.entry_id for entry in store.entries()}) == 4
        assert [entry.sequence for entry in store.entries()] == [1, 2, 3, 4]
        values = seen(store.records("homes", "weekly"))
        others = seen(store.flagged("homes", "weekly"))
        for path in paths:
            with Store(address(path)) as source:
                for place, row in seen(source.records("homes", "weekly")).items():
                    assert row in (values[place], others[place])
        assert values.keys() == others.keys()
        assert all(values[place] != others[place] for place in values)


def test_the_core_unites_the_accounts_to_the_same_loss(tmp_path: Path) -> None:
    paths = [fill(tmp_path / f"{name}.db", windows=n, share=0.25) for name, n in (("a", 2), ("b", 5))]
    accounts: list[Ledger] = []
    for path in paths:
        with Store(address(path)) as store:
            account = Ledger(BELIEF)
            for entry in store.entries():
                account.charge(entry.window_start, entry.window_stop, entry.epsilon_dp, entry_id=entry.entry_id)
            accounts.append(account)
    with Store(address(united(tmp_path / "both.db", *paths))) as store:
        assert store.summary("homes").loss == merged(*accounts).loss


def test_the_rows_of_a_united_ledger_are_those_that_were_published(tmp_path: Path) -> None:
    """Byte for byte, the loss that was printed into them included; a shard that only one of the two has is taken."""
    first = fill(tmp_path / "a.db", windows=3, shards=(0,), share=0.25)
    second = fill(tmp_path / "b.db", windows=3, shards=(1,), share=0.25)
    published = []
    for path in (first, second):
        with Store(address(path)) as store:
            published += [batch.to_pylist() for batch in store.releases("homes", "weekly")]
    with Store(address(united(tmp_path / "both.db", first, second))) as store:
        rows = [batch.to_pylist() for batch in store.releases("homes", "weekly")]
        assert sorted(rows, key=repr) == sorted(published, key=repr)
        held = store.registered("homes", "weekly")
        assert held is not None
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


def test_a_united_ledger_goes_on_where_the_longest_ended(tmp_path: Path) -> None:
    paths = [fill(tmp_path / f"{name}.db", windows=n, share=0.25) for name, n in (("a", 2), ("b", 3))]
    both = united(tmp_path / "both.db", *paths)
    with Store(address(both)) as store:
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
    paths = [fill(tmp_path / f"{name}.db", windows=3) for name in "ab"]
    both = united(tmp_path / "both.db", *paths)
    with Store(address(both)) as store:
        said = store.summary("homes")
        assert said.closed
        assert said.loss == recomputed(both) > said.budget == 1.0
        assert said.remaining == said.unreserved == 0.0
        held = store.register(domain(), query())
        windows = list(held.query.schedule.windows())
        refused = store.publish(held, [Draft(windows[-1], 0, never)])
        assert refused[0].block is None
        assert "closed" in refused[0].entry.rule
        assert refused[0].entry.loss_after >= refused[0].entry.loss_before > 1.0
        # what was published is published
        assert not any(record.fresh for record in store.publish(held, drafts(held, windows[:3])))
        with pytest.raises(BudgetRefused):
            store.register(domain(), query("another", share=0.01))
        assert store.summary("homes").loss == said.loss
    shown = CliRunner().invoke(main, ["ledger", "show", str(both)])
    assert shown.exit_code == 0
    assert "nothing is charged any more" in shown.output
    assert "3 charges and 6 blocks beside those of record" in shown.output


def test_a_budget_raised_above_the_loss_opens_the_domain_and_no_window_that_was_refused(tmp_path: Path) -> None:
    both = united(tmp_path / "both.db", *(fill(tmp_path / f"{name}.db", windows=3) for name in "ab"))
    with Store(address(both)) as store:
        held = store.registered("homes", "weekly")
        assert held is not None
        windows = list(held.query.schedule.windows())
        store.publish(held, [Draft(windows[3], 0, never)])
        assert not store.raise_budget("homes", 3.0).closed
        records = store.publish(held, drafts(held))
        assert [record.window for record in records if record.block is None] == [windows[3]] * 2
        assert store.summary("homes").loss == recomputed(both) <= 3.0
    again = content(united(tmp_path / "again.db", both, tmp_path / "a.db"))
    assert again == content(both)


def test_a_charge_of_other_content_under_one_id_is_kept_counted_and_flagged(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2, share=0.25)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    with Store(address(copy)) as store, store._database().write() as connection:
        changed = tables.charges.update().where(tables.charges.c.sequence == 1)
        connection.execute(changed.values(epsilon_dp=tables.charges.c.epsilon_dp * 2))
    both = united(tmp_path / "both.db", first, copy)
    with Store(address(both)) as store:
        said = store.summary("homes")
        assert (said.flagged_charges, said.flagged_blocks) == (1, 2)
        assert said.loss == recomputed(both) > store.entries()[0].loss_after
        first_id = store.entries()[0].entry_id
        assert store.entries()[1].entry_id.startswith(f"{first_id}~")
        # the one that its query paid for is of record, so the job goes on
        held = store.register(domain(), query(share=0.25))
        assert len(store.publish(held, drafts(held))) == 12
    with Store(address(copy)) as store, pytest.raises(ChargeMismatch):
        store.publish(held, drafts(held))
    assert content(united(tmp_path / "again.db", copy, united(tmp_path / "once.db", copy, first))) == content(
        united(tmp_path / "third.db", first, copy)
    )


def test_another_value_under_one_charge_is_kept_and_flagged(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    other = fill(tmp_path / "other.db", windows=2)
    with Store(address(other)) as store, store._database().read() as connection:
        blocks = connection.execute(sa.select(tables.releases.c.block).order_by(tables.releases.c.id)).scalars().all()
    with Store(address(copy)) as store, store._database().write() as connection:
        changed = tables.releases.update().where(tables.releases.c.id == 1)
        connection.execute(changed.values(block=blocks[0], created_us=tables.releases.c.created_us + 1))
    both = united(tmp_path / "both.db", copy, first)
    with Store(address(both)) as store, Store(address(first)) as of_record:
        said = store.summary("homes")
        assert (said.flagged_charges, said.flagged_blocks) == (0, 1)
        assert said.loss == of_record.summary("homes").loss
        # the earlier one is of record
        assert seen(store.records("homes", "weekly")) == seen(of_record.records("homes", "weekly"))
        with store._database().read() as connection:
            assert connection.scalars(sa.select(tables.flagged_releases.c.reason)).all() == ["conflict"]


def test_a_window_refused_in_one_and_charged_in_the_other_was_charged(tmp_path: Path) -> None:
    charging = tmp_path / "a.db"
    with Store(address(charging)) as store:
        held = store.register(domain(budget=0.5), query(size=4, windows=6))
        store.publish(held, drafts(held))
        charged = store.summary("homes").charged
    with Store(address(tmp_path / "cut.db")) as store:
        cut = store.register(domain(budget=0.5), query("first", size=4, windows=2))
        store.publish(cut, drafts(cut))
        held = store.register(domain(budget=0.5), query(size=4, windows=6))
        assert held.admitted_stop is not None
        store.publish(held, drafts(held))
        assert store.summary("homes").refused > 0
        assert store.summary("homes").charged < charged + 2
    paths = (charging, tmp_path / "cut.db")
    both = united(tmp_path / "both.db", *paths)
    with Store(address(both)) as store:
        said = store.summary("homes")
        assert said.charged == charged + 2
        assert said.loss == recomputed(both)
        assert said.closed == (said.loss > 0.5)
    assert content(both) == content(united(tmp_path / "turned.db", *paths[::-1]))


def test_budgets_raised_and_schedules_extended_in_one_hold_for_both(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2, share=0.25)
    second = fill(tmp_path / "b.db", windows=2, share=0.25)
    with Store(address(second)) as store:
        store.raise_budget("homes", 2.0)
        store.register(domain(budget=2.0), query(share=0.25, windows=9))
        store.note_history_lost("homes", releases=3)
    for number, order in enumerate(((first, second), (second, first))):
        with Store(address(united(tmp_path / f"{number}.db", *order))) as store:
            said = store.summary("homes")
            assert (said.budget, said.history_lost) == (2.0, True)
            assert [event[0] for event in said.events] == ["budget-raised", "schedule-extended", "history-lost"]
            held = store.registered("homes", "weekly")
            assert held is not None
            assert len(held.query.schedule) == 9
            assert held.admitted_stop is None
            # settings from before the raise still run
            assert store.register(domain(), query(share=0.25, windows=9)).domain.budget == 2.0


def test_what_is_promised_twice_is_promised_once_and_what_was_charged_twice_comes_on_top(tmp_path: Path) -> None:
    paths = [fill(tmp_path / f"{name}.db", windows=n, share=0.25) for name, n in (("a", 0), ("b", 0), ("c", 2))]
    with Store(address(paths[0])) as store:
        alone = store.summary("homes").reserved_loss
    with Store(address(united(tmp_path / "none.db", *paths))) as store:
        assert store.summary("homes").reserved_loss == alone
    fill(paths[0], windows=2, share=0.25)
    with Store(address(united(tmp_path / "two.db", *paths))) as store:
        held = store.registered("homes", "weekly")
        assert held is not None
        spans = [(window.start, window.stop, held.query.epsilon_dp) for window in held.query.schedule.windows()]
        expected = Ledger(BELIEF).replay([*spans, *spans[:2]])
        assert store.summary("homes").reserved_loss == pytest.approx(expected, rel=1e-12)


def test_an_endless_schedule_and_a_finite_one_are_endless(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=3, share=0.25)
    second = fill(tmp_path / "b.db", windows=1, share=0.25, schedule=Schedule(48, 48, 96, None, 96))
    with Store(address(united(tmp_path / "both.db", first, second))) as store:
        held = store.registered("homes", "weekly")
        assert held is not None
        assert held.query.schedule.stop is None
        assert held.admitted_stop is None
        assert store.summary("homes").reserved_loss <= 1


@pytest.mark.parametrize(
    ("field", "of_domain", "of_query"),
    [
        ("belief.gap", {"belief": {**BELIEF.to_dict(), "gap": 0.8}}, {}),
        ("slots.interval_us", {"grid": {"interval_us": 60_000_000, "origin_us": 0}}, {}),
        ("model_id", {"model_id": "model-2"}, {}),
        ("privacy.budget", {"budget": 2.0}, {}),
        ("readings.timezone", {"reading": {**domain().reading, "timezone": "Europe/London"}}, {}),
        ("scale", {}, {"scale": Fraction(1, 3)}),
        ("mechanism", {}, {"mechanism": "mqm-exact"}),
        ("windows.size", {}, {"schedule": Schedule(96, 48, 96, 384, 96)}),
        ("windows.start", {}, {"schedule": Schedule(48, 48, 144, 384, 96)}),
        ("release_epsilon_dp", {}, {"release_epsilon_dp": 0.25e-3}),
        ("roster", {}, {"roster": Roster.of(SERIES[:-1])}),
        ("shards", {}, {"shards": 3}),
        ("given_model", {}, {"given_model": True}),
        ("header.epsilon", {}, {"header": {**query().header, "epsilon": 2.0}}),
    ],
)
def test_other_content_under_one_name_is_refused_naming_the_field(
    tmp_path: Path, field: str, of_domain: dict[str, Any], of_query: dict[str, Any]
) -> None:
    for path, changes in ((tmp_path / "a.db", ({}, {})), (tmp_path / "b.db", (of_domain, of_query))):
        with Store(address(path)) as store:
            store.register(domain(**changes[0]), query(**changes[1]))
    for order in (("a", "b"), ("b", "a")):
        with pytest.raises(MergeConflict) as caught:
            united(tmp_path / "both.db", *(tmp_path / f"{name}.db" for name in order))
        assert caught.value.field == field
        assert all(f"{tmp_path}/{name}.db" in str(caught.value) for name in order)
        assert not any(f"'{name}'" in str(caught.value) for name in SERIES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db"]


def test_a_roster_changed_in_one_holds_for_both_unless_the_other_went_on_with_the_old_one(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2)
    second = Path(shutil.copy(first, tmp_path / "b.db"))
    third = Path(shutil.copy(first, tmp_path / "c.db"))
    fourth = Path(shutil.copy(first, tmp_path / "d.db"))
    fill(second, windows=4, roster=Roster.of(["m1", "m2", "m9"]))
    for number, order in enumerate(((first, second), (second, first))):
        both = united(tmp_path / f"{number}.db", *order)
        assert content(both) == content(second)
        with Store(address(both)) as store, Store(address(second)) as other:
            assert replace_fresh(store.registered("homes", "weekly")) == replace_fresh(
                other.registered("homes", "weekly")
            )
            held = store.registered("homes", "weekly")
            assert held is not None
            assert len(store.publish(held, drafts(held, list(held.query.schedule.windows())[:2]))) == 4
    with Store(address(third)) as store:
        store.register(domain(), query(roster=Roster.of(["m1", "m7"])))
    with pytest.raises(MergeConflict, match="roster is '2 series"):
        united(tmp_path / "no.db", third, second)
    fill(fourth, windows=5)
    with pytest.raises(StoreError, match="a roster that another had changed"):
        united(tmp_path / "no.db", fourth, second)
    assert not (tmp_path / "no.db").exists()


def replace_fresh(held: Registration | None) -> Registration | None:
    return None if held is None else replace(held, fresh=False)


def test_domains_and_queries_that_only_one_has_are_taken_as_they_are(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2, share=0.25)
    with Store(address(tmp_path / "b.db")) as store:
        for held in (
            store.register(domain(), query("other", share=0.25)),
            store.register(domain("flats"), query(domain="flats")),
        ):
            store.publish(held, drafts(held))
    both = united(tmp_path / "both.db", first, tmp_path / "b.db")
    with Store(address(both)) as store:
        assert sorted(store.queries()) == [("flats", "weekly"), ("homes", "other"), ("homes", "weekly")]
        assert store.summary("homes").loss == recomputed(both)
        assert store.summary("flats").loss == recomputed(both, "flats")
        assert store.summary("homes").flagged_charges == 0


def test_noise_free_rows_and_real_rows_are_never_united(tmp_path: Path) -> None:
    first, second = fill(tmp_path / "a.db"), fill(tmp_path / "b.db", mechanism="none")
    with pytest.raises(ModeError, match="never united"):
        united(tmp_path / "both.db", first, second)


def test_a_file_that_exists_and_a_ledger_that_is_not_there_or_damaged_stop_a_merge(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db")
    with pytest.raises(ExportError, match="never replaces"):
        united(first, first, first)
    with pytest.raises(StoreMissing):
        united(tmp_path / "both.db", first, tmp_path / "none.db")
    (tmp_path / "broken.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreDamaged):
        united(tmp_path / "both.db", first, tmp_path / "broken.db")
    with pytest.raises(ExportError, match="cannot be written"):
        united(tmp_path / "a.db" / "both.db", first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "broken.db"]


def test_an_error_while_writing_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fill(tmp_path / "a.db")

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("quiltstream.store.merged.NewLedger.finish", broken)
    with pytest.raises(ZeroDivisionError):
        united(tmp_path / "both.db", first, first)
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def older(path: Path) -> None:
    """Make a ledger one of version 0001."""
    with Store(address(path)) as store, store._database().write() as connection:
        for table in (tables.flagged_charges, tables.flagged_releases, tables.roster_versions):
            table.drop(connection)
        for table, column in (("domains", "merged_loss"), ("domains", "changes"), ("queries", "belief")):
            connection.exec_driver_sql(f"ALTER TABLE quiltstream_{table} DROP COLUMN {column}")
        connection.exec_driver_sql("ALTER TABLE quiltstream_queries DROP COLUMN successor")
        connection.exec_driver_sql("ALTER TABLE quiltstream_releases DROP COLUMN paid_by")
        connection.execute(schema._version.update().values(version_num="0001"))


def test_a_ledger_of_an_older_version_is_migrated_first_and_keeps_everything(tmp_path: Path) -> None:
    path = fill(tmp_path / "a.db", windows=3)
    before = content(path)
    older(path)
    with pytest.raises(SchemaVersionError, match="ledger migrate"):
        united(tmp_path / "both.db", path, path)
    with Store(address(path)) as store:
        store.migrate()
    assert content(path) == before
    with Store(address(path)) as store:
        held = store.register(domain(), query())
        assert [record.fresh for record in store.publish(held, drafts(held))] == [False] * 6 + [True] * 6


def test_the_command_unites_ledgers_and_says_what_became_of_each_domain(tmp_path: Path) -> None:
    first, second = fill(tmp_path / "a.db", windows=3), fill(tmp_path / "b.db", windows=3)
    run: Callable[..., Any] = CliRunner().invoke
    target = tmp_path / "new" / "both.db"
    done = run(main, ["ledger", "merge", str(first), address(second), "-o", str(target)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "2 ledgers in one" in said
    assert "flagged: 3 charges, 6 blocks; closed" in said
    assert "quiltstream ledger budget" in said
    assert run(main, ["ledger", "merge", str(first), str(second), "-o", str(target)]).exit_code == 4
    assert run(main, ["ledger", "merge", str(first), "-o", str(tmp_path / "c.db")]).exit_code == 2
    assert run(main, ["ledger", "merge", str(first), "none.db", "-o", str(tmp_path / "c.db")]).exit_code == 2
    assert run(main, ["ledger", "merge", str(first), str(second), "-o", str(tmp_path / "c.yaml")]).exit_code == 2
    with Store(address(tmp_path / "d.db")) as store:
        store.register(domain(), query(shards=7))
    done = run(main, ["ledger", "merge", str(first), str(tmp_path / "d.db"), "-o", str(tmp_path / "c.db")])
    assert done.exit_code == 4
    assert "shards is 2" in " ".join(done.output.split())


# Algebra

LEDGERS = st.lists(
    st.tuples(
        st.sampled_from([None, 0]),  # begun anew, or a copy of the first
        st.lists(
            st.tuples(st.sampled_from(["weekly", "other"]), st.integers(0, 4), st.sampled_from([(0,), (1,), (0, 1)])),
            min_size=1,
            max_size=2,
        ),
        st.sampled_from([None, 1.5]),  # a raised budget
    ),
    min_size=3,
    max_size=3,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return (tmp_path_factory.mktemp("merge") for _ in itertools.count())


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LEDGERS)
def test_merging_is_associative_commutative_and_idempotent(folders: Iterator[Path], scripts: Any) -> None:
    folder = next(folders)
    paths: list[Path] = []
    for number, (copied, steps, raised) in enumerate(scripts):
        path = folder / f"{number}.db"
        if copied is not None and paths:
            shutil.copy(paths[copied], path)
        for name, windows, shards in steps:
            fill(path, windows=windows, name=name, shards=shards, share=0.3)
        if raised is not None:
            with Store(address(path)) as store:
                if store.summary("homes").budget < raised:
                    store.raise_budget("homes", raised)
        paths.append(path)
    counter = itertools.count()

    def joined(*sources: Path) -> Path:
        return united(folder / f"m{next(counter)}.db", *sources)

    a, b, c = paths
    ab, bc = joined(a, b), joined(b, c)
    everything = content(joined(a, b, c))
    assert content(joined(b, a)) == content(ab)
    assert content(joined(ab, c)) == content(joined(a, bc)) == content(joined(c, ab)) == everything
    assert content(joined(ab, ab, a)) == content(ab)
    assert content(joined(ab, bc)) == everything
    assert content(joined(a)) == content(a)
    final = joined(ab, c)
    with Store(address(final)) as store:
        assert store.summary("homes").loss == recomputed(final)
        assert store.summary("homes").closed == (recomputed(final) > store.summary("homes").budget)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=8))
def test_every_window_has_one_charge_of_record_and_every_charge_a_name_of_its_own(
    drawn: list[tuple[int, int, int, bool]],
) -> None:
    charges = [
        Charge(
            *(f"id{base}", "homes", "weekly", start, start + 1, "refused" if refused else "charged"),
            *("digest", "roster", "1/2", 0.1, 0.0, 0.1, 1.0, "rule", created),
        )
        for base, start, created, refused in drawn
    ]
    kept = place_charges(charges, lambda _: True)
    assert set(kept) == set(charges)
    assert kept == place_charges(list(kept)[::-1], lambda _: True)
    assert len({one.name for one in kept.values()}) == len(kept)
    for start in {charge.window_start for charge in charges}:
        of_window = [charge for charge in kept if charge.window_start == start]
        (record,) = [charge for charge in of_window if kept[charge].reason is None]
        assert record.decision == min(charge.decision for charge in of_window)
