"""The files of a small machine: units that systemd itself reads, settings that fit each other and their guide."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from quiltstream.schemas.settings.gateway import GatewaySettings
from quiltstream.schemas.settings.job import read_settings
from quiltstream.schemas.slots import parse_duration

from ..pipelines.jobs import call
from .flink_files import ROOT, run, text
from .systemd_files import HOME, HOME_UNITS, read_unit
from .test_systemd import HARDENED, MOST_EXPOSED

GUIDE = text(ROOT / "docs" / "guides" / "at-home.md")
DEVICES = ("plug", "meter")


@pytest.fixture
def readable(tmp_path: Path) -> list[str]:
    """Copies of the units whose programs are on this machine."""
    for path in HOME.glob("*.service"):
        said = re.sub(r"^(ExecStart\w*)=\S+", r"\1=/bin/true", text(path), flags=re.MULTILINE)
        (tmp_path / path.name).write_text(said, encoding="utf-8")
    return [str(path) for path in sorted(tmp_path.iterdir())]


def test_systemd_finds_nothing_wrong_with_the_units_of_a_house(tool: Callable[[str], str], readable: list[str]) -> None:
    assert len(readable) == len(HOME_UNITS)
    assert run([tool("systemd-analyze"), "verify", "--man=no", *readable]) == ""


@pytest.mark.parametrize("name", HOME_UNITS)
def test_a_unit_of_a_house_is_closed(tool: Callable[[str], str], name: str) -> None:
    unit = read_unit(name, folder=HOME)
    wanted = {"User": "quiltstream", "IPAddressDeny": "any", "IPAddressAllow": "localhost"} | HARDENED
    if name == "quiltstream-p1":
        # the cable is a device, and its script keeps nothing; it begins again also after an end without a fault
        for other in ("PrivateDevices", "StateDirectoryMode"):
            del wanted[other]
        wanted |= {"DevicePolicy": "closed", "DeviceAllow": "char-ttyUSB rw", "Restart": "always"}
    else:
        wanted |= {"StateDirectory": "quiltstream"}
    assert {key: unit.one(key) for key in wanted} == wanted
    assert unit.one("MemoryMax")
    analyze = [tool("systemd-analyze"), "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager"]
    file = HOME / f"{name}.service"
    done = subprocess.run([*analyze, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_metrics_ports_of_a_house_are_those_that_prometheus_scrapes() -> None:
    scraped = {
        one["job_name"]: {int(target.partition(":")[2]) for target in one["static_configs"][0]["targets"]}
        for one in yaml.safe_load(text(HOME / "prometheus.yml"))["scrape_configs"]
    }
    served: dict[str, set[int]] = {"gateway": set(), "live": set(), "ledger": set()}
    served["ledger"].add(int(read_unit("quiltstream-ledger", folder=HOME).one("ExecStart").split()[-1]))
    names: set[str] = set()
    for device in DEVICES:
        gateway = GatewaySettings.read(HOME / device / "gateway.yaml")
        settings = read_settings(HOME / device / "settings.yaml")
        names.add(gateway.mqtt.client_id)
        assert gateway.forward.to.folder is not None
        assert settings.source is not None
        assert settings.source.avro == f"{gateway.forward.to.folder.path}/*.avro"
        assert gateway.metrics.port is not None
        assert settings.live.metrics_port is not None
        served["gateway"].add(gateway.metrics.port)
        served["live"].add(settings.live.metrics_port)
        assert settings.ledger.endswith(read_unit("quiltstream-ledger", folder=HOME).one("ExecStart").split()[2])
        # what silence does is said where it is set
        assert "idle: what silence does" in text(HOME / device / "settings.yaml")
        # a month is kept until it is published, however late
        (days,) = re.findall(rf"{device}/spool .* (\d+)d$", text(HOME / "tmpfiles.conf"), re.MULTILINE)
        assert settings.windows.size == "month"
        assert int(days) * 86_400_000_000 > 31 * 86_400_000_000 + parse_duration(settings.live.idle or "")
    assert scraped == served
    assert len(names) == len(DEVICES)
    assert [len(ports) for ports in served.values()] == [2, 2, 1]


def test_the_guide_of_a_house_installs_existing_files_and_units() -> None:
    named = re.findall(r"(?:deploy|examples)/[\w./*-]+", GUIDE)
    assert len(named) > 10
    assert [one for one in named if not list(ROOT.glob(one))] == []
    units = re.findall(r"(quiltstream-[\w]+@?)", " ".join(re.findall(r"^\$ systemctl .*$", GUIDE, re.MULTILINE)))
    assert set(units) == set(HOME_UNITS)
    prism = re.search(r"prism@v([\d.]+)", GUIDE)
    beam = re.search(r"^apache-beam==([\d.]+)", text(ROOT / ".ci" / "constraints-beam-2.77.txt"), re.MULTILINE)
    assert prism is not None
    assert beam is not None
    assert prism[1] == beam[1]


def test_the_error_bounds_in_the_guide_of_a_house_equal_those_of_dry_runs(tmp_path: Path) -> None:
    """How far counts are from the true ones, and that a run of the settings as they are publishes every month."""
    found: list[int] = []
    (tmp_path / "london-model.json").write_bytes((ROOT / "examples" / "london-model.json").read_bytes())
    for device in reversed(DEVICES):
        lines = text(HOME / device / "settings.yaml").replace("/var/lib/quiltstream", str(tmp_path))
        (tmp_path / "settings.yaml").write_text(lines, encoding="utf-8")
        done = call("run", "--dry-run", "--live", "--json", tmp_path / "settings.yaml")
        assert done.code == 0, done.err
        said = json.loads(done.out)
        assert said["run"]["code"] == 0
        assert said["silence"].startswith("windows wait 1d for a silent source")
        found.append(said["half_width_95"])
    assert re.findall(r"within (\d+)\b", GUIDE) == [str(one) for one in found]


def test_the_broker_file_repeats_no_debian_setting_and_sets_the_queue_limits() -> None:
    lines = [one.split(" ")[0] for one in text(HOME / "mosquitto.conf").splitlines() if one and one[0] != "#"]
    # Mosquitto refuses a line that stands twice, and Debian's own file has these
    assert not {"persistence", "persistence_location", "log_dest", "pid_file"} & set(lines)
    assert len(set(lines)) == len(lines)
    assert {"max_queued_messages", "max_queued_bytes", "persistent_client_expiration"} <= set(lines)
