"""What the rows of a job tell of a slot, from many runs of its own steps, beside the loss that the rows print.

A run is a series of its own: its trajectory is drawn from the chain of the belief given the state of one slot, and the
rows of its windows are what an attacker sees, also those of bundles that failed. Series are independent, so a job over
many of them is as many runs. The noise is drawn from the system's entropy; a seed decides the trajectories alone.

A run draws one of two states of a slot and ends with an output. If the loss is at most l, then every event E has
P(E | x) <= exp(l) P(E | x') ([SWC17] Definition 2.1), so log(low / high) is at most l, whatever E is, where low is a
lower confidence bound of P(E | x) and high an upper one of P(E | x'). Both are those of Clopper and Pearson (1934),
exact for any number of runs. The event is chosen on one half of the runs and its bound taken from the other half, as in
Ding, Wang, Wang, Zhang and Kifer, *Detecting Violations of Differential Privacy* (CCS 2018); with m events each of the
2 m bounds has the error probability alpha / (2 m). So all bounds hold together with a probability of at least
1 - alpha, and a sampled loss above the loss that is promised is a false alarm with a probability of at most alpha.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
from numpy.typing import NDArray
from scipy.stats import beta, binom

from quiltstream.privacy import MarkovChain, exact_loss
from quiltstream.privacy.mechanisms.histogram import FixedTotalHistogram
from quiltstream.privacy.papers import AuditRelease
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.states import StateSpace
from quiltstream.store.publishing import Publisher
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.aggregate import release
from quiltstream.transforms.aggregate.release import ReleaseHistograms
from quiltstream.transforms.completeness import Arrived, Punctuation

from ...depth import NIGHT
from ..sources.feed import feed
from ..sources.streams import SLOT, stamped, streamed
from ..test_histograms import ORIGIN

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampledLoss:
    loss: float  # the largest lower bound of log P(E | x) / P(E | x') over the events that were tried; may be negative
    family: str  # which outputs the event is made of
    state: int  # the state x that makes the event more likely
    runs: tuple[int, int]  # how many runs of the second half had one state, and how many the other
    hits: tuple[int, int]  # in how many of them the event happened


def lower_bound(hits: int, runs: int, alpha: float) -> float:
    """The lower bound of Clopper and Pearson: above the probability of an event with probability at most ``alpha``."""
    return float(beta.ppf(alpha, hits, runs - hits + 1)) if hits else 0.0


def upper_bound(hits: int, runs: int, alpha: float) -> float:
    """The upper bound of Clopper and Pearson: below the probability of an event with probability at most ``alpha``."""
    return float(beta.isf(alpha, hits + 1, runs - hits)) if hits < runs else 1.0


def ratio_bound(hits: tuple[int, int], runs: tuple[int, int], alpha: float) -> float:
    """A lower bound of log P(E | x) / P(E | x'), wrong with probability at most ``alpha``."""
    low, high = lower_bound(hits[0], runs[0], alpha / 2), upper_bound(hits[1], runs[1], alpha / 2)
    return math.log(low / high) if low else -math.inf


def sampled_loss(views: Mapping[str, tuple[Ints, Ints]], alpha: float) -> SampledLoss:
    """Choose events on the first half of the runs, and bound the loss by the second half.

    Args:
        views: families of what an attacker sees -> the secret of each run, 0 or 1, shape (runs,), and the output, shape
            (runs, numbers), of few different rows. The runs of a family are independent and in no order.
        alpha: the probability that the bound is wrong at most.
    """
    tried = alpha / (2 * len(views))
    found: list[SampledLoss] = []
    for family, (states, seen) in views.items():
        half = len(states) // 2
        # an output by its number among the different ones
        named = np.unique(seen, axis=0, return_inverse=True)[1].reshape(-1)
        each = np.zeros((2, int(named.max()) + 1), dtype=np.int64)
        np.add.at(each, (states[:half], named[:half]), 1)
        for state in (0, 1):
            hit = _event(each[state], each[1 - state], tried)[named[half:]]
            runs, hits = _two(states[half:], state, np.ones_like(hit)), _two(states[half:], state, hit)
            found.append(SampledLoss(ratio_bound(hits, runs, tried), family, state, runs, hits))
    return max(found, key=lambda one: one.loss)


def _two(states: Ints, state: int, which: NDArray[np.bool_]) -> tuple[int, int]:
    return int(np.count_nonzero(which & (states == state))), int(np.count_nonzero(which & (states != state)))


def _event(here: Ints, there: Ints, alpha: float) -> NDArray[np.bool_]:
    """The outputs whose bound is highest, of those sets that have the most telling ones: shape (outputs,)."""
    telling = (here + 1) / (there + 1) * (there.sum() + 2) / (here.sum() + 2)
    order = np.argsort(-telling, kind="stable")
    runs = (int(here.sum()), int(there.sum()))
    hits = np.stack([np.cumsum(here[order]), np.cumsum(there[order])])
    # the same bound as that of the other half, for all sets at once
    with np.errstate(divide="ignore", invalid="ignore"):
        low: Any = beta.ppf(alpha / 2, hits[0], runs[0] - hits[0] + 1)
        high: Any = beta.isf(alpha / 2, hits[1] + 1, runs[1] - hits[1])
        bounds = np.log(np.nan_to_num(low)) - np.log(np.where(hits[1] < runs[1], high, 1.0))
    event = np.zeros(len(order), dtype=np.bool_)
    event[order[: int(bounds.argmax()) + 1]] = True
    return event


#: The probability of a false alarm of each test at most.
ALPHA = 1e-6

#: Two windows of four slots; the secret is next to their border, where it is told most of.
LENGTH, SIZE, SECRET = 8, 4, 3
CHAIN = MarkovChain([[0.9, 0.1], [0.2, 0.8]])
EPSILON = 1.0

#: Series of one job at most.
AT_ONCE = 100_000


def at(push: int, nightly: int) -> int:
    return nightly if NIGHT else push


@dataclass(frozen=True)
class Rows:
    states: Ints  # the state of the secret slot, shape (runs,)
    true: Ints  # the true counts of state 1, shape (runs, windows)
    seen: Ints  # the published ones, shape (runs, attempts, windows)
    firsts: Ints  # runs whose next run is in the row after theirs; each run is in one such pair at most
    loss: float  # the largest loss that a row prints
    scale: float  # of the noise

    def views(self) -> dict[str, tuple[Ints, Ints]]:
        """Families of what an attacker sees: the secret of runs, and numbers of which there are few.

        A count outside of 0 to the slots of a window tells what the nearest of these tells, so rows are cut to them
        (``privacy/papers/audit``). The sum of attempts has fewer values, so that fewer runs show what two draws of a
        window tell. The difference of a series' windows shows noise that they share. Of every second series of a block
        the attacker knows the readings, hence its noise, and takes that off the row before it.
        """
        rows, states = self.seen.clip(0, SIZE), self.states
        freed = self.seen[self.firsts] - (self.seen[self.firsts + 1] - self.true[self.firsts + 1, np.newaxis, :])
        return {
            "rows": (states, rows.reshape(len(rows), -1)),
            "attempts": (states, rows.sum(axis=1)),
            "windows": (states, (self.seen[:, :, 1] - self.seen[:, :, 0]).clip(-SIZE, SIZE)),
            "neighbours": (states[self.firsts], freed.clip(0, SIZE).reshape(len(freed), -1)),
        }


class Watched:
    """Keeps the rows that bundles of the last step give, also of bundles that fail afterwards.

    Attributes:
        rows: of each attempt, the batches of rows.
        failed: how many bundles failed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failing: bool) -> None:
        self.rows: list[list[pa.RecordBatch]] = [[], []] if failing else [[]]
        self.failed = 0
        self._blocks = blocks = set[Any]()
        flush: Callable[[Any], Iterator[Any]] = ReleaseHistograms._flush

        def flushed(dofn: Any) -> Iterator[Any]:
            given = list(flush(dofn))
            batches = [one.value.select(["key", "window_start", "counts", "loss_after", "scale"]) for one in given]
            places = {(one["key"][0].as_py(), one["window_start"][0].as_py()) for one in batches}
            again = not failing or places <= blocks
            blocks.update(places)
            self.rows[-1 if again else 0] += batches
            if not again:
                self.failed += 1
                raise OSError("what the bundle gave was lost")
            yield from given

        monkeypatch.setattr(ReleaseHistograms, "_flush", flushed)

    def forget(self) -> None:
        self.failed = 0
        self._blocks.clear()
        for rows in self.rows:
            rows.clear()


def trajectories(runs: int, draw: np.random.Generator) -> Ints:
    """States of so many series, shape (runs, slots): half of them in either state at the secret slot, in no order."""
    found = np.zeros((runs, LENGTH), dtype=np.int64)
    found[:, SECRET] = draw.permutation(np.arange(runs) % 2)
    forth, start = CHAIN.transition, CHAIN.stationary
    back = (start[:, np.newaxis] * forth).T / start[:, np.newaxis]
    for slot in range(SECRET + 1, LENGTH):
        found[:, slot] = draw.random(runs) < forth[found[:, slot - 1], 1]
    for slot in range(SECRET - 1, -1, -1):
        found[:, slot] = draw.random(runs) < back[found[:, slot + 1], 1]
    return found


def histograms(folder: Path, runs: int, *, pairs: bool = False) -> PrivateHistograms:
    """The job; with pairs a series and the one half of them further on are a group."""
    rows = [f"s{n:06},g{n % (runs // 2):06}\n" if pairs else f"s{n:06}\n" for n in range(runs)]
    header = "series,group\n" if pairs else "series\n"
    (folder / "roster.csv").write_text("".join([header, *rows]), encoding="utf-8")
    settings = Settings.parse(
        {
            "slots": {"interval": "30min", "origin": "2013-01-01"},
            "states": {"edges": [0.5], "unit": "W"},
            "model": "given below",
            "windows": {"size": "2h", "start": "2013-01-01", "stop": "2013-01-01T04:00"},
            "privacy": {"epsilon": EPSILON, "mechanism": "forward-backward", "budget": 10 * EPSILON},
            "query": "load",
            "most_error": 1e6,  # what is tested here is not how useful the rows are
            "domain": "homes",
            "roster": str(folder / "roster.csv"),
            "ledger": f"sqlite:///{folder / 'ledger.db'}",
            **({"group_by": "group"} if pairs else {}),
        }
    )
    belief = Model(CHAIN.to_dict(), StateSpace((0.5,), "W"), SLOT, Provenance(method="given"))
    return PrivateHistograms(settings, model=belief)


def of_slots(states: Ints) -> list[pa.RecordBatch]:
    runs = len(states)
    names = pa.array([f"s{n:06}" for n in range(runs)])
    return [
        pa.RecordBatch.from_arrays(
            [
                pa.DictionaryArray.from_arrays(pa.array(np.arange(runs, dtype=np.int32)), names),
                pa.array(np.full(runs, ORIGIN + slot * SLOT)).cast(pa.timestamp("us", tz="UTC")),
                pa.array(states[:, slot].astype(np.float64)),
            ],
            schema=READING_SCHEMA,
        )
        for slot in range(LENGTH)
    ]


def turned(states: Ints) -> Ints:
    """The same with the other state in the secret slot."""
    found = states.copy()
    found[:, SECRET] = 1 - found[:, SECRET]
    return found


def batch_job(states: Ints, folder: Path, watched: Watched, again: Ints | None = None) -> None:
    """Run a job that ends; where its bundles fail, begin it again until it is done, with other readings if given."""
    job = histograms(folder, len(states))
    while True:
        failed = watched.failed
        try:
            with beam.Pipeline(runner=FnApiRunner()) as pipeline:
                _ = pipeline | feed(folder, of_slots(states if not failed or again is None else again)) | job
        except OSError:
            if watched.failed == failed:
                raise
        else:
            return


def changed_job(states: Ints, folder: Path, watched: Watched) -> None:
    """Run a job whose bundles fail, and again with the other state in the secret slot."""
    batch_job(states, folder, watched, turned(states))


def paired_job(states: Ints, folder: Path, watched: Watched) -> Ints:
    """Run a job of groups of two: each run's series with another one, whose readings the attacker knows.

    Returns:
        What the attacker takes off the rows: the counts of the other series, shape (runs, windows).
    """
    del watched
    others = np.random.default_rng(int(states.sum())).permutation(states)
    both = np.concatenate([states, others])
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | feed(folder, of_slots(both)) | histograms(folder, len(both), pairs=True)
    return counted(others)


def live_job(states: Ints, folder: Path, watched: Watched) -> None:
    """Run a live job; once the first window has closed, its secret slot comes twice more, in the other state."""
    del watched
    closed, late = ORIGIN, of_slots(turned(states))[SECRET]
    events: list[Any] = []
    for slot, batch in enumerate(of_slots(states)):
        now = ORIGIN + (slot + 1) * SLOT
        sent = [batch] if slot < SIZE else [batch, late]
        events += [TimestampedValue(Arrived(one, closed), stamped(closed)) for one in sent]
        if not (slot + 1) % SIZE:
            events.append(TimestampedValue(Punctuation(0, 1, closed, now), stamped(closed)))
            events.append(closed := now)
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(streaming=True)) as pipeline:
        _ = pipeline | streamed(events) | histograms(folder, len(states))


def told(rows: Rows) -> SampledLoss:
    """The sampled loss of what was seen; printed beside what the rows print."""
    found = sampled_loss(rows.views(), ALPHA)
    print(found, "printed", rows.loss)  # noqa: T201 - a measurement
    return found


def play(
    runs: int, folder: Path, watched: Watched, run: Callable[[Ints, Path, Watched], Ints | None] = batch_job
) -> Rows:
    print("seed", seed := random.randrange(2**32))  # noqa: T201 - a random test says its seed
    draw = np.random.default_rng(seed)
    found: list[Rows] = []
    for begin in range(0, runs, AT_ONCE):
        states = trajectories(min(AT_ONCE, runs - begin), draw)
        (inside := folder / str(begin)).mkdir()
        watched.forget()
        known = run(states, inside, watched)
        found.append(gathered(states, watched.rows, known))
    states, true, seen = (np.concatenate([getattr(one, name) for one in found]) for name in ("states", "true", "seen"))
    firsts = np.concatenate([one.firsts + AT_ONCE * number for number, one in enumerate(found)])
    return Rows(states, true, seen, firsts, max(one.loss for one in found), found[0].scale)


def counted(states: Ints) -> Ints:
    """How often state 1 is in each window, shape (runs, windows)."""
    return states.reshape(-1, LENGTH // SIZE, SIZE).sum(axis=2)


def gathered(states: Ints, attempts: Sequence[Sequence[pa.RecordBatch]], known: Ints | None = None) -> Rows:
    """The rows of one job less what is known of them, its series or groups in the order of their blocks."""
    tables = [
        pl.DataFrame(pl.from_arrow(pa.Table.from_batches(rows))).with_columns(pl.col("window_start").cast(pl.Int64))
        for rows in attempts
    ]
    # by the first attempt at the first window, whose blocks came in some order
    first = [one for one in attempts[0] if one["window_start"].cast(pa.int64())[0].as_py() == ORIGIN]
    blocks = {one["key"][0].as_py(): one["key"].to_pylist() for one in first}.values()
    series = np.array([int(name[1:]) for names in blocks for name in names])
    ends = np.cumsum([len(names) for names in blocks]).tolist()
    firsts = np.concatenate([np.arange(begin, end - 1, 2) for begin, end in pairwise([0, *ends])])
    seen = np.full((len(states), len(attempts), LENGTH // SIZE), -(2**40), dtype=np.int64)
    for attempt, table in enumerate(tables):
        number = table["key"].str.slice(1).cast(pl.Int64).to_numpy()
        window = ((table["window_start"] - ORIGIN) // (SIZE * SLOT)).to_numpy()
        seen[number, attempt, window] = table["counts"].list.get(1).to_numpy()
    assert seen.min() > -(2**40), "a row is missing"
    if known is not None:
        seen -= known[:, np.newaxis, :]
    loss, true = max(float(np.max(table["loss_after"].to_numpy())) for table in tables), counted(states)
    return Rows(states[series, SECRET], true[series], seen[series], firsts, loss, float(tables[0]["scale"][0]))


@pytest.mark.night
def test_the_sampled_loss_of_rows_is_within_and_near_the_printed_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = play(at(20_000, 1_000_000), tmp_path, Watched(monkeypatch, failing=False))
    exact = exact_loss(
        CHAIN, LENGTH, [AuditRelease(begin, begin + SIZE, rows.scale) for begin in range(0, LENGTH, SIZE)]
    )
    # the printed loss is the true one here, and that of this slot, so the sampled one has something to find; the
    # account rounds its tails up to 20 binary digits
    assert exact.slot == SECRET
    assert exact.loss <= rows.loss <= exact.loss * (1 + 2.0**-20)
    found = told(rows)
    assert found.loss <= rows.loss
    assert found.loss >= at(20, 90) / 100 * rows.loss


@pytest.mark.night
def test_the_sampled_loss_of_groups_with_known_members_is_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = play(at(20_000, 200_000), tmp_path, Watched(monkeypatch, failing=False), paired_job)
    found = told(rows)
    assert found.loss <= rows.loss
    # what is taken off is what the groups count
    assert found.loss >= at(20, 70) / 100 * rows.loss


@pytest.mark.night
def test_the_sampled_loss_of_late_readings_is_within_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, failing=True)
    rows = play(at(20_000, 200_000), tmp_path, watched, live_job)
    assert watched.failed
    found = told(rows)
    assert found.loss <= rows.loss
    assert np.array_equal(rows.seen[:, 0], rows.seen[:, 1])


@pytest.mark.night
def test_the_sampled_loss_of_rerun_bundles_is_within_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is killed when its rows are out, and runs again when the secret slot has been sent in another state."""
    watched = Watched(monkeypatch, failing=True)
    rows = play(at(20_000, 200_000), tmp_path, watched, changed_job)
    assert watched.failed
    found = told(rows)
    assert found.loss <= rows.loss
    assert np.array_equal(rows.seen[:, 0], rows.seen[:, 1])


@pytest.mark.night
def test_the_sampled_loss_with_uncommitted_draws_is_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, drawn = Publisher.publish, list[Any]()

    def lost(self: Any, drafts: Any) -> Any:
        records = publish(self, drafts)
        drawn.append(records)
        if len(drawn) % 2:
            raise OSError("the process ended before the commit")
        return records

    def twice(states: Ints, folder: Path, watched: Watched) -> None:
        with pytest.raises(OSError, match="before the commit"):
            batch_job(states, folder, watched)
        batch_job(states, folder, watched)

    monkeypatch.setattr(Publisher, "publish", lost)
    rows = play(at(20_000, 100_000), tmp_path, Watched(monkeypatch, failing=False), twice)
    assert len(drawn) >= 2
    found = told(rows)
    assert found.loss <= rows.loss


RANDOMISE = FixedTotalHistogram.randomise


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        FixedTotalHistogram,
        "randomise",
        lambda law, true: RANDOMISE(FixedTotalHistogram(law.bins, law.scale / 2), true),
    )


def drawn_anew(patch: pytest.MonkeyPatch) -> None:
    """The store gives what an attempt drew instead of what is on record."""
    publish = Store.publish

    def published(store: Store, registration: Any, drafts: Any) -> Any:
        records = publish(store, registration, drafts)
        return [replace(one, block=draft.draw()) for one, draft in zip(records, drafts, strict=True)]

    patch.setattr(Store, "publish", published)


def one_seed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(release, "_BATCH", 1)
    patch.setattr(FixedTotalHistogram, "randomise", lambda law, true: RANDOMISE(law, true, random.Random(1).randbytes))


def noise_for_two(patch: pytest.MonkeyPatch) -> None:
    """Every second row of a block has the noise of the row before it."""

    def randomise(law: FixedTotalHistogram, true: Ints) -> Ints:
        noise = RANDOMISE(law, np.zeros_like(true))
        noise[1::2] = noise[: len(noise) // 2 * 2 : 2]
        return noise + true

    patch.setattr(release, "_BATCH", 1)
    patch.setattr(FixedTotalHistogram, "randomise", randomise)


@pytest.mark.night
@pytest.mark.parametrize(
    ("fault", "families", "runs"),
    [
        (half_the_noise, {"rows"}, 30_000),
        (drawn_anew, {"rows", "attempts"}, 100_000),
        (one_seed, {"windows"}, 30_000),
        (noise_for_two, {"neighbours"}, 30_000),
    ],
    ids=["half the noise", "drawn anew", "one seed", "noise for two"],
)
def test_the_sampled_loss_of_each_planted_fault_exceeds_the_printed_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None], families: set[str], runs: int
) -> None:
    """By so many runs that each bound lies at least five standard deviations above the printed loss."""
    fault(monkeypatch)
    watched = Watched(monkeypatch, failing=fault is drawn_anew)
    rows = play(at(runs, 2 * runs), tmp_path, watched)
    found = told(rows)
    assert found.family in families
    assert found.loss > rows.loss


def test_the_bounds_of_a_probability_have_their_stated_coverage() -> None:
    """All outcomes of 30 runs, and their exact probabilities."""
    runs, alpha = 30, 0.01
    for percent in range(1, 100, 7):
        p = percent / 100
        likely = binom.pmf(np.arange(runs + 1), runs, p)
        assert sum(likely[k] for k in range(runs + 1) if lower_bound(k, runs, alpha) > p) <= alpha
        assert sum(likely[k] for k in range(runs + 1) if upper_bound(k, runs, alpha) < p) <= alpha


def test_a_sampled_loss_lies_below_that_of_randomised_response_and_near_it() -> None:
    """The answer is the state with probability 3/4, so the loss is log 3."""
    draw = np.random.default_rng(seed := random.randrange(2**32))
    print("seed", seed)  # noqa: T201 - a random test says its seed
    states = draw.integers(0, 2, 100_000)
    answers = np.where(draw.random(len(states)) < 0.75, states, 1 - states)[:, np.newaxis]
    found = sampled_loss({"answers": (states, answers), "nothing": (states, 0 * answers)}, ALPHA)
    assert found.family == "answers"
    assert 0.9 * math.log(3) <= found.loss <= math.log(3)
    assert sampled_loss({"nothing": (states, 0 * answers)}, ALPHA).loss <= 0
