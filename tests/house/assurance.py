"""Writes ``docs/assurance.md`` from the markers on the tests: ``python tests/house/assurance.py``.

A test says what it assures by ``@pytest.mark.assures(area, claim)``, with two literal texts; so may a class, and a
module by ``pytestmark``. Tests with the same area and claim are one row of the page. The claim is a sentence without
its full stop. The markers are read from the source: nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "assurance.md"

#: The areas in the order of the page, with what each is about.
AREAS = {
    "privacy": "What a reader of rows, logs, metrics and names can learn.",
    "theory": "Theorems and worked numbers; [the sources](sources.md) say which function computes each.",
    "ledger": "What is on record, what it cost, and what survives faults of the store.",
    "estimates": "[Models that a job estimates](estimates.md), and drift.",
    "live": "[Windows of a stream](streaming.md): completeness, late and repeated data, rosters.",
    "runners": "What Prism, Flink and the other runners do to a job, and what the command does then.",
    "brokers": "[Kafka](kafka.md), [Pub/Sub](pubsub.md) and schema registries.",
    "payloads": "[Messages to readings](mappings.md): damaged messages, meter registers, pseudonyms.",
    "dead letters": "[Encrypted dead letters](letters.md).",
    "gateway": "[The MQTT gateway](gateway.md).",
    "deployments": "The files of `deploy/`.",
    "commands of dataflow": "[Dataflow](guides/dataflow.md): what CI does with each command of the guide.",
    "commands of kubernetes": "[Kubernetes](guides/kubernetes.md): what CI does with each command of the guide.",
    "commands of monitoring": "[Monitoring](guides/monitoring.md): what CI does with each command of the guide.",
    "commands of operate-with-compose": (
        "[Compose](guides/operate-with-compose.md): what CI does with each command of the guide."
    ),
}

HEAD = """\
# What the tests assure

Each claim with the tests that hold it. The page is made from the markers on the tests
(`python tests/house/assurance.py`), and a test compares it with them. Tests that need a real server skip where there is
none; `make e2e` runs them.
"""


@dataclass(frozen=True, order=True)
class Claim:
    """A marker."""

    area: str  # one of ``AREAS``
    text: str  # the claim
    test: str  # name of the test or class; of the file, for a whole module
    file: str  # its path from the root, with slashes


def markers(nodes: list[ast.expr], where: str) -> Iterator[tuple[str, str]]:
    """Area and claim of the markers among decorators, or among the elements of ``pytestmark``.

    Raises:
        ValueError: a marker has other arguments than two literal texts, or an area that is unknown.
    """
    for node in nodes:
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.assures"):
            continue
        found = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if len(found) != 2 or len(node.args) != 2 or node.keywords:
            raise ValueError(f"{where}: assures takes an area and a claim, as two literal texts")
        area, text = found
        if area not in AREAS:
            raise ValueError(f"{where}: assures: {area!r} is no area; use one of {', '.join(AREAS)}")
        if text != text.strip() or text.endswith(".") or "|" in text or not text:
            raise ValueError(f"{where}: assures: write the claim without its full stop and without a bar: {text!r}")
        yield area, text


def claims_of(source: str, file: str) -> Iterator[Claim]:
    """The markers of a test file."""
    tree = ast.parse(source, file)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for area, text in markers(node.decorator_list, f"{file}:{node.lineno}"):
                yield Claim(area, text, node.name, file)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marked = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            for area, text in markers(marked, f"{file}:{node.lineno}"):
                yield Claim(area, text, Path(file).name, file)


def claims() -> list[Claim]:
    """The markers of all tests."""
    return [
        claim
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "assures(" in (source := path.read_text(encoding="utf-8"))
        for claim in claims_of(source, path.relative_to(ROOT).as_posix())
    ]


def page(found: list[Claim]) -> str:
    """The text of the page."""
    parts = [HEAD]
    for area, about in AREAS.items():
        rows: dict[str, list[str]] = {}
        for claim in sorted(found):
            if claim.area == area:
                rows.setdefault(claim.text, []).append(f"[`{claim.test}`](../{claim.file})")
        if rows:
            lines = [f"| {text} | {', '.join(tests)} |" for text, tests in rows.items()]
            head = f"## {area[0].upper()}{area[1:]}\n\n{about}\n\n| claim | tests |\n| --- | --- |\n"
            parts.append(head + "\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    draft = PAGE.with_suffix(".md.new")
    draft.write_text(page(claims()), encoding="utf-8")
    draft.replace(PAGE)
