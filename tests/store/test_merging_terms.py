"""What ledgers that were kept apart agree on when they are united: budgets, schedules, rosters and names."""

from __future__ import annotations

import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule
from quiltstream.store import Store, StoreError
from quiltstream.store.errors import MergeConflict, ModeError
from quiltstream.store.registration import Sharing
from quiltstream.store.specs import Registration

from ..present import present
from .merges import address, content, fill, recomputed, united
from .samples import BELIEF, SERIES, SPACE, domain, drafts, query


def test_budgets_raised_and_schedules_extended_in_one_hold_for_both(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2, share=0.25)
    second = fill(tmp_path / "b.db", windows=2, share=0.25)
    with Store(address(second), create=True) as store:
        store.raise_budget("homes", 2.0)
        store.register(domain(budget=2.0), query(share=0.25, windows=9))
        store.note_history_lost("homes", releases=3)
    for number, order in enumerate(((first, second), (second, first))):
        with Store(address(united(tmp_path / f"{number}.db", *order)), create=True) as store:
            said = store.summary("homes")
            assert (said.budget, said.history_lost) == (2.0, True)
            assert [event[0] for event in said.events] == ["budget-raised", "schedule-extended", "history-lost"]
            held = present(store.registered("homes", "weekly"))
            assert len(held.query.schedule) == 9
            assert held.admitted_stop is None
            # settings from before the raise still run
            assert store.register(domain(), query(share=0.25, windows=9)).domain.budget == 2.0


def test_duplicate_reservations_count_once_and_duplicate_charges_add_up(tmp_path: Path) -> None:
    paths = [fill(tmp_path / f"{name}.db", windows=n, share=0.25) for name, n in (("a", 0), ("b", 0), ("c", 2))]
    with Store(address(paths[0]), create=True) as store:
        alone = store.summary("homes").reserved_loss
    with Store(address(united(tmp_path / "none.db", *paths)), create=True) as store:
        assert store.summary("homes").reserved_loss == alone
    fill(paths[0], windows=2, share=0.25)
    with Store(address(united(tmp_path / "two.db", *paths)), create=True) as store:
        held = present(store.registered("homes", "weekly"))
        spans = [(window.start, window.stop, held.query.epsilon_dp) for window in held.query.schedule.windows()]
        expected = Ledger(BELIEF).replay([*spans, *spans[:2]])
        assert store.summary("homes").reserved_loss == pytest.approx(expected, rel=1e-12)


def test_an_endless_schedule_and_a_finite_one_are_endless(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=3, share=0.25)
    second = fill(tmp_path / "b.db", windows=1, share=0.25, schedule=Schedule(48, 48, 96, None, 96))
    with Store(address(united(tmp_path / "both.db", first, second)), create=True) as store:
        held = present(store.registered("homes", "weekly"))
        assert held.query.schedule.stop is None
        assert held.admitted_stop is None
        assert store.summary("homes").reserved_loss <= 1


@pytest.mark.parametrize(
    ("field", "of_domain", "of_query"),
    [
        ("model.gap", {"belief": {**BELIEF.to_dict(), "gap": 0.8}}, {}),
        ("model, by its digest,", {"model_id": "model-2"}, {}),
        ("privacy.budget", {"budget": 2.0}, {}),
        ("scale", {}, {"scale": Fraction(1, 3)}),
        ("windows.start", {}, {"schedule": Schedule(48, 48, 144, 384, 96)}),
        ("release_epsilon_dp", {}, {"release_epsilon_dp": 0.25e-3}),
        ("roster", {}, {"roster": Roster.of(SERIES[:-1])}),
        ("shards", {}, {"shards": 3}),
        ("given_model", {}, {"given_model": True}),
        ("privacy.epsilon", {}, {"header": {**query().header, "epsilon": 2.0}}),
    ],
)
def test_other_content_under_one_name_is_refused_naming_the_field(
    tmp_path: Path, field: str, of_domain: dict[str, Any], of_query: dict[str, Any]
) -> None:
    for path, changes in ((tmp_path / "a.db", ({}, {})), (tmp_path / "b.db", (of_domain, of_query))):
        with Store(address(path), create=True) as store:
            store.register(domain(**changes[0]), query(**changes[1]))
    for order in (("a", "b"), ("b", "a")):
        with pytest.raises(MergeConflict) as caught:
            united(tmp_path / "both.db", *(tmp_path / f"{name}.db" for name in order))
        assert caught.value.field == field
        assert all(f"{tmp_path}/{name}.db" in str(caught.value) for name in order)
        assert not any(f"'{name}'" in str(caught.value) for name in SERIES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db"]


def test_a_roster_changed_in_one_ledger_holds_unless_the_other_used_the_old_one(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2)
    second = Path(shutil.copy(first, tmp_path / "b.db"))
    third = Path(shutil.copy(first, tmp_path / "c.db"))
    fourth = Path(shutil.copy(first, tmp_path / "d.db"))
    fill(second, windows=4, roster=Roster.of(["m1", "m2", "m9"]))
    for number, order in enumerate(((first, second), (second, first))):
        both = united(tmp_path / f"{number}.db", *order)
        assert content(both) == content(second)
        with Store(address(both), create=True) as store, Store(address(second), create=True) as other:
            assert replace_fresh(store.registered("homes", "weekly")) == replace_fresh(
                other.registered("homes", "weekly")
            )
            held = present(store.registered("homes", "weekly"))
            assert len(store.publish(held, drafts(held, list(held.query.schedule.windows())[:2]))) == 4
    with Store(address(third), create=True) as store:
        store.register(domain(), query(roster=Roster.of(["m1", "m7"])))
    with pytest.raises(MergeConflict, match="roster is '2 series"):
        united(tmp_path / "no.db", third, second)
    fill(fourth, windows=5)
    with pytest.raises(StoreError, match="a roster that another had changed"):
        united(tmp_path / "no.db", fourth, second)
    assert not (tmp_path / "no.db").exists()


def test_ledgers_agree_on_a_version_that_joins_replaced_in_one_of_them(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2)
    joins(first, "x")
    second = Path(shutil.copy(first, tmp_path / "b.db"))
    joins(second, "y", "z")
    for number, order in enumerate(((first, second), (second, first))):
        both = united(tmp_path / f"{number}.db", *order)
        assert content(both) == content(second)
    # where the version was charged, its rows would not be those of the query
    fill(first, windows=3, roster=Roster.of([*SERIES, "x"]))
    with pytest.raises(StoreError, match="a roster that another had changed"):
        united(tmp_path / "no.db", first, second)


def joins(path: Path, *names: str) -> None:
    with Store(address(path), create=False) as store:
        for name in names:
            held = present(store.registered("homes", "weekly"))
            store.join(held, [(name, None)])


def replace_fresh(held: Registration | None) -> Registration | None:
    return None if held is None else replace(held, fresh=False)


def test_domains_and_queries_of_only_one_ledger_are_merged_unchanged(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2, share=0.25)
    with Store(address(tmp_path / "b.db"), create=True) as store:
        for held in (
            store.register(domain(), query("other", share=0.25)),
            store.register(domain("flats"), query(domain="flats")),
        ):
            store.publish(held, drafts(held))
    both = united(tmp_path / "both.db", first, tmp_path / "b.db")
    with Store(address(both), create=True) as store:
        assert sorted(store.queries()) == [("flats", "weekly"), ("homes", "other"), ("homes", "weekly")]
        assert store.summary("homes").loss == recomputed(both)
        assert store.summary("flats").loss == recomputed(both, "flats")
        assert store.summary("homes").flagged_charges == 0


def test_noise_free_rows_and_real_rows_are_never_merged(tmp_path: Path) -> None:
    first, second = fill(tmp_path / "a.db"), fill(tmp_path / "b.db", mechanism="none")
    with pytest.raises(ModeError, match="never united"):
        united(tmp_path / "both.db", first, second)


def test_domains_with_equal_series_are_merged_only_for_different_state_processes(tmp_path: Path) -> None:
    roster = Roster.of(SERIES[:3])
    with Store(address(tmp_path / "a.db"), create=True) as store:
        store.register(domain(), query())
    for name, states in (("same.db", SPACE.to_dict()), ("other.db", {**SPACE.to_dict(), "edges": [100.0, 900.0]})):
        with Store(address(tmp_path / name), create=True) as store:
            store.register(domain("flats", states=states), query(domain="flats", roster=roster))
    with pytest.raises(StoreError, match=r"3 series in common.*one domain under two names"):
        united(tmp_path / "both.db", tmp_path / "a.db", tmp_path / "same.db")
    assert not (tmp_path / "both.db").exists()
    both = united(tmp_path / "both.db", tmp_path / "a.db", tmp_path / "other.db")
    with Store(address(both)) as store:
        assert store.summary("homes").shares == (Sharing("flats", 3, declared=False),)
