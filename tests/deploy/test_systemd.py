"""The systemd units: read by systemd's own program, closed as far as it can be, and at one with their settings."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quiltstream.pipelines.gateway.targets import Folder
from quiltstream.schemas.settings.gateway import GatewaySettings
from quiltstream.schemas.settings.job import Settings, read_settings

from ..e2e.processes import free_ports
from ..pipelines.jobs import call
from .flink_files import FLINK, ROOT, run, text
from .systemd_files import COMMON, FOLDER, UNITS, read_unit

SETTINGS = FOLDER / "settings"
GUIDE = text(ROOT / "docs" / "guides" / "one-machine.md")

#: What systemd-analyze may call the exposure of a unit at most, in tenths; a unit without any of it has 96.
MOST_EXPOSED = 15

#: What every unit has.
HARDENED = {
    "User": "quiltstream",
    "IPAddressDeny": "any",
    "IPAddressAllow": "localhost",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "UMask": "0077",
    "StateDirectory": "quiltstream",
    "StateDirectoryMode": "0700",
    "Restart": "on-failure",
    "RestartPreventExitStatus": "2 3 4 5 6",
    "SuccessExitStatus": "130 143",
    "StartLimitIntervalSec": "0",
}

#: The unit that tells of a failure.
FAILED = "quiltstream_failed@"


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_a_unit_and_calls_it_closed(tool: Callable[[str], str], name: str, tmp_path: Path) -> None:
    # copies whose programs are on this machine, and what all units have beside them
    shutil.copytree(COMMON.parent, tmp_path / COMMON.parent.name)
    for path in FOLDER.glob("*.service"):
        lines = re.sub(r"^(ExecStart\w*)=\S+", r"\1=/bin/true", text(path), flags=re.MULTILINE)
        (tmp_path / path.name).write_text(lines, encoding="utf-8")
    copy = tmp_path / f"{name}.service"
    assert run([tool("systemd-analyze"), "verify", "--man=no", str(copy)]) == ""
    unit = read_unit(name)
    assert {key: unit.one(key) for key in HARDENED} == HARDENED
    assert unit.one("MemoryMax")
    assert unit.one("OnFailure").replace("%n", "") == f"{FAILED}.service"
    assert (FOLDER / f"{FAILED}.service").exists()
    analyze = [tool("systemd-analyze"), "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager"]
    done = subprocess.run([*analyze, str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_settings_name_the_places_and_ports_of_each_other() -> None:
    settings, gateway = read_settings(SETTINGS / "settings.yaml"), GatewaySettings.read(SETTINGS / "gateway.yaml")
    assert gateway.forward is not None
    assert gateway.forward.to.folder is not None
    assert settings.source is not None
    assert settings.source.avro == f"{gateway.forward.to.folder.path}/*.avro"
    assert f"/{gateway.forward.to.folder.path} " in text(FOLDER / "tmpfiles.conf")
    assert f"listener {gateway.mqtt.port} 127.0.0.1" in text(SETTINGS / "mosquitto.conf")
    page = int(dict(one.split("=") for one in read_unit("quiltstream-ledger@").all("Environment"))["PORT"])
    assert len({gateway.metrics.port, settings.live.metrics_port, page}) == 3
    # the same job as everywhere: what is here is only where it is
    places = {"source", "sink", "rejects", "ledger", "memory", "live"}
    shipped = Settings.read(FLINK / "settings" / "settings.yaml")
    assert settings.model_dump(exclude=places) == shipped.model_dump(exclude=places)


def test_mosquitto_of_the_guide_has_the_shipped_limits_and_repeats_no_line_of_debian() -> None:
    def said(path: Path) -> dict[str, str]:
        lines = [line.split(" ", 1) for line in text(path).splitlines() if line and not line.startswith("#")]
        return dict(lines)

    here, shipped = said(SETTINGS / "mosquitto.conf"), said(FOLDER.parent / "mqtt" / "mosquitto.conf")
    limits = {name for name in shipped if re.match("max_|autosave|persistent_|allow_", name)}
    assert {name: here.get(name) for name in limits} == {name: shipped[name] for name in limits}
    # Mosquitto refuses a line that stands twice
    assert not {"persistence", "persistence_location", "log_dest", "pid_file"} & set(here)


def test_the_checks_of_the_guide_need_no_unit_that_runs(tmp_path: Path) -> None:
    """The guide's words, on the shipped files, as the guide lays them."""
    folder = tmp_path / "feeder"
    folder.mkdir()
    (tmp_path / "mqtt-password").write_text("x\n")
    for path in (*SETTINGS.glob("*.yaml"), FLINK / "settings" / "roster.csv"):
        (folder / path.name).write_text(text(path).replace("/etc/quiltstream", str(tmp_path)))
    lines = re.findall(r"^\$ /opt/quiltstream/bin/quiltstream ((?:gateway|run) .*)$", GUIDE, re.MULTILINE)
    gateway, dry = (call(*line.replace("/var/lib/quiltstream", str(tmp_path)).split()) for line in lines)
    assert gateway.code == 0, gateway.err
    assert "as gateway" in gateway.out
    assert dry.code == 0, dry.err
    assert "it publishes every window" in dry.out
    assert "windows wait 1h for a silent source" in " ".join(dry.out.split())
    assert not (folder / "ledger.db").exists()


def test_the_guide_installs_existing_files_units_and_the_prism_of_beam() -> None:
    named = re.findall(r"deploy/[\w./*-]+", GUIDE)
    assert [one for one in named if not list(ROOT.glob(one))] == []
    command = re.search(r"systemctl enable --now (.*)$", GUIDE, re.MULTILINE)
    assert command is not None
    assert sorted(one.removesuffix("feeder") for one in command[1].split()) == sorted(UNITS)
    constraints = text(ROOT / ".ci" / "constraints-beam-2.77.txt")
    assert [f"\napache-beam=={one}\n" in constraints for one in re.findall(r"prism@v([\d.]+)", GUIDE)] == [True]


@pytest.mark.night
def test_the_shipped_job_publishes_a_week_of_sample_meters_as_it_is(tmp_path: Path) -> None:
    """Settings and roster as the guide lays them, and messages as the shipped gateway writes them."""
    draw, begin = random.Random(1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    roster = text(FLINK / "settings" / "roster.csv")
    (tmp_path / "roster.csv").write_text(roster, encoding="utf-8")
    (port,) = free_ports(1)
    settings = text(SETTINGS / "settings.yaml").replace("9466", str(port))  # another job of this machine may have it
    (tmp_path / "settings.yaml").write_text(settings, encoding="utf-8")
    forward = GatewaySettings.read(SETTINGS / "gateway.yaml").forward
    assert forward.to.folder is not None
    target = Folder(str(tmp_path / forward.to.folder.path), forward.to.folder)
    for slot in range(8 * 48):
        time_ms = int((begin + slot * dt.timedelta(minutes=30)).timestamp() * 1_000)
        for name in (line.partition(",")[0] for line in roster.splitlines()[1:]):
            body = json.dumps({"ts": time_ms, "kwh": draw.choice([0.05, 0.2, 0.4, 1.5])})
            message = {"topic": f"meters/{name}/readings", "payload": body.encode(), "received": time_ms * 1_000}
            target.put(message | {"dup": False, "retain": False, "content_type": ""}, lambda: None)
    target.turn(end=True)
    words = [sys.executable, "-m", "quiltstream.pipelines.cli", "run", "--live", "settings.yaml"]
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 120
        while len(blocks := sorted((tmp_path / "releases").glob("*.jsonl"))) < 2:
            assert job.poll() is None, text(tmp_path / "log")
            assert time.monotonic() < until, text(tmp_path / "log")
            time.sleep(0.1)
    finally:
        job.terminate()
        code = job.wait(60)
    assert code == 143, text(tmp_path / "log")
    rows = [json.loads(line) for one in blocks for line in text(one).splitlines()]
    assert {one["key"] for one in rows} == {"north", "south"}
    assert {one["window_start"] for one in rows} == {f"{begin:%Y-%m-%dT%H:%M:%SZ}"}
