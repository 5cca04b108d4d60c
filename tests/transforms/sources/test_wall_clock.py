"""Windows of a pipeline's own source that never ends, by its watermark and the wall clock."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.checks import check_watermarks

from ..test_histograms import DAY, batches, read, write
from .streams import HOUR, ORIGIN, SERIES, live_settings, on_record, readings, truth


class Endless(beam.PTransform[Any, Any]):
    """Elements of a source that is said never to end; their type is known to Beam or is not."""

    def __init__(self, elements: list[Any], kind: Any = None) -> None:
        super().__init__()
        self._elements, self._kind = elements, kind

    def expand(self, input_or_inputs: Any) -> Any:
        made: Any = input_or_inputs | beam.Create(self._elements, reshuffle=False)
        made.is_bounded = False
        made.element_type = Any if self._kind is None else self._kind
        return made


def run(job: Any, source: Endless, **said: Any) -> None:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | source | PrivateHistograms(job, noise="none", **said)


@pytest.mark.night
def test_rows_of_an_endless_source_give_every_window(tmp_path: Path) -> None:
    job, frame = live_settings(tmp_path), readings(4, seed=5)
    rows = [
        {"series": name, "time": dt.datetime.fromtimestamp(time / 1e6, dt.UTC), "value": value}
        for name, time, value in frame.rows()
    ]
    run(job, Endless(rows, dict[str, Any]))
    assert on_record(job) == truth(frame, [(day * DAY, day * DAY + DAY) for day in range(4)], SERIES)


@pytest.mark.night
def test_a_window_that_was_over_when_the_job_began_is_labelled_as_replayed(tmp_path: Path) -> None:
    """The clock knows no positions of the source beside it, which may have been set back."""
    job = live_settings(tmp_path)
    run(job, Endless(batches(readings(4, seed=9), 500)), by_watermark=True)
    with Store(PrivateHistograms(job).plan.address) as store:
        rows = [row for batch in store.releases(job.domain, job.query) for row in releases_from_batch(batch)]
    assert {row.completeness for row in rows} == {"replayed"}


def test_batches_without_punctuations_are_refused_with_advice(tmp_path: Path) -> None:
    job, frame = live_settings(tmp_path), readings(4, seed=6)
    given = batches(frame, 500)
    with pytest.raises(Exception, match=r"no window would ever be published: use PrivateHistograms\(\.\.\., by_water"):
        run(job, Endless(given))
    assert not (tmp_path / "ledger.db").exists()
    run(job, Endless(given), by_watermark=True)
    assert on_record(job) == truth(frame, [(day * DAY, day * DAY + DAY) for day in range(4)], SERIES)


@pytest.mark.parametrize("name", ["FnApiRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner"])
def test_a_runner_without_watermarks_is_refused_for_future_windows(tmp_path: Path, name: str) -> None:
    coming = PrivateHistograms(live_settings(tmp_path, windows={"size": "1d", "start": "2013-01-01"})).plan
    check_watermarks(coming, "PrismRunner")
    with pytest.raises(SettingsError, match=f"runner: {name} ignores the watermark .* use PrismRunner"):
        check_watermarks(coming, name)
    if name == "FnApiRunner":
        with pytest.raises(SettingsError, match="never be published"):
            run(live_settings(tmp_path, windows={"size": "1d", "start": "2013-01-01"}), Endless([{}], dict[str, Any]))
        assert not (tmp_path / "ledger.db").exists()


def test_a_job_that_runs_again_declares_only_what_is_missing(tmp_path: Path) -> None:
    """The windows on record do not leave the job once more."""
    frame = readings(4, seed=7)
    two = {"size": "1d", "start": "2013-01-01", "stop": "2013-01-03"}
    for windows, expected in ((two, {0, 1}), ({**two, "stop": "2013-01-05"}, {2, 3})):
        job, out = live_settings(tmp_path, windows=windows), tmp_path / f"from-{min(expected)}"
        out.mkdir()
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            made: Any = (
                pipeline | Endless(batches(frame, 500)) | PrivateHistograms(job, noise="none", by_watermark=True)
            )
            _ = made.releases | beam.Map(write, str(out))
        left = [row for path in out.iterdir() for row in read(path)]
        assert {(row.window_start - ORIGIN) // (24 * HOUR) for row in left} == expected
    assert on_record(job) == truth(frame, [(day * DAY, day * DAY + DAY) for day in range(4)], SERIES)
