"""What a stream and its runner may do to a live job, in event time: each fault ends with the same examination.

The runner is the bundle-based one, the source a ``TestStream``. The noise is stamped, so a release that is drawn again
would be seen, and the true counts as well.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import polars as pl
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from quiltstream.privacy.models.serialisation import belief_from_dict
from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.job import Settings
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.completeness import Punctuation

from ...depth import NIGHT
from ...e2e.stamped import Tap, left, stamp, unstamped
from ...examined import Tally, every, examine
from ..test_histograms import DAY, ORIGIN, write
from .streams import (
    GROUPS,
    HOUR,
    SERIES,
    as_it_comes,
    live_settings,
    on_record,
    readings,
    stamped,
    streamed,
    too_late,
    truth,
)

DAYS = 13 if NIGHT else 5


def long_settings(folder: Path, **changes: Any) -> Settings:
    return live_settings(
        folder, windows={"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{DAYS + 1:02}"}, **changes
    )


def play(events: list[Any], job: Settings, folder: Path, into: Sequence[beam.PTransform[Any, Any]] = ()) -> None:
    """Run a job over what a source sends, into some sinks, and note what leaves it and what it rejects."""
    (folder / "rejected").mkdir()
    histograms = stamp(PrivateHistograms(job, noise="none"))
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(streaming=True)) as pipeline:
        published = pipeline | streamed(events) | histograms
        _ = published.releases | beam.ParDo(Tap(str(folder / "left"))).with_output_types(pa.RecordBatch)
        _ = published.rejected | beam.Map(write, str(folder / "rejected"))
        for number, sink in enumerate(into):
            _ = published.releases | f"Sink {number}" >> sink


def rejected(folder: Path) -> Counter[str]:
    tables = [pa.ipc.open_file(path).read_all() for path in (folder / "rejected").iterdir()]
    return Counter(row["reason"] for table in tables for row in table.to_pylist())


def counted(job: Settings) -> dict[tuple[int, str], list[int]]:
    """What is on record, without its stamps."""
    return {place: [unstamped(n) for n in found] for place, found in on_record(job).items()}


def whole(
    job: Settings,
    folders: Sequence[Path],
    frame: pl.DataFrame,
    keys: dict[str, list[str]],
    tally: Tally,
    *,
    days: int = DAYS,
) -> None:
    """Every window is on record with its truth, and nothing else ever left the job."""
    assert counted(job) == truth(frame, [(day * DAY, day * DAY + DAY) for day in range(days)], keys)
    plan = PrivateHistograms(job, noise="none").plan
    said: dict[str, Any] = {
        "belief": belief_from_dict(plan.domain.belief),
        "budget": plan.domain.budget,
        "windows": every(DAY, DAY, days * DAY),
        "keys": keys,
        "left": [batch for folder in folders for batch in left(folder / "left")],
    }
    with Store(plan.address, create=False) as store:
        tally.take(examine(store, job.domain, job.query, **said))


def doubled(events: list[Any]) -> list[Any]:
    """Every element twice, and a third time later on, as a source does that repeats what was not acknowledged."""
    found: list[Any] = []
    waiting: list[Any] = []
    for one in events:
        if isinstance(one, int):
            found += waiting
            waiting = []
            found.append(one)
        else:
            found += [one, one]
            waiting.append(one)
    return found + waiting


def reordered(events: list[Any]) -> list[Any]:
    """Elements of two stretches between moves of the watermark in any order, mixed; both moves come after them."""
    source = random.Random(5)
    found: list[Any] = []
    stretch: list[Any] = []
    moves: list[int] = []
    for one in events:
        (moves if isinstance(one, int) else stretch).append(one)
        if len(moves) == 2:
            source.shuffle(stretch)
            found += [*stretch, *moves]
            stretch, moves = [], []
    return [*found, *stretch, *moves]


def stalled(events: list[Any]) -> list[Any]:
    """The watermark stands still from the third day on, and everything comes at the end at once."""
    held = ORIGIN + 50 * HOUR
    return [one for one in events if not isinstance(one, int) or one <= held]


FAULTS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "duplicated": doubled,
    "reordered": reordered,
    "stalled": stalled,
}


@pytest.mark.night
@pytest.mark.parametrize(
    ("fault", "changes", "keys"),
    [("duplicated", {}, SERIES), ("reordered", {"group_by": "group"}, GROUPS), ("stalled", {}, SERIES)],
    ids=list(FAULTS),
)
def test_a_stream_that_repeats_reorders_or_stalls_gives_every_window_once(
    tmp_path: Path, tally: Tally, fault: str, changes: dict[str, Any], keys: dict[str, list[str]]
) -> None:
    job = long_settings(tmp_path, **changes)
    frame = readings(DAYS, seed=31)
    play(FAULTS[fault](as_it_comes(frame, step_us=12 * HOUR, lateness_us=6 * HOUR, parts=2)), job, tmp_path)
    whole(job, [tmp_path], frame, keys, tally)


@pytest.mark.night
@pytest.mark.parametrize("behind", [0, DAYS - 3], ids=["at-once", "long-after"])
def test_readings_delivered_some_windows_late_change_nothing(tmp_path: Path, tally: Tally, behind: int) -> None:
    """The first morning comes again with higher values, so many windows after its own has closed."""
    job = long_settings(tmp_path)
    frame = readings(DAYS, seed=32)
    late = frame.filter(pl.col("time") < ORIGIN + 12 * HOUR).with_columns(value=pl.lit(5000.0))
    events = as_it_comes(frame, step_us=12 * HOUR, lateness_us=0)
    closed = ORIGIN + (24 + 24 * behind) * HOUR
    at = next(i for i, one in enumerate(events) if isinstance(one, int) and one >= closed)
    play([*events[:at], *too_late(late, closed), *events[at:]], job, tmp_path)
    whole(job, [tmp_path], frame, SERIES, tally)
    assert rejected(tmp_path) == {RejectReason.LATE.value: len(late)}


@pytest.mark.night
def test_a_silent_partition_holds_the_windows_until_it_resumes(tmp_path: Path, tally: Tally) -> None:
    job = long_settings(tmp_path)
    frame = readings(DAYS, seed=33)
    events = as_it_comes(frame, step_us=12 * HOUR, lateness_us=0, parts=2)
    silent = ORIGIN + 60 * HOUR
    held: list[Any] = []
    went: list[Any] = []
    for one in events:
        if isinstance(one, int):
            went += [one] if one <= silent else []
            continue
        said = one.value
        second = said.part == 1 if isinstance(said, Punctuation) else said.batch["series"][0].as_py() in {"b", "d"}
        (held if second and one.timestamp >= stamped(silent) else went).append(one)
    play([*went, *held], job, tmp_path)
    whole(job, [tmp_path], frame, SERIES, tally)


class Twice:
    """Publishes, and then fails the first time that it sees some blocks: the runner runs their bundle again."""

    def __init__(self, publish: Callable[..., Any]) -> None:
        self._publish = publish
        self._seen: set[Any] = set()
        self.failed = 0

    def __call__(self, store: Store, registration: Any, drafts: Any) -> Any:
        records = self._publish(store, registration, drafts)
        blocks = {(draft.window, draft.shard) for draft in drafts}
        if not blocks <= self._seen:
            self._seen |= blocks
            self.failed += 1
            raise OSError("the answer of the ledger was lost")
        return records


@pytest.mark.night
def test_every_bundle_that_releases_is_run_twice_and_publishes_one_value(
    tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = long_settings(tmp_path, group_by="group")
    frame = readings(DAYS, seed=34)
    twice = Twice(Store.publish)
    monkeypatch.setattr(Store, "publish", lambda *given: twice(*given))  # noqa: PLW0108 - it binds the store
    play(as_it_comes(frame, step_us=12 * HOUR, lateness_us=0, parts=2), job, tmp_path)
    assert twice.failed >= DAYS
    whole(job, [tmp_path], frame, GROUPS, tally)
