from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any, cast

import apache_beam as beam
import polars as pl
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.pipelines.data import path as shipped
from quiltstream.privacy import MarkovChain
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

from ..depth import some
from .sources.feed import feed
from .truth import cells, histograms

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


def by_window(releases: list[Release], interval_us: int = 1_800_000_000) -> dict[tuple[int, str], list[int]]:
    return {((r.window_start - ORIGIN) // interval_us, r.key): list(r.counts) for r in releases}


@pytest.fixture(scope="module")
def london() -> pl.DataFrame:
    frame = pl.read_parquet(shipped("lcl2013_halfhourly_60hh.parquet"))
    return frame.select(
        series=pl.col("household").cast(pl.Utf8),
        time=pl.col("ts").cast(pl.Datetime("us")).cast(pl.Int64),
        value=pl.col("kwh").cast(pl.Float64) * 2000.0,
    )


def weeks(count: int = 52) -> list[tuple[int, int]]:
    return [(7 * DAY * w, 7 * DAY * (w + 1)) for w in range(count)]


def test_histograms_of_homes_equal_a_plain_computation_in_any_order(london, tmp_path, capsys):
    seed = random.randrange(2**32)
    with capsys.disabled():
        print(f"\nseed {seed}")  # noqa: T201 - a random test prints its seed
    names = some(sorted(london["series"].unique()), 4)
    london = london.filter(pl.col("series").is_in(names))
    doubled = pl.concat([london, london.sample(fraction=0.2, seed=seed)]).sample(fraction=1.0, shuffle=True, seed=seed)
    truth = histograms(
        cells(london, interval_us=1_800_000_000, origin_us=ORIGIN, edges=EDGES),
        windows=weeks(),
        keys={name: [name] for name in names},
        bins=5,
    )
    releases = publish(batches(doubled, 100_003), settings(tmp_path), tmp_path)
    assert by_window(releases) == truth
    assert {r.mechanism for r in releases} == {"none"}
    assert all(r.total == sum(r.counts) for r in releases)


@pytest.mark.night
def test_sliding_windows_and_groups_equal_a_plain_computation(london, tmp_path):
    names = some(sorted(london["series"].unique()), 3)
    london = london.filter(pl.col("series").is_in(names))
    roster = tmp_path / "roster.csv"
    # the last home is in two groups
    pairs = [(name, f"feeder {i % 7}") for i, name in enumerate(names)] + [(names[-1], "feeder 0")]
    roster.write_text("series,feeder\n" + "".join(f"{s},{g}\n" for s, g in pairs), encoding="utf-8")
    job = settings(
        tmp_path,
        roster=str(roster),
        group_by="feeder",
        windows={"size": "2d", "every": "12h", "start": "2013-02-01T06:00", "stop": "2013-02-20"},
    )
    start = 31 * DAY + 12
    starts = range(start, 50 * DAY - 2 * DAY + 1, DAY // 2)
    keys: dict[str, list[str]] = {}
    for series, group in pairs:
        keys.setdefault(group, []).append(series)
    truth = histograms(
        cells(london, interval_us=1_800_000_000, origin_us=ORIGIN, edges=EDGES),
        windows=[(s, s + 2 * DAY) for s in starts],
        keys=keys,
        bins=5,
    )
    releases = publish(batches(london, 1 << 17), job, tmp_path)
    assert by_window(releases) == truth
    plan = PrivateHistograms(job, noise="none").plan
    assert plan.share == 4 * 2
    assert {r.members for r in releases} == {len(members) for members in keys.values()}


@pytest.mark.night
def test_groups_and_ends_derived_from_the_data_are_frozen(london, tmp_path):
    few = london.filter(pl.col("series").is_in(sorted(london["series"].unique())[:3]))
    few = few.filter(pl.col("time") >= ORIGIN + 86_400_000_000 * 3)
    groups = {name: f"g{i % 2}" for i, name in enumerate(sorted(few["series"].unique()))}
    job = settings(tmp_path, group_by="feeder", windows={"size": "7d"})
    found = cells(few, interval_us=1_800_000_000, origin_us=ORIGIN, edges=EDGES)
    keys = {g: [s for s in groups if groups[s] == g] for g in ("g0", "g1")}
    truth = histograms(found, windows=weeks()[1:], keys=keys, bins=5)
    assert by_window(publish(batches(few, 5000, groups), job, tmp_path)) == truth
    # a rerun over less data publishes the rows of record
    fewer = few.filter(pl.col("time") < ORIGIN + 86_400_000_000 * 30)
    assert by_window(publish(batches(fewer, 5000, groups), job, tmp_path)) == truth


def test_empty_cells_are_a_separate_state_if_configured(london, tmp_path):
    early = "MAC000050"  # stops on 2013-04-17
    one = london.filter(pl.col("series") == early)
    job = settings(tmp_path, missing="state")
    found = cells(one, interval_us=1_800_000_000, origin_us=ORIGIN, edges=EDGES)
    truth = histograms(found, windows=weeks(), keys={early: [early]}, bins=5)
    releases = publish(batches(one, 1000), job, tmp_path)
    assert len(releases) == 52
    assert by_window(releases) == {k: [*v, 7 * DAY - sum(v)] for k, v in truth.items()}
    assert releases[-1].counts == (0, 0, 0, 0, 0, 336)


@pytest.mark.night
def test_a_series_without_any_reading_is_published_in_every_window(london, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("series\nMAC000002\nnever seen\n", encoding="utf-8")
    releases = publish(batches(london.head(1000), 1000), settings(tmp_path, roster=str(roster)), tmp_path)
    assert sorted({r.key for r in releases}) == ["MAC000002", "never seen"]
    assert len(releases) == 104
    assert all(r.counts == (0, 0, 0, 0, 0) for r in releases if r.key == "never seen")


@pytest.mark.night
def test_readings_outside_the_roster_or_not_finite_count_nowhere(london, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("series\nMAC000002\n", encoding="utf-8")
    two = london.filter(pl.col("series").is_in(["MAC000002", "MAC000003", "MAC000004"])).with_columns(
        value=pl.when(pl.int_range(pl.len()) % 5 == 0).then(float("nan")).otherwise(pl.col("value"))
    )
    good = two.filter(pl.col("value").is_finite() & (pl.col("series") == "MAC000002"))
    found = cells(good, interval_us=1_800_000_000, origin_us=ORIGIN, edges=EDGES)
    truth = histograms(found, windows=weeks(), keys={"MAC000002": ["MAC000002"]}, bins=5)
    assert by_window(publish(batches(two, 3000), settings(tmp_path, roster=str(roster)), tmp_path)) == truth


@pytest.mark.night
@pytest.mark.parametrize(
    ("changes", "error"),
    [({"query": "second"}, BudgetRefused), ({"states": {"edges": [250.0]}}, StoreConflict)],
)
def test_an_error_of_the_ledger_leaves_a_pipeline_as_it_is(london, tmp_path, changes, error):
    """Beam makes it anew with the step in its message, which has to work for the class."""
    few, once = batches(london.head(100), 100), {"privacy": {"epsilon": 1.0, "budget": 1.0}}
    publish(
        few, settings(tmp_path, windows={"size": "7d", "start": "2013-01-01", "stop": "2013-01-08"}, **once), tmp_path
    )
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
def test_a_roster_too_large_to_hold_a_step_of_gives_the_same_histograms(london, tmp_path, monkeypatch):
    few = london.head(20_000)
    names = sorted(few["series"].unique())
    found = cells(few, interval_us=1_800_000_000, origin_us=ORIGIN, edges=EDGES)
    truth = histograms(found, windows=weeks(), keys={name: [name] for name in names}, bins=5)
    shuffled = few.sample(fraction=1.0, shuffle=True, seed=5)
    for limit in (5000, 100):
        monkeypatch.setattr(encode, "_HELD_CELLS", limit)
        folder = tmp_path / str(limit)
        folder.mkdir()
        assert by_window(publish(batches(shuffled, 9973), settings(folder), folder)) == truth


@pytest.mark.night
@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("time", pa.timestamp("ns", tz="UTC"), r"readings\.time is timestamp\[ns, tz=UTC\], and must be timestamp\[us"),
        ("value", pa.float32(), r"readings\.value is float, and must be double"),
        (None, None, "has no column 'value'"),
    ],
)
def test_a_batch_of_another_schema_is_refused_before_anything_is_counted(london, tmp_path, column, kind, message):
    batch = batches(london.head(100), 100)[0]
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
def test_the_operator_can_watch_the_loss_in_millionths_of_epsilon(london, tmp_path):
    job = settings(tmp_path, windows={"size": "7d", "start": "2013-01-01", "stop": "2013-01-29"})
    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | feed(tmp_path, batches(london.head(1000), 500)) | PrivateHistograms(job)
    result = pipeline.run()
    result.wait_until_finish()
    found = {one.key.metric.name: one.committed for one in result.metrics().query()["distributions"]}
    with Store(PrivateHistograms(job).plan.address, create=True) as store:
        losses = [round(entry.loss_after * 1e6) for entry in store.entries(job.domain)]
    assert found["loss-micro-epsilon"].max == losses[-1]
    assert found["loss-micro-epsilon"].min == losses[0] > 0


@pytest.mark.night
def test_a_block_requires_one_ledger_call_to_charge_and_one_to_publish(london, tmp_path, monkeypatch):
    job = settings(tmp_path, windows={"size": "7d", "start": "2013-01-01", "stop": "2013-01-29"})
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
    publish(batches(london.head(1000), 500), job, tmp_path)
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
