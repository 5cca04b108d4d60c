"""Every pipeline of the tests names its runner: which one Beam would choose depends on its version and the graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from .tree import ROOT, tracked_files

MADE = {"Pipeline", "TestPipeline"}


def of_beam(tree: ast.AST) -> set[str]:
    """The names by which a module knows Beam's pipelines: one of its own may be called so as well."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "apache_beam"
        for alias in node.names
        if alias.name in MADE
    }


def pipelines(text: str) -> Iterator[ast.Call]:
    """Every call that makes one."""
    if not any(f"{name}(" in text or f"{name} as " in text for name in MADE):
        return
    tree = ast.parse(text)
    names = of_beam(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            made = node.func
            attribute = isinstance(made, ast.Attribute) and made.attr in MADE
            if attribute or (isinstance(made, ast.Name) and made.id in names):
                yield node


def runner_of(call: ast.Call) -> str | None:
    """What is said of the runner; ``None`` if nothing is, or that Beam is to choose."""
    said = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "runner")]
    text = ast.unparse(said[0]) if said else "None"
    return None if text == "None" or text.strip("'\"").split("(")[0].split(".")[-1] == "DirectRunner" else text


def unnamed() -> dict[str, list[int]]:
    """Lines of the tests with a pipeline that names no runner."""
    found: dict[str, list[int]] = {}
    for file in tracked_files():
        name = file.relative_to(ROOT).as_posix()
        if name.startswith("tests/") and file.suffix == ".py":
            lines = [call.lineno for call in pipelines(file.read_text(encoding="utf-8")) if runner_of(call) is None]
            if lines:
                found[name] = lines
    return found


def test_every_pipeline_of_the_tests_names_its_runner() -> None:
    assert unnamed() == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import apache_beam as beam\nbeam.Pipeline()", [None]),
        ("import apache_beam as beam\nbeam.Pipeline(options=o, runner=None)", [None]),
        ("import apache_beam as beam\nbeam.Pipeline(runner=direct.DirectRunner())", [None]),
        ("from apache_beam.testing.test_pipeline import TestPipeline as T\nwith T() as p: pass", [None]),
        (
            "from apache_beam import Pipeline\nPipeline(\n    options=o,\n    runner=FnApiRunner(),\n)",
            ["FnApiRunner()"],
        ),
        ("import apache_beam as beam\nbeam.Pipeline(BundleBasedDirectRunner())", ["BundleBasedDirectRunner()"]),
        ("from .live_jobs import Pipeline\nPipeline(result)", []),
    ],
)
def test_the_runner_of_a_pipeline_call_is_recognised(text: str, named: list[str | None]) -> None:
    assert [runner_of(call) for call in pipelines(text)] == named


def test_the_pipelines_of_the_tests_are_found() -> None:
    for folder, most in (("transforms", 20), ("pipelines", 0)):
        texts = (file.read_text(encoding="utf-8") for file in (ROOT / "tests" / folder).rglob("*.py"))
        assert sum(1 for text in texts for _ in pipelines(text)) > most
