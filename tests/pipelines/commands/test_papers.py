"""What the sources have and no job calls is on no job's way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..jobs import job

RUN = """
import sys
from quiltstream.pipelines.cli import main
try:
    main(sys.argv[1:])
finally:
    print("papers:", [name for name in sys.modules if name.startswith("quiltstream.privacy.papers")])
"""


@pytest.mark.parametrize("words", [("run",), pytest.param(("run", "--dry-run"), marks=pytest.mark.night)], ids=" ".join)
def test_a_job_imports_nothing_of_the_papers(tmp_path: Path, words: tuple[str, ...]) -> None:
    made = job(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words, made.settings], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("papers: []\n")
