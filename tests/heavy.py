"""Writes ``heavy.txt``: the tests that take long, with the seconds of one case, and cases that take much longer.

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

#: A case has a line of its own when it takes so many seconds more than the mean of its test's cases.
LONGER_SECONDS = 0.5


def heavy(report: str) -> str:
    """The lines of the table, of a report as JUnit writes them."""
    times: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        name = case.get("name", "")
        times[name.partition("[")[0]].append((float(case.get("time", 0)), name))
    long: dict[str, float] = {}
    for name, cases in times.items():
        total = sum(seconds for seconds, _ in cases)
        if total >= HEAVY_SECONDS:
            long[name] = total / len(cases)
            long |= {case: seconds for seconds, case in cases if seconds >= long[name] + LONGER_SECONDS}
    return "".join(f"{max(seconds, 0.001):.3f} {name}\n" for name, seconds in sorted(long.items()))


if __name__ == "__main__":
    table = heavy(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(__file__).with_name("heavy.txt").write_text(table, encoding="utf-8")
