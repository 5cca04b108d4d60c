"""What ``slots.of`` and the words of ``readings`` make of readings that come in any order, twice, and over restarts.

Jobs publish without noise; every row is compared with a literal reading of all rows at once (:mod:`.test_words`).
"""

from __future__ import annotations

import csv
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
import yaml
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.pipelines.runners import read_source
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings.job import Settings
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.completeness import Steps
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sources.contract import PartitionedSource, Reader, SourceBatch
from quiltstream.transforms.sources.reader import PollingPolicy, ReadLive

from ..depth import NIGHT, some
from ..pipelines.jobs import call
from ..present import present
from ..transforms.payloads.payloads import messages
from .test_cases import REST
from .test_words import ORIGIN, READINGS, SLOT, WORDS, Row, decoded, number, rows_of, truth_of, words_in, write

#: No mean or share of the rows lies on one.
EDGES = [0.7391, 3.1173, 9.8317, 27.4491]
SIZE, WINDOWS = 4, 30
LATENESS = 3_600
TOPIC = {"servers": "localhost:9092", "topic": "meters"}

#: First slot of a window and series -> how many of its slots are in each bin, and how many have no value.
Published = dict[tuple[int, str], list[int]]


def job_of(folder: Path, word: str, readings: dict[str, Any] | None = None, **windows: Any) -> Settings:
    given, slots = WORDS[word]
    (folder / "roster.csv").write_text("series\na\nb\n", encoding="utf-8")
    whole = REST | {
        "source": {"csv": str(folder / "part*.csv")} if readings is None else {"kafka": TOPIC},
        "readings": READINGS | given if readings is None else readings,
        "slots": {"interval": "30min"} | slots,
        "states": {"edges": EDGES},
        "roster": "roster.csv",
        "windows": {"size": "2h", "start": "2024-01-01T00:00:00Z", "stop": "2024-01-03T12:00:00Z"} | windows,
        "privacy": {"epsilon": 1, "mechanism": "forward-backward", "budget": 1e6},
        "ledger": f"sqlite:///{folder / 'ledger.db'}",
    }
    return Settings.parse(whole if "absent" in given else whole | {"missing": "state"}, folder)


def right_of(word: str, rows: list[Row], every: int = SIZE) -> Published:
    cells, absent = truth_of(word, rows), WORDS[word][0].get("absent")
    found: Published = {}
    first = ORIGIN // SLOT
    for start in range(first, first + WINDOWS * SIZE - SIZE + 1, every):
        for series in "ab":
            counts = [0] * (len(EDGES) + (2 if absent is None else 1))
            for slot in range(start, start + SIZE):
                value = cells.get((series, slot), absent)
                counts[len(EDGES) + 1 if value is None else sum(value >= edge for edge in EDGES)] += 1
            found[start - first, series] = counts
    return found


def on_record(job: Settings) -> Published:
    with Store(PrivateHistograms(job, noise="none").plan.address, create=True) as store:
        rows = [row for batch in store.releases(job.domain, job.query) for row in releases_from_batch(batch)]
    assert len({row.release_id for row in rows}) == len(rows)
    return {(row.window_start // (SLOT * 1_000_000) - ORIGIN // SLOT, row.key): list(row.counts) for row in rows}


@dataclass(frozen=True)
class Arrivals(PartitionedSource):
    """Batches that come one after another."""

    batches: tuple[pa.RecordBatch, ...]

    def reader(self, part: int, position: str) -> Reader:
        assert part == 0
        return _Arrivals(self.batches, int(position or 0))


class _Arrivals(Reader):
    def __init__(self, batches: tuple[pa.RecordBatch, ...], at: int) -> None:
        self._batches, self._at = batches, at

    def read(self) -> SourceBatch | None:
        if self.ended:
            return None
        batch = self._batches[self._at]
        self._at += 1
        latest = max(batch.column("time").cast(pa.int64()).to_pylist())
        return SourceBatch(str(self._at), settled=True, batches=(batch,), rows=batch.num_rows, latest_us=latest)

    @property
    def ended(self) -> bool:
        return self._at >= len(self._batches)

    def close(self) -> None:
        """Nothing is open."""


def arriving(batches: list[pa.RecordBatch], chance: random.Random, since_us: int | None = None) -> Arrivals:
    """Readings within their lateness in any order, in batches of any size, some of them twice."""
    table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    times = table.column("time").cast(pa.int64()).to_pylist()
    rows = [at for at, time in enumerate(times) if since_us is None or time >= since_us]
    rows += chance.sample(rows, len(rows) // 4)
    rows.sort(key=lambda at: times[at] + chance.randrange(LATENESS * 1_000_000))
    cut = list[pa.RecordBatch]()
    while rows:
        size = chance.choice([1, 2, 5, 12])
        cut += table.take(rows[:size]).combine_chunks().to_batches()
        rows = rows[size:]
    return Arrivals(tuple(cut))


def follow(job: Settings, source: PartitionedSource, begin: int, end: int) -> dict[str, int]:
    """Run a live job from a window on until another."""
    words = words_in(job)
    pace = PollingPolicy(
        begin_us=(ORIGIN + begin * SIZE * SLOT) * 1_000_000,
        lateness_us=LATENESS * 1_000_000 + words.after_us,
        poll_s=0.01,
        end_us=(ORIGIN + end * SIZE * SLOT) * 1_000_000,
        steps=Steps.of(job.grid, job.schedule, words),
    )
    pipeline = beam.Pipeline(runner=FnApiRunner())
    found: Any = pipeline | ReadLive(source, pace)
    _ = found.readings | PrivateHistograms(job, noise="none")
    result = pipeline.run()
    result.wait_until_finish()
    return {one.key.metric.name: one.committed for one in result.metrics().query()["counters"]}


@pytest.mark.parametrize("word", some(list(WORDS), 2))
def test_rows_are_those_of_a_look_at_everything_at_once(tmp_path: Path, word: str) -> None:
    for seed in range(8 if NIGHT else 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        rows, chance = rows_of(seed, counter="register" in word), random.Random(seed + 1)
        write(folder, rows, chance)
        job, every = job_of(folder, word), SIZE
        if seed % 2:
            job, every = job_of(folder, word, every="1h"), SIZE // 2
        source, killed = arriving(decoded(job), chance), chance.randrange(3, 9)
        follow(job, source, 0, killed)
        published = on_record(job)
        # begun again it reads back by the reach, and publishes the rest
        since = (ORIGIN + ((killed - 1) * SIZE + every) * SLOT) * 1_000_000 - words_in(job).before_us
        follow(job, arriving(decoded(job), chance, since), killed, WINDOWS)
        found = on_record(job)
        assert published.items() <= found.items()
        assert found == right_of(word, rows, every), f"seed {seed}"


@pytest.mark.parametrize("word", some(list(WORDS), 4))
def test_a_job_over_files_publishes_the_same_rows(tmp_path: Path, word: str) -> None:
    rows = rows_of(7, counter="register" in word)
    write(tmp_path, rows, random.Random(8))
    job = job_of(tmp_path, word)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        found: Any = pipeline | read_source(job)
        _ = found.readings | PrivateHistograms(job, noise="none")
    assert on_record(job) == right_of(word, rows)


@pytest.mark.parametrize("word", ["sum", "rank"])
@pytest.mark.parametrize("form", ["rows", "tables"])
def test_a_pipeline_of_ones_own_gives_lengths_and_ranks(tmp_path: Path, word: str, form: str) -> None:
    rows = rows_of(7, counter=False)
    write(tmp_path, rows, random.Random(8))
    job = job_of(tmp_path, word)
    given: list[Any] = [row for batch in decoded(job) for row in batch.to_pylist()]
    if form == "tables":
        given = [pa.Table.from_pylist(given[at::2]) for at in (0, 1)]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create(given) | PrivateHistograms(job, noise="none")
    assert on_record(job) == right_of(word, rows)


@pytest.mark.parametrize("word", some(list(WORDS), 2))
def test_messages_give_the_same_rows(tmp_path: Path, word: str) -> None:
    rows, chance = rows_of(7, counter="register" in word), random.Random(8)
    own = job_of(tmp_path, word)
    more = {"each": "payload", "series": "m", "time": "t", "value": "v"}
    readings = present(own.readings).model_dump(mode="json", exclude_defaults=True) | more
    job = job_of(tmp_path, word, readings=readings)
    sent = [
        {"m": series, "t": begin, "v": None if number(text) is None else float(text), "len": length, "rank": rank}
        for series, begin, text, length, rank in rows
    ]
    chance.shuffle(sent)
    found = PayloadDecoder(present(job.readings), words=words_in(job)).decode(messages(*map(json.dumps, sent)))
    batches = [one.readings for one in found if one.readings is not None]
    follow(job, arriving(batches, chance), 0, WINDOWS)
    assert on_record(job) == right_of(word, rows)


def test_a_reading_that_is_late_for_its_window_counts_in_the_next_one(tmp_path: Path) -> None:
    rows: list[Row] = [("a", ORIGIN + at, "5", 300, 0) for at in (0, 3 * 7_200)]
    late: Row = ("a", ORIGIN + 7_200 - 300, "20", 300, 0)
    later: list[Row] = [("b", ORIGIN + at, "1", 300, 0) for at in (2 * 7_200 + 10, WINDOWS * 7_200)]
    batches = list[pa.RecordBatch]()
    # one that is late, when the clock has passed the first window's end
    parts: list[list[Row]] = [[rows[0], later[0]], [late], [rows[1], later[1]]]
    for part in parts:
        (tmp_path / "part0.csv").unlink(missing_ok=True)
        write_rows(tmp_path, part)
        batches += decoded(job_of(tmp_path, "hold"))
    job = job_of(tmp_path, "hold")
    tallies = follow(job, Arrivals(tuple(batches)), 0, WINDOWS)
    before, after = right_of("hold", [*rows, *later]), right_of("hold", [*rows, late, *later])
    assert before[0, "a"] == after[0, "a"]
    assert before[SIZE, "a"] != after[SIZE, "a"]
    assert on_record(job) == after
    assert "rejected-late" not in tallies


def write_rows(folder: Path, rows: list[Row]) -> None:
    with (folder / "part0.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["meter", "ts", "v", "len", "rank"])
        writer.writerows(rows)


@pytest.mark.parametrize(("word", "other"), [("hold", "unavailable"), ("register", "1000000")])
def test_one_value_that_changes_moves_no_total_no_row_and_no_exit_code(tmp_path: Path, word: str, other: str) -> None:
    seen = list[Any]()
    rows = rows_of(7, counter=word == "register")
    changed = [(*row[:2], other, *row[3:]) if at == len(rows) // 2 else row for at, row in enumerate(rows)]
    truths = [right_of(word, one) for one in (rows, changed)]
    # it decides which cells have a value
    assert [counts[-1] for counts in truths[0].values()] != [counts[-1] for counts in truths[1].values()]
    for name, given in (("before", rows), ("after", changed)):
        folder = tmp_path / name
        folder.mkdir()
        write(folder, given, random.Random(8))
        path = folder / "settings.yaml"
        settings = job_of(folder, word).model_dump(mode="json", exclude_defaults=True)
        path.write_text(yaml.safe_dump(settings | {"sink": {"jsonl": "out.jsonl"}}), encoding="utf-8")
        done = call("run", path, "--accept-noise").ended(0)
        published = [json.loads(line) for line in (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
        hidden = dict.fromkeys(("counts", "estimate", "release_id", "ledger_id"))
        seen.append(([one | hidden for one in published], done.err))
    assert len(seen[0][0]) == len(truths[0])
    assert seen[0] == seen[1]
