"""What the guides say of the files of deploy/, and their commands that can be run here."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from quiltstream.schemas.settings.connectors import FileSink, FileSource
from quiltstream.schemas.settings.job import Windows
from quiltstream.schemas.settings.readings import Readings

from ..e2e.processes import accepts, free_ports
from ..house.pages import blocks
from ..pipelines.jobs import call
from .flink_files import GUIDES, ROOT, calls, compose, guide_commands, run, text
from .test_prometheus import ledger, rules


def test_files_that_the_guides_name_are_there() -> None:
    pages = [ROOT / "deploy" / "README.md", *GUIDES.glob("*.md")]
    named = {one for page in pages for one in re.findall(r"\bdeploy/[\w.@*-]+(?:/[\w.@*-]+)*", text(page))}
    made = {"deploy/dataflow/wheels", "deploy/dataflow/my.tfvars"}
    assert [one for one in sorted(named - made) if not list(ROOT.glob(one.rstrip(".")))] == []


@pytest.mark.night
def test_the_commands_of_the_guide_create_every_secret_of_the_compose_file(
    tmp_path: Path, tool: Callable[[str], str]
) -> None:
    openssl = tool("openssl")
    run(["bash", "-euc", guide_commands()], cwd=tmp_path)
    folder = tmp_path / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name, one in compose()["secrets"].items():
        file = tmp_path / one["file"]
        assert file.is_file(), name
        assert stat.S_IMODE(file.stat().st_mode) == 0o444
    assert stat.S_IMODE((folder / "ca-key.pem").stat().st_mode) == 0o400
    assert text(folder / "ledger-password") != text(folder / "mqtt-gateway-password")
    words = ["verify", "-CAfile", "mqtt-ca.pem", "-verify_hostname", "mosquitto", "mqtt-certificate.pem"]
    assert run([openssl, *words], cwd=folder).endswith(": OK\n")


def test_every_alert_is_explained() -> None:
    table = text(GUIDES / "monitoring.md").split("## The alerts")[1].split("## Try the rules")[0]
    named = {name for line in table.splitlines() if line.startswith("|") for name in re.findall(r"`(Quilt\w+)`", line)}
    assert named == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("shipped", ["dataflow/settings.yaml", "helm/quiltstream/example-values.yaml"])
def test_the_shipped_settings_publish_every_window_of_the_shipped_roster(shipped: str, tmp_path: Path) -> None:
    document = yaml.safe_load(text(ROOT / "deploy" / shipped))
    if "settings" in document:  # a chart's values, of which it makes the files
        (tmp_path / "roster.csv").write_text(document["roster"], encoding="utf-8")
        document = document["settings"] | {"roster": "roster.csv"}
    else:
        shutil.copy(ROOT / "deploy" / "dataflow" / "roster.csv", tmp_path)
    document |= {"ledger": "sqlite:///none.db", "memory": "memory.json"}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    done = call("run", "--dry-run", "--live", tmp_path / "settings.yaml")
    assert done.code == 0, done.out
    assert "it publishes every window" in done.out


@pytest.mark.parametrize("page", ["kafka", "pubsub"])
def test_the_settings_of_a_brokers_page_are_settings(page: str) -> None:
    first, *more = [one for one in blocks(page, text(ROOT / "docs" / f"{page}.md")) if one.language == "yaml"]
    given = yaml.safe_load(first.body)
    assert getattr(FileSource.model_validate(given["source"]), page) is not None
    Readings.model_validate(given["readings"])
    Windows.model_validate(given["windows"] | {"start": str(given["windows"]["start"])})
    sinks = [given["rejects"], *(yaml.safe_load(one.body)["sink"] for one in (first, *more))]
    assert not any(FileSink.model_validate(one).is_files for one in sinks)


@pytest.mark.night
def test_the_ledger_metrics_page_is_served_by_the_command_of_the_guide(tmp_path: Path) -> None:
    ledger(tmp_path, "{size: 1d, start: 2024-03-01, stop: 2024-03-03}", "{epsilon: 1.0, budget: 2.0}")
    (words,) = calls("monitoring", "python")
    (port,) = free_ports(1)
    assert words[1:] == ["deploy/prometheus/ledger_metrics.py", "settings.yaml", "9465"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / words[1]), words[2], str(port)], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 60
        while not accepts(port):
            assert process.poll() is None, text(tmp_path / "log")
            assert time.monotonic() < deadline, text(tmp_path / "log")
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert "quiltstream_ledger_up 1.0\n" in answer.read().decode()
    finally:
        process.terminate()
        code = process.wait(30)
    # by a handler of its own: the first process of a container ignores a signal that has none
    assert code == 0
