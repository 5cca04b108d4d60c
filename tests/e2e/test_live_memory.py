"""A live job's memory does not grow with what it has read and published."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from quiltstream.schemas.releases import releases_from_batch
from quiltstream.store import Store
from quiltstream.store.errors import StoreConflict

from .live_bench import ORIGIN, PATIENCE, Bench, Running
from .test_live_restart import prisms_of

SERIES = 100
GROUPS = 4
SLOTS = 100  # of a window, which is an hour
SLOT_US = 36_000_000
WINDOWS = 1000
AT_ONCE = 10  # windows in a file
VALUES = np.array([100.0, 400.0, 700.0, 1500.0, 2500.0])  # one in each bin

#: Megabytes that the job's process, or Prism, may grow by in the last two fifths: 4 million readings are 95 MB, and 400
#: windows that leave 40 kB each behind are 16 MB. Measured: 1 to 10, and at most 3. Until then allocators still take
#: more, up to 35 MB.
GROWTH = 15.0
#: And that they may have in all; measured: 290 and 53.
MOST = 450.0


def resident(pid: int) -> float:
    """Megabytes of a process that are in memory."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def table_of(number: int, states: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> pa.Table:
    """A reading of every series in every slot of some windows: states of shape (series, slots)."""
    slots = states.shape[1]
    first = number * AT_ONCE * SLOTS
    times = ORIGIN + (first + np.arange(slots)) * SLOT_US
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(SERIES, dtype=np.int32), slots)), pa.array([f"s{i:03}" for i in range(SERIES)])
    )
    return pa.table({"series": names, "time": np.tile(times, SERIES), "value": VALUES[states.reshape(-1)]})


def charged(bench: Bench) -> int:
    """How many windows are charged."""
    with Store(bench.ledger, create=False) as store:
        try:
            return store.summary("homes").charged
        except StoreConflict:
            return 0


def test_memory_is_flat_over_ten_million_readings_and_a_thousand_windows(bench: Bench) -> None:
    draw = np.random.default_rng(20130101)
    bench.settings(
        source={"parquet": "inbox/*.parquet"},
        slots={"interval": "36s", "origin": "2013-01-01"},
        windows={"size": "1h", "start": "2013-01-01", "stop": "2013-02-11T16:00:00Z"},
        group_by="group",
        live={"poll": "50ms"},
    )
    roster = "".join(f"s{i:03},g{i % GROUPS}\n" for i in range(SERIES))
    (bench.folder / "roster.csv").write_text("series,group\n" + roster, encoding="utf-8")
    job = bench.start(noise="none")
    expected: list[list[list[int]]] = []
    sampled: dict[int, tuple[float, float]] = {}
    for number in range(WINDOWS // AT_ONCE):
        states = draw.integers(0, len(VALUES), (SERIES, AT_ONCE * SLOTS))
        for window in range(AT_ONCE):
            part = states[:, window * SLOTS : (window + 1) * SLOTS]
            counts = [np.bincount(part[group::GROUPS].reshape(-1), minlength=5).tolist() for group in range(GROUPS)]
            expected.append(counts)
        whole = bench.folder / "inbox" / f".{number}.part"
        pq.write_table(table_of(number, states), whole)
        whole.rename(whole.with_name(f"{number:04}.parquet"))
        wait(bench, job, (number - 1) * AT_ONCE)
        share = 100 * (number + 1) * AT_ONCE // WINDOWS
        if share in (60, 100):
            (prism,) = bench.until(lambda: prisms_of(job), "Prism runs")
            sampled[share] = (resident(job.process.pid), resident(prism))
    last = bench.folder / "inbox" / ".last.part"
    pq.write_table(table_of(WINDOWS // AT_ONCE, np.zeros((SERIES, 2), dtype=np.int64)), last)
    last.rename(last.with_name("last.parquet"))
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    with Store(bench.ledger, create=False) as store:
        rows = [row for batch in store.releases("homes", "load") for row in releases_from_batch(batch)]
    found = {((row.window_start - ORIGIN) // (SLOT_US * SLOTS), row.key): list(row.counts) for row in rows}
    assert found == {(w, f"g{g}"): counts for w, groups in enumerate(expected) for g, counts in enumerate(groups)}
    assert job.summary["operator_only"]["readings"] == WINDOWS * SERIES * SLOTS
    grown = [now - then for now, then in zip(sampled[100], sampled[60], strict=True)]
    assert max(grown) < GROWTH, sampled
    assert max(sampled[100]) < MOST, sampled


def wait(bench: Bench, job: Running, windows: int) -> None:
    """Wait until so many windows are charged."""
    deadline = time.monotonic() + PATIENCE
    while windows > 0 and charged(bench) < windows:
        assert job.process.poll() is None, job.err.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, job.said[-3:]
        time.sleep(0.05)
