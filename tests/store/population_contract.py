"""Every ledger of record: a budget belongs to the series, whatever the domain is called."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from typing import Any

import pytest

from quiltstream.schemas.digests import digest
from quiltstream.schemas.roster import Roster
from quiltstream.store import Store
from quiltstream.store.errors import StoreConflict, StoreError
from quiltstream.store.registration import Sharing
from quiltstream.store.specs import TRANSITIONS, DomainSpec, QuerySpec, Registration

from .engines import OnLedger
from .samples import OTHER, SERIES, SPACE, domain, drafts, query

OTHER_STATES = {**SPACE.to_dict(), "edges": [100.0, 200.0]}


def named(name: str, *series: str, **changes: Any) -> tuple[DomainSpec, QuerySpec]:
    """A domain of a name, and a query over some series."""
    roster = Roster.of(series or SERIES)
    return domain(name, **changes), query(domain=name, roster=roster)


class PopulationContract(OnLedger):
    """What a ledger says of series that are in two domains."""

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"belief": OTHER.to_dict(), "model_id": "another model"},
            {"budget": 9.0, "guarantee": "window", "missing": "break 2h"},
            {"shares_with": ("homes",)},
        ],
        ids=["name", "belief", "budget", "said to be shared"],
    )
    def test_the_same_domain_under_another_name_is_refused(self, store: Store, changes: dict[str, Any]) -> None:
        held = store.register(domain(), query())
        store.publish(held, drafts(held))
        with pytest.raises(StoreConflict, match="3 of its series are in domain 'homes' of this ledger") as caught:
            store.register(*named("flats", "m3", "m1", "m2", "m9", **changes))
        assert [caught.value.details[name] for name in ("domain", "other", "series")] == ["flats", "homes", 3]
        assert caught.value.details["differs"] is None
        assert not any(name in str(caught.value) for name in SERIES)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        assert store.domains() == ("homes",)

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("states.edges", {"states": OTHER_STATES}),
            ("slots.interval", {"grid": {"interval_us": 900_000_000, "origin_us": 0}}),
        ],
    )
    def test_another_state_process_of_the_same_series_requires_a_declaration(
        self, store: Store, field: str, changes: dict[str, Any]
    ) -> None:
        store.register(domain(), query())
        with pytest.raises(StoreConflict) as caught:
            store.register(*named("gas", **changes))
        assert caught.value.details["differs"] == field
        with pytest.raises(StoreConflict):
            store.register(*named("gas", **changes, shares_with=("flats",)))
        assert store.domains() == ("homes",)
        made = store.register(*named("gas", "m1", "m2", "m9", **changes, shares_with=("homes", "not there yet")))
        assert store.summary("gas").shares == (Sharing("homes", 2, declared=True),)
        assert store.summary("homes").shares == (Sharing("gas", 2, declared=True),)
        said = [event[:4] for event in store.summary("gas").events]
        assert said == [("series-shared", None, "null", '"homes"'), ("series-shared", None, "null", '"not there yet"')]
        # said again, and no longer said: it stays on record once
        for words in (("homes",), ()):
            again = store.register(*named("gas", "m1", "m2", "m9", **changes, shares_with=words))
            assert again == replace(made, fresh=False)
        assert len(store.summary("gas").events) == 2

    def test_readings_derived_otherwise_enter_a_domain_by_a_word_on_record(self, store: Store) -> None:
        held = store.register(domain(), query())
        other = {"timezone": held.domain.reading.get("timezone"), "select": "select a as series from files", "scale": 3}
        other = {name: value for name, value in other.items() if value is not None}
        second = query("arriving")
        with pytest.raises(StoreConflict, match="readings"):
            store.register(domain(reading=other), second)
        with pytest.raises(StoreError, match="same_values_as names query 'gone'"):
            store.register(domain(reading=other, same_values_as="gone"), second)
        assert store.registered("homes", "arriving") is None
        given = domain(reading=other, same_values_as="weekly")
        assert store.register(given, second, trial=True).fresh
        assert store.summary("homes").events == ()
        made = store.register(given, second)
        assert made.fresh
        assert made.domain.reading == held.domain.reading
        assert store.register(given, second) == replace(made, fresh=False)
        ((kind, name, old, new, _),) = store.summary("homes").events
        assert (kind, name, old) == ("same-values", "arriving", '"weekly"')
        assert new == f'"{digest(other)}"'
        with pytest.raises(StoreConflict, match="readings"):
            store.register(domain(reading=other), second)
        zoned = domain(reading=other | {"timezone": "Asia/Tokyo"}, same_values_as="weekly")
        with pytest.raises(StoreConflict, match=r"slots\.timezone"):
            store.register(zoned, second)

    def test_series_of_another_domain_join_by_no_roster(self, store: Store) -> None:
        held = store.register(domain(), query())
        store.register(*named("flats", "m7", "m8"))
        changed = query(roster=Roster.of([*SERIES, "m7"]))
        with pytest.raises(StoreConflict, match="1 of its series is in domain 'flats'"):
            store.register(domain(), changed)
        assert store.registered("homes", "weekly") == replace(held, fresh=False)
        with pytest.raises(StoreConflict):
            store.register(domain(), query("another", roster=Roster.of(["m8"])))
        assert store.registered("homes", "another") is None

    def test_series_removed_from_the_roster_stay_in_their_domain(self, store: Store) -> None:
        held = store.register(domain(), query())
        store.publish(held, drafts(held, [next(held.query.schedule.windows())]))
        store.register(domain(), query(roster=Roster.of(SERIES[1:])))
        with pytest.raises(StoreConflict, match="1 of its series is in domain 'homes'"):
            store.register(*named("flats", SERIES[0]))

    def test_series_of_another_domain_never_join_at_their_first_reading(self, store: Store) -> None:
        first = self.awaiting(store, domain())
        store.register(*named("flats", "m7", "m8"))
        store.register(*named("gas", "m5", "m6", states=OTHER_STATES))
        joined = store.join(first, [(name, None) for name in ("m4", "m5", "m7")])
        assert joined.query.roster.series == ("m4",)
        assert store.join(joined, [("m8", None)]) == joined
        store.register(domain(shares_with=("gas", "flats")), query(roster=Roster((), "series"), roster_given=False))
        joined = store.join(joined, [(name, None) for name in ("m5", "m6", "m7")])
        assert joined.query.roster.series == ("m4", "m5", "m6")
        with pytest.raises(StoreConflict):
            store.register(*named("cottages", "m6", "m10"))

    def test_tables_of_transitions_share_no_series(self, store: Store) -> None:
        states = Roster.of(["0000 from below 250 W", "0001 from 250 to 500 W"])
        for number in (1, 2):
            name = f"homes-{number}"
            tables = query("tables", domain=name, roster=states, mechanism=TRANSITIONS, share=0.1)
            store.register(*named(name, f"m{number}", budget=2.0))
            store.register(domain(name, budget=2.0), tables)
        assert store.summary("homes-1").shares == ()

    def test_concurrent_registrations_of_the_same_series_succeed_once(self, store: Store, url: str) -> None:
        store.register(*named("first", "m0"))
        refused: list[StoreConflict] = []
        together = threading.Barrier(4)

        def bring(name: str) -> None:
            with Store(url, wait=30 + int(name[-1]), create=True) as own:  # a connection of its own
                own.domains()
                together.wait()
                try:
                    own.register(*named(name))
                except StoreConflict as error:
                    refused.append(error)

        jobs = [threading.Thread(target=bring, args=(f"homes-{number}",)) for number in range(4)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert len(refused) == 3
        assert len(store.domains()) == 2

    def test_a_sharing_conflict_is_reported_before_registration(self, store: Store) -> None:
        store.register(domain(), query())
        with pytest.raises(StoreConflict):
            store.check_apart(domain("flats"), SERIES)
        said = domain("gas", states=OTHER_STATES, shares_with=("homes",))
        assert store.check_apart(said, ["m1", "m9"]) == (Sharing("homes", 1, declared=True),)
        assert store.check_apart(domain("flats"), ["m9"]) == ()
        assert store.domains() == ("homes",)
        assert store.summary("homes").events == ()

    def awaiting(self, store: Store, of: DomainSpec) -> Registration:
        """A query whose series come by first sight."""
        return store.register(of, query(roster=Roster((), "series"), roster_given=False))
