"""What a push leaves out is there, and something of a push stands for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .. import tiers
from ..nightly import EXAMPLES, LOWER, NIGHTLY, SOME_CASES
from .tree import ROOT


def absent(names: Iterable[str]) -> list[str]:
    """Of names of tests, those that no file has."""
    found: list[str] = []
    for name in names:
        file, *inner = name.partition("[")[0].split("::")
        text = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""
        if not inner or not all(re.search(rf"^ *(def|class) {one}\b", text, re.MULTILINE) for one in inner):
            found.append(name)
    return found


def test_what_runs_nightly_is_there_and_a_test_of_a_push_stands_for_it() -> None:
    assert absent([*NIGHTLY, *SOME_CASES, *EXAMPLES]) == []
    steps = {name for name in NIGHTLY.values() if name.startswith(".ci/run ")}
    assert absent(set(NIGHTLY.values()) - steps) == []
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [step for step in steps if f"\nstep_{step.removeprefix('.ci/run ')}() {{" not in script] == []
    assert [name for name in NIGHTLY.values() if name in NIGHTLY] == []
    assert [name for name, most in SOME_CASES.items() if most < 1] == []
    assert [name for name in LOWER if not (ROOT / name).is_file()] == []


def test_a_name_that_no_test_has_is_found() -> None:
    here = "tests/house/test_tiers.py"
    names = [f"{here}::test_nothing_of_this_name", "tests/house/test_nothing.py::test_a", here]
    assert absent([f"{here}::test_a_name_that_no_test_has_is_found", *names]) == names


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 50])
def test_a_few_pushes_go_through_all_cases(most: int) -> None:
    picked = [tiers.taken(50, most, place) for place in range(50)]
    assert {len(one) for one in picked} == {most}
    assert set[int]().union(*picked[: 50 // most + 1]) == set(range(50))


class Asked:
    """A test as pytest collects it."""

    def __init__(self, nodeid: str, obj: object = None) -> None:
        self.nodeid = nodeid
        self.obj = obj


def test_a_push_leaves_out_what_the_tables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "NIGHTLY", {"a.py::test_long": "a.py::test_short", "a.py::test_b[2]": "a.py::test_b"})
    monkeypatch.setattr(tiers, "SOME_CASES", {"a.py::test_many": 2})
    monkeypatch.setattr(tiers, "_commit", lambda: 1)
    names = ["a.py::test_long", "a.py::test_short", "a.py::test_b[1]", "a.py::test_b[2]"]
    names += [f"a.py::test_many[{number}]" for number in range(6)]
    items: Any = [Asked(name) for name in names]
    kept = ["a.py::test_short", "a.py::test_b[1]", "a.py::test_many[1]", "a.py::test_many[4]"]
    assert [one.nodeid for one in items if one not in tiers.left_out(items)] == kept
    left_out = tiers.left_out(items, ["a.py::test_long", "a.py::test_many[0]"])
    assert [one.nodeid for one in items if one not in left_out] == [names[0], *kept[:2], names[4], *kept[2:]]


@pytest.mark.parametrize(("asked", "stride", "tried"), [(40, 4, 10), (12, 4, 5), (3, 4, 3), (60, 1, 60)])
def test_a_property_tries_the_share_of_its_tier(
    monkeypatch: pytest.MonkeyPatch, asked: int, stride: int, tried: int
) -> None:
    calls: list[int] = []

    @settings(max_examples=asked, database=None)
    @given(st.integers())
    def test(number: int) -> None:
        calls.append(number)

    item: Any = Asked("a.py::test", test)
    monkeypatch.setattr(tiers, "EXAMPLES_STRIDE", stride)
    tiers.shorten(item)
    tiers.shorten(item)
    test()
    assert len(calls) == tried


@pytest.mark.parametrize(("stride", "tried"), [(5, 7), (1, 100)])
def test_a_property_whose_examples_take_long_tries_as_many_as_the_table_says(
    monkeypatch: pytest.MonkeyPatch, stride: int, tried: int
) -> None:
    calls: list[int] = []

    @settings(max_examples=100, database=None)
    @given(st.integers())
    def test(number: int) -> None:
        calls.append(number)

    monkeypatch.setattr(tiers, "EXAMPLES_STRIDE", stride)
    monkeypatch.setattr(tiers, "EXAMPLES", {"a.py::test": 7})
    item: Any = Asked("a.py::test", test)
    tiers.shorten(item)
    test()
    assert len(calls) == tried
