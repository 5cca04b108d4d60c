"""What every store promises about rosters that change between windows, on whatever engine."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Window
from quiltstream.store import Store
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import Registration

from ..depth import boundaries
from ..present import present
from .engines import OnLedger
from .nursery import Nursery
from .samples import BELIEF, SERIES, domain, drafts, query, seen

JOINED = Roster.of([*SERIES, "m0", "m9"])
LEFT = Roster.of(SERIES[1:])


def windows_of(registration: Registration) -> list[Window]:
    return list(registration.query.schedule.windows())


def published_keys(store: Store) -> dict[int, list[str]]:
    """First slot of each window on record -> its keys, from the released rows."""
    found: dict[int, list[str]] = {}
    for batch in store.releases("homes", "weekly"):
        for row in releases_from_batch(batch):
            found.setdefault(row.window_start // 1_800_000_000, []).append(row.key)
    return {start: sorted(keys) for start, keys in found.items()}


def charged(store: Store) -> list[tuple[int, str]]:
    """(first slot, digest of its roster) of every charge."""
    held = present(store.registered("homes", "weekly"))
    windows = [Window(entry.window_start, entry.window_stop) for entry in store.entries()]
    return [(window.start, held.roster_of(window).digest) for window in windows]


def rows_of(store: Store) -> list[dict[str, Any]]:
    return [row for batch in store.releases("homes", "weekly") for row in batch.to_pylist()]


class RosterContract(OnLedger):
    """Inherit it together with an engine."""

    def test_another_roster_holds_from_the_first_window_that_is_not_charged(self, store: Store, url: str) -> None:
        first = store.register(domain(), query())
        windows = windows_of(first)
        store.publish(first, drafts(first, windows[:2]))
        before = rows_of(store)
        changed = store.register(domain(), query(roster=JOINED))
        assert changed.revision == 1
        assert changed.digest == first.digest
        assert changed.reserved_loss == first.reserved_loss
        assert [changed.roster_of(window) for window in windows] == [first.query.roster] * 2 + [JOINED] * 4
        assert changed.joined == (*SERIES, "m0", "m9")
        with Store(url, create=True) as other:
            assert other.registered("homes", "weekly") == changed == pickle.loads(pickle.dumps(changed))
        store.publish(changed, drafts(changed))
        assert rows_of(store)[: len(before)] == before
        old, new = sorted(SERIES), sorted(JOINED.series)
        assert published_keys(store) == {w.start: old if w in windows[:2] else new for w in windows}
        ledger = Ledger(BELIEF)
        for entry in store.entries():
            made = ledger.charge(entry.window_start, entry.window_stop, entry.epsilon_dp)
            assert entry.loss_after == made.loss_after
        assert list(store.missing(changed)) == []

    def test_an_equal_roster_is_no_change_and_an_uncharged_one_holds_for_all_windows(self, store: Store) -> None:
        first = store.register(domain(), query())
        assert store.register(domain(), query()).revision == 0
        changed = store.register(domain(), query(roster=LEFT))
        assert changed == store.register(domain(), query(roster=LEFT))
        assert {changed.roster_of(window) for window in windows_of(first)} == {LEFT}
        assert changed.series == SERIES  # numbers stay, though nobody uses the first one any more
        (event,) = store.summary("homes").events
        assert event[:2] == ("roster-changed", "weekly")
        assert not any(name in event[2] + event[3] for name in SERIES)

    def test_a_returning_series_keeps_its_number(self, store: Store) -> None:
        held = store.register(domain(), query())
        windows = windows_of(held)
        rosters = [Roster.of(SERIES), LEFT, JOINED, Roster.of(SERIES)]
        for at, roster in enumerate(rosters):
            held = store.register(domain(), query(roster=roster))
            store.publish(held, drafts(held, [windows[at]]))
        assert [held.roster_of(window) for window in windows] == [*rosters, rosters[-1], rosters[-1]]
        assert held.series == (*SERIES, "m0", "m9")
        assert charged(store) == [(w.start, r.digest) for w, r in zip(windows, rosters, strict=False)]
        assert [version.start for version in held.versions] == [window.start for window in windows[:4]]

    def test_a_roster_of_other_groups_is_for_later_windows_and_keeps_groups_a_series(self, store: Store) -> None:
        pairs = [(name, "north" if name < "m3" else "south") for name in SERIES]
        first = store.register(domain(), query(roster=Roster(tuple(pairs))))
        windows = windows_of(first)
        store.publish(first, drafts(first, windows[:1]))
        moved = Roster((("m1", "south"), *pairs[1:]))
        held = store.register(domain(), query(roster=moved))
        store.publish(held, drafts(held))
        rows = [row for batch in store.releases("homes", "weekly") for row in releases_from_batch(batch)]
        members = {(row.window_start // 1_800_000_000, row.key): row.members for row in rows}
        assert members[windows[0].start, "north"] == 2
        assert {members[window.start, "north"] for window in windows[1:]} == {1}
        with pytest.raises(StoreConflict) as refusal:
            store.register(domain(), query(roster=Roster((*moved.entries, ("m1", "all")))))
        assert [refusal.value.details[name] for name in ("field", "recorded", "given")] == [
            "roster.multiplicity",
            1,
            2,
        ]
        with pytest.raises(StoreConflict, match="group_by"):
            store.register(domain(), query(roster=Roster.of(SERIES)))
        assert store.registered("homes", "weekly") == held

    def test_fewer_groups_per_series_lose_the_reserved_loss(self, store: Store) -> None:
        twice = Roster(tuple((name, group) for name in SERIES for group in ("north", "all")))
        first = store.register(domain(), query(share=0.5, roster=twice))
        store.publish(first, drafts(first, windows_of(first)[:1]))
        once = Roster(tuple((name, "all") for name in SERIES))
        held = store.register(domain(), query(share=0.5, roster=once))
        assert held.query.epsilon_dp == first.query.epsilon_dp
        store.publish(held, drafts(held))
        assert len({entry.epsilon_dp for entry in store.entries()}) == 1
        assert store.entries()[-1].loss_after == first.reserved_loss
        # back to what the scale was calibrated for
        with pytest.raises(StoreConflict, match="every window of the query has its roster"):
            store.register(domain(), query(share=0.5, roster=twice))

    def test_a_new_roster_after_the_last_charge_requires_added_windows(self, store: Store) -> None:
        held = store.register(domain(), query())
        store.publish(held, drafts(held))
        before = rows_of(store)
        with pytest.raises(StoreConflict) as refusal:
            store.register(domain(), query(roster=JOINED))
        assert refusal.value.details["field"] == "roster"
        assert not any(name in str(refusal.value) for name in SERIES)
        longer = store.register(domain(), query(windows=7, roster=JOINED))
        assert longer.roster_of(windows_of(longer)[-1]) == JOINED
        assert longer.roster_of(windows_of(longer)[-2]) == Roster.of(SERIES)
        store.publish(longer, drafts(longer))
        assert rows_of(store)[: len(before)] == before

    def test_a_series_of_the_model_joins_only_queries_marked_given_the_model(self, store: Store) -> None:
        store.register(domain(), query())
        with pytest.raises(StoreConflict, match="given_model"):
            store.register(domain(), query(roster=JOINED, given_model=True))

    def test_processes_that_change_the_roster_at_once_leave_one_of_their_rosters(
        self, fresh_urls: Iterator[str], nursery: Nursery
    ) -> None:
        for _ in range(3):
            url = next(fresh_urls)
            with Store(url, create=True) as store:
                store.register(domain(), query())
                wanted: Sequence[list[str]] = [[*SERIES, name] for name in ("a", "b", "c")]
                answers = nursery.run(*({"url": url, "roster": names, "publish": False} for names in wanted))
                assert {answer.get("error") for answer in answers} <= {None, "StoreConflict"}
                held = present(store.registered("homes", "weekly"))
                won = [names for names, answer in zip(wanted, answers, strict=True) if "error" not in answer]
                assert list(held.query.roster.series) in [sorted(names) for names in won]
                assert held.revision == len(won)

    # Publishing

    def test_a_worker_with_an_older_registration_is_refused_without_a_charge(self, store: Store) -> None:
        old = store.register(domain(), query())
        windows = windows_of(old)
        store.publish(old, drafts(old, windows[:1]))
        new = store.register(domain(), query(roster=JOINED))
        with pytest.raises(StoreConflict, match="read the registration again") as told:
            store.publish(old, drafts(old, windows[:2]))
        assert pickle.loads(pickle.dumps(told.value)).args == told.value.args
        assert len(store.entries()) == 1
        # windows of before are the same to everyone
        assert not any(record.fresh for record in store.publish(old, drafts(old, windows[:1])))
        assert store.current(old) == new
        assert store.current(new) is new

    def test_charging_fixes_the_rosters_of_windows_and_a_later_one_changes_nothing(self, store: Store) -> None:
        old = store.register(domain(), query())
        windows = windows_of(old)
        assert store.charge_windows(old, windows[:2]) is old
        assert len(store.entries()) == 2
        new = store.register(domain(), query(roster=JOINED))
        frozen = store.charge_windows(old, windows[:3])
        assert frozen == new
        assert [frozen.roster_of(window) for window in windows[:3]] == [old.query.roster] * 2 + [JOINED]
        later = store.register(domain(), query(roster=LEFT))
        assert [later.roster_of(window) for window in windows[:4]] == [old.query.roster] * 2 + [JOINED, LEFT]
        assert list(store.records("homes", "weekly")) == []
        records = store.publish(frozen, drafts(frozen, windows[:3]))
        assert all(record.fresh for record in records)
        assert seen(store.publish(later, drafts(later, windows[:3]))) == seen(records)
        assert store.charge_windows(old, []) is old

    def test_missing_blocks_follow_the_roster_of_each_window(self, store: Store) -> None:
        old = store.register(domain(), query(shards=16))
        windows = windows_of(old)
        store.publish(old, drafts(old, windows[:1]))
        new = store.register(domain(), query(shards=16, roster=JOINED))

        def places(roster: Roster, window: Window) -> list[tuple[Window, int]]:
            return [(window, shard) for shard in range(16) if roster.shard_keys(shard, 16)]

        assert len(places(JOINED, windows[1])) > len(places(old.query.roster, windows[1]))
        expected = [place for window in windows[1:] for place in places(JOINED, window)]
        assert list(store.missing(old)) == list(store.missing(new)) == expected

    @pytest.mark.night
    def test_a_worker_killed_at_any_boundary_of_a_roster_change_leaves_old_or_new(
        self, fresh_urls: Iterator[str], nursery: Nursery
    ) -> None:
        """Every boundary of registering, charging and publishing; a rerun completes it and changes no row."""
        for boundary in boundaries():
            url = next(fresh_urls)
            with Store(url, create=True) as store:
                first = store.register(domain(), query(windows=3))
                windows = windows_of(first)
                store.publish(first, drafts(first, windows[:1]))
                before = rows_of(store)
                names = list(JOINED.series)
                job = {"url": url, "roster": names, "spec": {"windows": 3}, "charge": True}
                (answer,) = nursery.run({**job, "kill_at": boundary})
                held = present(store.registered("homes", "weekly"))
                assert held.query.roster == (JOINED if held.revision else first.query.roster)
                assert [digest for _, digest in charged(store)][1:] in ([], [JOINED.digest], [JOINED.digest] * 2)
                halfway = rows_of(store)
                again = store.register(domain(), query(windows=3, roster=JOINED))
                assert replace(again, fresh=False).revision == 1
                store.publish(again, drafts(again))
                assert rows_of(store)[: len(before)] == before
                assert [row for row in rows_of(store) if row in halfway] == halfway
                assert published_keys(store) == {
                    window.start: sorted(again.roster_of(window).series) for window in windows
                }
            if not answer.get("killed"):
                assert answer["crossed"] < boundary
                assert boundary > 20
                return
