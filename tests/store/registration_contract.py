"""Every ledger of record: what is registered, and what is refused as another thing of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule, Window
from quiltstream.store import BudgetRefused, Store, StoreError
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import Registration

from .proofs import Registered, partial, prices, replayed
from .samples import BELIEF, SERIES, SPACE, domain, drafts, query


class RegistrationContract(Registered):
    """What a registration promises."""

    def test_a_query_is_registered_once_and_reads_the_same_from_every_store(self, store: Store, url: str) -> None:
        first = store.register(domain(), query())
        again = store.register(domain(), query())
        with Store(url, create=True) as other:
            elsewhere = other.registered("homes", "weekly")
        assert first.fresh
        assert not again.fresh
        assert replace(first, fresh=False) == again == elsewhere
        assert first.digest == query().digest(domain())
        assert first.admitted_stop is None
        assert first.reserved_loss == pytest.approx(0.3842, abs=1e-4)  # calibrated to 1 by mqm-approx

    def test_an_unknown_name_is_not_registered(self, store: Store, registration: Registration) -> None:
        assert store.registered("homes", "other") is None
        assert store.registered("other", "weekly") is None
        with pytest.raises(StoreConflict, match="it has homes"):
            store.summary("other")
        with pytest.raises(StoreConflict):
            list(store.releases("homes", "other"))
        assert registration.fresh

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("slots.interval", {"grid": {"interval_us": 60_000_000, "origin_us": 0}}),
            ("states.edges", {"states": {**SPACE.to_dict(), "edges": [250.0, 501.0]}}),
            ("model.gap", {"belief": {**BELIEF.to_dict(), "gap": 0.5}}),
            ("privacy.budget", {"budget": 2.0}),
            ("slots.timezone", {"reading": {**domain().reading, "timezone": "Europe/London"}}),
        ],
    )
    def test_another_domain_of_the_same_name_is_refused_naming_the_field(
        self, store: Store, registration: Registration, field: str, changes: dict[str, Any]
    ) -> None:
        for name in ("weekly", "a new one"):
            with pytest.raises(StoreConflict) as caught:
                store.register(domain(**changes), query(name))
            assert caught.value.details["field"] == field
        assert store.registered("homes", "weekly") == replace(registration, fresh=False)
        assert store.registered("homes", "a new one") is None

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("scale", {"scale": Fraction(1, 3)}),
            ("privacy.mechanism", {"mechanism": "mqm-exact"}),
            ("windows.every", {"schedule": Schedule(48, 24, 96, 384, 96)}),
            ("windows.start", {"schedule": Schedule(48, 48, 48, 384, 48)}),
            ("group_by", {"roster": Roster(tuple((name, "feeder") for name in SERIES))}),
            ("given_model", {"given_model": True}),
        ],
    )
    def test_another_query_of_the_same_name_is_refused_naming_the_field(
        self, store: Store, registration: Registration, field: str, changes: dict[str, Any]
    ) -> None:
        with pytest.raises(StoreConflict, match="weekly") as caught:
            store.register(domain(), query(**changes))
        assert caught.value.details["field"] == field
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

    def test_an_end_between_two_windows_is_the_same_schedule(self, store: Store, registration: Registration) -> None:
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

    def test_a_refused_extension_changes_nothing(self, store: Store) -> None:
        short = query(size=4, windows=1)
        first = store.register(domain(budget=0.2), short)
        with pytest.raises(BudgetRefused, match="extending query 'weekly'"):
            store.register(domain(budget=0.2), query(size=4, windows=8))
        assert store.registered("homes", "weekly") == replace(first, fresh=False)
        cut = store.register(domain("cut", budget=0.3), partial(domain="cut"))
        assert cut.admitted_stop is not None
        with pytest.raises(StoreConflict, match=r"windows\.stop"):
            store.register(domain("cut", budget=0.3), query(domain="cut", size=4, windows=13))

    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ((domain(budget=float("nan")), query()), "budget"),
            ((domain(), query(release_epsilon_dp=0.0)), "release_epsilon_dp"),
            ((domain(), query(shards=0)), "shards"),
            ((domain(), query(schedule=Schedule(48, 48, 48 * 2**44, None))), r"windows\.start"),
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
            with Store(next(fresh_urls), create=True) as store:
                store.register(domain(), query(mechanism=first))
                with pytest.raises(StoreConflict, match="another ledger"):
                    store.register(domain("other"), query(domain="other", mechanism=second))
                assert store.domains() == ("homes",)
