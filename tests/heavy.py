"""Writes ``heavy.txt``: the tests that take long, with the seconds of one case.

From the root of the repository, on a quiet machine::

    .venv/bin/pytest -k test --junitxml=build/tests.xml && python3 tests/heavy.py build/tests.xml
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

#: A test is heavy when its cases take so many seconds together.
HEAVY_SECONDS = 0.1


def heavy(report: str) -> str:
    """The lines of the table, of a report as JUnit writes them."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        times[case.get("name", "").partition("[")[0]].append(float(case.get("time", 0)))
    long = {name: sum(each) / len(each) for name, each in times.items() if sum(each) >= HEAVY_SECONDS}
    return "".join(f"{max(seconds, 0.001):.3f} {name}\n" for name, seconds in sorted(long.items()))


if __name__ == "__main__":
    table = heavy(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(__file__).with_name("heavy.txt").write_text(table, encoding="utf-8")
