"""The units of one machine, each with the commands, places and variables that systemd would give it, without systemd.

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
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.store import Store

from ..deploy.systemd_files import FOLDER, UNITS, Unit, read_unit
from .certificates import make_certificates
from .conftest import missing, there
from .installed import installed
from .mosquitto import find_mosquitto
from .postgres import find_binaries
from .processes import accepts, alive, descendants, free_ports

PASSWORDS = {"gateway": "for-the-gateway", **{f"m{number}": f"for-m{number}" for number in range(1, 5)}}
PORTS: tuple[str, ...] = ("1883", "8883", "9092", "9093", "5432", "9464", "9466")
HOUR = dt.timedelta(hours=1)


class Machine:
    """A folder that has the places of the units, and what they run."""

    def __init__(self, programs: dict[str, Path]) -> None:
        # the name of a socket has a hundred letters at most
        self.root = Path(tempfile.mkdtemp(prefix="qs-", dir="/tmp"))
        self.root.chmod(0o755)
        self.port = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self._places = {
            "/etc/quiltstream": self.root / "etc",
            "/var/lib/quiltstream-": self.root / "lib" / "quiltstream-",
            "/run/credentials": self.root / "credentials",
            "/run/quiltstream-": self.root / "run" / "quiltstream-",
            **programs,
        }
        self.running: dict[str, subprocess.Popen[Any]] = {}
        for name in ("etc/job", "etc/mqtt", "etc/secrets", "lib", "credentials", "run", "log"):
            (self.root / name).mkdir(parents=True)

    def placed(self, text: str) -> str:
        """A text of a unit or of a settings file with this machine's places and ports."""
        for place, here in self._places.items():
            text = text.replace(place, str(here))
        return re.sub(rf"(?<=[:= ])({'|'.join(PORTS)})\b", lambda found: self.port[found[1]], text)

    def _environment(self, unit: Unit) -> dict[str, str]:
        state = self.root / "lib" / unit.one("StateDirectory")
        credentials = self.root / "credentials" / f"{unit.name}.service"
        given = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"}
        given |= {"STATE_DIRECTORY": str(state), "CREDENTIALS_DIRECTORY": str(credentials)}
        for line in unit.all("Environment"):
            given |= dict(word.split("=", 1) for word in shlex.split(self.placed(line)))
        return given

    def _user(self, unit: Unit) -> str | None:
        named = unit.one("User", "")
        return named if named and os.geteuid() == 0 else None

    def prepare(self, unit: Unit) -> None:
        """Make its folders, and lay its credentials there, as its user's."""
        user = self._user(unit)
        made = [self.root / "lib" / unit.one("StateDirectory"), self.root / "credentials" / f"{unit.name}.service"]
        made += [self.root / "run" / name for name in unit.all("RuntimeDirectory")]
        for folder in made:
            folder.mkdir(mode=0o700, exist_ok=True)
        for line in unit.all("LoadCredential"):
            name, _, source = line.partition(":")
            shutil.copy(self.placed(source), made[1] / name)
        for path in [one for folder in made for one in (folder, *folder.iterdir())]:
            if user is not None:
                shutil.chown(path, user, user)

    def begin(self, name: str) -> None:
        """Start a unit: what is before it, its process, what is behind it."""
        unit = read_unit(name)
        self.prepare(unit)
        for line in unit.all("ExecStartPre"):
            self._run(unit, line)
        with (self.root / "log" / name).open("ab") as log:
            words = shlex.split(self.placed(unit.one("ExecStart")))
            how: dict[str, Any] = {"stdout": log, "stderr": log, **self._how(unit)}
            process: subprocess.Popen[Any] = subprocess.Popen(words, **how)
            self.running[name] = process
        for line in unit.all("ExecStartPost"):
            self._run(unit, line)

    def _how(self, unit: Unit) -> dict[str, Any]:
        user = self._user(unit)
        mask = {"umask": int(unit.one("UMask"), 8), "start_new_session": True, "stdin": subprocess.DEVNULL}
        who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        folder = self.placed(unit.one("WorkingDirectory", "/"))
        return {"env": self._environment(unit), "cwd": folder, **mask, **who}

    def _run(self, unit: Unit, line: str) -> None:
        done = subprocess.run(
            shlex.split(self.placed(line)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=180,
            **self._how(unit),
        )
        assert done.returncode == 0, f"{unit.name}: {line}: {done.stdout}"

    def stop(self, name: str) -> int:
        """Stop a unit as it says; the code of its process, none of which may be left."""
        unit, process = read_unit(name), self.running.pop(name)
        family = [process.pid, *descendants(process.pid)]
        process.send_signal(signal.Signals[unit.one("KillSignal", "SIGTERM")])
        code = process.wait(float(unit.one("TimeoutStopSec")))
        until = time.monotonic() + 10
        while any(alive(pid) for pid in family) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(alive(pid) for pid in family), f"{name} leaves processes behind"
        return code

    def said(self, name: str) -> str:
        """What a unit has written."""
        return (self.root / "log" / name).read_text(encoding="utf-8")

    def close(self) -> None:
        """End what runs, and remove everything."""
        for process in self.running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.root)


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    file.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, prism: Path, kafka_jars: Path) -> Iterator[Machine]:
    mosquitto, postgres, tools = there(find_mosquitto), there(find_binaries), installed("kafka-tools")
    if not tools.folder.is_dir():
        missing("Kafka's tools are not there (run `.ci/servers.sh kafka`)")
    ours, kafka = tmp_path / "bin", tmp_path / "kafka"
    for folder in (ours, kafka):
        folder.mkdir()
    (ours / "prism").symlink_to(prism)
    program(ours, "quiltstream", f'exec {sys.executable} {sysconfig.get_path("scripts")}/quiltstream "$@"')
    # the scripts of Apache's archive, whose jars come without them here
    java = f'exec java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "{kafka_jars}/*:{tools.file("*.jar")}"'
    program(kafka, "kafka-storage.sh", f'{java} kafka.tools.StorageTool "$@"')
    program(kafka, "kafka-server-start.sh", f'{java} kafka.Kafka "$@"')
    program(kafka, "kafka-topics.sh", f'{java} org.apache.kafka.tools.TopicCommand "$@"')
    made = Machine(
        {
            "/usr/sbin/mosquitto": mosquitto,
            "/usr/lib/postgresql/15/bin": postgres,
            "/opt/quiltstream/bin": ours,
            "/opt/kafka/bin": kafka,
        }
    )
    yield made
    made.close()


def settle(machine: Machine, begin: dt.datetime) -> None:
    """Lay the shipped files in their places, as the guide does, with secrets, certificates and windows of the test."""
    etc, flink = machine.root / "etc", FOLDER.parent / "flink"
    for path in [*(FOLDER / "settings").iterdir(), flink / "settings" / "roster.csv", flink / "kafka" / "topics.sh"]:
        folder = etc / "job" if path.name in {"settings.yaml", "roster.csv"} else etc
        text = machine.placed(path.read_text(encoding="utf-8"))
        (folder / path.name).write_text(text, encoding="utf-8")
    document = yaml.safe_load((etc / "job" / "settings.yaml").read_text(encoding="utf-8"))
    # an hour of silence is a little long
    document["live"] |= {"idle": "3s"}
    document["windows"] = {"size": "1h", "start": f"{begin:%Y-%m-%dT%H:%M}Z", "lateness": "15min"}
    document["most_error"] = 1e6
    (etc / "job" / "settings.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (etc / "topics.sh").write_text(
        f"export KAFKA_BIN={machine.placed('/opt/kafka/bin')}\n" + (etc / "topics.sh").read_text(encoding="utf-8")
    )
    make_certificates(etc / "mqtt", "meters", "x")
    for one, other in (("broker.pem", "certificate.pem"), ("broker.key", "key.pem")):
        shutil.move(etc / "mqtt" / one, etc / "mqtt" / other)
    shutil.copy(flink / "mosquitto" / "acl", etc / "mqtt" / "acl")
    passwords = etc / "mqtt" / "passwords"
    passwords.touch()
    for user, password in PASSWORDS.items():
        subprocess.run(["mosquitto_passwd", "-b", passwords, user, password], check=True, capture_output=True)
    for path in (etc / "mqtt").iterdir():
        path.chmod(0o644)
    (etc / "secrets" / "ledger-password").write_text("for-the-ledger\n", encoding="ascii")
    (etc / "secrets" / "mqtt-gateway-password").write_text("for-the-gateway\n", encoding="ascii")


def runs_prism(pid: int) -> bool:
    commands = [Path(f"/proc/{one}/cmdline") for one in descendants(pid)]
    return any(b"prism" in one.read_bytes() for one in commands if one.exists())


def wait_for_port(machine: Machine, name: str, port: str) -> None:
    end = time.monotonic() + 120
    while not accepts(int(machine.port[port])):
        assert machine.running[name].poll() is None, machine.said(name)
        assert time.monotonic() < end, machine.said(name)
        time.sleep(0.1)


def secure(machine: Machine, user: str) -> list[str]:
    ca = str(machine.root / "etc" / "mqtt" / "ca.pem")
    return ["--cafile", ca, "-h", "127.0.0.1", "-p", machine.port["8883"], "-u", user, "-P", PASSWORDS[user], "-q", "1"]


def released(machine: Machine, count: int) -> list[dict[str, Any]]:
    """So many rows of the job's topic."""
    from confluent_kafka import Consumer  # noqa: PLC0415 - an extra

    servers = f"127.0.0.1:{machine.port['9092']}"
    reader = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
    reader.subscribe(["releases"])
    found: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + 150
    while len(found) < count:
        assert time.monotonic() < end, machine.said("quiltstream-live") + machine.said("quiltstream-gateway")
        for message in reader.consume(count, 1.0):
            if message.error() is None:
                row = json.loads(message.value())
                found[row["release_id"]] = row
    reader.close()
    return list(found.values())


def test_the_units_publish_rows_of_readings_and_leave_no_process(machine: Machine) -> None:
    begin = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0) - 5 * HOUR
    settle(machine, begin)
    machine.begin("quiltstream-postgresql")
    machine.begin("quiltstream-mosquitto")
    machine.begin("quiltstream-kafka")
    wait_for_port(machine, "quiltstream-mosquitto", "8883")
    machine.begin("quiltstream-gateway")
    wait_for_port(machine, "quiltstream-gateway", "9464")
    for meter in ("m1", "m2", "m3", "m4"):
        stamps = [round((begin + number * HOUR / 2).timestamp() * 1000) for number in range(7)]
        lines = [json.dumps({"ts": stamp, "kwh": 0.25}) for stamp in stamps]
        told = subprocess.run(
            ["mosquitto_pub", *secure(machine, meter), "-t", f"meters/{meter}/readings", "-l"],
            input="\n".join(lines) + "\n",
            text=True,
            capture_output=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr
    wait_for_port(machine, "quiltstream-postgresql", "5432")
    machine.begin("quiltstream-live")
    found = released(machine, 4)
    assert {one["key"] for one in found} <= {"north", "south"}
    assert all(one["window_start"] >= f"{begin:%Y-%m-%dT%H}" for one in found)
    # a stop is no failure, and takes Prism along; so does a kill
    unit = read_unit("quiltstream-live")
    assert machine.stop("quiltstream-live") in (0, int(unit.one("SuccessExitStatus")))
    assert list((machine.root / "lib" / "quiltstream-live").glob(".*.quiltstream.json")), "the ledger is not remembered"
    machine.begin("quiltstream-live")
    killed, end = machine.running["quiltstream-live"], time.monotonic() + 60
    while not runs_prism(killed.pid):
        assert killed.poll() is None, machine.said("quiltstream-live")
        assert time.monotonic() < end, machine.said("quiltstream-live")
        time.sleep(0.1)
    family = descendants(killed.pid)
    killed.kill()
    machine.running.pop("quiltstream-live").wait()
    end = time.monotonic() + 30
    while any(alive(pid) for pid in family):
        assert time.monotonic() < end, "Prism goes on without its job"
        time.sleep(0.1)
    with Store(ledger(machine), create=False) as store:
        (name,) = store.domains()
        charged = [one for one in store.entries(name) if one.decision == "charged"]
    assert min(one.window_start for one in charged) * 1800 == begin.timestamp()
    assert len(charged) >= 2
    assert machine.stop("quiltstream-gateway") == 0
    assert machine.stop("quiltstream-mosquitto") == 0
    assert machine.stop("quiltstream-kafka") in (0, int(read_unit("quiltstream-kafka").one("SuccessExitStatus")))
    assert machine.stop("quiltstream-postgresql") == 0
    said = "".join(machine.said(name) for name in UNITS)
    assert not any(secret in said for secret in (*PASSWORDS.values(), "for-the-ledger"))


def ledger(machine: Machine) -> str:
    return yaml.safe_load((machine.root / "etc" / "job" / "settings.yaml").read_text(encoding="utf-8"))["ledger"]


def test_the_job_is_not_restarted_with_invalid_settings(machine: Machine) -> None:
    settle(machine, dt.datetime.now(dt.UTC))
    (machine.root / "etc" / "job" / "settings.yaml").write_text("colour: 1\n", encoding="utf-8")
    unit = read_unit("quiltstream-live")
    machine.begin("quiltstream-live")
    code = machine.running.pop("quiltstream-live").wait(60)
    assert str(code) in unit.one("RestartPreventExitStatus").split()
