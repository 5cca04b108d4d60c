"""What a plan costs: CPU of `quiltstream plan` for chains of 5, 12 and 51 states.

Run: python benchmarks/plan.py

The chains are counted from the house by the minute that comes with the package. BLAS runs one thread: on a machine that
is busy its threads wait for each other.
"""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np

from quiltstream.privacy.models.markov_chain import MarkovChain
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.states import StateSpace

ROUNDS = 3


def chain(states: int, width: float) -> MarkovChain:
    text = resources.files("quiltstream.pipelines.data").joinpath("house_power_1min_2weeks.csv").read_text()
    watts = np.array([float(row["power_w"]) for row in csv.DictReader(text.splitlines()) if row["power_w"]])
    found = np.minimum((watts / width).astype(int), states - 1)
    counts = np.full((states, states), 0.01)
    np.add.at(counts, (found[:-1], found[1:]), 1)
    return MarkovChain(counts / counts.sum(axis=1, keepdims=True))


def used() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def main() -> None:
    print(f"{'states':>6} {'command, CPU s':>15}")
    with tempfile.TemporaryDirectory() as folder:
        for states, width in ((5, 1000.0), (12, 500.0), (51, 200.0)):
            path = Path(folder) / f"model-{states}.json"
            edges = tuple(width * place for place in range(1, states))
            Model(
                belief=chain(states, width).to_dict(),
                states=StateSpace(edges, "W"),
                interval_us=60_000_000,
                provenance=Provenance(method="counts of a house"),
            ).save(path)
            words = ["plan", "--model", str(path), "--group", "30", "--format", "json"]
            taken: list[float] = []
            for _ in range(ROUNDS):
                before = used()
                program = [sys.executable, "-m", "quiltstream.pipelines.cli", *words]
                environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
                subprocess.run(program, check=True, stdout=subprocess.DEVNULL, cwd=folder, env=environment)  # noqa: S603 - this package
                taken.append(used() - before)
            print(f"{states:>6} {min(taken):>15.2f}", flush=True)


if __name__ == "__main__":
    main()
