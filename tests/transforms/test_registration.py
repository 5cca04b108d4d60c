"""What the settings leave to the data is as the first run found it; what they give must be what is on record."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiltstream.schemas.readings import GROUPED_READING_SCHEMA
from quiltstream.schemas.roster import Roster, RosterError
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.states import StateSpace
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import Registration
from quiltstream.store.store import Store
from quiltstream.transforms import registration
from quiltstream.transforms.checks import check_ends
from quiltstream.transforms.completeness import StateError
from quiltstream.transforms.plan import Plan, make_plan
from quiltstream.transforms.register import DiscoveredCoder, DiscoverSchedule, RegisteredCoder
from quiltstream.transforms.registration import Discovered, Registered, register

HOUR_US = 3_600_000_000
START = 1_356_998_400_000_000  # 2013-01-01T00:00Z
HOMES = {"m1": "north", "m2": "south"}

FULL = {"size": "1d", "start": "2013-01-02", "stop": "2013-01-08"}


def plan_of(folder: Path, windows: Mapping[str, Any], **changes: Any) -> Plan:
    document: dict[str, Any] = {
        "slots": {"interval": "30min", "origin": "2013-01-01"},
        "states": {"edges": [250.0, 500.0], "unit": "W"},
        "model": {"pi_min": 0.2, "gap": 0.75},
        "windows": windows,
        "privacy": {"epsilon": 1.0},
        "query": "load",
        "most_error": 1e6,  # what is tested here is not how useful the rows are
        "domain": "homes",
        "ledger": f"sqlite:///{folder / 'ledger.db'}",
    }
    return make_plan(Settings.parse(document | changes))


def discovered(first_us: int, last_us: int, groups: Mapping[str, str]) -> Discovered:
    """Series whose readings all lie between two instants, with and without a roster."""
    span = (first_us, last_us)
    return Discovered(span, dict.fromkeys(groups.items(), span))


def registered(
    folder: Path, windows: Mapping[str, Any], seen: Discovered | None = None, **changes: Any
) -> Registration:
    """Register a query over readings from 2013-01-01 to 2013-01-10 at noon, or over what is said to be seen."""
    seen = seen or discovered(START, START + (9 * 24 + 12) * HOUR_US, HOMES)
    return register(plan_of(folder, windows, **changes), seen)


def days(held: Registration) -> tuple[float, float | None]:
    """First and last day of the windows, in days since 2013-01-01."""
    schedule = held.query.schedule
    return schedule.first / 48, None if schedule.stop is None else schedule.covered.stop / 48


LATER = discovered(START + 72 * HOUR_US, START + 24 * 30 * HOUR_US, {"m3": "north"})


@pytest.mark.night
@pytest.mark.parametrize(
    "again",
    [
        {"size": "1d"},
        {"size": "1d", "start": "2013-01-02"},
        {"size": "1d", "stop": "2013-01-08"},
        {"size": "1d", "stop": "2013-01-08T12:00"},
        FULL,
    ],
)
def test_ends_that_are_left_out_or_as_on_record_are_those_of_the_first_run(
    tmp_path: Path, again: dict[str, str]
) -> None:
    first = registered(tmp_path, FULL)
    assert days(first) == (1, 7)
    held = registered(tmp_path, again, LATER)
    assert days(held) == (1, 7)
    assert (held.digest, held.query.roster) == (first.digest, first.query.roster)


@pytest.mark.night
@pytest.mark.parametrize("first", [FULL, {"size": "1d", "start": "2013-01-02"}])
@pytest.mark.parametrize(
    ("again", "field", "given"),
    [
        ({"size": "1d", "start": "2013-01-03"}, "windows.start", "2013-01-03T00:00:00Z"),
        ({"size": "1d", "stop": "2013-01-06"}, "windows.stop", "2013-01-06T00:00:00Z"),
        ({"size": "12h"}, "windows.size", "12h"),
        ({"size": "2d", "every": "1d"}, "windows.size", "2d"),
        ({"size": "30d", "start": "2013-01-02"}, "windows.size", "30d"),
    ],
)
def test_one_given_end_or_width_that_is_not_on_record_is_refused_by_name(
    tmp_path: Path, first: dict[str, str], again: dict[str, str], field: str, given: object
) -> None:
    before = registered(tmp_path, first)
    with pytest.raises(StoreConflict) as refusal:
        registered(tmp_path, again, LATER)
    told = refusal.value.details
    assert (told["name"], told["field"]) == ("query 'load'", field)
    assert given in (None, told["given"])
    assert told["recorded"] != told["given"]
    for part in (told["recorded"], told["given"], "set it back, or use a new query name"):
        assert str(part) in str(refusal.value)
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True) as store:
        now = store.registered("homes", "load")
    assert now is not None
    assert now.query.schedule == before.query.schedule


def test_a_later_end_alone_extends_the_schedule_as_both_ends_would(tmp_path: Path) -> None:
    registered(tmp_path, FULL)
    assert days(registered(tmp_path, {"size": "1d", "stop": "2013-01-12"}, LATER)) == (1, 11)
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True) as store:
        assert [event[0] for event in store.summary("homes").events] == ["schedule-extended"]


def test_histograms_of_groups_and_of_series_differ_though_no_roster_is_given(tmp_path: Path) -> None:
    assert registered(tmp_path, FULL).query.roster.kind == "series"
    with pytest.raises(StoreConflict, match=r"group_by is a column, but on record it is left out"):
        registered(tmp_path, FULL, group_by="feeder")


def test_a_bounded_source_cannot_continue_an_endless_query(tmp_path: Path) -> None:
    roster = tmp_path / "roster.csv"
    roster.write_text("series\nm1\nm2\n", encoding="utf-8")
    endless = {"size": "1d", "start": "2013-01-02"}
    for _ in range(2):
        assert days(register(plan_of(tmp_path, endless, roster=str(roster)))) == (1, None)
    said = r"windows\.stop is the end of the source, but on record it is none, as a live run has it;"
    with pytest.raises(StoreConflict, match=said):
        registered(tmp_path, endless)
    with pytest.raises(StoreConflict, match=r"windows\.start is '2013-01-03T00:00:00Z'"):
        register(plan_of(tmp_path, endless | {"start": "2013-01-03"}, roster=str(roster)))


def test_a_concurrent_registration_is_accepted_if_equal_and_refused_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(tmp_path, FULL)
    known = Store.registered
    for stop, fits in (("2013-01-08", True), ("2013-01-06", False)):
        # what the other job wrote is not there yet when this one looks
        monkeypatch.setattr(Store, "registered", lambda *_: None)
        if fits:
            assert days(registered(tmp_path, {"size": "1d", "stop": stop})) == (1, 7)
        else:
            with pytest.raises(StoreConflict, match=r"windows\.stop"):
                registered(tmp_path, {"size": "1d", "stop": stop})
    monkeypatch.setattr(Store, "registered", known)


def test_an_implausible_end_is_refused_before_any_record(tmp_path: Path) -> None:
    absurd = plan_of(tmp_path, {"size": "1d", "start": "2013-01-02", "stop": "9999-01-08"})
    with pytest.raises(SettingsError, match=r"to 9999-01-08T00:00:00Z there are [\d,]+ windows.*windows\.stop"):
        check_ends(absurd)
    open_start = plan_of(tmp_path, {"size": "1d", "stop": "9999-01-08"})
    check_ends(open_start)  # not known yet
    with pytest.raises(SettingsError, match=r"to 9999-01-08T00:00:00Z"):
        register(open_start, LATER)
    assert (
        not (tmp_path / "ledger.db").exists() or not Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True).queries()
    )


AHEAD = START + 40 * 24 * HOUR_US


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> int:
    instant = START + (19 * 24 + 3) * HOUR_US
    monkeypatch.setattr(registration, "now_us", lambda: instant)
    return instant


@pytest.mark.night
@pytest.mark.usefixtures("now")
@pytest.mark.parametrize("roster", [True, False], ids=["roster file", "roster from the data"])
@pytest.mark.parametrize(
    ("windows", "first", "named"),
    [
        ({"size": "1d", "start": "2013-01-02"}, START, ["stop"]),
        ({"size": "1d"}, START, ["stop"]),
        ({"size": "1d"}, AHEAD - 1, ["start", "stop"]),
        ({"size": "1d", "stop": "2013-03-08"}, AHEAD, ["start"]),
    ],
)
def test_an_end_from_data_of_a_time_to_come_is_refused_before_any_record(
    tmp_path: Path, windows: dict[str, str], first: int, named: list[str], roster: bool
) -> None:
    (tmp_path / "roster.csv").write_text("series\nm1\nm2\n", encoding="utf-8")
    given: dict[str, Any] = {"roster": str(tmp_path / "roster.csv")} if roster else {}
    seen = discovered(first, AHEAD, HOMES)
    with pytest.raises(SettingsError) as refusal:
        registered(tmp_path, windows, seen, **given)
    lines = str(refusal.value).splitlines()
    assert [end for end in ("start", "stop") if f"windows.{end} is left out" in str(refusal.value)] == named
    assert all("2013-02-" in line and "00:00" not in line for line in lines if "is left out" in line)
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True) as store:
        assert store.queries() == []
    # data that are meant to lie ahead have their ends in the settings
    assert days(registered(tmp_path, {"size": "1d", "start": "2013-01-02", "stop": "2013-02-10"}, seen, **given)) == (
        1,
        40,
    )
    # nor does what comes later change what is on record
    later = discovered(first, AHEAD + 9 * 24 * HOUR_US, HOMES)
    assert days(registered(tmp_path, {"size": "1d"}, later, **given)) == (1, 40)


def test_an_end_from_data_may_lie_a_day_ahead(tmp_path: Path, now: int) -> None:
    """Clocks of meters differ a little, and stamps may be of the end of a slot."""
    seen = discovered(START, now + 24 * HOUR_US, HOMES)
    assert days(registered(tmp_path, {"size": "1d"}, seen)) == (0, 20)


def batch(*rows: tuple[str, int, float, str]) -> pa.RecordBatch:
    series, at, values, groups = zip(*rows, strict=True)
    columns = {
        "series": pa.array(series).dictionary_encode(),
        "time": pa.array([START + 24 * HOUR_US * day for day in at], pa.timestamp("us", tz="UTC")),
        "value": pa.array(values, pa.float64()),
        "group": pa.array(groups).dictionary_encode(),
    }
    return pa.RecordBatch.from_pydict(columns, schema=GROUPED_READING_SCHEMA)


LABELS = StateSpace((), categories=("off", "on"))


@pytest.mark.parametrize(
    ("how", "far"),
    [
        ({"roster": Roster.of(["m1", "m2"])}, ("stranger", 9, 1.0, "north")),
        ({"roster": Roster.of(["m1", "m2"])}, ("stranger", -9, 1.0, "north")),
        ({"space": LABELS}, ("m1", 9, 2.0, "north")),
        ({"space": LABELS}, ("m1", -9, -1.0, "north")),
        ({}, ("m1", 9, float("nan"), "north")),
        ({"grouped": True}, ("m1", 9, 1.0, "south")),
    ],
    ids=["series", "series before", "label", "label before", "value", "group"],
)
def test_a_reading_that_does_not_count_has_no_say_in_the_ends(how: dict[str, Any], far: Any) -> None:
    good = [("m1", 2, 1.0, "north"), ("m2", 5, 0.0, "south")]
    discover = DiscoverSchedule(**how)
    for parts in ([good, [far]], [[far], good], [[*good, far]]):
        one_by_one = discover.create_accumulator()
        for part in parts:
            one_by_one = discover.add_input(one_by_one, batch(*part))
        apart = [discover.add_input(discover.create_accumulator(), batch(*part)) for part in parts]
        for seen in (one_by_one, discover.merge_accumulators(apart)):
            _, ends = seen.members()
            assert (seen.span or ends) == (START + 48 * HOUR_US, START + 120 * HOUR_US)


def test_the_group_of_a_series_is_that_of_its_earliest_reading_in_any_order() -> None:
    rows = [("m1", 7, 1.0, "late"), ("m1", 2, 1.0, "b"), ("m1", 2, 1.0, "a"), ("m1", 4, 1.0, "a")]
    discover = DiscoverSchedule(grouped=True)
    for order in permutations(rows):
        parts = [discover.add_input(discover.create_accumulator(), batch(one)) for one in order]
        groups, ends = discover.merge_accumulators(parts).members()
        assert (groups, ends) == ({"m1": "a"}, (START + 48 * HOUR_US, START + 96 * HOUR_US))


def test_names_of_groups_without_an_end_are_refused_as_series_are() -> None:
    discover = DiscoverSchedule(3, grouped=True)
    rows = [("m1", day, 1.0, f"g{day}") for day in range(4)]
    with pytest.raises(RosterError, match=r"more than 3 series, each with a group .* the limit of most_series"):
        discover.add_input(discover.create_accumulator(), batch(*rows))


def test_series_of_another_domain_stay_out_of_a_roster_from_the_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They have no say in the schedule's ends either; the domain that has them is as it was."""
    windows = {"size": "1d"}
    registered(tmp_path, windows, discovered(START, START + 72 * HOUR_US, {"m1": "north"}))
    span = (START + 24 * HOUR_US, START + 96 * HOUR_US - 1)
    theirs = (START, START + 900 * HOUR_US)
    seen = Discovered(spans={("m1", "north"): theirs, ("m2", "south"): span, ("m3", "south"): span})
    plan = plan_of(tmp_path, windows, domain="others")
    trial = register(plan, seen, trial=True)
    held = register(plan, seen)
    assert held.query.roster.series == trial.query.roster.series == ("m2", "m3")
    assert days(held) == days(trial) == (1, 4)
    assert caplog.text.count("1 of the series of the data are in another domain") == 1
    assert "m1" not in caplog.text
    # where no series is left, it is the same domain under another name
    alone = Discovered(spans={("m1", "north"): theirs})
    with pytest.raises(StoreConflict, match="1 of its series is in domain 'homes'"):
        register(plan_of(tmp_path, windows, domain="renamed"), alone)
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}") as store:
        assert store.domains() == ("homes", "others")


def test_series_that_the_settings_declare_shared_are_in_a_roster_from_the_data(tmp_path: Path) -> None:
    windows = {"size": "1d"}
    registered(tmp_path, windows)
    other: dict[str, Any] = {
        "domain": "gas",
        "states": {"edges": [100.0], "unit": "W"},
        "shares_series_with": ["homes"],
    }
    held = registered(tmp_path, windows, **other)
    assert held.query.roster.series == ("m1", "m2")


def rosters_of(held: Registration) -> tuple[Any, ...]:
    return held.query.roster, held.versions, held.settling, held.series, held.revision, held.query.schedule


@pytest.mark.parametrize("grouped", [False, True])
def test_workers_are_told_of_a_query_on_record_as_it_is(tmp_path: Path, grouped: bool) -> None:
    """Without and with a roster that was changed, also as a job knew it that began before."""
    endless = {"size": "1d", "start": "2013-01-02"}
    path, group = tmp_path / "roster.csv", {"group_by": "street"} if grouped else {}
    made: list[Registration] = []
    for names in ("ab", "bc"):
        path.write_text("series,street\n" + "".join(f"{name},north\n" for name in names))
        made.append(register(plan_of(tmp_path, endless, roster=str(path), **group)))
    before, now = made
    assert (before.revision, now.revision) == (0, 1)
    given = Registered("id", now, before)
    told = RegisteredCoder().decode(RegisteredCoder().encode(given))
    assert told.store_id == "id"
    assert told.before is not None
    for one, other in ((told.now, now), (told.before, before), (told.now.as_begun(told.begun), now.as_begun(before))):
        assert rosters_of(one) == rosters_of(other)
        assert (one.domain, one.digest, one.query.digest(one.domain)) == (other.domain, other.digest, other.digest)
    with pytest.raises(StateError, match="version 9, and this one reads 1: begin anew"):
        RegisteredCoder().decode(b"\x09")


def test_what_readings_say_of_themselves_is_read_as_it_was_written() -> None:
    for seen in (Discovered(), Discovered((1, 2), {("m", ""): (3, 4), ("m", "x"): (5, 6)}, {"readings": 3})):
        assert DiscoveredCoder().decode(DiscoveredCoder().encode(seen)) == seen
