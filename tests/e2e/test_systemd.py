"""The units of one machine: the guide's commands lay the files, and the units' lines run on a real Mosquitto.

What systemd itself does to a process (its mounts, its filters, its limits) is not done here; ``tests/deploy`` has
systemd's own program read the units.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.store import Store

from ..deploy.systemd_files import FOLDER, read_unit
from ..house.pages import blocks, commands
from .certificates import make_certificates
from .processes import Processes, accepts, alive, descendants, free_ports

pytestmark = pytest.mark.e2e

ROOT = FOLDER.parents[1]
GUIDE = (ROOT / "docs" / "guides" / "one-machine.md").read_text(encoding="utf-8")
PORTS: tuple[str, ...] = ("1883", "8883", "9464", "9465", "9466")
HOUR = dt.timedelta(hours=1)
PATIENCE_S = 120.0

#: The last line of the guide's that lays files asks for a password.
ASKED = "mosquitto_passwd /etc/mosquitto/passwords m1"


class Machine:
    """A folder that has the places of the guide, and what the units run."""

    def __init__(self, prism: Path, mosquitto: Path) -> None:
        self.processes = Processes("systemd")
        self.root = self.processes.folder
        self.root.chmod(0o755)
        self._mosquitto = mosquitto
        self.port = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self.feeder = self.root / "state" / "feeder"
        self._places = {
            "/var/lib/quiltstream": str(self.root / "state"),
            "/etc/quiltstream": str(self.root / "etc"),
            "/etc/mosquitto": str(self.root / "mosquitto"),
            "/opt/quiltstream": str(self.root / "opt"),
        }
        for folder in ("mosquitto/conf.d", "mosquitto/certs", "mosquitto/store", "opt/bin"):
            (self.root / folder).mkdir(parents=True)
        for name, line in {
            "quiltstream": f"{sys.executable} {sysconfig.get_path('scripts')}/quiltstream",
            "python": sys.executable,
            "prism": str(prism),
        }.items():
            program = self.root / "opt" / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {line} "$@"\n', encoding="utf-8")
            program.chmod(0o755)

    def placed(self, text: str) -> str:
        """Words of the guide, of a unit or of settings with the places and ports of this machine."""
        for place, here in self._places.items():
            text = text.replace(place, here)
        return re.sub(rf"(?<=[:= ])({'|'.join(PORTS)})\b", lambda found: self.port[found[1]], text)

    def settle(self, begin: dt.datetime) -> None:
        """Run the guide's commands that lay files, and shorten what a test cannot wait for."""
        lines = [
            line for block in blocks("guide", GUIDE) if block.language == "console" for line in commands(block.body)
        ]
        first = next(at for at, line in enumerate(lines) if "--directory" in line)
        kept = lines[first : lines.index(ASKED)]
        kept += [f"mosquitto_passwd -b /etc/mosquitto/passwords m{number} of-m{number}" for number in range(1, 5)]
        kept.append("install deploy/prometheus/ledger_metrics.py /opt/quiltstream")
        # a machine of a test has no users of these names
        script = re.sub(r" --(?:owner|group) \w+|^chgrp .*$", "", self.placed("\n".join(kept)), flags=re.MULTILINE)
        done = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        settings = self.feeder / "settings.yaml"
        document = yaml.safe_load(self.placed(settings.read_text(encoding="utf-8")))
        document["live"] |= {"poll": "1s", "idle": "3s"}
        document["windows"] = {"size": "1h", "start": f"{begin:%Y-%m-%dT%H:%M}Z", "lateness": "15min"}
        document["most_error"] = 1e6
        settings.write_text(yaml.safe_dump(document), encoding="utf-8")
        gateway = self.feeder / "gateway.yaml"
        text = self.placed(gateway.read_text(encoding="utf-8"))
        gateway.write_text(text.replace("age: 1min", "age: 1s"), encoding="utf-8")
        certificates = self.root / "mosquitto" / "certs"
        make_certificates(certificates, "meters", "x")
        shutil.copy(certificates / "broker.pem", certificates / "certificate.pem")
        shutil.copy(certificates / "broker.key", certificates / "key.pem")
        configuration = self.root / "mosquitto" / "conf.d" / "quiltstream.conf"
        configuration.write_text(self.placed(configuration.read_text(encoding="utf-8")), encoding="utf-8")
        # what Debian's own configuration says, and a user that may see the folder of a test
        own = f"persistence true\npersistence_location {self.root}/mosquitto/store/\nuser root\n"
        (self.root / "mosquitto" / "mosquitto.conf").write_text(
            f"{own}include_dir {configuration.parent}\n", encoding="utf-8"
        )
        self.processes.start("mosquitto", [self._mosquitto, "-c", self.root / "mosquitto" / "mosquitto.conf"])
        self.wait("mosquitto", lambda: accepts(int(self.port["8883"])))

    def begin(self, name: str) -> subprocess.Popen[Any]:
        """Start a unit for the folder: what is before it, and its process."""
        unit = read_unit(name)
        given = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        for line in unit.all("Environment"):
            given |= dict(word.split("=", 1) for word in shlex.split(self.placed(line)))
        before, last = unit.all("ExecStartPre"), unit.one("ExecStart")
        for line in (*before, last):
            placed = self.placed(line.replace("%i", "feeder")).replace("${PORT}", given.get("PORT", ""))
            if line is last:
                return self.processes.start(name, shlex.split(placed), given)
            self.processes.run(f"{name}-check", shlex.split(placed), given)
        raise AssertionError

    def end(self, name: str, process: subprocess.Popen[Any], how: signal.Signals = signal.SIGTERM) -> int:
        """End the main process of a unit alone; its code. None of those that it started may be left."""
        family = [process.pid, *descendants(process.pid)]
        process.send_signal(how)
        code = process.wait(float(read_unit(name).one("TimeoutStopSec")))
        until = time.monotonic() + 30
        while any(alive(pid) for pid in family):
            assert time.monotonic() < until, "processes are left behind"
            time.sleep(0.05)
        self.processes.kill(name)
        return code

    def wait(self, name: str, until: Callable[[], bool]) -> None:
        """Wait for something that a process does."""
        self.processes.wait_for(name, "doing its work", until, PATIENCE_S)

    def rows(self) -> dict[str, str]:
        """The rows on the disk, by their ids."""
        lines = [
            line
            for path in (self.feeder / "releases").glob("*.jsonl")
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        return {json.loads(line)["release_id"]: line for line in lines}


@pytest.fixture
def machine(prism: Path, mosquitto_program: Path) -> Iterator[Machine]:
    made = Machine(prism, mosquitto_program)
    yield made
    made.processes.close()


def runs_prism(pid: int) -> bool:
    files = [Path(f"/proc/{one}/cmdline") for one in descendants(pid)]
    return any(b"prism" in one.read_bytes() for one in files if one.exists())


def test_the_units_publish_rows_of_readings_and_leave_no_process(machine: Machine) -> None:
    begin = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0) - 5 * HOUR
    machine.settle(begin)
    gateway = machine.begin("quiltstream-gateway@")
    for number in range(1, 5):
        stamps = [round((begin + at * HOUR / 2).timestamp() * 1000) for at in range(7)]
        ca = machine.root / "mosquitto" / "certs" / "ca.pem"
        who = ["-u", f"m{number}", "-P", f"of-m{number}", "-q", "1", "-t", f"meters/m{number}/readings", "-l"]
        told = subprocess.run(
            ["mosquitto_pub", "--cafile", ca, "-h", "127.0.0.1", "-p", machine.port["8883"], *who],
            input="".join(json.dumps({"ts": stamp, "kwh": 0.25}) + "\n" for stamp in stamps),
            text=True,
            capture_output=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr
    live = machine.begin("quiltstream-live@")
    machine.wait("quiltstream-live@", lambda: len(machine.rows()) >= 4)
    found = [json.loads(line) for line in machine.rows().values()]
    assert {one["key"] for one in found} == {"north", "south"}
    assert all(one["window_start"] >= f"{begin:%Y-%m-%dT%H}" for one in found)
    # a stop is no failure, and takes Prism along; so does a kill
    assert machine.end("quiltstream-live@", live) == 143
    assert list(machine.feeder.glob(".*.quiltstream.json")), "the ledger is not remembered"
    before = machine.rows()
    live = machine.begin("quiltstream-live@")
    machine.wait("quiltstream-live@", lambda: runs_prism(live.pid))
    machine.end("quiltstream-live@", live, signal.SIGKILL)
    assert {name: machine.rows()[name] for name in before} == before
    with Store(f"sqlite:///{machine.feeder}/ledger.db", create=False) as store:
        (name,) = store.domains()
        charged = [one for one in store.entries(name) if one.decision == "charged"]
    assert min(one.window_start for one in charged) * 1800 == begin.timestamp()
    # the page of the ledger
    page = machine.begin("quiltstream-ledger@")
    machine.wait("quiltstream-ledger@", lambda: accepts(int(machine.port["9465"])))
    with urllib.request.urlopen(f"http://127.0.0.1:{machine.port['9465']}/metrics", timeout=30) as answer:
        assert b"windows_charged" in answer.read()
    assert machine.end("quiltstream-ledger@", page) == 0
    assert machine.end("quiltstream-gateway@", gateway) == 143


def test_the_job_is_not_restarted_with_invalid_settings(machine: Machine) -> None:
    machine.settle(dt.datetime.now(dt.UTC))
    (machine.feeder / "settings.yaml").write_text("colour: 1\n", encoding="utf-8")
    name, code = "quiltstream-live@", machine.begin("quiltstream-live@").wait(60)
    machine.processes.kill(name)
    assert str(code) in read_unit(name).one("RestartPreventExitStatus").split()
