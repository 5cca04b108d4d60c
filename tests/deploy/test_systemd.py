"""The systemd units: read by systemd's own program, closed as far as it can be, and at one with their settings."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from quiltstream.schemas.settings.gateway import GatewaySettings
from quiltstream.schemas.settings.job import read_settings

from ..pipelines.jobs import call
from .flink_files import ROOT, run, text
from .systemd_files import FOLDER, UNITS, read_unit

SETTINGS = FOLDER / "settings"

#: What systemd-analyze may call the exposure of a unit at most, in tenths; a unit without any of it has 96.
MOST_EXPOSED = 15

#: What every unit has.
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "CapabilityBoundingSet": "",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
    "Restart": "on-failure",
}


@pytest.fixture
def readable(tmp_path: Path) -> list[str]:
    """Copies of the units whose programs are on this machine."""
    for path in FOLDER.iterdir():
        if path.is_file():
            said = re.sub(r"^(ExecStart\w*|ExecReload)=\S+", r"\1=/bin/true", text(path), flags=re.MULTILINE)
            (tmp_path / path.name).write_text(said, encoding="utf-8")
    return [str(path) for path in sorted(tmp_path.iterdir())]


def test_systemd_finds_nothing_wrong_with_the_units(tool: Callable[[str], str], readable: list[str]) -> None:
    assert run([tool("systemd-analyze"), "verify", "--man=no", *readable]) == ""


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_closed(tool: Callable[[str], str], name: str) -> None:
    unit = read_unit(name)
    assert {key: unit.one(key) for key in HARDENED} == HARDENED
    assert unit.one("MemoryMax")
    assert unit.one("StateDirectory") == name
    assert ("yes" in unit.all("DynamicUser")) != bool(unit.all("User"))
    local = unit.all("IPAddressAllow") == ["localhost"] and unit.all("IPAddressDeny") == ["any"]
    assert local == (name != "quiltstream-mosquitto"), "meters reach Mosquitto, and nothing else"
    analyze = [tool("systemd-analyze"), "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager"]
    done = subprocess.run([*analyze, str(FOLDER / f"{name}.service")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_target_has_every_unit() -> None:
    target = read_unit("quiltstream", "target")
    assert sorted(" ".join(target.all("Wants")).split()) == [f"{name}.service" for name in UNITS]
    assert {read_unit(name).one("PartOf") for name in UNITS} == {"quiltstream.target"}
    assert {read_unit(name).one("WantedBy") for name in UNITS} == {"quiltstream.target"}


def test_settings_name_the_places_and_ports_of_the_units() -> None:
    """A secret is where systemd lays it, what is written is in the unit's own folder, and ports are those of others."""
    settings = read_settings(SETTINGS / "settings.yaml")
    gateway = GatewaySettings.read(SETTINGS / "gateway.yaml")
    assert settings.live.idle is not None
    said = {
        "quiltstream-live": text(SETTINGS / "settings.yaml"),
        "quiltstream-gateway": text(SETTINGS / "gateway.yaml"),
        "quiltstream-mosquitto": text(SETTINGS / "mosquitto.conf"),
        "quiltstream-kafka": text(SETTINGS / "kafka.properties"),
    }
    for name, words in said.items():
        unit = read_unit(name)
        named = {line.partition(":")[0] for line in unit.all("LoadCredential")}
        assert set(re.findall(r"/run/credentials/([\w.-]+)/([\w-]+)", words)) == {
            (f"{name}.service", one) for one in named
        }
        assert {one[0] for one in re.findall(r"/var/lib/([\w-]+)(/|$)", words, re.MULTILINE)} <= {name}
        folder = "/var/lib/quiltstream-live" if name == "quiltstream-live" else "/etc/quiltstream"
        assert f"{folder}/{_file_of(name)}" in unit.one("ExecStart")
    listens = {found for words in said.values() for found in re.findall(r"127\.0\.0\.1:(\d+)", words)}
    assert listens == {"9092", "9093", "5432"}
    assert f"port={5432}" in read_unit("quiltstream-postgresql").one("ExecStart")
    assert gateway.mqtt.port == 1883
    assert "listener 1883 127.0.0.1" in said["quiltstream-mosquitto"]
    # the same source as everywhere: what is here is only where it is
    assert _but_places(settings_of("systemd")) == _but_places(settings_of("flink"))


def _file_of(name: str) -> str:
    return {
        "quiltstream-live": "settings.yaml",
        "quiltstream-gateway": "gateway.yaml",
        "quiltstream-mosquitto": "mosquitto.conf",
        "quiltstream-kafka": "kafka.properties",
    }[name]


def settings_of(folder: str) -> dict[str, object]:
    return yaml.safe_load(text(FOLDER.parent / folder / "settings" / "settings.yaml"))


def _but_places(document: dict[str, object]) -> dict[str, object]:
    return {
        name: value for name, value in document.items() if name not in {"source", "sink", "rejects", "ledger", "live"}
    }


def test_mosquitto_of_the_units_has_all_shipped_settings() -> None:
    def kept(path: Path) -> set[str]:
        lines = {line for line in text(path).splitlines() if line and not line.startswith("#")}
        return {line for line in lines if not re.match(r"listener|password_file|persistence_location|log_", line)}

    shipped, here = kept(FOLDER.parent / "mqtt" / "mosquitto.conf"), kept(SETTINGS / "mosquitto.conf")
    assert shipped <= here


def test_the_guide_says_for_how_long_the_memory_of_mosquitto_is_enough() -> None:
    assert "memory_limit" not in re.sub("#.*", "", text(SETTINGS / "mosquitto.conf")), "it ends the broker"
    page = " ".join(text(ROOT / "docs" / "guides" / "one-machine.md").split())
    (said,) = re.findall(
        r"take (\d+) bytes for each\. `MemoryMax` of its unit, (\d+) MB, holds ([\d.]+) million: (\d+) hours", page
    )
    size, megabytes, millions, hours = (float(one) for one in said)
    assert read_unit("quiltstream-mosquitto").one("MemoryMax") == f"{megabytes:.0f}M"
    assert megabytes * 2**20 / size == pytest.approx(millions * 1e6, rel=0.05)
    assert hours == pytest.approx(millions * 1e6 / 60_000, rel=0.05)


def test_the_checks_of_the_guide_need_no_unit_that_runs(tmp_path: Path) -> None:
    """The guide's words, on the shipped files, with neither a ledger nor what systemd lays into its own folder."""
    etc = tmp_path / "etc"
    for folder in ("job", "secrets"):
        (etc / folder).mkdir(parents=True)
    for path in (SETTINGS / "gateway.yaml", SETTINGS / "settings.yaml", FOLDER.parent / "flink/settings/roster.csv"):
        place = etc if path.name == "gateway.yaml" else etc / "job"
        (place / path.name).write_text(text(path).replace("/var/lib/quiltstream-gateway", str(tmp_path)))
    (etc / "secrets" / "mqtt-gateway-password").write_text("x\n")
    guide = text(ROOT / "docs" / "guides" / "one-machine.md")
    lines = re.findall(r"^\$ (sed .*|/opt/quiltstream/bin/quiltstream (?:gateway|run) .*)$", guide, re.MULTILINE)
    assert len(lines) == 4
    said = ""
    for line in lines:
        words = line.replace("/etc/quiltstream", str(etc))
        if words.startswith("sed"):
            run(["bash", "-euc", words])
            continue
        done = call(*words.split()[1:])
        # the guide says of the shipped roster and stand-in that the job would stop
        assert done.code == (2 if "--dry-run" in words else 0), done.err
        said += done.out
    assert "as user 'gateway'" in said
    assert "windows wait 1h for a silent source" in " ".join(said.split())
    assert "unless it is run with --accept-noise (exit code 2)" in " ".join(said.split())
    assert "2" in read_unit("quiltstream-live").one("RestartPreventExitStatus").split()
    assert not (etc / "job" / "none.db").exists()


@pytest.mark.parametrize(
    ("name", "folder"), [("quiltstream-live", FOLDER), ("quiltstream-live@", FOLDER.parent / "home")]
)
def test_a_live_job_is_started_again_for_as_long_as_it_takes(name: str, folder: Path) -> None:
    """A disk that is full at a start, or a password that was changed, may be mended a day later."""
    unit = read_unit(name, folder=folder)
    assert unit.one("StartLimitIntervalSec") == "0"
    assert int(unit.one("RestartSec")) >= 30


def test_the_guide_installs_existing_files_and_units() -> None:
    guide = text(ROOT / "docs" / "guides" / "one-machine.md")
    for line in re.findall(r"^\$ install --mode 644 (.*)$", guide, re.MULTILINE):
        for pattern in line.split()[:-1]:
            assert list(ROOT.glob(pattern)), pattern
    assert all(f"`{name}`" in guide for name in UNITS)
    command = re.search(r"systemctl enable --now (.*)$", guide, re.MULTILINE)
    assert command is not None
    assert sorted(command[1].split()) == sorted(["quiltstream.target", *UNITS])
    beam = re.search(r"prism@v([\d.]+)", guide)
    constraint = re.search(r"^apache-beam==([\d.]+)", text(ROOT / ".ci" / "constraints-beam-2.77.txt"), re.MULTILINE)
    assert beam is not None
    assert constraint is not None
    assert beam[1] == constraint[1]
