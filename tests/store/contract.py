"""What every ledger of record promises; the tests of each engine inherit all of it."""

from __future__ import annotations

import datetime as dt
import json
import logging
import pickle
import re
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from quiltstream.privacy.ledger import Ledger
from quiltstream.schemas.ledger import LEDGER_SCHEMA, LedgerEntry
from quiltstream.schemas.releases import RELEASE_SCHEMA, releases_from_batch
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.rowfiles import RELEASES, read_rows
from quiltstream.schemas.slots import Schedule, Window
from quiltstream.store import (
    Block,
    BudgetRefused,
    ChargeMismatch,
    Draft,
    DraftError,
    ModeError,
    RegistrationConflict,
    SchemaVersionError,
    Store,
    StoreBusy,
    StoreError,
    StoreMissing,
    UnknownNameError,
    charging,
    rows_of,
    schema,
    tables,
)
from quiltstream.store.specs import Registration

from .engines import OnLedger
from .nursery import Nursery
from .samples import BELIEF, SERIES, SPACE, block, domain, drafts, query, seen


def never() -> Block:
    raise AssertionError("a block is on record, so nothing may be drawn")


def replayed(registration: Registration) -> list[Draft]:
    return [replace(draft, draw=never) for draft in drafts(registration)]


def windows_of(registration: Registration) -> list[Window]:
    return list(registration.query.schedule.windows())


def partial(**changes: Any) -> Any:
    """A query of short windows of which a budget of 0.5 admits only the first few."""
    return query(size=4, windows=12, **changes)


def prices(entries: list[LedgerEntry], budget: float) -> None:
    """Every loss on record is what the mathematics alone says, and none is above the budget."""
    ledger = Ledger(BELIEF)
    for number, entry in enumerate(entries, start=1):
        assert entry.sequence == number
        assert entry.loss_before == ledger.loss
        if entry.decision == "charged":
            made = ledger.charge(entry.window_start, entry.window_stop, entry.epsilon_dp)
            assert entry.loss_after == made.loss_after <= budget
        else:
            assert entry.loss_after > entry.budget >= entry.loss_before
    assert len({entry.entry_id for entry in entries}) == len(entries)


class StoreContract(OnLedger):
    """Inherit it together with an engine."""

    @pytest.fixture
    def registration(self, store: Store) -> Registration:
        return store.register(domain(), query())

    # Registration

    def test_a_query_is_registered_once_and_says_the_same_to_everyone(self, store: Store, url: str) -> None:
        first = store.register(domain(), query())
        again = store.register(domain(), query())
        with Store(url) as other:
            elsewhere = other.registered("homes", "weekly")
        assert first.fresh
        assert not again.fresh
        assert replace(first, fresh=False) == again == elsewhere
        assert first.digest == query().digest(domain())
        assert first.admitted_stop is None
        assert 1 - 1e-9 < first.reserved_loss <= 1

    def test_an_unknown_name_is_not_registered(self, store: Store, registration: Registration) -> None:
        assert store.registered("homes", "other") is None
        assert store.registered("other", "weekly") is None
        with pytest.raises(UnknownNameError, match="it has homes"):
            store.summary("other")
        with pytest.raises(UnknownNameError):
            list(store.releases("homes", "other"))
        assert registration.fresh

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("slots.interval_us", {"grid": {"interval_us": 60_000_000, "origin_us": 0}}),
            ("slots.origin_us", {"grid": {"interval_us": 1_800_000_000, "origin_us": 1}}),
            ("states.edges", {"states": {**SPACE.to_dict(), "edges": [250.0, 501.0]}}),
            ("states.unit", {"states": {**SPACE.to_dict(), "unit": "kW"}}),
            ("belief.gap", {"belief": {**BELIEF.to_dict(), "gap": 0.5}}),
            ("model_id", {"model_id": "model-2"}),
            ("guarantee", {"guarantee": "window"}),
            ("missing", {"missing": "state"}),
            ("privacy.budget", {"budget": 2.0}),
            ("readings.timezone", {"reading": {**domain().reading, "timezone": "Europe/London"}}),
            ("readings.scale", {"reading": {**domain().reading, "scale": 1000.0}}),
            ("readings.value", {"reading": {**domain().reading, "value": "gas"}}),
        ],
    )
    def test_another_domain_of_the_same_name_is_refused_naming_the_field(
        self, store: Store, registration: Registration, field: str, changes: dict[str, Any]
    ) -> None:
        for name in ("weekly", "a new one"):
            with pytest.raises(RegistrationConflict) as caught:
                store.register(domain(**changes), query(name))
            assert caught.value.field == field
            assert repr(caught.value.recorded)[:20] in str(caught.value)
            assert repr(caught.value.given)[:20] in str(caught.value)
        assert store.registered("homes", "weekly") == replace(registration, fresh=False)
        assert store.registered("homes", "a new one") is None

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("scale", {"scale": Fraction(1, 3)}),
            ("release_epsilon_dp", {"release_epsilon_dp": 0.25}),
            ("mechanism", {"mechanism": "mqm-exact"}),
            ("windows.size", {"schedule": Schedule(96, 48, 96, 384, 96)}),
            ("windows.every", {"schedule": Schedule(48, 24, 96, 384, 96)}),
            ("windows.start", {"schedule": Schedule(48, 48, 48, 384, 48)}),
            ("windows.start", {"schedule": Schedule(48, 48, 97, 385, 97)}),
            ("windows.stop", {"schedule": Schedule(48, 48, 96, 336, 96)}),
            ("key_kind", {"roster": Roster(tuple((name, "feeder") for name in SERIES))}),
            ("given_model", {"given_model": True}),
        ],
    )
    def test_another_query_of_the_same_name_is_refused_naming_the_field(
        self, store: Store, registration: Registration, field: str, changes: dict[str, Any]
    ) -> None:
        with pytest.raises(RegistrationConflict, match="weekly") as caught:
            store.register(domain(), query(**changes))
        assert caught.value.field == field
        assert "new query name" in str(caught.value)
        assert not any(name in str(caught.value) for name in SERIES)
        assert store.registered("homes", "weekly") == replace(registration, fresh=False)

    def test_ends_and_roster_that_the_data_gave_are_those_of_the_first_time(
        self, store: Store, registration: Registration
    ) -> None:
        later = query(windows=9, roster=Roster.of(["m1", "m9"]), schedule_given=False, roster_given=False)
        assert store.register(domain(), later) == replace(registration, fresh=False)

    def test_shards_and_header_are_those_of_the_first_time(self, store: Store, registration: Registration) -> None:
        again = store.register(domain(), query(shards=7, header={"epsilon": 1.0}))
        assert again == replace(registration, fresh=False)

    def test_an_end_between_two_windows_is_no_other_schedule(self, store: Store, registration: Registration) -> None:
        same = Schedule(48, 48, 96, 96 + 6 * 48 + 47, 96)
        assert store.register(domain(), query(schedule=same)) == replace(registration, fresh=False)

    def test_a_later_end_extends_the_schedule_if_budget_can_be_reserved(
        self, store: Store, registration: Registration
    ) -> None:
        store.publish(registration, drafts(registration))
        longer = store.register(domain(), query(windows=9))
        assert len(longer.query.schedule) == 9
        assert longer.digest == registration.digest
        records = store.publish(longer, drafts(longer))
        assert [record.fresh for record in records] == [False] * 12 + [True] * 6
        # a worker that still has the first registration goes on
        assert not any(record.fresh for record in store.publish(registration, replayed(registration)))
        prices(store.entries(), 1.0)
        endless = store.register(domain(), query(schedule=Schedule(48, 48, 96, None, 96)))
        assert endless.admitted_stop is None
        assert store.publish(endless, drafts(endless, [Window(960, 1008)]))[0].fresh
        assert [event[:2] for event in store.summary("homes").events] == [("schedule-extended", "weekly")] * 2

    def test_an_extension_that_does_not_fit_changes_nothing(self, store: Store) -> None:
        short = query(size=4, windows=1)
        first = store.register(domain(budget=0.2), short)
        with pytest.raises(BudgetRefused, match="extending query 'weekly'"):
            store.register(domain(budget=0.2), query(size=4, windows=8))
        assert store.registered("homes", "weekly") == replace(first, fresh=False)
        cut = store.register(domain("cut", budget=0.5), partial(domain="cut"))
        assert cut.admitted_stop is not None
        with pytest.raises(RegistrationConflict, match=r"windows\.stop"):
            store.register(domain("cut", budget=0.5), query(domain="cut", size=4, windows=13))

    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ((domain(budget=float("nan")), query()), "budget"),
            ((domain(), query(release_epsilon_dp=0.0)), "release_epsilon_dp"),
            ((domain(), query(shards=0)), "shards"),
            ((domain(), query(domain="elsewhere")), "elsewhere"),
            ((domain(""), query(domain="")), "name"),
            ((domain(), query(schedule=Schedule(48, 48, None, None))), r"windows\.start"),
            ((domain(), query(schedule=Schedule(48, 48, 0, 2**62))), r"windows\.stop"),
            ((domain(belief={"kind": "a guess"}), query()), "a guess"),
        ],
    )
    def test_a_malformed_specification_leaves_nothing_behind(self, store: Store, wrong: Any, text: str) -> None:
        with pytest.raises(StoreError, match=text):
            store.register(*wrong)
        assert store.domains() == ()
        assert store.register(domain(), query()).fresh

    def test_noise_free_rows_and_real_rows_never_share_a_store(self, fresh_urls: Iterator[str]) -> None:
        for first, second in (("mqm-approx", "none"), ("none", "mqm-approx")):
            with Store(next(fresh_urls)) as store:
                store.register(domain(), query(mechanism=first))
                with pytest.raises(ModeError, match="another ledger"):
                    store.register(domain("other"), query(domain="other", mechanism=second))
                assert store.domains() == ("homes",)

    # Publishing

    def test_the_first_write_wins_and_a_second_attempt_draws_nothing(
        self, store: Store, url: str, registration: Registration
    ) -> None:
        first = store.publish(registration, drafts(registration))
        assert all(record.fresh for record in first)
        again = store.publish(registration, replayed(registration))
        with Store(url) as other:
            elsewhere = other.publish(pickle.loads(pickle.dumps(registration)), replayed(registration))
        assert not any(record.fresh for record in (*again, *elsewhere))
        assert seen(first) == seen(again) == seen(elsewhere)
        assert [rows_of(registration, a).equals(rows_of(registration, b)) for a, b in zip(first, again, strict=True)]
        assert len(store.entries()) == 6

    def test_of_two_drafts_of_one_place_in_a_batch_one_is_drawn(self, store: Store, registration: Registration) -> None:
        window = windows_of(registration)[0]
        first, second = drafts(registration, [window, window], [1])
        records = store.publish(registration, [first, replace(second, draw=never)])
        assert [record.fresh for record in records] == [True, False]
        assert seen(records[:1]) == seen(records[1:])

    def test_any_count_can_be_written_and_read_back(self, store: Store, registration: Registration) -> None:
        window = windows_of(registration)[0]
        limits = np.iinfo(np.int64)
        base = block(registration, 0)
        counts = np.full_like(base.counts, limits.max)
        counts[0] = limits.min
        record = store.publish(registration, [Draft(window, 0, lambda: replace(base, counts=counts))])[0]
        assert record.block is not None
        assert np.array_equal(record.block.counts, counts)
        (read,) = store.records("homes", "weekly")
        assert read.block is not None
        assert np.array_equal(read.block.counts, counts)
        assert read.block.keys == base.keys

    def test_totals_that_are_not_public_never_reach_the_store(self, store: Store) -> None:
        held = store.register(domain(missing="unheard of"), query())
        store.publish(held, drafts(held))
        for record in store.records("homes", "weekly"):
            assert record.block is not None
            assert not record.block.totals.any()
        assert {row["total"] for batch in store.releases("homes", "weekly") for row in batch.to_pylist()} == {None}

    def test_windows_are_charged_in_the_order_of_the_schedule_whatever_arrives_first(
        self, fresh_urls: Iterator[str]
    ) -> None:
        orders = ([5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5], [3, 5, 0, 1, 4, 2])
        found: list[list[dict[str, Any]]] = []
        for order in orders:
            with Store(next(fresh_urls)) as store:
                held = store.register(domain(), query())
                for index in order:
                    store.publish(held, drafts(held, [windows_of(held)[index]], [index % 2]))
                entries = store.entries()
                prices(entries, 1.0)
                found.append([{**entry.to_dict(), "entry_id": ""} for entry in entries])
        assert found[0] == found[1] == found[2]
        assert [entry["window_start"] for entry in found[0]] == [96 + 48 * n for n in range(6)]

    def test_many_earlier_windows_are_charged_in_several_transactions(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(charging, "MOST_AT_ONCE", 3)
        held = store.register(domain(), query(windows=8))
        store.publish(held, drafts(held, [windows_of(held)[-1]], [0]))
        assert [entry.window_start for entry in store.entries()] == [w.start for w in windows_of(held)]
        prices(store.entries(), 1.0)

    def test_sliding_windows_and_groups_are_charged_for_what_they_share(self, store: Store) -> None:
        roster = Roster(tuple((name, group) for name in SERIES for group in ("north", "all")))
        spec = query(size=48, every=12, windows=10, share=1 / 8, roster=roster)
        held = store.register(domain(), spec)
        assert held.query.epsilon_dp == 2 * spec.release_epsilon_dp
        store.publish(held, drafts(held))
        prices(store.entries(), 1.0)
        assert store.entries()[-1].loss_after == held.reserved_loss

    def test_an_endless_schedule_is_reserved_for_ever_and_charged_as_it_comes(self, store: Store) -> None:
        held = store.register(domain(), query(schedule=Schedule(48, 48, 96, None, 96)))
        assert held.admitted_stop is None
        assert held.reserved_loss <= 1
        records = store.publish(held, drafts(held, [Window(96 + 480, 96 + 528)], [0]))
        assert records[0].entry.sequence == 11
        prices(store.entries(), 1.0)
        assert store.registered("homes", "weekly") == replace(held, fresh=False)

    @pytest.mark.parametrize(
        "draft",
        [
            Draft(Window(97, 145), 0, never),
            Draft(Window(96, 192), 0, never),
            Draft(Window(48, 96), 0, never),
            Draft(Window(384, 432), 0, never),
            Draft(Window(96, 144), 2, never),
            Draft(Window(96, 144), -1, never),
        ],
    )
    def test_a_draft_of_another_window_or_shard_is_refused_before_anything_is_charged(
        self, store: Store, registration: Registration, draft: Draft
    ) -> None:
        with pytest.raises(DraftError):
            store.publish(registration, [draft])
        assert store.entries() == []

    def test_a_block_of_other_keys_or_another_shape_is_refused_and_charges_nothing(
        self, store: Store, registration: Registration
    ) -> None:
        window, good = windows_of(registration)[0], block(registration, 0)
        wrong = [
            replace(good, keys=good.keys[::-1]),
            replace(good, counts=good.counts[:, :-1]),
            replace(good, counts=good.counts.astype(np.float64)),
            replace(good, totals=good.totals[:-1]),
            replace(good, completeness="mostly"),
        ]
        for one in wrong:
            with pytest.raises(DraftError):
                store.publish(registration, [Draft(window, 0, lambda one=one: one)])
        assert store.entries() == []

    def test_an_error_while_drawing_undoes_the_charge_and_what_was_remembered_of_it(
        self, store: Store, registration: Registration
    ) -> None:
        windows = windows_of(registration)
        store.publish(registration, drafts(registration, windows[:1]))

        def broken() -> Block:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.publish(registration, [*drafts(registration, windows[1:3]), Draft(windows[3], 0, broken)])
        assert len(store.entries()) == 1
        store.publish(registration, drafts(registration, windows[1:]))
        prices(store.entries(), 1.0)

    def test_a_draw_that_uses_the_store_is_told_so(self, store: Store, registration: Registration) -> None:
        def nosy() -> Block:
            store.entries()
            return block(registration, 0)

        with pytest.raises(StoreError, match="must not use the store"):
            store.publish(registration, [Draft(windows_of(registration)[0], 0, nosy)])
        assert store.entries() == []

    @pytest.mark.parametrize(
        "changes",
        [
            {"digest": "another"},
            {"query": query(scale=Fraction(1, 7))},
            {"query": query(shards=3)},
            {"query": query(roster=Roster.of(["m1"]))},
            {"query": query(windows=7)},
        ],
    )
    def test_a_registration_that_is_not_the_one_on_record_stops_the_job(
        self, store: Store, registration: Registration, changes: dict[str, Any]
    ) -> None:
        forged = replace(registration, **changes)
        with pytest.raises(ChargeMismatch, match="stop the job"):
            store.publish(forged, [Draft(Window(96, 144), 0, never)])
        assert store.entries() == []

    @pytest.mark.parametrize(("column", "value"), [("scale", "1/7"), ("query_digest", "another"), ("epsilon_dp", 0.5)])
    def test_a_charge_of_other_noise_stops_the_job(
        self, store: Store, registration: Registration, column: str, value: Any
    ) -> None:
        store.publish(registration, drafts(registration, shards=[0]))
        with store._database().write() as connection:
            connection.execute(tables.charges.update().values({column: value}))
        with pytest.raises(ChargeMismatch, match=re.escape(repr(value))):
            store.publish(registration, [Draft(Window(96, 144), 1, never)])

    def test_a_query_of_another_store_is_not_published(
        self, registration: Registration, fresh_urls: Iterator[str]
    ) -> None:
        with Store(next(fresh_urls)) as other, pytest.raises(UnknownNameError, match="older copy"):
            other.publish(registration, [Draft(Window(96, 144), 0, never)])

    # Budget

    def test_windows_beyond_the_reserved_budget_are_refused_for_all_shards_and_for_ever(self, store: Store) -> None:
        held = store.register(domain(budget=0.5), partial())
        assert held.admitted_stop is not None
        admitted = [w for w in windows_of(held) if w.stop <= held.admitted_stop]
        assert 0 < len(admitted) < 12
        last = windows_of(held)[-1]
        (refused,) = store.publish(held, [Draft(last, 1, never)])
        assert refused.block is None
        assert refused.entry.decision == "refused"
        assert refused.entry.loss_before <= 0.5 < refused.entry.loss_after
        assert refused.entry.budget == 0.5
        records = store.publish(held, drafts(held))
        assert [record.block is not None for record in records] == [
            w in admitted for w in windows_of(held) for _ in "ab"
        ]
        assert records[-1].entry == refused.entry
        prices(store.entries(), 0.5)
        assert store.summary("homes").refused == 12 - len(admitted)
        assert list(store.missing(held)) == []

    def test_which_windows_are_refused_does_not_depend_on_which_query_comes_first(
        self, fresh_urls: Iterator[str]
    ) -> None:
        decided: list[dict[tuple[str, int], str]] = []
        for order in (("first", "second"), ("second", "first")):
            with Store(next(fresh_urls)) as store:
                held = {
                    "first": store.register(domain(budget=0.6), query("first", size=4, windows=2)),
                    "second": store.register(domain(budget=0.6), partial(name="second")),
                }
                assert held["first"].admitted_stop is None
                assert held["second"].admitted_stop is not None
                for name in order:
                    store.publish(held[name], drafts(held[name]))
                prices(store.entries(), 0.6)
                decided.append({(entry.query, entry.window_start): entry.decision for entry in store.entries()})
        assert decided[0] == decided[1]
        assert set(decided[0].values()) == {"charged", "refused"}

    def test_a_query_that_does_not_fit_at_all_is_refused_with_the_numbers_and_not_recorded(self, store: Store) -> None:
        held = store.register(domain(), query())
        with pytest.raises(BudgetRefused, match="the first window of query 'more'") as caught:
            store.register(domain(), query("more"))
        error = caught.value
        assert (error.reserved, error.budget) == (held.reserved_loss, 1.0)
        assert error.asked > error.remaining == 1.0 - held.reserved_loss
        assert store.queries() == [("homes", "weekly")]
        with pytest.raises(BudgetRefused):
            store.register(domain("poor", budget=1e-3), query(domain="poor"))
        assert store.domains() == ("homes",)

    def test_the_budget_is_enforced_again_when_a_window_is_charged(self, store: Store) -> None:
        held = store.register(domain(budget=0.5), partial())
        with store._database().write() as connection:
            connection.execute(tables.reservations.update().values(stop=None))
        store.publish(held, drafts(held))
        entries = store.entries()
        assert entries[-1].decision == "refused"
        assert "pass the budget" in entries[-1].rule
        prices(entries, 0.5)

    def test_the_database_itself_refuses_a_charge_above_its_budget(
        self, store: Store, registration: Registration
    ) -> None:
        store.publish(registration, drafts(registration, shards=[0]))
        with pytest.raises(StoreError), store._database().write() as connection:
            connection.execute(tables.charges.update().values(loss_after=1.5))
        prices(store.entries(), 1.0)

    def test_a_raised_budget_admits_later_windows_and_reopens_none(self, store: Store) -> None:
        held = store.register(domain(budget=0.5), partial())
        windows, stop = windows_of(held), held.admitted_stop
        assert stop is not None
        admitted = sum(w.stop <= stop for w in windows)
        refused = windows[admitted]
        store.publish(held, [Draft(refused, 0, never)])
        for wrong in (0.5, 0.1, float("inf"), float("nan")):
            with pytest.raises(StoreError, match="can only be raised"):
                store.raise_budget("homes", wrong)
        summary = store.raise_budget("homes", 1.0)
        assert (summary.budget, summary.events[0][:4]) == (1.0, ("budget-raised", None, "0.5", "1.0"))
        later = store.registered("homes", "weekly")
        assert later is not None
        assert later.admitted_stop is None
        records = {record.window: record for record in store.publish(later, drafts(later, shards=[0]))}
        assert records[refused].block is None
        assert [w for w, record in records.items() if record.block is None] == [refused]
        prices(store.entries(), 1.0)
        assert store.summary("homes").loss == later.reserved_loss
        # settings that are older than the raise still run; a third number does not
        assert store.register(domain(budget=0.5), partial()).domain.budget == 1.0
        assert store.register(domain(budget=1.0), partial()).domain.budget == 1.0
        with pytest.raises(RegistrationConflict, match=r"privacy\.budget"):
            store.register(domain(budget=0.7), partial())

    def test_a_raise_before_any_refusal_admits_the_next_windows(self, store: Store, url: str) -> None:
        held = store.register(domain(budget=0.5), partial())
        store.publish(held, drafts(held, windows_of(held)[:1]))
        with Store(url) as other:
            other.raise_budget("homes", 1.0)
        records = store.publish(held, drafts(held))
        assert all(record.block is not None for record in records)
        prices(store.entries(), 1.0)

    # Reading

    def test_missing_blocks_are_those_of_the_schedule_without_a_record(self, store: Store) -> None:
        held = store.register(domain(), query(shards=16))
        occupied = sorted({s for s in range(16) if held.query.roster.shard_keys(s, 16)})
        everything = [(w, s) for w in windows_of(held) for s in occupied]
        assert list(store.missing(held)) == everything
        store.publish(held, drafts(held, windows_of(held)[2:3], occupied[:1]))
        assert list(store.missing(held)) == [p for p in everything if p != (windows_of(held)[2], occupied[0])]
        store.publish(held, drafts(held, shards=occupied))
        assert list(store.missing(held)) == []

    def test_the_rows_come_back_as_they_were_published(
        self, store: Store, registration: Registration, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("quiltstream.store.reading.PAGE", 3)
        records = store.publish(registration, drafts(registration)[::-1])
        published = {(r.window, r.shard): rows_of(registration, r) for r in records}
        assert [batch.to_pylist() for batch in store.releases("homes", "weekly")] == [
            published[place].to_pylist() for place in sorted(published)
        ]
        row = releases_from_batch(published[Window(96, 144), 0])[0]
        entry = store.entries()[0]
        assert row.key in SERIES
        assert (row.loss_before, row.loss_after) == (0.0, entry.loss_after)
        assert (row.window_start, row.window_stop) == (96 * 1_800_000_000, 144 * 1_800_000_000)
        assert (row.quilt, row.half_width_95, row.completeness, row.members) == ((15, 13), 190, "live", 1)
        assert row.total == 48
        assert row.estimate is not None
        assert sum(row.estimate) == pytest.approx(48)

    def test_the_summary_says_what_was_lost_and_what_adding_up_would_say(
        self, store: Store, registration: Registration
    ) -> None:
        before = store.summary("homes")
        assert (before.loss, before.charged, before.naive, before.remaining) == (0.0, 0, 0.0, 1.0)
        store.publish(registration, drafts(registration, windows_of(registration)[:3]))
        summary = store.summary("homes")
        assert summary.loss == store.entries()[-1].loss_after
        assert (summary.charged, summary.refused, summary.naive) == (3, 0, 3.0)
        assert summary.reserved_loss == registration.reserved_loss
        (one,) = summary.queries
        assert (one.windows, one.charged, one.blocks, one.epsilon) == (6, 3, 6, 1.0)

    @pytest.mark.parametrize("suffix", ["parquet", "avro", "jsonl"])
    def test_exports_hold_the_public_columns_and_come_back(
        self, store: Store, registration: Registration, tmp_path: Path, suffix: str
    ) -> None:
        store.publish(registration, drafts(registration))
        ledger, rows = tmp_path / f"new/ledger.{suffix}", tmp_path / f"rows.{suffix}"
        assert store.export(ledger) == 6
        assert store.export(rows, "releases") == 30
        assert [LedgerEntry.from_dict(row) for row in _read(ledger)] == store.entries()
        assert list(_read(ledger)[0]) == LEDGER_SCHEMA.names
        expected = [r for batch in store.releases("homes", "weekly") for r in releases_from_batch(batch)]
        expected.sort(key=lambda row: (row.window_start, row.window_stop, row.key))
        table = read_rows(rows, RELEASES)
        assert table.schema.metadata == RELEASE_SCHEMA.metadata
        assert releases_from_batch(table) == expected
        assert [p.name for p in (tmp_path / "new").iterdir()] == [ledger.name]
        assert store.export(rows, "releases", query="other") == 0

    def test_an_export_of_an_unknown_format_is_refused(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=r"\.parquet, \.avro or \.jsonl"):
            store.export(tmp_path / "ledger.xlsx")
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match="cannot be written"):
            store.export(tmp_path / "file" / "ledger.avro")

    def test_a_store_knows_its_releases_and_no_others(self, store: Store, registration: Registration) -> None:
        store.publish(registration, drafts(registration))
        ids = [i for batch in store.releases("homes", "weekly") for i in batch.column("release_id").to_pylist()]
        assert len(set(ids)) == 30
        assert store.has_releases(ids)
        assert store.unknown_releases([*ids[:2], "0" * 32]) == {"0" * 32}
        assert not store.has_releases(["0" * 32])

    # Processes

    def test_nothing_is_shared_across_a_pickle(self, store: Store, registration: Registration) -> None:
        assert store._shared is not None
        copy = pickle.loads(pickle.dumps(store))
        assert copy._shared is None
        assert [entry.entry_id for entry in copy.entries()] == [entry.entry_id for entry in store.entries()]
        copy.close()
        assert registration.fresh

    def test_nothing_is_shared_across_a_fork(self, url: str, nursery: Nursery) -> None:
        (answer,) = nursery.run({"kind": "fork", "url": url})
        assert answer == {"status": 0, "child": "own", "sequences": [1, 2, 3, 4]}

    def test_stores_of_one_process_share_a_connection_until_the_last_is_closed(self, url: str) -> None:
        first, second = Store(url), Store(url)
        held = first.register(domain(), query())
        second.entries()
        assert first._shared is second._shared
        first.close()
        assert len(second.publish(held, drafts(held))) == 12
        assert len(first.entries()) == 6
        first.close()
        second.close()

    def test_threads_of_one_process_take_turns(self, store: Store, registration: Registration) -> None:
        found: list[dict[str, Any]] = []

        def work() -> None:
            for window in windows_of(registration):
                records = store.publish(registration, drafts(registration, [window]))
                found.append(seen(records))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 24
        assert all(found.count(one) == 4 for one in found)
        prices(store.entries(), 1.0)

    def test_processes_racing_for_the_same_windows_get_the_same_rows(
        self, fresh_urls: Iterator[str], nursery: Nursery
    ) -> None:
        for _ in range(4):
            url = next(fresh_urls)
            orders = ("forward", "backward", "random")
            answers = nursery.run(*({"url": url, "order": order, "batch": 1} for order in orders))
            assert answers[0]["rows"] == answers[1]["rows"] == answers[2]["rows"]
            with Store(url) as store:
                assert len(answers[0]["rows"]) == len(list(store.records("homes", "weekly"))) == 12
                prices(store.entries(), 1.0)

    def test_two_queries_racing_never_exceed_the_budget(self, fresh_urls: Iterator[str], nursery: Nursery) -> None:
        for _ in range(3):
            url = next(fresh_urls)
            spec = {"size": 4, "windows": 8}
            job = {"url": url, "budget": 0.6, "spec": spec, "batch": 1}
            answers = nursery.run(*({**job, "query": f"q{i}", "order": "random"} for i in range(3)))
            assert sum("rows" in answer for answer in answers) >= 1
            assert {answer["error"] for answer in answers if "error" in answer} <= {"BudgetRefused"}
            with Store(url) as store:
                entries = store.entries()
                prices(entries, 0.6)
                assert "refused" in {entry.decision for entry in entries} or len(store.queries()) < 3
                assert store.summary("homes").loss <= store.summary("homes").reserved_loss * (1 + 1e-12) <= 0.6

    def test_what_another_process_charged_is_caught_up_with(self, store: Store, url: str, nursery: Nursery) -> None:
        held = store.register(domain(), query("other", share=0.25))
        windows = windows_of(held)
        store.publish(held, drafts(held, windows[:2]))
        nursery.run({"url": url, "spec": {"share": 0.5}})
        store.publish(held, drafts(held, windows[2:]))
        prices(store.entries(), 1.0)

    def test_an_account_that_is_not_on_record_is_made_again(self, store: Store, registration: Registration) -> None:
        windows = windows_of(registration)
        store.publish(registration, drafts(registration, windows[:2]))
        (account,) = store._database().accounts.values()
        account.ledger.replay([(0, 1000, 0.5)])
        account.entry_id = "not this one"
        store.publish(registration, drafts(registration, windows[2:]))
        prices(store.entries(), 1.0)

    def test_a_worker_killed_at_any_boundary_of_a_first_run_leaves_nothing_or_a_whole_step(
        self, fresh_urls: Iterator[str], nursery: Nursery
    ) -> None:
        """Every boundary of making the tables and registering: before and after each statement and commit."""
        boundary = 0
        while True:
            boundary += 1
            url = next(fresh_urls)
            (answer,) = nursery.run({"url": url, "kill_at": boundary, "publish": False})
            with Store(url) as store:
                # opening it again completes what a killed process did not
                assert store.registered("homes", "weekly") in (None, _registered(store))
                with store._database().read() as connection:
                    assert connection.scalar(sa.select(sa.func.count()).select_from(tables.meta)) == 1
                    queries = connection.scalar(sa.select(sa.func.count()).select_from(tables.queries))
                    promises = connection.scalar(sa.select(sa.func.count()).select_from(tables.reservations))
                assert queries == promises == len(store.domains()) <= 1
                held = store.register(domain(), query())
                assert held.fresh == (queries == 0)
                assert len(store.publish(held, drafts(held))) == 12
                prices(store.entries(), 1.0)
            if not answer.get("killed"):
                assert answer["crossed"] < boundary
                assert boundary > 40
                return

    def test_a_worker_killed_at_any_boundary_of_publishing_leaves_nothing_or_a_whole_batch(
        self, url: str, nursery: Nursery
    ) -> None:
        """Every boundary of two batches, the later windows first; a rerun keeps each row and charges nothing again."""
        boundary = 0
        with Store(url) as store:
            store.domains()
            while True:
                boundary += 1
                name = f"homes-{boundary}"
                held = store.register(domain(name), query(domain=name, windows=4))
                job = {"url": url, "domain": name, "spec": {"windows": 4}, "order": "backward", "batch": 2}
                (answer,) = nursery.run({**job, "kill_at": boundary})
                entries, records = store.entries(name), list(store.records(name, "weekly"))
                # the batch of the later windows charges the earlier ones, too
                assert len(entries) in (0, 4)
                assert len(records) in (0, 4, 8)
                assert len(records) == 0 or len(entries) == 4
                before = seen(records)
                after = seen(store.publish(held, drafts(held)))
                assert {place: after[place] for place in before} == before
                assert len(after) == len(list(store.records(name, "weekly"))) == 8
                prices(store.entries(name), 1.0)
                assert [e.entry_id for e in entries] in ([], [e.entry_id for e in store.entries(name)])
                if not answer.get("killed"):
                    assert answer["crossed"] < boundary
                    assert boundary > 40
                    return

    def test_processes_that_create_the_store_at_once_agree(self, fresh_urls: Iterator[str], nursery: Nursery) -> None:
        for _ in range(4):
            url = next(fresh_urls)
            answers = nursery.run(*({"url": url, "publish": False} for _ in range(4)))
            assert all("rows" in answer for answer in answers), answers
            with Store(url, create=False) as store:
                assert store.queries() == [("homes", "weekly")]

    def test_a_lock_held_too_long_is_an_error_that_says_so(self, store: Store, url: str) -> None:
        held = store.register(domain(), query())
        with Store(url, wait=0.2) as other:
            other.entries()
            with store._database().write() as connection:
                connection.execute(sa.select(tables.domains).with_for_update())
                with pytest.raises(StoreBusy, match="locked for too long"):
                    other.publish(held, drafts(held))
            assert len(other.publish(held, drafts(held))) == 12

    # Versions

    def test_new_tables_and_migrated_ones_are_the_same(self, store: Store) -> None:
        store.domains()
        with store._database().write() as connection:
            made = _described(connection)
            context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
            assert compare_metadata(context, tables.metadata) == []
            tables.metadata.drop_all(connection)
            schema._version.drop(connection)
            assert _described(connection) == {}
            schema.run_migrations(connection)
            assert connection.scalars(sa.select(schema._version.c.version_num)).all() == [schema.HEAD]
            assert compare_metadata(context, tables.metadata) == []
            assert _described(connection) == made

    def test_a_newer_schema_is_refused_and_an_older_one_is_migrated_on_demand(
        self, store: Store, url: str, registration: Registration, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with store._database().write() as connection:
            connection.execute(schema._version.update().values(version_num="9999"))
        store.close()
        for use in (Store.domains, Store.migrate, lambda s: s.register(domain(), query())):
            with Store(url) as newer, pytest.raises(SchemaVersionError, match=r"9999.*later one"):
                use(newer)
        monkeypatch.setattr(schema, "REVISIONS", ("9999", *schema.REVISIONS))
        with Store(url) as older, pytest.raises(SchemaVersionError, match="ledger migrate"):
            older.domains()
        assert registration.fresh

    def test_migrating_a_current_store_changes_nothing(
        self, store: Store, registration: Registration, fresh_urls: Iterator[str]
    ) -> None:
        store.migrate()
        assert store.registered("homes", "weekly") == replace(registration, fresh=False)
        with Store(next(fresh_urls)) as nothing, pytest.raises(StoreMissing):
            nothing.migrate()

    def test_a_store_is_not_created_where_that_is_not_asked_for(self, fresh_urls: Iterator[str]) -> None:
        url = next(fresh_urls)
        for _ in range(2):
            with Store(url, create=False) as store, pytest.raises(StoreMissing, match="there is none"):
                store.entries()

    # What must not leak

    def test_a_failed_write_shows_no_value_in_its_error_or_in_any_log(
        self, store: Store, registration: Registration, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The database is made to refuse the row, so that its own message quotes it where it can."""
        self.refuse_releases(store)
        marked = block(registration, 0)
        marked = replace(marked, counts=np.full_like(marked.counts, 987_654_321))
        with (
            caplog.at_level(logging.DEBUG, "sqlalchemy"),
            caplog.at_level(logging.DEBUG),
            pytest.raises(StoreError) as caught,
        ):
            store.publish(registration, [Draft(windows_of(registration)[0], 0, lambda: marked)])
        assert caught.value.__context__ is None
        assert caught.value.__cause__ is None
        shown = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(caught.value)
        assert "987654321" not in shown
        assert "quiltstream.block" not in shown
        assert np.int64(987_654_321).tobytes().hex() not in shown
        assert not any(f"'{name}'" in shown for name in SERIES)
        assert store.entries() == []

    def refuse_releases(self, store: Store) -> None:
        """Make the database refuse every row of releases."""
        raise NotImplementedError

    def test_ordinary_work_logs_no_row_and_no_statement_parameter(
        self, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG, "sqlalchemy"), caplog.at_level(logging.DEBUG), Store(url) as store:
            held = store.register(domain(), query())
            store.publish(held, drafts(held))
            list(store.releases("homes", "weekly"))
        assert "quiltstream.block" not in caplog.text
        assert "Row (" not in caplog.text
        assert held.digest not in caplog.text
        assert store._database()._require().hide_parameters


def _registered(store: Store) -> Registration | None:
    return store.registered("homes", "weekly")


def _us(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        return value
    return (value - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) // dt.timedelta(microseconds=1)


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".avro":
        with path.open("rb") as file:
            return [
                {name: _us(value) for name, value in row.items()}
                for row in fastavro.reader(file)
                if isinstance(row, dict)
            ]
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _described(connection: sa.Connection) -> dict[str, Any]:
    """Everything a database says of its tables, in an order of its own making."""
    inspector = sa.inspect(connection)

    def plain(found: list[Any]) -> list[str]:
        return sorted(repr(sorted((key, str(value)) for key, value in dict(one).items())) for one in found)

    return {
        name: [
            plain(list(inspector.get_columns(name))),
            plain([inspector.get_pk_constraint(name)]),
            plain(list(inspector.get_unique_constraints(name))),
            plain(list(inspector.get_foreign_keys(name))),
            plain(list(inspector.get_indexes(name))),
            plain(list(inspector.get_check_constraints(name))),
        ]
        for name in inspector.get_table_names()
    }
