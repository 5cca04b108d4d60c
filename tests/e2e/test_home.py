"""The way of a small machine: the guide's commands lay the files, and the lines of its units run on a real Mosquitto.

A plug speaks MQTT as Shelly's do, and a terminal stands for the P1 cable. What systemd itself does to a process is not
done here.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import sysconfig
import termios
import threading
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from quiltstream.store import Store

from ..deploy.flink_files import ROOT
from ..deploy.systemd_files import HOME, read_unit
from ..house.pages import blocks, commands
from ..transforms.payloads.test_meters import telegram
from .conftest import there
from .processes import Processes, accepts, free_ports
from .prometheus import Prometheus, find_prometheus
from .test_dashboard import PANELS

pytestmark = pytest.mark.e2e

GUIDE = (ROOT / "docs" / "guides" / "at-home.md").read_text(encoding="utf-8")
PORTS: tuple[str, ...] = ("1883", "9464", "9465", "9466", "9474", "9476")
DEVICES = ("plug", "meter")
PLUG_PASSWORD = "of-the-plug"  # noqa: S105 - of a broker that ends with the test
PATIENCE_S = 120.0

#: Words of the guide that name users and groups, which the machine of a test does not have.
_OWNERS = re.compile(r" --(?:owner|group) \w+")

#: What the guide's files say slowly: as in the guide, but for an hour's patience.
_QUICKER = {
    "age: 5min": "age: 1s",
    "interval: 10s": "interval: 1s",
    "size: 2min": "size: 10s",
    "lateness: 10s": "lateness: 1s",
}


class House:
    """A machine of the guide in a folder: its files, units and devices."""

    def __init__(self, prism: Path, mosquitto: Path) -> None:
        self.processes = Processes("home")
        self.root = self.processes.folder
        self.root.chmod(0o755)
        self.port = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self._mosquitto = mosquitto
        self.state = self.root / "state"
        self._places = {
            "/var/lib/quiltstream": str(self.state),
            "/etc/quiltstream": str(self.root / "etc"),
            "/etc/mosquitto": str(self.root / "mosquitto"),
            "/opt/quiltstream": str(self.root / "opt"),
        }
        for folder in ("state", "mosquitto/conf.d", "mosquitto/store", "opt/bin"):
            (self.root / folder).mkdir(parents=True)
        scripts = sysconfig.get_path("scripts")
        for name, line in {
            "quiltstream": f'exec {sys.executable} {scripts}/quiltstream "$@"',
            "python": f'exec {sys.executable} "$@"',
            "prism": f'exec {prism} "$@"',
        }.items():
            program = self.root / "opt" / "bin" / name
            program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
            program.chmod(0o755)
        self._over = threading.Event()
        self._devices: list[threading.Thread] = []

    def placed(self, text: str) -> str:
        """Words of the guide, of a unit or of settings with the places and ports of this machine."""
        for place, here in self._places.items():
            text = text.replace(place, here)
        return re.sub(rf"(?<=[:= ])({'|'.join(PORTS)})\b", lambda found: self.port[found[1]], text)

    def settle(self) -> None:
        """Run the guide's commands that lay files and passwords, as they stand there but for places and owners."""
        kept = {"install", "sed", "(umask", "mosquitto_passwd", "for"}
        lines = [
            line for block in blocks("guide", GUIDE) if block.language == "console" for line in commands(block.body)
        ]
        lines = [line for line in lines if line.split()[0] in kept and not re.search("/etc/(systemd|tmpf|prom)", line)]
        assert len(lines) == 16, lines
        script = _OWNERS.sub("", self.placed("\n".join(lines)))
        asked = f"mosquitto_passwd {self.root}/mosquitto/passwords plug"
        assert asked in script
        script = script.replace(asked, asked.replace(" ", " -b ", 1) + f" {PLUG_PASSWORD}")
        done = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for path in [*self.state.rglob("*.yaml"), *(self.root / "mosquitto").rglob("*.conf")]:
            text = self.placed(path.read_text(encoding="utf-8"))
            for slow, quick in _QUICKER.items():
                text = text.replace(slow, quick)
            path.write_text(text, encoding="utf-8")
        client = self.root / "etc" / "p1" / "mosquitto_pub"
        client.write_text(f"{client.read_text(encoding='utf-8')}-p {self.port['1883']}\n", encoding="utf-8")
        # what Debian's own configuration says, and a user that may see the folder of a test
        own = f"persistence true\npersistence_location {self.root}/mosquitto/store/\nuser root\n"
        (self.root / "mosquitto" / "mosquitto.conf").write_text(
            f"{own}include_dir {self.root}/mosquitto/conf.d\n", encoding="utf-8"
        )

    def begin_broker(self) -> None:
        self.processes.start("mosquitto", [self._mosquitto, "-c", self.root / "mosquitto" / "mosquitto.conf"])
        port = int(self.port["1883"])
        self.processes.wait_for("mosquitto", "listening", lambda: accepts(port), PATIENCE_S)

    def begin(self, name: str, device: str = "") -> None:
        """Start a unit: what is before it, and its process."""
        unit = read_unit(name, folder=HOME)
        given = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        for line in unit.all("Environment"):
            given |= dict(word.split("=", 1) for word in shlex.split(self.placed(line)))
        given |= {"P1_DEVICE": str(self.root / "cable")} if name == "quiltstream-p1" else {}
        said = f"{name}{device}"
        for at, line in enumerate([*unit.all("ExecStartPre"), unit.one("ExecStart")]):
            words = shlex.split(
                self.placed(line).replace("%i", device).replace("${P1_DEVICE}", given.get("P1_DEVICE", ""))
            )
            if at < len(unit.all("ExecStartPre")):
                self.processes.run(f"{said}-check", words, given)
            else:
                # every telegram, for a test has no ten seconds
                self.processes.start(said, ["0" if one == "10" else one for one in words], given)

    def begin_all(self) -> None:
        """What is there after the machine has started."""
        self.begin_broker()
        self.begin("quiltstream-p1")
        for device in DEVICES:
            self.begin("quiltstream-gateway@", device)
            self.begin("quiltstream-live@", device)

    def connect(self) -> None:
        """Plug the cable in, and the plug; both send until the end."""
        host, end = pty.openpty()
        tty.setraw(end)
        os.set_blocking(host, False)
        (self.root / "cable").symlink_to(os.ttyname(end))
        for send in (lambda: self._telegrams(host), self._plug):
            self._devices.append(threading.Thread(target=send, daemon=True))
            self._devices[-1].start()

    def _telegrams(self, host: int) -> None:
        while not self._over.wait(0.5):
            now = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
            lines = (f"0-0:1.0.0({now:%y%m%d%H%M%S}W)", "0-0:96.1.1(4530)", "1-0:1.7.0(00.541*kW)", "0-0:96.13.0(2F)")
            try:
                os.write(host, telegram("1-3:0.2.8(50)", *lines))
            except BlockingIOError:
                continue  # nothing reads it

    def _plug(self) -> None:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
        client.username_pw_set("plug", PLUG_PASSWORD)
        client.connect_async("127.0.0.1", int(self.port["1883"]))
        client.loop_start()
        at = 0
        while not self._over.wait(0.5):
            at += 1
            status = {"id": 0, "output": True, "apower": 17.4, "aenergy": {"total": 903.2 + at / 100}}
            client.publish("plug/status/switch:0", json.dumps(status), qos=1)
            client.publish("plug/status/wifi", json.dumps({"rssi": -57, "status": "got ip"}), qos=1)
        client.disconnect()
        client.loop_stop()

    def call(self, line: str) -> str:
        """What a command of the guide prints, in the folder of the units; it ends well."""
        (password,) = (self.root / "etc" / "mqtt-password").read_text(encoding="ascii").split()
        given = os.environ | {"P": password, "PATH": f"{self.root}/opt/bin:{os.environ['PATH']}"}
        line = line.replace("mosquitto_sub", f"mosquitto_sub -p {self.port['1883']}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.state,
            env=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def rows(self) -> dict[tuple[str, str], str]:
        """The rehearsal's rows on the disk, by window and series."""
        lines = [
            line
            for path in (self.state / "rehearsal" / "releases").glob("*.jsonl")
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        return {(row["window_start"], row["key"]): line for line in lines for row in [json.loads(line)]}

    def rehearse(self, more_than: int) -> dict[tuple[str, str], str]:
        """Run the rehearsal until there are more rows than so many."""
        words = [self.root / "opt" / "bin" / "quiltstream", "run", "--live", self.state / "rehearsal" / "settings.yaml"]
        given = os.environ | {"QUILTSTREAM_PRISM": str(self.root / "opt" / "bin" / "prism")}
        self.processes.start("rehearsal", words, given)
        self.processes.wait_for("rehearsal", "publishing", lambda: len(self.rows()) > more_than, PATIENCE_S)
        return self.rows()

    def close(self) -> None:
        self._over.set()
        for one in self._devices:
            one.join(30)
        self.processes.close()


@pytest.fixture
def house(prism: Path, mosquitto_program: Path) -> Iterator[House]:
    there(find_prometheus)
    made = House(prism, mosquitto_program)
    try:
        made.settle()
        yield made
    finally:
        made.close()


def guide_calls(*words: str) -> list[str]:
    """The commands of the guide that have some words in them."""
    lines = [line for block in blocks("guide", GUIDE) if block.language == "console" for line in commands(block.body)]
    found = [line for line in lines if all(word in line for word in words)]
    assert found, words
    return found


def test_readings_of_a_plug_and_a_cable_become_rows_with_the_guides_commands(house: House) -> None:
    house.begin_broker()
    house.connect()
    house.begin("quiltstream-p1")
    for device in DEVICES:
        house.begin("quiltstream-gateway@", device)
    # the look and the trials
    for line, said in zip(guide_calls("init --from-mqtt"), ("preset shelly-gen2", "preset dsmr"), strict=True):
        assert said in house.call(re.sub(r"--seconds \d+", "--seconds 6", line))
    plug, meter = guide_calls("| quiltstream try")
    assert "17.4 W" in house.call(plug)
    assert "541 W" in house.call(meter)
    assert " reading" in house.call(guide_calls("quiltstream check")[0])
    for line in guide_calls("--dry-run"):
        assert "it publishes every window (exit code 0)" in house.call(line)
    # rows, and the jobs of the months beside them
    for device in DEVICES:
        house.begin("quiltstream-live@", device)
    before = house.rehearse(0)
    assert {key for _, key in before} == {"meter"}
    assert "series meter" in house.call(guide_calls("show rehearsal")[0])
    check_dashboard(house)
    # the power is cut
    for name in ("mosquitto", "rehearsal", "quiltstream-p1", "quiltstream-ledger"):
        house.processes.kill(name)
    for device in DEVICES:
        house.processes.kill(f"quiltstream-gateway@{device}")
        house.processes.kill(f"quiltstream-live@{device}")
    before = house.rows()
    house.begin_all()
    after = house.rehearse(len(before))
    assert {place: after[place] for place in before} == before
    with Store(f"sqlite:///{house.state / 'ledger.db'}", create=False) as store:
        assert set(store.domains()) == {"plugs", "meter"}
    for line in guide_calls("quiltstream ledger", "ledger.db"):
        house.call(line)


def check_dashboard(house: House) -> None:
    """What Prometheus scrapes by the guide's targets, and that no panel but those of what is not there is empty."""
    house.begin("quiltstream-ledger")
    scrapes = yaml.safe_load((HOME / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    places = {
        one["job_name"]: [house.placed(f" {target}").strip() for target in one["static_configs"][0]["targets"]]
        for one in scrapes
    }
    server = Prometheus(find_prometheus(), places)

    def empty() -> set[str]:
        asked = [(one["title"], target["expr"]) for one in PANELS for target in one["targets"]]
        plain = [(title, text.replace("$__rate_interval", "1m").replace("$domain", ".*")) for title, text in asked]
        return {title for title, _ in plain} - {title for title, text in plain if server.values(text)}

    try:
        server.start()
        until = time.monotonic() + PATIENCE_S
        # no window is refused, nothing is rejected or dropped, and there is no Flink
        while not server.up() or not empty() <= ABSENT or 0 in server.values("quiltstream_live_readings_total"):
            assert time.monotonic() < until, empty()
            time.sleep(0.5)
        assert sorted(server.values("up")) == [1.0] * 5
        assert server.wrong_rules() == {}
        (behind,) = (one["targets"][0]["expr"] for one in PANELS if one["title"] == "The source is behind")
        assert min(server.values(behind)) >= 0
    finally:
        server.close()


ABSENT = {"Windows are admitted for", "Rejects a second, by reason", "Checkpoints, an hour", "Dropped, an hour"}


def test_the_cables_script_leaves_out_half_a_telegram_and_keeps_the_others(tmp_path: Path) -> None:
    """Byte for byte, also from a terminal, where bash itself would take carriage returns for line feeds."""
    client, out = tmp_path / "mosquitto_pub", tmp_path / "out"
    client.write_text(f"#!/bin/sh\n{{ echo $*; cat; }} >> {out}\n", encoding="utf-8")
    client.chmod(0o755)
    whole = telegram("1-3:0.2.8(50)", "0-0:1.0.0(260105130000W)", "1-0:1.7.0(00.541*kW)")
    host, end = pty.openpty()
    words = ["bash", HOME / "p1.sh", os.ttyname(end), "0", "-t", "meter/telegram"]
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen(words, env=os.environ | path, stderr=subprocess.DEVNULL)
    wanted = b"-t meter/telegram -s\n" + whole
    try:
        # what is in the line before the script has set it may be changed by the line
        until = time.monotonic() + PATIENCE_S
        while termios_raw(end) is False:
            assert time.monotonic() < until
            time.sleep(0.05)
        os.write(host, whole[-40:] + whole + whole)
        while not out.exists() or len(out.read_bytes()) < 2 * len(wanted):
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
        os.close(host)
        os.close(end)
    assert out.read_bytes() == 2 * wanted


def termios_raw(end: int) -> bool:
    """Whether a terminal gives bytes as they come."""
    return not termios.tcgetattr(end)[0] & termios.ICRNL
