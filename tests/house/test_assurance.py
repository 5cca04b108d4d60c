"""``docs/assurance.md`` is what the markers on the tests say; other pages name no test."""

from __future__ import annotations

import re

import pytest

from ..loading import load
from .assurance import AREAS, PAGE, Claim, claims, claims_of, page
from .tree import ROOT


def test_the_page_of_claims_equals_the_test_markers() -> None:
    found = claims()
    assert PAGE.read_text(encoding="utf-8") == page(found), "run: python tests/house/assurance.py"
    assert {claim.area for claim in found} == set(AREAS)


def test_no_other_page_names_a_test() -> None:
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path != PAGE]
    named = re.compile(r"\btest_\w+")
    found = {path.name: names for path in pages if (names := named.findall(path.read_text(encoding="utf-8")))}
    assert found == {}, "put a marker on the test: @pytest.mark.assures(area, claim)"
    assert len(pages) > 10


def test_every_fault_of_the_table_has_a_test() -> None:
    text = (ROOT / "benchmarks" / "faults.py").read_text(encoding="utf-8")
    begun = set(re.findall(r'"(test_\w+)"', text))
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    assert len(begun) > 12
    assert [name for name in sorted(begun) if f"def {name}" not in source] == []
    # what a test is run with is named in its file
    chosen = {line.test for line in load(ROOT / "benchmarks" / "faults.py").faults() if line.test[2]}
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, *_ in chosen}
    absent = [
        one for one in sorted(chosen) if not set(re.findall(r"\w+", one[2])) <= set(re.findall(r"\w+", texts[one[0]]))
    ]
    assert absent == []


SOURCE = """
pytestmark = [pytest.mark.e2e, pytest.mark.assures("live", "of the module")]

@pytest.mark.assures("live", "of the class")
class TestIt:
    @pytest.mark.assures("live", "of the " "method")
    def test_it(self): ...
"""


def test_markers_of_modules_classes_and_methods_are_read() -> None:
    found = {(claim.text, claim.test) for claim in claims_of(SOURCE, "tests/test_x.py")}
    assert found == {("of the module", "test_x.py"), ("of the class", "TestIt"), ("of the method", "test_it")}
    shown = page(
        [Claim("live", "it holds", "test_it", "tests/x.py"), Claim("live", "it holds", "test_a", "tests/a.py")]
    )
    assert "| it holds | [`test_a`](../tests/a.py), [`test_it`](../tests/x.py) |" in shown


@pytest.mark.parametrize("arguments", ['"live"', '"nothing", "a claim"', 'AREA, "a claim"', '"live", "A claim."'])
def test_a_malformed_marker_is_refused(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"tests/x\.py:2: assures"):
        list(claims_of(f"@pytest.mark.assures({arguments})\ndef test_it(): ...", "tests/x.py"))
