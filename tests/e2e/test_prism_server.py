"""Prism runs an endless source and lets whole windows out while it runs."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from .flink import HERE, python_environment
from .installed import NotInstalledError
from .outcomes import rows, starts, truth
from .prism import find_prism, prism_arguments
from .processes import Processes


def test_prism_sums_every_window_of_a_source_that_checkpoints_itself(prism: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "beam_jobs", "counting", f"--out={tmp_path}", "--records=300", "--pause=0.1"]
    environment = python_environment(Path(sys.executable), HERE)
    with contextlib.closing(Processes("prism")) as processes:
        said = processes.run("job", [*command, *prism_arguments(prism)], environment, seconds=120)
    assert "the job ended: DONE" in said
    assert rows(tmp_path) == dict.fromkeys(truth(300), 1)
    # Twenty records at a time: it took many turns, and none was taken twice.
    assert sorted(starts(tmp_path)) == [(partition, start) for partition in range(2) for start in range(0, 300, 20)]


def test_a_configured_but_missing_binary_is_reported_without_further_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUILTSTREAM_PRISM", str(tmp_path / "prism"))
    with pytest.raises(NotInstalledError, match="QUILTSTREAM_PRISM"):
        find_prism()
