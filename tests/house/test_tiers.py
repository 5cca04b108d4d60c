"""What a push leaves out is there, and something of a push stands for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .. import tiers
from ..heavy import heavy
from ..nightly import CONCERNED, EXAMPLES, LOWER, NIGHTLY, SAME_AT_BOTH_ENDS
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


def test_every_nightly_test_exists_and_is_represented_on_a_push() -> None:
    assert absent([*NIGHTLY, *EXAMPLES]) == []
    steps = {name for name in NIGHTLY.values() if name.startswith(".ci/run ")}
    assert absent(set(NIGHTLY.values()) - steps) == []
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [step for step in steps if f"\nstep_{step.removeprefix('.ci/run ')}() {{" not in script] == []
    assert [name for name in NIGHTLY.values() if name in NIGHTLY] == []
    assert [name for name in (*LOWER, *SAME_AT_BOTH_ENDS) if not (ROOT / name).exists()] == []


def test_a_name_that_no_test_has_is_found() -> None:
    here = "tests/house/test_tiers.py"
    names = [f"{here}::test_nothing_of_this_name", "tests/house/test_nothing.py::test_a", here]
    assert absent([f"{here}::test_a_name_that_no_test_has_is_found", *names]) == names


@pytest.mark.parametrize("count", [1, 7])
def test_the_cases_of_one_test_are_shared_among_pushes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(tiers, "TIER", "push")
    taken: list[int] = []
    for commit in range(3):
        monkeypatch.setattr(tiers, "_commit", lambda: commit)  # noqa: B023 - called at once
        mine = tiers.some(range(count), 3)
        assert mine
        taken += mine
    assert set(taken) == set(range(count))
    monkeypatch.setattr(tiers, "TIER", "nightly")
    assert tiers.some(range(count), 3) == range(count)


def test_the_table_of_heavy_tests_is_of_this_tree() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    names = set(re.findall(r"\bdef (test_\w+)", source))
    gone = [name for name in tiers.HEAVY if name.partition("[")[0] not in names]
    assert len(gone) < len(tiers.HEAVY) / 10, "what has no line runs on every push: write heavy.txt anew (heavy.py)"


def test_long_tests_are_listed_from_a_report() -> None:
    case = '<testcase classname="a" name="{}" time="{}" />'
    cases = [("test_long", 2.5), ("test_many[1]", 0.04), ("test_many[b::c [d]]", 0.08), ("test_short", 0.01)]
    cases += [("test_uneven[a b]", 2.0), ("test_uneven[c]", 0.2)]
    report = f"<testsuites><testsuite>{''.join(case.format(*each) for each in cases)}</testsuite></testsuites>"
    assert heavy(report) == ("2.500 test_long\n0.060 test_many\n1.100 test_uneven\n2.000 test_uneven[a b]\n")


def test_tests_independent_of_beam_are_skipped_on_the_lowest_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(files: Iterable[str], name: str = "test_it") -> set[str]:
        items: Any = [Asked(f"{file}::{name}") for file in files]
        return {item.nodeid.partition("::")[0] for item in items if tiers.on_lowest_beam(item)}

    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    monkeypatch.setattr(tiers, "TIER", "push")
    assert taken(files) == set(LOWER)
    monkeypatch.setattr(tiers, "TIER", "every")
    assert [file for file in taken(files) if file.startswith(SAME_AT_BOTH_ENDS)] == []
    assert taken(LOWER) == set(LOWER)
    assert taken(LOWER, "test_a_job_killed_at_any_boundary") == set()
    for folder in CONCERNED:
        inside = {file for file in files if file.rpartition("/")[0] == folder}
        assert set() < taken(inside) < inside


class Asked:
    """A test as pytest collects it."""

    def __init__(self, nodeid: str, obj: object = None, claims: tuple[str, ...] = ()) -> None:
        self.nodeid = nodeid
        self.obj = obj
        self.claims = claims

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [getattr(pytest.mark, name)("area", claim).mark for claim in self.claims]


def pushed(monkeypatch: pytest.MonkeyPatch, commit: int, names: list[str], *asked: str) -> list[str]:
    """What a push runs of tests; ``a.py::test_x+claim`` has a claim."""
    monkeypatch.setattr(tiers, "_commit", lambda: commit)
    items: Any = [Asked(name.partition("+")[0], None, tuple(name.split("+")[1:])) for name in names]
    out = tiers.left_out(items, asked)
    return [item.nodeid for item in items if item not in out]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "HEAVY_STRIDE", 3)
    monkeypatch.setattr(tiers, "HEAVY", {"test_long": 9.0, "test_many": 0.5, "test_dear": 1.0})
    monkeypatch.setattr(tiers, "NIGHTLY", {"a.py::test_night": "a.py::test_short", "a.py::test_b[2]": "a.py::test_b"})


@pytest.mark.usefixtures("tables")
def test_a_test_kept_for_one_claim_is_skipped_where_another_covers_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiers.HEAVY, "test_many[a b]", 5.0)
    names = ["b.py::test_many[a b]", "b.py::test_many[c]", "a.py::test_short"]
    assert pushed(monkeypatch, 2, names) == ["b.py::test_many[c]", "a.py::test_short"], "not the longest case of a test"
    names = ["a.py::test_dear+x", "a.py::test_long+x+y", "c.py::test_short"]
    assert pushed(monkeypatch, 2, names) == ["a.py::test_long", "c.py::test_short"]


LIGHT = ["a.py::test_short", "a.py::test_b[1]"]
MANY = [f"a.py::test_many[{number}]" for number in range(5)]


@pytest.mark.usefixtures("tables")
def test_a_few_pushes_cover_all_heavy_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*LIGHT, *MANY, "a.py::test_long"]
    taken = [pushed(monkeypatch, 30 + number, names) for number in range(3)]
    assert sorted(name for each in taken for name in each if name not in LIGHT) == sorted(names[len(LIGHT) :])
    assert all(each[: len(LIGHT)] == LIGHT and len(each) >= len(LIGHT) + 2 for each in taken)


@pytest.mark.usefixtures("tables")
def test_a_file_or_claim_without_a_selected_test_gets_its_shortest_test(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*LIGHT, "a.py::test_many[0]+kept", "a.py::test_long+lost", "a.py::test_dear+lost", "b.py::test_long"]
    for commit in range(6):
        found = pushed(monkeypatch, commit, names)
        assert "a.py::test_many[0]" in found
        assert {"a.py::test_dear", "a.py::test_long"} & set(found)
        assert "b.py::test_long" in found


@pytest.mark.usefixtures("tables")
def test_tests_named_on_the_command_line_run_on_every_push(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*LIGHT, "a.py::test_night", "a.py::test_b[2]", *MANY]
    assert pushed(monkeypatch, 2, names) == [*LIGHT, MANY[2]]
    assert pushed(monkeypatch, 2, names, "a.py") == [*LIGHT, *MANY]
    assert pushed(monkeypatch, 2, names, "a.py::test_night") == [*LIGHT, "a.py::test_night", MANY[2]]
    assert pushed(monkeypatch, 2, names, "a.py::test_many") == [*LIGHT, *MANY]


@pytest.mark.parametrize(
    ("asked", "stride", "slow", "tried"),
    [(40, 4, None, 10), (12, 4, None, 5), (3, 4, None, 3), (60, 1, None, 60), (60, 5, 7, 7)],
)
def test_a_property_tries_the_share_of_its_tier_or_the_number_in_the_table(
    monkeypatch: pytest.MonkeyPatch, asked: int, stride: int, slow: int | None, tried: int
) -> None:
    calls: list[int] = []

    @settings(max_examples=asked, database=None)
    @given(st.integers())
    def test(number: int) -> None:
        calls.append(number)

    item: Any = Asked("a.py::test", test)
    monkeypatch.setattr(tiers, "EXAMPLES_STRIDE", stride)
    monkeypatch.setattr(tiers, "EXAMPLES", {"a.py::test": slow} if slow else {})
    tiers.shorten(item)
    tiers.shorten(item)
    test()
    assert len(calls) == tried
