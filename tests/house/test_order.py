"""The order of the end-to-end tests names files that are there."""

from __future__ import annotations

from ..e2e.order import LONGEST, rank
from .tree import ROOT


def test_the_files_that_begin_are_there_and_stand_before_all_others() -> None:
    names = [path.name for path in sorted((ROOT / "tests" / "e2e").glob("test_*.py"))]
    assert set(LONGEST) <= set(names)
    assert sorted(names, key=rank)[: len(LONGEST)] == list(LONGEST)
