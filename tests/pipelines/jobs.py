"""Small jobs for the tests of the command line: readings as files of the four formats, and settings over them."""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.schemas.releases import Release, releases_from_batch
from quiltstream.transforms.sinks import read_release_rows

from ..forked import COMMAND, forker

START = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
HOMES = ("m1", "m2", "m3", "m4", "m5", "m6")

Row = tuple[str, str, Any]
"""A meter, an instant as ISO 8601, and a value in kWh of half an hour."""


def readings(days: int = 8, homes: Iterable[str] = HOMES, seed: int = 7) -> list[Row]:
    """Half-hourly values that wander between the bins."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for home in homes:
        level = 0.1
        for slot in range(48 * days):
            if draw.random() < 0.3:
                level = draw.choice([0.05, 0.2, 0.4, 0.8, 1.5])
            stamp = START + slot * dt.timedelta(minutes=30)
            rows.append((home, stamp.isoformat(), level))
    return rows


def write_csv(path: Path, rows: Iterable[Row], header: str = "meter,ts,kwh") -> Path:
    """Rows as CSV; a value that is text is written as it is."""
    path.write_text(header + "\n" + "".join(f"{m},{t},{v}\n" for m, t, v in rows), encoding="utf-8")
    return path


def write_as(form: str, path: Path, rows: list[Row]) -> Path:
    """The same rows in one of the four formats."""
    if form == "csv":
        return write_csv(path, rows)
    plain = [{"meter": m, "ts": t, "kwh": float(v)} for m, t, v in rows]
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in plain), encoding="utf-8")
    elif form == "parquet":
        stamps = [dt.datetime.fromisoformat(t) for _, t, _ in rows]
        columns = {
            "meter": pa.array([row["meter"] for row in plain]).dictionary_encode(),
            "ts": pa.array(stamps, pa.timestamp("ms", tz="UTC")),
            "kwh": pa.array([row["kwh"] for row in plain]),
        }
        pq.write_table(pa.table(columns), path)
    else:
        fields = [{"name": n, "type": t} for n, t in (("meter", "string"), ("ts", "string"), ("kwh", "double"))]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "Reading", "fields": fields}, plain)
    return path


@dataclass(frozen=True)
class Job:
    """A settings file in a folder, and what is around it."""

    folder: Path

    @property
    def settings(self) -> Path:
        return self.folder / "settings.yaml"

    @property
    def sink(self) -> Path:
        return self.folder / "releases.parquet"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    def rows(self) -> list[Release]:
        """The released rows in the sink."""
        return releases_from_batch(read_release_rows(self.sink))


def job(folder: Path, rows: Iterable[Row] | None = None, **changes: Any) -> Job:
    """Write a CSV file, a roster of two groups and settings; ``changes`` replace settings, ``None`` takes one out."""
    folder.mkdir(exist_ok=True)
    write_csv(folder / "readings.csv", readings() if rows is None else rows)
    with (folder / "roster.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["series", "street"])
        writer.writerows([home, "north" if home < "m4" else "south"] for home in HOMES)
    document: dict[str, Any] = {
        "source": {"csv": "readings.csv"},
        "readings": {"series": "meter", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000},
        "slots": {"interval": "30min", "origin": "2024-03-01"},
        "states": {"edges": [250, 500, 1000, 2000], "unit": "W"},
        "model": {"pi_min": 0.05, "gap": 0.3},
        "group_by": "street",
        "roster": "roster.csv",
        "windows": {"size": "1d", "start": "2024-03-01", "stop": "2024-03-08"},
        "privacy": {"epsilon": 1.0, "budget": 1.0},
        "sink": {"parquet": "releases.parquet"},
        "rejects": {"csv": "rejects.csv"},
        "query": "daily",
        "most_error": 1e6,  # what is tested here is not how useful the rows are
        "domain": "streets",
        "ledger": "sqlite:///ledger.db",
    }
    document.update(changes)
    made = Job(folder)
    made.settings.write_text(yaml.safe_dump({k: v for k, v in document.items() if v is not None}), encoding="utf-8")
    return made


def change(made: Job, **changes: object) -> None:
    """Other settings for a job; ``None`` takes one out."""
    document = yaml.safe_load(made.settings.read_text(encoding="utf-8"))
    document.update(changes)
    made.settings.write_text(yaml.safe_dump({k: v for k, v in document.items() if v is not None}), encoding="utf-8")


@dataclass(frozen=True)
class Done:
    """What a command printed and ended with."""

    code: int
    out: str
    err: str

    def said(self, text: str) -> bool:
        """Whether a text is in what was printed, however it was wrapped."""
        return " ".join(text.split()) in " ".join((self.out + " " + self.err).split())

    def ended(self, code: int, *texts: str) -> Done:
        """The same, once it is sure that the command ended with this code and printed each of these texts."""
        missing = [text for text in texts if not self.said(text)]
        assert (self.code, missing) == (code, []), f"ended with {self.code}; {missing} missing in {self.out}{self.err}"
        return self

    def hid(self, *texts: str) -> Done:
        """The same, once it is sure that none of these texts was printed."""
        shown = [text for text in texts if text in self.out + self.err]
        assert not shown, f"{shown} shown in {self.out}{self.err}"
        return self


def call(*words: str | Path) -> Done:
    """Run a command in this process."""
    result = CliRunner().invoke(main, [str(word) for word in words], prog_name="quiltstream")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def start(
    *words: str | Path, cwd: Path, program: str = COMMAND, begin: Sequence[str] = (sys.executable, "-c")
) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [*begin, program, *map(str, words)],
        cwd=cwd,
        env=os.environ | {"COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def spawn(*words: str | Path, cwd: Path, program: str = COMMAND) -> Done:
    """Run a command in a process of its own that has imported nothing."""
    return _end(start(*words, cwd=cwd, program=program))


def fork(*words: str | Path, cwd: Path, program: str = COMMAND) -> Done:
    """Run a command in a process of its own that is forked from one that has imported everything."""
    return _end(start(*words, cwd=cwd, program=program, begin=forker().client))


def _end(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=120)
    return Done(process.returncode, out, err)
