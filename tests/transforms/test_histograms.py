from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import apache_beam as beam
import polars as pl
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.privacy import LaplaceHistogram, Ledger, MarkovChain, belief_from_dict
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.states import StateSpace
from quiltstream.store.address import StoreAddress
from quiltstream.store.database import Database
from quiltstream.store.errors import BudgetRefused, StoreConflict
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms, ReadingsError, make_plan
from quiltstream.transforms.aggregate import encode
from quiltstream.transforms.checks import check_hosts

from .sources.feed import feed

DAY = 48
EDGES = [250.0, 500.0, 1000.0, 2000.0]
CHAIN = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
ORIGIN = 1_356_998_400_000_000  # 2013-01-01T00:00Z


def settings(folder: Path, **changes: Any) -> Settings:
    document: dict[str, Any] = {
        "slots": {"interval": "30min", "origin": "2013-01-01"},
        "states": {"edges": EDGES, "unit": "W"},
        "model": {"pi_min": 0.01, "gap": 0.3},
        "windows": {"size": "7d", "start": "2013-01-01", "stop": "2013-12-31"},
        "privacy": {"epsilon": 1.0},
        "query": "load",
        "most_error": 1e6,  # what is tested here is not how useful the rows are
        "domain": "homes",
        "ledger": f"sqlite:///{folder / 'ledger.db'}",
    }
    document.update(changes)
    return Settings.parse(document)


def batches(frame: pl.DataFrame, rows: int, groups: dict[str, str] | None = None) -> list[pa.RecordBatch]:
    """Readings (series, time, value) as record batches of some rows each."""
    columns = {
        "series": frame["series"].to_arrow().cast(pa.utf8()).dictionary_encode(),
        "time": frame["time"].to_arrow().cast(pa.timestamp("us", tz="UTC")),
        "value": frame["value"].to_arrow(),
    }
    schema = READING_SCHEMA
    if groups is not None:
        names = [groups[s] for s in frame["series"].to_list()]
        columns["group"] = pa.array(names).dictionary_encode()
        schema = GROUPED_READING_SCHEMA
    table = pa.Table.from_arrays([columns[n] for n in schema.names], schema=schema)
    return table.to_batches(max_chunksize=rows)


def publish(given: list[pa.RecordBatch], job: Settings, folder: Path) -> list[Release]:
    """Runs the job without noise and returns what left the pipeline, which must be what is on record."""
    out = folder / f"out-{len(list(folder.iterdir()))}"
    out.mkdir()
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        result = pipeline | feed(folder, given) | PrivateHistograms(job, noise="none")
        _ = result.releases | beam.Map(write, str(out))
    left = [release for path in sorted(out.iterdir()) for release in read(path)]
    store = Store(PrivateHistograms(job, noise="none").plan.address, create=True)
    recorded = [r for batch in store.releases(job.domain, job.query) for r in releases_from_batch(batch)]
    store.close()

    def by_name(release: Release) -> str:
        return release.release_id

    assert sorted(left, key=by_name) == sorted(recorded, key=by_name)
    return left


def write(batch: pa.RecordBatch, folder: str) -> None:
    path = Path(folder) / f"{len(list(Path(folder).iterdir())):05d}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def read(path: Path) -> list[Release]:
    with pa.OSFile(str(path)) as file:
        return releases_from_batch(pa.ipc.open_file(file).read_all())


HALF = 1_800_000_000
LONDON = ZoneInfo("Europe/London")
START = 1_381_708_800_000_000  # 2013-10-14T00:00Z
SERIES = ["a", "b", "c", "d", "e"]
GROUPS = {name: "north" if name < "c" else "south" for name in SERIES}
PAIRS = [*GROUPS.items(), ("e", "north")]
WORDS = {"series": "household", "time": "ts", "value": "w"}

#: The Sunday on which London's clock goes back, 2013-10-27, is in the second week.
WEEKS = {"size": "7d", "start": "2013-10-14T00:00Z", "stop": "2013-11-04T00:00Z"}
DAYS = {"size": "1d", "start": "2013-10-26T00:00Z", "stop": "2013-10-30T00:00Z"}
SLIDING = {"size": "2d", "every": "12h", "start": "2013-10-25T06:00Z", "stop": "2013-10-30T00:00Z"}
LOCAL = {"size": "day", "start": "2013-10-20", "stop": "2013-10-31"}
BY: dict[tuple[str, ...], Callable[[dt.datetime], str]] = {
    (): lambda _: "",
    ("hour",): lambda stamp: f"{stamp.hour:02}:00",
    ("weekend", "hour"): lambda stamp: f"{'weekend' if stamp.weekday() > 4 else 'workday'} {stamp.hour:02}:00",
    ("month", "weekday"): lambda stamp: stamp.strftime("%b %a"),
}


def readings(seed: int = 20131014) -> pl.DataFrame:
    """Three weeks of half-hours of five series in any order, some missing, some read again or at the same instant."""
    print(f"seed {seed}")  # noqa: T201 - a failure shows it
    rng = random.Random(seed)
    rows = [
        {"series": name, "time": START + slot * HALF + offset, "value": rng.uniform(0, 2500)}
        for name in SERIES
        for slot in range(21 * 48)
        for offset in rng.choice([(), (0,), (0,), (0,), (0,), (5,), (0, 7), (9, 9)])
    ]
    return pl.DataFrame(rows + rows[:100]).sample(fraction=1.0, shuffle=True, seed=seed)


def job(folder: Path, windows: dict[str, str], **extra: Any) -> Settings:
    slots = {"interval": "30min", "origin": "2013-01-01", "timezone": "Europe/London"}
    return settings(folder, **({"windows": windows, "slots": slots} | extra))


def windows_of(said: dict[str, str]) -> list[tuple[int, int]]:
    """First instant and end of each window."""
    start, stop = (dt.datetime.fromisoformat(said[end]) for end in ("start", "stop"))
    step = {"day": dt.timedelta(days=1), "week": dt.timedelta(days=7)}.get(said["size"])
    lengths = {"7d": 168, "1d": 24, "2d": 48, "12h": 12}
    size = step or dt.timedelta(hours=lengths[said["size"]])
    every = step or dt.timedelta(hours=lengths[said.get("every", said["size"])])
    found: list[tuple[int, int]] = []
    while start + size <= stop:
        ends = [one if one.tzinfo else one.replace(tzinfo=LONDON) for one in (start, start + size)]
        found.append((round(ends[0].timestamp()) * 1_000_000, round(ends[1].timestamp()) * 1_000_000))
        start += every
    return found


Classes = dict[str, list[int]]


def plainly(frame: pl.DataFrame, asked: dict[str, Any], groups: dict[str, list[str]]) -> dict[Any, Classes]:
    """First instant, end and key of each row -> label of each class that the window has -> its counts.

    The latest reading of a slot counts, of equal times the higher one. The last count is of slots without a reading.
    """
    held: dict[tuple[str, int], tuple[int, float]] = {}
    for name, time, value in frame.rows():
        if math.isfinite(value):
            held[name, time // HALF] = max(held.get((name, time // HALF), (time, value)), (time, value))
    edges, absent = asked.get("bins", EDGES), asked.get("readings", {}).get("absent")
    found: dict[Any, Classes] = {}
    for start, stop in windows_of(asked["windows"]):
        for key, members in groups.items():
            classes = found[start, stop, key] = dict[str, list[int]]()
            for time in range(start, stop, HALF):
                label = BY[tuple(asked.get("by", ()))](dt.datetime.fromtimestamp(time / 1e6, LONDON))
                counts = classes.setdefault(label, [0] * (len(edges) + 2))
                for name in members:
                    value = held[name, time // HALF][1] if (name, time // HALF) in held else absent
                    counts[-1 if value is None else sum(value >= edge for edge in edges)] += 1
    return found


def by_label(row: Release, counts: Any) -> dict[str, list[Any]]:
    labels = row.classes or ("",)
    width = len(counts) // len(labels)
    return {label: list(counts[at * width : (at + 1) * width]) for at, label in enumerate(labels)}


NIGHT = pytest.mark.night
GROUPED: dict[str, Any] = {"group_by": "group"}


@pytest.mark.parametrize(
    "asked",
    [
        {"windows": WEEKS},
        {"windows": LOCAL, "by": ["hour"]} | GROUPED,
        {"windows": SLIDING, "missing": "state", "roster": PAIRS},
        pytest.param({"windows": WEEKS, "held": 100}, marks=NIGHT),
        pytest.param({"windows": WEEKS, "roster": [("a", "a"), ("never seen", "never seen")]}, marks=NIGHT),
        pytest.param({"windows": LOCAL | {"size": "week", "start": "2013-10-14"}}, marks=NIGHT),
        pytest.param({"windows": SLIDING, "by": ["weekend", "hour"], "missing": "state"}, marks=NIGHT),
        pytest.param({"windows": DAYS, "by": ["month", "weekday"], "missing": "state"} | GROUPED, marks=NIGHT),
        pytest.param({"windows": WEEKS, "by": ["hour"], "bins": [500.0, 2000.0]} | GROUPED, marks=NIGHT),
        pytest.param({"windows": WEEKS, "missing": "state", "bins": [500.0, 2000.0]}, marks=NIGHT),
        pytest.param({"windows": WEEKS, "readings": WORDS | {"absent": 0.0}, "by": ["hour"]} | GROUPED, marks=NIGHT),
        pytest.param({"windows": WEEKS, "readings": WORDS | {"absent": 700.0}, "bins": [500.0, 2000.0]}, marks=NIGHT),
    ],
    ids=str,
)
def test_rows_equal_a_plain_computation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]) -> None:
    asked = dict(asked)
    monkeypatch.setattr(encode, "_HELD_CELLS", asked.pop("held", encode._HELD_CELLS))
    frame, groups = readings(), {name: [name] for name in SERIES}
    if "group_by" in asked:
        groups = {key: [name for name in SERIES if GROUPS[name] == key] for key in ("north", "south")}
    changes = dict(asked)
    if "roster" in asked:
        text = "series,group\n" + "".join(f"{name},{group}\n" for name, group in asked["roster"])
        (tmp_path / "roster.csv").write_text(text, encoding="utf-8")
        groups = {key: [name for name, group in asked["roster"] if group == key] for _, key in asked["roster"]}
        changes |= {"roster": {"file": str(tmp_path / "roster.csv"), "group": "group"}}
        frame = frame.with_columns(value=pl.when(pl.col("time") % 5 == 4).then(float("nan")).otherwise(pl.col("value")))
    rows = publish(batches(frame, 500, GROUPS if "group_by" in asked else None), job(tmp_path, **changes), tmp_path)
    truth = plainly(frame, asked, groups)
    assert {(row.window_start, row.window_stop, row.key) for row in rows} == truth.keys()
    assert len(rows) == len(truth)
    told = None if asked.get("missing") == "state" else -1
    for row in rows:
        right, slots = truth[row.window_start, row.window_stop, row.key], row.class_slots or (row.slots,)
        for (label, counts), number in zip(by_label(row, row.counts).items(), slots, strict=True):
            each = right.get(label, [0] * (len(counts) + (1 if told else 0)))
            assert (counts, number) == (each[:told], sum(each) // row.members), (row.key, label)
        assert row.total == sum(row.counts)
        assert row.estimate == tuple(map(float, row.counts))
        assert (row.members, row.mechanism, row.slots) == (
            len(groups[row.key]),
            "none",
            (row.window_stop - row.window_start) // HALF,
        )


@pytest.mark.night
@pytest.mark.parametrize(
    "asked",
    [
        {"windows": DAYS, "by": ["month", "weekday"]} | GROUPED,
        {"windows": WEEKS},
        {"windows": LOCAL | {"start": "2013-10-14"}, "missing": "state"},
        {"windows": LOCAL | {"size": "week", "start": "2013-10-14", "stop": "2013-11-04"}} | GROUPED,
    ],
    ids=str,
)
def test_noisy_rows_keep_their_totals_and_say_their_noise_and_loss(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Noise that leaves five counts as they are has a probability below 1e-6."""
    privacy = {"epsilon": 2.0, "guarantee": "window", "mechanism": "group-dp", "budget": 1000.0}
    made = job(tmp_path, **asked, privacy=privacy, most_error=1e9)
    frame, groups = readings(), {name: [name] for name in SERIES}
    if "group_by" in asked:
        groups = {key: [name for name in SERIES if GROUPS[name] == key] for key in ("north", "south")}
    truth, plan = plainly(frame, asked, groups), make_plan(made)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | feed(tmp_path, batches(frame, 500, GROUPS if "group_by" in asked else None))
            | PrivateHistograms(made)
        )
    with Store(plan.address) as store:
        rows = [row for batch in store.releases(made.domain, made.query) for row in releases_from_batch(batch)]
        held = store.registered(made.domain, made.query)
        assert held is not None
        account = Ledger(belief_from_dict(held.domain.belief))
        for entry in store.entries():
            slots = entry.window_stop - entry.window_start
            assert entry.epsilon_dp == plan.of_length(slots).noisy.epsilon_dp
            assert slots * entry.epsilon_dp == pytest.approx(2.0, rel=1e-3)
            account.charge(*entry.span)
        assert account.loss == pytest.approx(held.reserved_loss)
        assert store.verify().defects == ()
    assert len(rows) == len(truth)
    noisy = 0
    for row in rows:
        own, right = plan.of_length(row.slots), truth[row.window_start, row.window_stop, row.key]
        assert Fraction(row.scale_exact) == own.scale == LaplaceHistogram.from_sigma(5, row.slots / 2).scale
        assert (row.scale, row.epsilon_dp, row.half_width_95) == (
            float(own.scale),
            own.noisy.epsilon_dp,
            own.noisy.half_width(0.95),
        )
        assert (row.noise_law, row.estimate is None) == ("discrete-laplace-zero-sum", False)
        estimates = by_label(row, row.estimate)
        for label, counts in by_label(row, row.counts).items():
            each = right.get(label, [0] * 6)[: 6 if "missing" in asked else 5]
            assert sum(counts) == sum(each)
            assert sum(estimates[label]) == pytest.approx(sum(each))
            assert min(estimates[label]) >= 0
            assert label in right or counts == [0] * 5
            noisy += counts != each
    assert noisy >= 6


@pytest.fixture(scope="module")
def given() -> pl.DataFrame:
    return readings()


@pytest.mark.night
def test_groups_and_ends_derived_from_the_data_are_frozen(given, tmp_path):
    made = job(tmp_path, {"size": "7d"}, **GROUPED)
    first = publish(batches(given, 5000, GROUPS), made, tmp_path)
    # a rerun over less data publishes the rows of record
    fewer = given.filter((pl.col("time") < START + 86_400_000_000 * 10) & (pl.col("series") != "e"))
    assert publish(batches(fewer, 5000, GROUPS), made, tmp_path) == first


@pytest.mark.night
@pytest.mark.parametrize(
    ("changes", "error"),
    [({"query": "second"}, BudgetRefused), ({"states": {"edges": [250.0]}}, StoreConflict)],
)
def test_an_error_of_the_ledger_leaves_a_pipeline_as_it_is(given, tmp_path, changes, error):
    """Beam makes it anew with the step in its message, which has to work for the class."""
    few = batches(given.sort("time").head(100), 100)
    once = {"privacy": {"epsilon": 1.0, "budget": 1.0}, "windows": WEEKS | {"stop": "2013-10-21T00:00Z"}}
    publish(few, settings(tmp_path, **once), tmp_path)
    with pytest.raises(error, match=r"on record it is|is reserved and"):
        publish(few, settings(tmp_path, **once, **changes), tmp_path)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"settings": {"query": "q"}},
            r"settings is of the type dict, .* PrivateHistograms\(Settings\.parse\(\.\.\.\)\)",
        ),
        ({"noise": "gauss"}, r"noise is 'gauss', and must be 'private', or in tests 'none'"),
        ({"accept_noise": "no"}, r"accept_noise is 'no', and must be True or False"),
        ({"accept_stand_in": 1, "even_if_empty": None}, r"even_if_empty is None.*\n.*accept_stand_in is 1"),
        ({"accept_nois": True}, "accept_nois: no argument beside a Settings object; check its spelling"),
        ({"model": CHAIN.to_dict()}, r"model is the plain form of a belief, .*: give Model\(belief, StateSpace\("),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(tmp_path, said, message):
    given: dict[str, Any] = {"settings": settings(tmp_path), **said}
    with pytest.raises(SettingsError, match=message) as caught:
        PrivateHistograms(**given)
    assert "job.yaml" not in str(caught.value)  # a text may be the settings, with a password


def test_a_belief_is_a_model_only_with_its_states_and_interval(tmp_path):
    with pytest.raises(SettingsError, match="model is a MarkovChain, which says neither its states nor its interval"):
        make_plan(settings(tmp_path), cast("Any", CHAIN))
    job = settings(tmp_path, states={"edges": [500], "unit": "W"})
    model = Model(CHAIN.to_dict(), StateSpace((500.0,), "W"), 1_800_000_000, Provenance("given by hand"))
    assert PrivateHistograms(job, model=model).plan.model == model


def test_what_is_no_collection_of_readings_is_refused_with_the_next_step(tmp_path):
    pipeline = beam.Pipeline(runner=FnApiRunner())
    both = tuple(pipeline | name >> beam.Create([{"series": "m1"}]) for name in ("one", "other"))
    for given, kind in ((pipeline, "PBegin"), (both, "tuple")):
        with pytest.raises(ReadingsError, match=rf"is applied to a {kind}, .*beam\.Create.*beam\.Flatten"):
            _ = given | kind >> PrivateHistograms(settings(tmp_path))


def test_fields_make_the_same_plan_as_a_settings_object(tmp_path):
    job = settings(tmp_path)
    fields = job.model_dump(by_alias=True, exclude_unset=True, exclude={"model"})
    assert PrivateHistograms(model={"pi_min": 0.01, "gap": 0.3}, **fields).plan == PrivateHistograms(job).plan


@pytest.mark.night
@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("time", pa.timestamp("ns", tz="UTC"), r"readings\.time is timestamp\[ns, tz=UTC\], and must be timestamp\[us"),
        ("value", pa.float32(), r"readings\.value is float, and must be double"),
        (None, None, "has no column 'value'"),
    ],
)
def test_a_batch_of_another_schema_is_refused_before_anything_is_counted(given, tmp_path, column, kind, message):
    batch = batches(given.head(100), 100)[0]
    table = pa.Table.from_batches([batch])
    if column is None:
        table = table.drop_columns(["value"])
    else:
        at = table.schema.get_field_index(column)
        table = table.set_column(at, column, table.column(column).cast(kind))
    with pytest.raises(Exception, match=message):
        publish(table.to_batches(), settings(tmp_path), tmp_path)


def test_a_ledger_in_a_file_is_refused_where_workers_may_be_elsewhere(tmp_path):
    check_hosts("apache_beam.runners.portability.fn_api_runner.FnApiRunner", StoreAddress("sqlite:///l.db"))
    check_hosts("FlinkRunner", StoreAddress("postgresql://h/db"))
    with pytest.raises(SettingsError, match="runner FlinkRunner may spread over several machines"):
        check_hosts("FlinkRunner", StoreAddress("sqlite:///l.db"))
    pipeline = beam.Pipeline(runner=Elsewhere())
    with pytest.raises(SettingsError, match="Elsewhere may spread"):
        _ = pipeline | feed(tmp_path, batches(EMPTY, 1)) | PrivateHistograms(settings(tmp_path))


class Elsewhere(FnApiRunner):
    """Stands for any runner that is not known to stay on this machine."""


EMPTY = pl.DataFrame({"series": ["m"], "time": [ORIGIN], "value": [1.0]})


@pytest.mark.night
def test_the_operator_can_watch_the_loss_in_millionths_of_epsilon(given, tmp_path):
    job = settings(tmp_path, windows=WEEKS)
    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | feed(tmp_path, batches(given.head(1000), 500)) | PrivateHistograms(job)
    result = pipeline.run()
    result.wait_until_finish()
    found = {one.key.metric.name: one.committed for one in result.metrics().query()["distributions"]}
    with Store(PrivateHistograms(job).plan.address, create=True) as store:
        losses = [round(entry.loss_after * 1e6) for entry in store.entries(job.domain)]
    assert found["loss-micro-epsilon"].max == losses[-1]
    assert found["loss-micro-epsilon"].min == losses[0] > 0


@pytest.mark.night
def test_a_block_requires_one_ledger_call_to_charge_and_one_to_publish(given, tmp_path, monkeypatch):
    job = settings(tmp_path, windows=WEEKS)
    visits: list[str] = []
    inside: list[str] = []

    def counted(owner: type, name: str) -> None:
        made = getattr(owner, name)

        def call(*given: Any, **options: Any) -> Any:
            if owner is Database:
                visits.append(f"{inside[-1]}: {name}" if inside else "")
                return made(*given, **options)
            inside.append(name)
            try:
                return made(*given, **options)
            finally:
                inside.pop()

        monkeypatch.setattr(owner, name, call)

    for name in ("charge_windows", "publish"):
        counted(Store, name)
    for name in ("reading", "writing"):
        counted(Database, name)
    publish(batches(given.head(1000), 500), job, tmp_path)
    assert [visit for visit in visits if visit] == ["charge_windows: writing", "publish: writing"]


def test_a_notebook_publishes_a_frame_without_a_line_of_beam(tmp_path: Path) -> None:
    times = [dt.datetime(2013, 1, 1) + dt.timedelta(minutes=30 * at) for at in range(2 * 7 * 48)]
    frame = pl.DataFrame({"series": "m1", "time": times, "value": 300.0})
    job = settings(tmp_path, windows={"size": "7d", "start": "2013-01-01", "stop": "2013-01-15"})
    rows = PrivateHistograms.publish(frame, job)
    assert isinstance(rows, pl.DataFrame)
    assert rows["total"].to_list() == [7 * 48, 7 * 48]
    again = [frame] | PrivateHistograms(job)  # on record: the same rows
    found = [one for batch in again.releases for one in batch.to_pylist()]
    assert sorted(one["release_id"] for one in found) == sorted(rows["release_id"].to_list())
    with pytest.raises(ReadingsError, match=r"a frame is one element: write \[frame\] \| PrivateHistograms"):
        _ = frame | PrivateHistograms(job)
