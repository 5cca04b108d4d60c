"""Commands of the guides that are run as they stand there, but for names, ports and places."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from quiltstream.store import Store

from ..e2e.processes import accepts, free_ports
from .flink_files import ROOT, run
from .guide_calls import calls
from .test_prometheus import ledger, samples


def optional(name: str) -> str:
    """A program that no package registry has: the test is left out, in CI too, where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed, and no package registry has it; nothing else runs this command")
    return found


def test_terraform_files_are_formatted() -> None:
    run(
        [optional("terraform"), "fmt", "-check", "-diff", "-recursive", str(ROOT / "deploy" / "dataflow")],
        env={"CHECKPOINT_DISABLE": "1"},
    )


def asked(port: int, path: str) -> str:
    """An answer of a server of this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.read().decode("utf-8")


def test_the_ledger_metrics_page_is_served_by_the_command_of_the_guide(tmp_path: Path) -> None:
    ledger(tmp_path, "{size: 1d, start: 2024-03-01, stop: 2024-03-03}", "{epsilon: 1.0, budget: 2.0}")
    (call,) = calls("python")
    (port,) = free_ports(1)
    assert call[1:] == ["deploy/prometheus/ledger_metrics.py", "settings.yaml", "9465"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / call[1]), call[2], str(port)], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 60
        while not accepts(port):
            said = (tmp_path / "log").read_text(encoding="utf-8")
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        found = samples(asked(port, "/metrics"))
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            asked(port, "/")
        refused.value.close()
    finally:
        process.terminate()
        code = process.wait(30)
    # by a handler of its own: the first process of a container ignores a signal that has none
    assert code == 0
    with Store(f"sqlite:///{tmp_path}/ledger.db", create=False) as store:
        (name,) = store.domains()
        loss = store.summary(name).loss
    assert found["up"] == 1.0
    assert [value for label, value in found.items() if label.startswith("loss_epsilon")] == [loss]
    assert loss > 0
