"""Rosters that change between windows: what each window has, whatever the workers knew when its readings came."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.window import TimestampedValue
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.schemas.model_file import Model, Provenance, hash_of_series
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Settings
from quiltstream.store import registration as registrar
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import Registration, RosterVersion
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.aggregate.rosters import Members, Presence
from quiltstream.transforms.completeness import Arrived, FromSource
from quiltstream.transforms.plan import make_plan
from quiltstream.transforms.registration import register

from ...depth import some
from ...store.samples import domain, query
from ..sources.feed import feed
from ..sources.streams import HOUR, NAMES, as_it_comes, on_record, play, readings, streamed, truth
from ..test_histograms import DAY, ORIGIN, batches, settings, write

ALL = [*NAMES, "f"]
Groups = dict[str, list[str]]


def job_of(folder: Path, roster: Groups, **changes: Any) -> Settings:
    """A job over four days with a roster: key -> its series."""
    grouped = any([key] != names for key, names in roster.items())
    path = folder / "roster.csv"
    path.write_text("series,group\n" + "".join(f"{name},{key}\n" for key, names in roster.items() for name in names))
    document: dict[str, Any] = {
        "windows": {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"},
        "roster": {"file": str(path), "group": "group"} if grouped else str(path),
    }
    return settings(folder, **(document | changes))


def alone(names: str) -> Groups:
    return {name: [name] for name in names}


def expected(frame: pl.DataFrame, rosters: dict[tuple[int, int], Groups]) -> dict[Any, list[int]]:
    """The true rows of windows, each with the roster it has."""
    found: dict[Any, list[int]] = {}
    for window, roster in rosters.items():
        found |= truth(frame, [window], roster)
    return found


def day(number: int) -> tuple[int, int]:
    return number * DAY, number * DAY + DAY


def held_by(job: Settings) -> Registration:
    with Store(PrivateHistograms(job, noise="none").plan.address, create=True) as store:
        held = store.registered(job.domain, job.query)
    assert held is not None
    return held


def play_until(frame: pl.DataFrame, job: Settings, hours: int) -> None:
    play(as_it_comes(frame, step_us=6 * HOUR, lateness_us=0, until_us=ORIGIN + hours * HOUR), job)


# A roster file that changes between two runs of a live job


@pytest.mark.night
def test_a_series_that_joins_leaves_or_returns_does_so_with_a_window(tmp_path):
    rosters = [
        {"x": ["a", "b"], "y": ["c", "d", "e"]},
        {"x": ["a"], "y": ["b", "c", "e"], "z": ["f"]},
        {"x": ["a", "b", "f"], "y": ["c", "d", "e"]},
    ]
    frame = readings(4, seed=31, names=ALL)
    before: dict[Any, list[int]] = {}
    wanted: dict[tuple[int, int], Groups] = {}
    for at, (hours, days) in enumerate([(24, [0]), (48, [1]), (96, [2, 3])]):
        job = job_of(tmp_path, rosters[at], missing="state")
        play_until(frame, job, hours)
        wanted |= {day(number): rosters[at] for number in days}
        rows = on_record(job)
        sizes = {(w[0], key): DAY * len(names) for w, roster in wanted.items() for key, names in roster.items()}
        true = {place: [*one, sizes[place] - sum(one)] for place, one in expected(frame, wanted).items()}
        assert rows == true
        assert {place: rows[place] for place in before} == before
        before = rows


def publish(folder: Path, frame: pl.DataFrame, job: Settings) -> dict[str, int]:
    """A batch run; what it rejected, by reason."""
    out = folder / f"rejects-{len(list(folder.iterdir()))}"
    out.mkdir()
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        result = pipeline | feed(folder, batches(frame, 100)) | PrivateHistograms(job, noise="none")
        _ = result.rejected | beam.Map(write, str(out))
    reasons = [row["reason"] for path in out.iterdir() for row in pa.ipc.open_file(path).read_all().to_pylist()]
    return {reason: reasons.count(reason) for reason in set(reasons)}


def test_a_batch_run_keeps_the_roster_of_recorded_windows(tmp_path):
    frame = readings(4, seed=34, names=ALL)
    job = job_of(tmp_path, alone("abcde"))
    publish(tmp_path, frame, job)
    rows = on_record(job)
    with pytest.raises(StoreConflict, match="every window of the query has its roster for ever"):
        publish(tmp_path, frame, job_of(tmp_path, alone("abcdef")))
    assert on_record(job_of(tmp_path, alone("abcde"))) == rows


def test_series_in_fewer_groups_keep_the_noise_and_in_more_are_refused(tmp_path):
    pairs = {"x": ["a", "b"], "y": ["b", "c"]}
    first = register(make_plan(job_of(tmp_path, pairs)))
    held = register(make_plan(job_of(tmp_path, {"x": ["a"], "y": ["b", "c"]})))
    assert (held.query.scale, held.query.epsilon_dp) == (first.query.scale, first.query.epsilon_dp)
    assert held.query.roster.multiplicity == 1
    with pytest.raises(StoreConflict, match=r"roster\.multiplicity is 3, but on record it is 2"):
        register(make_plan(job_of(tmp_path, {**pairs, "z": ["b"]})))


# A roster that changes while a job runs


MID = ORIGIN + 36 * HOUR


#: What another process does while a job runs, before the job reads on.
WAITING: list[tuple[int, Callable[[], object]]] = []


def changed(sent: FromSource) -> FromSource:
    times = sent.batch["time"].drop_null().cast(pa.int64()).to_pylist() if isinstance(sent, Arrived) else []
    while WAITING and times and min(times) >= WAITING[0][0]:
        WAITING.pop(0)[1]()
    return sent


def play_changing(events: list[Any], job: Settings, *changes: tuple[int, Callable[[], object]]) -> None:
    """Play events, and change something when all before an instant is read."""
    WAITING[:] = changes
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(streaming=True)) as pipeline:
        given = pipeline | streamed(events) | "Change" >> beam.Map(changed).with_output_types(FromSource)
        _ = given | PrivateHistograms(job, noise="none")
    assert not WAITING


def test_a_roster_that_changes_while_a_job_runs_waits_for_a_new_window(tmp_path, monkeypatch):
    first, second = {"x": ["a", "b"], "y": ["c", "d", "e"]}, {"x": ["a"], "y": ["b", "c", "e"], "z": ["f"]}
    frame = readings(4, seed=42, names=ALL)
    job = job_of(tmp_path, first)
    play_until(frame, job, 24)  # the first day is charged by another job
    monkeypatch.setattr(registrar, "now_us", lambda: MID)

    def change() -> None:
        register(PrivateHistograms(job_of(tmp_path, second), noise="none").plan)

    events = as_it_comes(frame, step_us=6 * HOUR, lateness_us=HOUR)
    play_changing(events, job, (MID, change))
    rows = on_record(job)
    wanted = expected(frame, {day(n): first if n < 2 else second for n in range(4)})
    assert rows == wanted
    newer = job_of(tmp_path, second)
    play(events, newer)  # one that begins anew finds the same
    assert on_record(newer) == rows


@pytest.mark.night
@pytest.mark.parametrize(
    ("hours", "last"), some([*product([(12, 25), (12, 36), (30, 36)], ["cef", "abcdef", "abcde"])], 9)
)
def test_a_roster_that_another_replaces_before_a_charge_still_held_in_a_running_job(tmp_path, monkeypatch, hours, last):
    frame = readings(4, seed=47, names=ALL)
    rosters = [alone("abcde"), alone("abef"), alone(last)]
    job = job_of(tmp_path, rosters[0])
    changes: list[tuple[int, Callable[[], object]]] = []
    for at, roster in zip((ORIGIN + hour * HOUR for hour in hours), rosters[1:], strict=True):

        def change(at: int = at, roster: Groups = roster) -> None:
            monkeypatch.setattr(registrar, "now_us", lambda: at)
            register(PrivateHistograms(job_of(tmp_path, roster), noise="none").plan)

        changes.append((at, change))
    play_changing(as_it_comes(frame, step_us=HOUR, lateness_us=3 * HOUR), job, *changes)
    began = [sum(n * 24 > hour for hour in hours) for n in range(4)]
    rows = on_record(job)
    assert rows == expected(frame, {day(n): rosters[version] for n, version in enumerate(began)})
    newer = job_of(tmp_path, rosters[2])
    play(as_it_comes(frame, step_us=6 * HOUR, lateness_us=0), newer)
    assert on_record(newer) == rows


@pytest.mark.night
def test_windows_that_overlap_a_change_keep_the_roster_before_it(tmp_path, monkeypatch):
    frame = readings(4, seed=43, names=ALL)
    windows = {"size": "1d", "every": "6h", "start": "2013-01-01", "stop": "2013-01-05"}
    job = job_of(tmp_path, alone("abcde"), windows=windows)
    monkeypatch.setattr(registrar, "now_us", lambda: MID)

    def change() -> None:
        register(PrivateHistograms(job_of(tmp_path, alone("abdef"), windows=windows), noise="none").plan)

    play_changing(as_it_comes(frame, step_us=6 * HOUR, lateness_us=HOUR), job, (MID, change))
    starts = range(0, 3 * DAY + 1, DAY // 4)
    # a window that begins at the very instant of the change may lack readings
    late = (MID - ORIGIN) // (HOUR // 2)
    wanted = {(at, at + DAY): alone("abdef") if at > late else alone("abcde") for at in starts}
    assert on_record(job) == expected(frame, wanted)
    # however many charges there were before the new roster held
    assert [version.start for version in held_by(job).versions] == [0, late // 12 * 12 + 12]


def taken_up(job: Settings, events: Any) -> None:
    """A job with the state of another one."""
    options = PipelineOptions(["--savepoint_path=file:///x"], streaming=True)
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        _ = pipeline | streamed(events) | PrivateHistograms(job, noise="none")


def test_a_job_with_the_state_of_another_waits_for_windows_that_a_changed_roster_is_about(tmp_path, monkeypatch):
    frame = readings(3, seed=46, names=ALL)
    play_until(frame, job_of(tmp_path, alone("abcde")), 30)
    monkeypatch.setattr(registrar, "now_us", lambda: MID)
    job = job_of(tmp_path, alone("abdef"))
    register(PrivateHistograms(job, noise="none").plan)
    with pytest.raises(SettingsError, match="roster: it was changed at 2013-01-02T12:00:00Z, and the job whose state"):
        taken_up(job, as_it_comes(frame, step_us=6 * HOUR, lateness_us=0))


@pytest.mark.night
def test_a_job_with_the_state_of_another_takes_a_new_roster_as_a_running_one(tmp_path, monkeypatch):
    """The job before it rejected the readings of series that joined, in windows that are open."""
    frame = readings(4, seed=46, names=ALL)
    first, second = alone("abcde"), alone("abdef")
    play_until(frame, job_of(tmp_path, first), 30)
    monkeypatch.setattr(registrar, "now_us", lambda: MID)
    job = job_of(tmp_path, second)
    events = as_it_comes(frame, step_us=6 * HOUR, lateness_us=0, until_us=ORIGIN + 48 * HOUR)

    taken_up(job, events)
    rows = on_record(job)
    assert rows == expected(frame, {day(n): first for n in range(2)})
    events = as_it_comes(frame, step_us=6 * HOUR, lateness_us=0)
    taken_up(job, events)
    assert on_record(job) == expected(frame, {day(n): first if n < 2 else second for n in range(4)})


def test_a_window_that_another_job_charged_is_not_published_without_readings(tmp_path, monkeypatch):
    """Two jobs of a query run, and the newer one charges a window first: the older has not all of its readings."""
    frame = readings(3, seed=45, names=ALL)
    job, newer = job_of(tmp_path, alone("abcde")), None
    monkeypatch.setattr(registrar, "now_us", lambda: MID)

    def change() -> None:
        nonlocal newer
        newer = job_of(tmp_path, alone("abdef"))
        held = register(PrivateHistograms(newer, noise="none").plan)
        with Store(PrivateHistograms(newer, noise="none").plan.address) as store:
            store.charge_windows(held, list(held.query.schedule.windows())[:2])

    events = as_it_comes(frame, step_us=6 * HOUR, lateness_us=HOUR, until_us=ORIGIN + 72 * HOUR)
    play_changing(events, job, (MID, change))
    assert newer is not None
    assert {start for start, _ in on_record(newer)} == {0, 2 * DAY}
    play(events, newer)
    wanted = {day(n): alone("abdef") if n else alone("abcde") for n in range(3)}
    assert on_record(newer) == expected(frame, wanted)


def test_a_batch_run_publishes_no_window_of_a_roster_that_it_did_not_count_by(tmp_path, monkeypatch):
    """The roster changes when all readings are encoded, and before the first window is charged."""
    frame = readings(4, seed=48, names=ALL)
    job, charge = job_of(tmp_path, alone("abcde")), Store.charge_windows
    waiting = [lambda: register(PrivateHistograms(job_of(tmp_path, alone("abdef")), noise="none").plan)]

    def charge_windows(*given: Any) -> Registration:
        if waiting:
            waiting.pop()()
        return charge(*given)

    monkeypatch.setattr(registrar, "now_us", lambda: MID)
    monkeypatch.setattr(Store, "charge_windows", charge_windows)

    def run(job: Settings) -> None:
        with beam.Pipeline(runner=BundleBasedDirectRunner()) as pipeline:
            _ = pipeline | beam.Create(batches(frame, 100)) | PrivateHistograms(job, noise="none")

    run(job)
    assert on_record(job) == expected(frame, {day(n): alone("abcde") for n in range(2)})
    newer = job_of(tmp_path, alone("abdef"))
    run(newer)
    assert on_record(newer) == expected(frame, {day(n): alone("abcde" if n < 2 else "abdef") for n in range(4)})


# First sight


def test_a_live_job_without_a_roster_adds_series_at_their_first_reading(tmp_path):
    frame = readings(4, seed=36, names=ALL).filter(
        # e comes on the third day, f on the fourth, and a leaves after the first
        ~((pl.col("series") == "e") & (pl.col("time") < ORIGIN + 54 * HOUR))
        & ~((pl.col("series") == "f") & (pl.col("time") < ORIGIN + 75 * HOUR))
        & ~((pl.col("series") == "a") & (pl.col("time") >= ORIGIN + 24 * HOUR))
    )
    job = settings(
        tmp_path,
        windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"},
        roster={"column": "series"},
        readings={"series": "series", "time": "time", "value": "value"},
    )
    play(as_it_comes(frame, step_us=6 * HOUR, lateness_us=0, parts=3), job)
    rows, held = on_record(job), held_by(job)
    assert held.query.roster == Roster.of(ALL)
    keys = {number: sorted(key for start, key in rows if start == number * DAY) for number in range(4)}
    for number in range(4):
        begin = ORIGIN + number * 24 * HOUR
        seen = frame.filter((pl.col("time") >= begin) & (pl.col("time") < begin + 24 * HOUR))["series"].unique()
        assert set(keys[number]) >= set(seen)
        assert "f" not in keys[number] or number == 3
        assert "e" not in keys[number] or number >= 2
    assert rows == expected(frame, {day(n): alone("".join(keys[n])) for n in range(4)})
    play(as_it_comes(frame, step_us=6 * HOUR, lateness_us=0), job)
    assert on_record(job) == rows


@pytest.mark.night
def test_series_beyond_the_limit_do_not_join_a_live_job_and_change_no_row(tmp_path):
    """Whoever may send readings could make up names without an end."""
    frame = readings(3, seed=41, names=ALL)
    job = settings(
        tmp_path,
        windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-04"},
        readings={"series": "series", "time": "time", "value": "value"},
        most_series=3,
    )
    play(as_it_comes(frame, step_us=6 * HOUR, lateness_us=0), job)
    roster = held_by(job).query.roster
    assert len(roster.series) == 3
    kept = frame.filter(pl.col("series").is_in(roster.series))
    assert on_record(job) == expected(kept, {day(n): alone("".join(roster.series)) for n in range(3)})


def test_the_group_of_a_joining_series_is_that_of_its_earliest_reading(tmp_path):
    """Its later readings of another group come first in the batch, and count in neither group."""
    frame = readings(2, seed=37, names=["a", "b", "c"]).sort("time", descending=True)
    job = settings(
        tmp_path,
        windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-03"},
        group_by="group",
        readings={"series": "series", "time": "time", "value": "value"},
    )
    moved = (pl.col("series") == "a") & (pl.col("time") >= ORIGIN + 24 * HOUR)
    names = frame.select(pl.when(moved | (pl.col("series") == "c")).then(pl.lit("y")).otherwise(pl.lit("x")))
    (batch,) = batches(frame, len(frame), dict.fromkeys("abc", ""))
    place, groups = batch.schema.get_field_index("group"), names.to_series().to_arrow().cast(pa.utf8())
    batch = batch.set_column(place, batch.schema.field(place), groups.dictionary_encode())
    events = [TimestampedValue(Arrived(batch, ORIGIN), ORIGIN // 1_000_000)]
    events += as_it_comes(frame.clear(), step_us=12 * HOUR, lateness_us=0, until_us=ORIGIN + 48 * HOUR)
    play(events, job)
    kept = frame.filter(~moved)
    assert 0 < len(kept) < len(frame)
    assert on_record(job) == expected(kept, {day(n): {"x": ["a", "b"], "y": ["c"]} for n in range(2)})


@pytest.mark.night
@pytest.mark.parametrize("label", [False, True])
def test_a_series_of_the_model_joins_only_if_rows_are_marked_given_the_model(tmp_path, label):
    job = settings(tmp_path, windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-02"})
    origin = Provenance(method="fitted", series_hashes=(hash_of_series("a"),), from_protected=label)
    model = Model(belief=MixingBounds(0.01, 0.3).to_dict(), states=None, interval_us=None, provenance=origin)
    frame = readings(1, seed=40, names=["a", "b"])
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(streaming=True)) as pipeline:
        events = as_it_comes(frame, step_us=12 * HOUR, lateness_us=0)
        _ = pipeline | streamed(events) | PrivateHistograms(job, model=model, noise="none")
    held = held_by(job)
    assert held.query.given_model == label
    assert held.query.roster == Roster.of("ab" if label else "b")
    assert on_record(job) == expected(frame, {day(0): alone("ab" if label else "b")})


# The pieces


def registration_of(rosters: list[tuple[int, list[str]]], *, size: int = 4, every: int = 2) -> Registration:
    """A query whose rosters hold from some slots on."""
    versions = tuple(RosterVersion(start, Roster.of(names)) for start, names in rosters)
    joined = tuple(dict.fromkeys(name for _, names in rosters for name in sorted(names)))
    spec = query(size=size, every=every, windows=20, shards=3, roster=versions[-1].roster)
    return Registration(
        domain(), spec, "digest", None, 1.0, fresh=False, versions=versions, joined=joined, revision=len(rosters) - 1
    )


ROSTERS = st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=4)


@given(ROSTERS, st.sampled_from([1, 2, 4]))
def test_a_reading_counts_where_some_window_over_it_has_its_series(rosters, overlap):
    held = registration_of(
        [(96 + 6 * at, sorted(names)) for at, names in enumerate(rosters)], size=2 * overlap, every=2
    )
    members = Members.of(held)
    presence = Presence.of(held, members)
    numbers, steps = (one.reshape(-1) for one in np.meshgrid(np.arange(len(members.names)), np.arange(overlap, 16)))
    windows = [window for window in held.query.schedule.windows() if window.start < 96 + 40]
    over = {step: [w for w in windows if w.start <= 96 + 2 * step < w.stop] for step in range(overlap, 16)}
    counted = [
        any(members.names[number].as_py() in held.roster_of(window).series for window in over[step])
        for number, step in zip(numbers.tolist(), steps.tolist(), strict=True)
    ]
    found = np.ones(len(steps), dtype=bool) if presence is None else ~presence.absent(numbers, steps)
    assert found.tolist() == counted
