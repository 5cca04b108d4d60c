"""Live jobs that estimate their own model, on every runner: a suite that each runner's tests inherit."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.privacy.models.serialisation import belief_from_dict
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.store import Store, StoreMissing

from .live_bench import DAY, EDGES, NAMES, ORIGIN, SLOT, Bench, Running, day_of, readings, truth
from .live_contract import LIVE, begun_again

DAYS = 4
BUDGET = 2.0

#: The settings' query, and the one that goes on from the third day.
QUERIES = ("load", "load@2013-01-03T00:00:00Z")


def others(names: str, days: int, stay: float, seed: int) -> pl.DataFrame:
    """Series outside the domain: each keeps its bin with a probability, else any is as likely."""
    source = random.Random(seed)
    levels = [100.0, *EDGES]
    rows: list[tuple[str, int, float]] = []
    for name in names:
        level = levels[0]
        for slot in range(days * DAY):
            if source.random() > stay:
                level = source.choice(levels)
            rows.append((name, ORIGIN + slot * SLOT, level))
    return pl.DataFrame(rows, schema={"series": pl.Utf8, "time": pl.Int64, "value": pl.Float64}, orient="row")


def on_record(bench: Bench) -> dict[str, list[Release]]:
    """The rows of each query."""
    with Store(bench.ledger, create=False) as store:
        return {
            query: [row for batch in store.releases("homes", query) for row in releases_from_batch(batch)]
            for query in QUERIES
            if store.registered("homes", query) is not None
        }


def so_far(bench: Bench, expected: dict[tuple[int, str], list[int]]) -> None:
    """Whatever is wrong with what is on record fails the test, however much it is.

    Every window once, in one of the queries, with its true counts; the account is what the core works out from charges
    and beliefs alone.
    """
    try:
        rows = [row for of_query in on_record(bench).values() for row in of_query]
    except StoreMissing:
        return
    places = [((row.window_start - ORIGIN) // SLOT, row.key) for row in rows]
    assert len(set(places)) == len(places)
    found = {place: list(row.counts) for place, row in zip(places, rows, strict=True)}
    assert {place: expected.get(place) for place in found} == found
    with Store(bench.ledger, create=False) as store:
        held = store.registered("homes", QUERIES[0])
        if held is None:
            return
        account = Ledger(belief_from_dict(held.domain.belief))
        for change in held.domain.changes:
            assert change.slot is not None
            account.switch(change.slot, belief_from_dict(change.belief))
        charged = [one for one in store.entries("homes") if one.decision == "charged"]
        assert {one.window_start for one in charged} == {start for start, _ in places}
        loss = account.replay((one.window_start, one.window_stop, one.epsilon_dp) for one in charged)
        assert loss == store.summary("homes").loss
        assert loss <= BUDGET


class EstimatesContract(ABC):
    """Inherit it and give :meth:`new_bench`."""

    @abstractmethod
    def new_bench(self, folder: Path, request: pytest.FixtureRequest) -> Bench:
        """A bench whose jobs run on the runner."""

    def check_jobs(self, job: Running) -> None:
        """See that nothing of a command runs on, as far as its runner tells."""
        assert job.process.poll() is not None

    @pytest.fixture
    def bench(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
        """An empty place for jobs; whatever was started in it is ended."""
        made = self.new_bench(tmp_path / "job", request)
        made.live = LIVE
        yield made
        made.close()

    @begun_again
    def test_estimates_from_other_series_switch_the_noise_and_lose_no_window(self, bench: Bench) -> None:
        """The other series mix more slowly from when the job has begun on; the estimate is due after two days."""
        bench.settings(
            windows={"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{DAYS + 1:02}"},
            model={"estimate": {"from": {"csv": "others/*.csv"}, "every": "2d"}},
            privacy={"epsilon": 1.0, "budget": BUDGET},
        )
        folder = bench.folder / "others"
        folder.mkdir()
        others("pqrs", 20, 0.3, seed=51).write_csv(folder / "0.csv")
        frame = readings(DAYS + 0.5, seed=52)
        bench.look = partial(so_far, bench, truth(frame, range(DAYS)))
        job = bench.start(noise="none")
        bench.until(lambda: "start" in {one["kind"] for one in job.said}, "the job has begun")
        others("tuv", 60, 0.6, seed=53).write_csv(folder / "1.csv")
        for day in range(DAYS + 1):
            bench.put(f"{day}.jsonl", day_of(frame, day))
        assert job.wait() == 0, job.err.read_text(encoding="utf-8")
        assert job.err.read_text(encoding="utf-8") == ""
        (said,) = [one["text"] for one in job.said if one["kind"] == "model"]
        assert f"query {QUERIES[1]} goes on with sigma" in said
        so_far(bench, truth(frame, range(DAYS)))
        first, then = on_record(bench).values()
        assert len(first) + len(then) == DAYS * len(NAMES)
        assert {(row.window_start - ORIGIN) // SLOT for row in first} == {0, DAY}
        assert {(row.window_start - ORIGIN) // SLOT for row in then} == {2 * DAY, 3 * DAY}
        # slower chains want more noise
        (before,), (after,) = ({row.scale for row in rows} for rows in (first, then))
        assert before < after
        # the sink has each of these rows, and no other
        sunk = Counter(row["release_id"] for rows in bench.sunk().values() for row in rows)
        assert sunk == Counter(row.release_id for row in [*first, *then])
        with Store(bench.ledger, create=False) as store:
            held = store.registered("homes", QUERIES[1])
            assert held is not None
            assert [change.slot for change in held.domain.changes] == [2 * DAY]
            charged = store.entries("homes")
            assert [(one.query, one.window_start, one.decision) for one in charged] == [
                (QUERIES[day // 2], day * DAY, "charged") for day in range(DAYS)
            ]
            assert store.summary("homes").loss > 0
            assert [(one.slot, one.outcome) for one in store.estimates("homes", QUERIES[0])] == [
                (0, "first"),
                (2 * DAY, "switched"),
            ]
        assert set(NAMES) == {row.key for row in then}
        self.check_jobs(job)
