"""What every store promises about beliefs that change (theory section 4, item 5), on whatever engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.privacy.models.markov_chain import MarkovChain
from quiltstream.schemas.ledger import LedgerEntry
from quiltstream.schemas.model_file import hash_of_series
from quiltstream.schemas.roster import Roster
from quiltstream.store import BudgetRefused, Store, StoreError
from quiltstream.store.changes import Estimated
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import BeliefChange, DomainSpec, QuerySpec, Registration

from ..depth import STRIDE, boundaries
from ..present import present
from .engines import OnLedger
from .nursery import Nursery
from .samples import BELIEF, OTHER, SERIES, domain, drafts, query

FASTER = MixingBounds(pi_min=0.25, gap=0.9)
SLOWER = MixingBounds(pi_min=0.15, gap=0.6)
SLOWEST = MixingBounds(pi_min=0.05, gap=0.3)
MODEL = {"belief": FASTER.to_dict(), "method": "test"}


def joined(belief: MixingBounds = SLOWER, **changes: Any) -> BeliefChange:
    return replace(BeliefChange("joined", belief.to_dict(), "model-2", source="a test"), **changes)


def switched(slot: int, belief: MixingBounds = FASTER) -> BeliefChange:
    return BeliefChange("switched", belief.to_dict(), "model-2", slot)


def under(change: BeliefChange, **changes: Any) -> DomainSpec:
    """The domain as a job knows it whose model is the new one."""
    return domain(**changes, belief=change.belief, model_id=change.model_id)


def endless(spec: QuerySpec, start: int | None = None) -> QuerySpec:
    return replace(spec, schedule=replace(spec.schedule, stop=None, start=start or spec.schedule.start))


def windows_of(registration: Registration, many: int) -> list[Any]:
    found = registration.query.schedule.windows()
    return [window for window, _ in zip(found, range(many), strict=False)]


def spans(entries: Sequence[LedgerEntry]) -> list[tuple[int, int, float]]:
    return [(one.window_start, one.window_stop, one.epsilon_dp) for one in entries]


class BeliefContract(OnLedger):
    """Inherit it together with an engine."""

    def test_an_added_belief_reprices_all_charged_and_reserved_windows(self, store: Store, url: str) -> None:
        held = store.register(domain(budget=3.0), query())
        store.publish(held, drafts(held, windows_of(held, 3)))
        rows = [batch.to_pylist() for batch in store.releases("homes", "weekly")]
        before = store.summary("homes")
        change = joined()
        done = store.change_belief("homes", change)
        alone = Ledger(SLOWER)
        assert alone.replay(spans(store.entries())) == done.after > done.before == before.loss
        assert (done.reserved_before, store.summary("homes").reserved_loss) == (
            before.reserved_loss,
            done.reserved_after,
        )
        assert done.reserved_after >= done.after
        with Store(url, create=True) as other:
            assert other.summary("homes").loss == done.after
            assert other.registered("homes", "weekly") == replace(
                held, fresh=False, domain=replace(held.domain, changes=(change,)), reserved_loss=done.reserved_after
            )
            other.publish(
                held, drafts(held)
            )  # a job that knows nothing of it goes on, and is charged by the new account
        assert [batch.to_pylist() for batch in store.releases("homes", "weekly")][: len(rows)] == rows
        both = Ledger(BELIEF, 3.0)
        both.add_belief(SLOWER)
        for number, entry in enumerate(store.entries()):
            made = both.charge(entry.window_start, entry.window_stop, entry.epsilon_dp)
            if number >= 3:
                assert (entry.loss_before, entry.loss_after) == (made.loss_before, made.loss_after)
        assert store.summary("homes").loss == both.loss == done.reserved_after

    def test_only_rows_after_an_added_belief_given_the_model_are_marked(self, store: Store) -> None:
        held = store.register(domain(budget=3.0), endless(query()))
        store.publish(held, drafts(held, windows_of(held, 3)))
        before = [batch.to_pylist() for batch in store.releases("homes", "weekly")]
        store.change_belief("homes", joined(given_model=True))
        store.publish(held, drafts(held, windows_of(held, 5)))
        after = [batch.to_pylist() for batch in store.releases("homes", "weekly")]
        assert after[: len(before)] == before
        assert {row["given_model"] for batch in before for row in batch} == {False}
        assert {row["given_model"] for batch in after[len(before) :] for row in batch} == {True}
        assert [entry.given_model for entry in store.entries()] == [False] * 3 + [True] * 2
        assert store.summary("homes").given_model

    @pytest.mark.parametrize("way", ["first sight", "another roster", "another query"])
    def test_a_series_of_an_added_belief_may_join_and_later_charges_are_marked(self, store: Store, way: str) -> None:
        held = store.register(domain(budget=9.0), endless(query()))
        store.publish(held, drafts(held, windows_of(held, 2)))
        store.change_belief("homes", joined(series_hashes=(hash_of_series("m6"), hash_of_series("m9"))))
        assert not store.summary("homes").given_model
        store.publish(held, drafts(held, windows_of(held, 3)))
        assert [entry.given_model for entry in store.entries()] == [False] * 3
        bigger = Roster.of([*SERIES, "m6"])
        held = store.join(held, [("m7", None)])
        assert not store.summary("homes").given_model, "m7 is not one of them"
        if way == "first sight":
            held = store.join(held, [("m6", None)])
        elif way == "another roster":
            held = store.register(domain(budget=9.0), endless(query(roster=bigger)))
        else:
            held = store.register(domain(budget=9.0), endless(query("other", roster=bigger)))
        assert [one.given_model for one in held.domain.changes] == [True]
        assert store.summary("homes").given_model
        known = present(store.registered("homes", "weekly"))
        store.publish(known, drafts(known, windows_of(known, 4)[3:]))
        assert [entry.given_model for entry in store.entries()] == [False] * 3 + [True]

    @pytest.mark.parametrize("name", ["m2", "gone", "other query"])
    def test_a_belief_fitted_on_a_series_of_any_roster_is_labelled_given_the_model(
        self, store: Store, name: str
    ) -> None:
        """The transaction sees all of them, also those that left and those of other queries."""
        held = store.register(domain(budget=9.0), endless(query(roster=Roster.of([*SERIES, "gone"]))))
        store.publish(held, drafts(held, windows_of(held, 1)))
        store.register(domain(budget=9.0), endless(query(roster=Roster.of(SERIES))))
        store.register(domain(budget=9.0), endless(query("other", roster=Roster.of(["other query"]))))
        store.change_belief("homes", joined(series_hashes=(hash_of_series("nobody"),)))
        assert not store.summary("homes").given_model
        store.change_belief("homes", joined(SLOWER, model_id="model-3", series_hashes=(hash_of_series(name),)))
        assert store.summary("homes").given_model

    def test_a_belief_that_the_budget_does_not_allow_changes_nothing(self, store: Store) -> None:
        # at the noise of mqm-approx the stream costs .384 of its belief, and .62 of the slower one
        held = store.register(domain(budget=0.4), endless(query()))
        store.publish(held, drafts(held, windows_of(held, 1)))
        before = store.summary("homes"), store.registered("homes", "weekly")
        with pytest.raises(BudgetRefused, match=r"new belief about domain 'homes' would cost .* of the budget 0\.4 "):
            store.change_belief("homes", joined())
        with pytest.raises(BudgetRefused):
            store.change_belief("homes", switched(144, SLOWER))
        with pytest.raises(StoreError, match="2 states"):
            store.change_belief("homes", replace(joined(), belief=MarkovChain([[0.9, 0.1], [0.4, 0.6]]).to_dict()))
        assert (store.summary("homes"), store.registered("homes", "weekly")) == before

    def test_a_job_with_the_recorded_belief_may_add_a_query_and_another_is_refused(self, store: Store) -> None:
        first = store.register(domain(budget=3.0), query(share=0.25))
        change = joined()
        other = query("other", share=0.25)
        with pytest.raises(StoreConflict, match=r"quiltstream ledger belief"):
            store.register(under(change, budget=3.0), other)
        store.change_belief("homes", change)
        made = store.register(under(change, budget=3.0), other)
        assert (first.belief, made.belief) == (0, 1)
        assert made.digest == other.digest(under(change)) != other.digest(domain())
        assert store.register(domain(budget=3.0), query(share=0.25)).digest == first.digest
        with pytest.raises(StoreConflict, match=r"model\.gap"):
            store.register(under(change, budget=3.0), query(share=0.25))
        store.publish(made, drafts(made))
        (batch, *_) = store.releases("homes", "other")
        assert set(batch.column("model_id").to_pylist()) == {"model-2"}
        assert {entry.model_id for entry in store.entries()} == {"model-2"}

    def test_an_estimate_goes_on_record_with_its_query_and_its_change_of_belief(self, store: Store, url: str) -> None:
        held = store.register(domain(budget=2.0), query("counts", windows=2, share=0.5))
        store.publish(held, drafts(held))
        slot = 96 + 2 * 48
        change = switched(slot)
        following, estimated = endless(query("later", share=0.4), slot), Estimated(MODEL, change)
        about = under(change, budget=2.0)
        before = store.summary("homes")
        assert store.register(about, following, estimated, trial=True).fresh
        assert store.summary("homes") == before
        made = store.register(about, following, estimated)
        assert (made.fresh, made.belief, made.domain.changes) == (True, 1, (change,))
        assert store.estimated("homes", "later") == MODEL
        assert store.estimated("homes", "counts") is None
        store.publish(made, drafts(made, windows_of(made, 3)))
        with Store(url, create=True) as other:
            # a job that begins anew, and another one whose estimate is another one
            again = other.register(about, following, estimated)
            assert (again.fresh, again.digest) == (False, made.digest)
            another = switched(slot, SLOWER)
            with pytest.raises(StoreError, match="the belief changes at slot 192"):
                other.register(under(another, budget=2.0), following, Estimated({"belief": {}}, another))
        kinds = [event[0] for event in store.summary("homes").events]
        assert kinds == ["belief-switched", "model-estimated"]
        assert store.estimated("homes", "later") == MODEL
        truth = Ledger(BELIEF, 2.0)
        truth.switch(slot, FASTER)
        assert store.summary("homes").loss == truth.replay(spans(store.entries()))

    def test_a_query_that_is_refused_changes_no_belief(self, store: Store) -> None:
        held = store.register(domain(), query("counts", windows=2))
        store.publish(held, drafts(held))
        before = store.summary("homes")
        change = switched(192)
        for share in (9.0, 900.0):
            with pytest.raises(BudgetRefused):
                store.register(under(change), query("later", share=share), Estimated(MODEL, change))
        assert store.summary("homes") == before
        assert store.estimated("homes", "later") is None

    def test_a_belief_added_before_a_switch_may_be_added_again(self, store: Store) -> None:
        held = store.register(domain(budget=9.0), query(share=0.5))
        store.change_belief("homes", joined(SLOWEST))
        store.change_belief("homes", switched(96, FASTER))
        done = store.change_belief("homes", joined(SLOWEST))
        assert done.reserved_after > done.reserved_before
        truth = Ledger(BELIEF)
        truth.add_belief(SLOWEST)
        truth.switch(96, FASTER)
        truth.add_belief(SLOWEST)
        truth.replay((window.start, window.stop, held.query.epsilon_dp) for window in held.query.schedule.windows())
        assert done.reserved_after == pytest.approx(truth.loss, rel=1e-9)
        # and now it is held
        assert store.change_belief("homes", joined(SLOWEST)).after == done.after
        assert len(store.summary("homes").events) == 3

    @pytest.mark.parametrize("slot", [None, 192])
    def test_a_belief_change_killed_at_any_boundary_is_atomic(
        self, fresh_urls: Iterator[str], nursery: Nursery, slot: int | None
    ) -> None:
        def begun(store: Store) -> Store:
            """A ledger of its own: a registration looks at every other domain."""
            held = store.register(domain(budget=9.0), query())
            store.publish(held, drafts(held, windows_of(held, 2)))
            return store

        def seen_of(store: Store) -> Any:
            return store.summary("homes"), store.registered("homes", "weekly"), store.registered("homes", "later")

        made, url = 0, next(fresh_urls)
        store = begun(Store(url, wait=30, create=True))
        for boundary in boundaries(apart=3):
            before = seen_of(store)
            command = {"kind": "change", "url": url, "domain": "homes", "slot": slot}
            (answer,) = nursery.run({**command, "kill_at": boundary})
            if seen_of(store) != before:
                self._check_whole(store, "homes", slot)
                store.close()
                if "killed" not in answer:
                    assert boundary > 15
                    assert made > 0 or STRIDE > 1  # it was killed after its commit, too
                    return
                made, url = made + 1, next(fresh_urls)
                store = begun(Store(url, wait=30, create=True))

    @staticmethod
    def _check_whole(store: Store, name: str, slot: int | None) -> None:
        """A change that was made: all of it is on record, and every window can be published once."""
        truth = Ledger(BELIEF, 9.0)
        held = present(store.registered(name, "weekly"))
        assert len(held.domain.changes) == 1
        queries = [held]
        if slot is None:
            truth.add_belief(OTHER)
            kinds = ["belief-joined"]
        else:
            truth.switch(slot, OTHER)
            kinds = ["belief-switched", "model-estimated"]
            assert store.estimated(name, "later") is not None
            queries.append(present(store.registered(name, "later")))
        assert [event[0] for event in store.summary(name).events] == kinds
        for one in queries:
            store.publish(one, drafts(one))
            assert list(store.missing(one)) == []
        entries = store.entries(name)
        assert len(entries) == sum(len(one.query.schedule) for one in queries)
        assert {entry.decision for entry in entries} == {"charged"}
        found = store.summary(name)
        assert found.loss == truth.replay(spans(entries)) <= 9.0
        assert found.reserved_loss == pytest.approx(found.loss, rel=1e-9)
