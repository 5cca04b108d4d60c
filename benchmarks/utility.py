"""How far a published histogram is off, by each method, on real data: in the shape of the tables of [SWC17].

Run: python benchmarks/utility.py [--picture FILE]

A release is a histogram of relative frequencies. Its error is the expected L1 distance from the true one, k E|Z| / n:
k bins, n cells that are counted, Z the noise of a count by its exact discrete law. Nothing is drawn. The belief is the
chain of all series of a data set together, as in [SWC17], and the release is one of an endless stream, so that all of
them together cost epsilon; group privacy and the influence matrix of [GK16] know one release alone, of all cells of a
series. Privacy of single entries is what a mechanism needs that takes no notice of the correlation: its noise does
not hide a slot from its neighbours. The noise of `forward-backward` is shown twice, independent in each count and
kept to the public total, as jobs draw it.

Needs the shared data sets, by QUILTSTREAM_SHARED_DATA or beside the checkout.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from quiltstream.privacy.accounting.certificates import certified
from quiltstream.privacy.analysis.methods import METHODS
from quiltstream.privacy.mechanisms.histogram import FixedTotalHistogram, LaplaceHistogram
from quiltstream.privacy.models.belief import Belief
from quiltstream.privacy.models.markov_chain import MarkovChain
from quiltstream.privacy.validation import PrivacyError

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("QUILTSTREAM_SHARED_DATA", ROOT.parent / "shared" / "data"))
_EXACT, _LARGE = 12, 1
EPSILONS = (0.2, 1.0, 5.0)
SHOWN = ("entry-dp", "forward-backward", "mqm-exact", "mqm-approx", "group-dp")
KEPT = "forward-backward, total kept"
NAMES = tuple(name for shown in SHOWN for name in ((shown, KEPT) if shown == "forward-backward" else (shown,)))


@dataclass(frozen=True)
class Task:
    """A histogram to publish.

    Attributes:
        name: of the data and the histogram.
        chain: of all series together.
        slots: of one series in the histogram.
        series: in the histogram, independent of each other.
    """

    name: str
    chain: MarkovChain
    slots: int
    series: int

    @property
    def bins(self) -> int:
        """Number of bins k."""
        return self.chain.states

    def errors(self, epsilon: float) -> dict[str, float | None]:
        """Expected L1 error of the relative frequencies by method; none where the method has no answer."""
        found = dict[str, float | None]()
        for name in SHOWN:
            method = METHODS[name]
            try:
                belief = self._certified(epsilon) if name == "forward-backward" else self.chain
                sigma = method(belief, epsilon, None if method.endless else self.slots).sigma
            except (PrivacyError, ValueError):
                found[name] = None
                continue
            found[name] = self._error(LaplaceHistogram.from_sigma(self.bins, sigma))
            if name == "forward-backward":
                found[KEPT] = self._error(FixedTotalHistogram.from_sigma(self.bins, sigma))
        return found

    def _certified(self, epsilon: float) -> Belief:
        """The chain, with the certificate that `fit --certify` makes where no calibration would find one by itself."""
        return self.chain if self.bins <= _EXACT else certified(self.chain, epsilon)

    def _error(self, noise: LaplaceHistogram | FixedTotalHistogram) -> float:
        return self.bins * noise.mean_abs / (self.slots * self.series)


def chain_of(states: npt.NDArray[np.int64], adjoin: npt.NDArray[np.bool_], bins: int) -> MarkovChain:
    """The chain of the transitions between readings that adjoin; every bin was visited."""
    follows = adjoin & (states[:-1] >= 0) & (states[1:] >= 0)
    counts = np.bincount(states[:-1][follows] * bins + states[1:][follows], minlength=bins**2).reshape(bins, bins)
    return MarkovChain(counts / counts.sum(axis=1, keepdims=True))


def tasks() -> Iterator[Task]:
    """Every data set with its histograms."""
    table = pq.read_table(DATA / "nhanes_pa" / "nhanes_1min_25persons.parquet").sort_by(
        [("id", "ascending"), ("day", "ascending"), ("minute", "ascending")]
    )
    person, level = (np.asarray(table[name]).astype(np.int64) for name in ("id", "level"))
    minute = np.asarray(table["day"]).astype(np.int64) * 1440 + np.asarray(table["minute"]).astype(np.int64)
    chain = chain_of(level, (np.diff(person) == 0) & (np.diff(minute) == 1), 4)
    yield Task("activity, 1 person, a week", chain, 7 * 1440, 1)
    yield Task("activity, 25 persons, a week", chain, 7 * 1440, 25)
    table = pq.read_table(DATA / "lcl2013" / "lcl2013_halfhourly_60hh.parquet")
    home = np.unique(table["household"].to_pylist(), return_inverse=True)[1]
    slot = table["ts"].cast("timestamp[us]").cast("int64").to_numpy() // 1_800_000_000
    band = np.digitize(table["kwh"].to_numpy().astype(np.float64) * 2000, [250, 500, 1000, 2000])
    home, slot, band = (column[np.lexsort((slot, home))] for column in (home, slot, band))
    chain = chain_of(band, (np.diff(home) == 0) & (np.diff(slot) == 1), 5)
    yield Task("electricity, 30 homes, a week", chain, 336, 30)
    yield Task("electricity, 1 home, a year", chain, 17_520, 1)
    file = DATA / "uci_power" / "uci_power_1min_20061216_20091231.parquet"
    watts = np.round(pq.read_table(file, columns=["Global_active_power"])[0].to_numpy().astype(np.float64) * 1000)
    there = np.isfinite(watts)
    for width, bins in ((2500, 4), (200, 51)):
        state = np.where(there, np.minimum(np.nan_to_num(watts) // width, bins - 1), -1).astype(np.int64)
        chain = chain_of(state, np.ones(len(state) - 1, dtype=np.bool_), bins)
        yield Task(f"one house by the minute, {bins} bins, 3 years", chain, len(watts), 1)


def shown(value: float | None) -> str:
    """Per cent, by three digits."""
    return "n/a" if value is None else f"{100 * value:.3g}" if value < _LARGE else f"{100 * value:.0f}"


def draw(rows: list[tuple[Task, dict[float, dict[str, float | None]]]], path: Path) -> None:
    """A panel for each histogram: the error by epsilon, a line for each method."""
    import matplotlib as mpl  # noqa: PLC0415 - the extra "test"
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "quiltstream"}  # text as text, the same bytes each time
    styles = dict(zip(NAMES, ("k:", "C0-", "C2-", "C1--", "C3-.", "C4--", "C7:"), strict=True))
    figure = Figure((9, 6.5), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True)
    for axes, (task, errors) in zip(panels.flat, rows, strict=True):
        for name in NAMES:
            values = [errors[epsilon][name] for epsilon in EPSILONS]
            if None not in values:
                axes.loglog(EPSILONS, values, styles[name], marker="o", markersize=3, label=name)
        axes.axhline(2, color="0.7", linewidth=0.8)  # no two histograms are further apart
        axes.set_title(task.name, fontsize=8)
        axes.set_xticks(EPSILONS, [f"{one:g}" for one in EPSILONS], minor=False)
        axes.minorticks_off()
    for axes in panels[-1]:
        axes.set_xlabel("epsilon")
    figure.supylabel("expected L1 error of the relative frequencies")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="draw the table to this file too")
    chosen = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"the shared data sets are not in {DATA}: set QUILTSTREAM_SHARED_DATA")
    rows: list[tuple[Task, dict[float, dict[str, float | None]]]] = []
    print("expected L1 error of the relative frequencies, per cent")
    print(f"{'histogram':<42} {'epsilon':>7}", *(f"{name.replace(', ', ' '):>{len(name)}}" for name in NAMES))
    for task in tasks():
        errors = dict[float, dict[str, float | None]]()
        for epsilon in EPSILONS:
            errors[epsilon] = task.errors(epsilon)
            values = (f"{shown(errors[epsilon][name]):>{len(name)}}" for name in NAMES)
            print(f"{task.name:<42} {epsilon:>7g}", *values, flush=True)
        rows.append((task, errors))
    if chosen.picture is not None:
        draw(rows, chosen.picture)


if __name__ == "__main__":
    main()
