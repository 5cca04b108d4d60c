"""``quiltstream gateway``: what --check says, and what it finds before anything is connected."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.pipelines.gateway.connection import paho
from quiltstream.pipelines.gateway.delivery import kafka

from ..jobs import call, spawn

pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")

BASIC: dict[str, Any] = {
    "mqtt": {"host": "localhost", "client_id": "g1"},
    "forward": {"topics": ["meters/#"], "to": {"folder": {"path": "spool"}}},
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(BASIC | changes), encoding="utf-8")
    return path


def test_a_check_describes_the_gateway_settings_and_changes_nothing(tmp_path: Path) -> None:
    done = call("gateway", "--check", write(tmp_path, metrics={"port": 9464})).ended(0)
    for words in (
        "localhost:1883 without TLS, as nobody",
        "meters/#, in session 'g1'",
        "9464",
    ):
        assert done.said(words), words
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.yaml"]


def test_an_unencrypted_password_on_the_network_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "hunter2")
    mqtt = {"host": "broker.example", "client_id": "g", "user": "u", "password": {"env": "GATEWAY_SECRET"}}
    done = call("gateway", "--check", write(tmp_path, mqtt=mqtt))
    assert done.said("the password goes over the network unencrypted; set mqtt.tls")
    assert "hunter2" not in done.out + done.err
    assert not call("gateway", "--check", write(tmp_path, mqtt=mqtt | {"host": "localhost"})).said("over the network")
    hidden = call("gateway", "--check", write(tmp_path, mqtt=mqtt | {"user": {"env": "GATEWAY_SECRET"}}))
    assert hidden.said("as a user")
    assert "hunter2" not in hidden.out + hidden.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mqtt": {"host": "h"}}, "mqtt.client_id is missing"),
        (
            {"mqtt": {"host": "h", "client_id": "c", "user": "u", "password": {"env": "NO_SUCH_VARIABLE"}}},
            "mqtt.password: the environment variable NO_SUCH_VARIABLE is not set",
        ),
        ({"mqtt": {"host": "h", "client_id": "c", "tls": {"ca": "none"}}}, "mqtt.tls.ca: the file none cannot be read"),
        ({"forward": BASIC["forward"] | {"rejects": "gateway.yaml/x"}}, "forward.rejects: "),
        ({"forward": {"topics": ["a"], "to": {"folder": {"path": "gateway.yaml/x"}}}}, "forward.to.folder: "),
        # as within a folder that is closed to this user: what is there cannot be found out
        ({"forward": {"topics": ["a"], "to": {"folder": {"path": "x" * 256}}}}, "forward.to.folder: "),
        ({"back": {"prefix": "p"}}, "back is gone: released rows are read from the job's sink"),
    ],
)
def test_mistakes_are_found_by_the_check_and_by_the_run(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = write(tmp_path, **changes)
    for arguments in (("gateway", "--check", path), ("gateway", path)):
        done = call(*arguments).ended(2)
        assert words in done.err
        assert [one.name for one in tmp_path.iterdir()] == ["gateway.yaml"]


@pytest.mark.parametrize(("field", "other"), [("password", {"user": "u"}), ("user", {})])
def test_a_login_longer_than_mqtt_allows_is_found_by_the_check(
    tmp_path: Path, field: str, other: dict[str, str]
) -> None:
    secret = tmp_path / "secret"
    path = write(tmp_path, mqtt={"host": "h", "client_id": "c", field: {"file": "secret"}} | other)
    secret.write_text("x" * 65_535, encoding="ascii")
    call("gateway", "--check", path).ended(0)
    secret.write_text("x" * 65_536, encoding="ascii")
    for arguments in (("gateway", "--check", path), ("gateway", path)):
        done = call(*arguments).ended(2)
        assert f"mqtt.{field}: it has 65,536 bytes, and MQTT allows 65,535" in done.err
        assert "xxx" not in done.err


def test_a_secret_in_another_encoding_is_found_by_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", os.fsdecode(b"caf\xe9"))
    path = write(tmp_path, mqtt={"host": "h", "client_id": "c", "user": "u", "password": {"env": "GATEWAY_SECRET"}})
    assert "mqtt.password: the secret is no text in UTF-8" in call("gateway", "--check", path).ended(2).err


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, *more: Any) -> Any:
        if name.startswith(("paho", "confluent")):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(Exception, match=r"the gateway needs paho, .*pip install 'quiltstream\[mqtt\]'"):
        paho()
    with pytest.raises(Exception, match=r"the gateway needs confluent_kafka, .*pip install 'quiltstream\[kafka\]'"):
        kafka()


def test_the_editor_schema_contains_every_section_and_forbids_others() -> None:
    done = call("schema", "--gateway").ended(0)
    schema = json.loads(done.out)
    assert set(schema["properties"]) == {"mqtt", "forward", "metrics", "stop"}
    forms = [schema, *schema["$defs"].values()]
    assert all(form["additionalProperties"] is False for form in forms if form.get("type") == "object")


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


@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_gateway_waits_for_an_unavailable_broker_and_ends_on_a_signal_with_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    path = write(tmp_path, mqtt={"host": "127.0.0.1", "port": port, "client_id": "g"})
    command = [sys.executable, "-m", "quiltstream.pipelines.cli", "gateway", str(path)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    until = time.monotonic() + 60
    while "cannot be reached" not in (said := (tmp_path / "log").read_text(encoding="utf-8")):
        assert time.monotonic() < until, said
        time.sleep(0.05)
    os.kill(process.pid, number)
    assert process.wait(30) == 0
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert f"{number.name}: stopping" in said
    assert "stopped: received 0" in said


def test_an_unexpected_error_ends_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quiltstream.pipelines.gateway import run  # noqa: PLC0415 - patched here

    def broken(*_: object, **__: object) -> None:
        raise ValueError("something unexpected")

    monkeypatch.setattr(run, "Connection", broken)
    with pytest.raises(ValueError, match="something unexpected"):
        run.run_gateway(write(tmp_path))
