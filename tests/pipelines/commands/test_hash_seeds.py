"""What is published depends on no order that comes of Python's hash seed, which differs from process to process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ...depth import some
from ..jobs import HOMES, job, readings, spawn, write_csv

#: Without noise, which differs from run to run.
TRUE = """
import sys
from pathlib import Path
from quiltstream.pipelines.commands.run import publish
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms import PrivateHistograms
for folder in sys.argv[1:]:
    settings = read_settings(Path(folder) / "settings.yaml")
    publish(settings, PrivateHistograms(settings, noise="none"))
print(list({"m1", "m2", "m3", "m4", "m5", "m6", "north", "south"}))
"""

#: A roster's groups, and series and ends that are taken from the data.
CHANGES: dict[str, dict[str, Any]] = {
    "groups": {},
    "series": {"roster": None, "group_by": None, "windows": {"size": "1d"}},
}


@pytest.mark.night
def test_processes_of_different_hash_seeds_publish_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, changed = readings(2), dict(some(list(CHANGES.items()), 2))
    orders: set[str] = set()
    files: set[tuple[bytes, ...]] = set()
    for seed in ("0", "1"):
        (tmp_path / seed).mkdir()
        for name, changes in changed.items():
            made = job(
                tmp_path / seed / name, [], source={"csv": "inbox/*.csv"}, sink={"jsonl": "releases.jsonl"}, **changes
            )
            (made.folder / "inbox").mkdir()
            for home in HOMES:
                mine = [row for row in rows if row[0] == home]
                write_csv(made.folder / "inbox" / f"{home}.csv", [*mine, (home, "no instant", 0.1)])
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        done = spawn(*changed, cwd=tmp_path / seed, program=TRUE).ended(0)
        orders.add(done.out)
        outputs = [tmp_path / seed / name / file for name in changed for file in ("releases.jsonl", "rejects.csv")]
        files.add(tuple(one.read_bytes() for one in outputs))
    assert len(orders) == 2  # the seeds do differ
    assert len(files) == 1
    (published,) = files
    assert all(len(one.splitlines()) > len(HOMES) for one in published)
