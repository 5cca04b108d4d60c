"""All benchmarks in one command, each in a process of its own: ``python benchmarks [NAME ...] [--python PATH]``.

Prints one section of Markdown for each call of a benchmark: its arguments, the load of the machine before it, its
seconds and its output. Of a benchmark that ends with an error, because it fails or lacks a server or a program, the
section has the last line of the error, and the exit code is 1. Without names all of them run, from the quickest to
those that take an hour. ``--python`` names an interpreter that has polars, DuckDB and PipelineDP; the tables name the
peers that it lacks.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent

#: Words of each call of a benchmark, in the order in which they run.
CALLS: dict[str, list[list[str]]] = {
    "calibration": [[]],
    "noise": [[]],
    "utility": [[]],
    "timing": [[]],
    "ledger": [[]],
    "pipeline": [
        ["--readings", "0.5", "1", "10", "100"],
        ["--readings", "10", "--series", "10", "10000", "100000", "--runs", "1"],
        ["--readings", "10", "--series", "100000", "--windows", "1", "--runs", "1"],
        ["--readings", "10", "100", "--cores", "1", "--runs", "1"],
    ],
    "writers": [[]],
    "scale": [[]],
    "gateway": [[]],
    "kafka": [[]],
    "live": [[]],
    "live_flink": [[]],
    "latency": [[]],
    "ledger_growth": [[]],
    "faults": [[]],
}

#: Benchmarks with peers that need an interpreter of their own.
WITH_PEERS = {"pipeline"}


def machine() -> str:
    """What the numbers belong to."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("apache-beam", "numpy", "pyarrow"))
    now = datetime.now(UTC)
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}, "
        f"{versions}, {now:%d %B %Y %H:%M} UTC"
    )


def run(name: str, words: list[str]) -> bool:
    """Run one call of a benchmark, print its section, and say whether it came to its end."""
    print(f"\n## {' '.join([f'{name}.py', *words])}\n")
    print(f"Load before it: {os.getloadavg()[0]:.1f}.\n\n```", flush=True)
    began = time.monotonic()
    command = [sys.executable, str(HERE / f"{name}.py"), *words]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own programs
    print(f"```\n\n{time.monotonic() - began:.0f} s.", flush=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        print(f"**Did not come to its end**: {lines[-1]}", flush=True)
    return done.returncode == 0


def main() -> None:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CALLS)}")
    parser.add_argument("--python", default=sys.executable, metavar="PATH")
    given = parser.parse_args()
    if unknown := set(given.names) - CALLS.keys():
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}; there are {', '.join(CALLS)}")
    print(f"# Benchmarks\n\nMachine: {machine()}.")
    ended = [
        run(name, [*words, *(["--python", given.python] if name in WITH_PEERS else [])])
        for name in given.names or CALLS
        for words in CALLS[name]
    ]
    sys.exit(not all(ended))


if __name__ == "__main__":
    main()
