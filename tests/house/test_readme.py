"""The README's two commands are the ones that CI runs and that the other documents show."""

from __future__ import annotations

import re
import subprocess

import pytest

from .pages import blocks, commands
from .tree import ROOT

COMMANDS = {
    "demo": "python3 -m venv .venv && .venv/bin/pip install -e '.[sql]' && .venv/bin/quiltstream demo",
    "test": (
        "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' --config-settings editable_mode=strict"
        " && .venv/bin/pytest"
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_readme_shows_the_command(name: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [block.body.strip() for block in blocks("README.md", text) if (block.key, block.value) == ("command", name)]
    assert shown == [COMMANDS[name]]


def test_ci_runs_the_readme_s_test_command() -> None:
    done = subprocess.run([ROOT / ".ci" / "run", "--show"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == COMMANDS["test"]


def test_no_other_document_installs_the_checkout_in_another_way() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    lines = {line.strip() for page in pages for line in page.read_text(encoding="utf-8").splitlines()}
    assert {line for line in lines if re.search(r"pip install -e", line)} <= set(COMMANDS.values())


def test_the_readme_is_short_and_six_commands_lead_to_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1_100
    (console,) = [block for block in blocks("README.md", text) if block.language == "console"]
    shown = commands(console.body)
    assert len(shown) == 6
    assert [one.split()[1] for one in shown] == ["init", "check", "fit", "run", "run", "show"]
    assert console.runs  # test_docs runs them as they are printed
