"""The type checker sees the package from outside: a wrong call in a test is an error."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

RIGHT = """
from quiltstream.pipelines.data import path
from quiltstream.privacy import MixingBounds, mqm_approx

file = path("house_hourly_dst.csv")
calibration = mqm_approx(MixingBounds(pi_min=0.2, gap=0.75), epsilon=1.0, length=100)
"""
WRONG = [
    ('path("house_hourly_dst.csv")', "path(3)", "reportArgumentType"),
    ("epsilon=1.0", 'epsilon="1.0"', "reportArgumentType"),
    ("pi_min=0.2", "pi_min=[0.2]", "reportArgumentType"),
    ("length=100", "lenght=100", "reportCallIssue"),
    ("quiltstream.privacy", "quiltstream.privaci", "reportMissingImports"),
    ("import MixingBounds,", "import NoSuchName, MixingBounds,", "reportAttributeAccessIssue"),
]


def check(folder: Path, source: str) -> list[str]:
    """Check a source text strictly, as a user's file outside the repository; the rules that it breaks."""
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', encoding="utf-8")
    (folder / "user.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "user.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return [str(found.get("rule")) for found in json.loads(done.stdout)["generalDiagnostics"]]


@pytest.mark.night
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed: use the dev extra")
def test_a_wrong_call_fails_the_type_check_and_the_right_one_passes(tmp_path: Path) -> None:
    assert check(tmp_path, RIGHT) == []
    for right, wrong, rule in WRONG:
        assert RIGHT.count(right) == 1
        assert rule in check(tmp_path, RIGHT.replace(right, wrong)), wrong
