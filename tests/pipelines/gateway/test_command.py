"""``quiltstream gateway``: what --check says, what it finds before anything is connected, and how it ends."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from quiltstream.pipelines.gateway.run import Counts

from ..jobs import call, spawn

pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")

MQTT: dict[str, Any] = {"host": "localhost", "client_id": "g1"}
FORWARD: dict[str, Any] = {"topics": ["meters/#"], "to": {"folder": {"path": "spool"}}}
SECRET = {"user": "u", "password": {"file": "secret"}}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump({"mqtt": MQTT, "forward": FORWARD} | changes), encoding="utf-8")
    return path


def test_a_check_describes_the_gateway_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METER_KEY", "correct horse battery staple")
    forward = FORWARD | {"pseudonyms": {"env": "METER_KEY", "level": 2}}
    done = call("gateway", "--check", write(tmp_path, forward=forward)).ended(0)
    for words in ("localhost:1883, as nobody, without TLS", "meters/#", "'g1'", "level [2] as a pseudonym", "/spool"):
        assert done.said(words), words
    done.hid("correct horse")
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.yaml"]


def test_an_unencrypted_password_on_the_network_is_reported(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n", encoding="utf-8")
    done = call("gateway", "--check", write(tmp_path, mqtt=MQTT | SECRET)).ended(0)
    assert done.said("the password goes over the network unencrypted")
    done.hid("hunter2")
    assert not call("gateway", "--check", write(tmp_path, mqtt=MQTT | SECRET | {"tls": {}})).said("over the network")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mqtt": {"host": "h"}}, "mqtt.client_id is missing"),
        ({"mqtt": MQTT | SECRET}, "secret with a secret cannot be read here"),
        ({"mqtt": MQTT | {"tls": {"ca": "none"}}}, "mqtt.tls names files in PEM form"),
        ({"mqtt": MQTT | {"tls": {"cert": "gateway.yaml"}}}, "mqtt.tls names files in PEM form"),
        ({"mqtt": MQTT | {"tls": {"key": "gateway.yaml"}}}, "mqtt.tls names files in PEM form"),
        ({"forward": FORWARD | {"pseudonyms": {"env": "NO_SUCH_KEY", "level": 2}}}, "NO_SUCH_KEY is not set on this"),
        ({"forward": FORWARD | {"pseudonyms": {"env": "PWD", "level": 9, "x": 1}}}, "forward.pseudonyms.x"),
    ],
)
def test_mistakes_are_found_by_the_check_and_by_the_run(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = write(tmp_path, **changes)
    for arguments in (("gateway", "--check", path), ("gateway", path)):
        call(*arguments).ended(2, words)
        assert [one.name for one in tmp_path.iterdir()] == ["gateway.yaml"]


def test_a_library_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, gone = importlib.import_module, "paho"

    def without(name: str, *more: Any) -> Any:
        if name.startswith(gone):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    call("gateway", write(tmp_path)).ended(2, "the gateway needs paho", "pip install 'quiltstream[mqtt]'")
    gone = "confluent"
    forward = FORWARD | {"to": {"kafka": {"servers": "h:1", "topic": "t"}}}
    call("gateway", write(tmp_path, forward=forward)).ended(2, "pip install 'quiltstream[kafka]'")
    gone = "nothing"
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    call("gateway", write(tmp_path, metrics={"port": 0})).ended(2, "install quiltstream[metrics]")


def test_the_editor_schema_contains_every_section_and_forbids_others() -> None:
    schema = json.loads(call("schema", "--gateway").ended(0).out)
    assert set(schema["properties"]) == {"mqtt", "forward", "metrics"}
    forms = [schema, *schema["$defs"].values()]
    assert all(form["additionalProperties"] is False for form in forms if form.get("type") == "object")


def test_counts_are_metrics_of_prometheus() -> None:
    exposition = pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
    counts = Counts({"received": 3, "dropped too-large": 2, "refused": 1})
    page = exposition.generate_latest(SimpleNamespace(collect=counts.collect)).decode()
    for line in (
        "# TYPE quiltstream_gateway_received_total counter",
        "quiltstream_gateway_received_total 3.0",
        'quiltstream_gateway_dropped_total{reason="too-large"} 2.0',
        "# TYPE quiltstream_gateway_refused gauge",
        "quiltstream_gateway_in_flight 0.0",
    ):
        assert line in page.splitlines(), page
    assert counts.line() == "received 3, dropped too-large 2, refused 1"


IMPORTS = """
import sys
from quiltstream.pipelines.cli import main
try:
    main(prog_name="quiltstream")
finally:
    print(sorted(name for name in ("apache_beam", "sqlalchemy", "confluent_kafka") if name in sys.modules))
"""


@pytest.mark.night
def test_a_gateway_imports_neither_beam_nor_the_store(tmp_path: Path) -> None:
    write(tmp_path)
    done = spawn("gateway", "--check", "gateway.yaml", cwd=tmp_path, program=IMPORTS).ended(0)
    assert done.out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.night),
        pytest.param(signal.SIGHUP, marks=pytest.mark.night),
    ],
)
def test_the_gateway_waits_for_an_unavailable_broker_and_ends_in_order_on_a_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        mqtt = MQTT | {"host": "127.0.0.1", "port": int(one.getsockname()[1])}
    path, log = write(tmp_path, mqtt=mqtt, metrics={"port": 0}), tmp_path / "log"
    command = [sys.executable, "-m", "quiltstream.pipelines.cli", "gateway", str(path)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    until = time.monotonic() + 60
    while "cannot be reached" not in (said := log.read_text(encoding="utf-8")):
        assert time.monotonic() < until, said
        time.sleep(0.05)
    address = said.partition("counts are at ")[2].split()[0]
    with urllib.request.urlopen(f"http://{address}", timeout=10) as page:
        assert "quiltstream_gateway_received_total 0.0" in page.read().decode()
    os.kill(process.pid, number)
    assert process.wait(30) == (130 if number == signal.SIGINT else 143)
    said = log.read_text(encoding="utf-8")
    assert f"{number.name}: stopping" in said
    assert "stopped: received 0" in said
