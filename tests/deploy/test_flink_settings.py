"""The shipped settings are taken by what they are for: quiltstream itself, and the real brokers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.schemas.settings.gateway import GatewaySettings
from quiltstream.schemas.settings.job import read_settings
from quiltstream.store.address import StoreAddress
from quiltstream.transforms.checks import check_hosts
from quiltstream.transforms.plan import make_plan
from quiltstream.transforms.registration import register

from ..e2e.kafka import find_kafka
from ..e2e.mosquitto import find_mosquitto
from ..e2e.processes import accepts, free_ports
from .conftest import there
from .flink_files import FLINK, calls, guide_commands, run, services, text, with_secrets_in

SETTINGS = FLINK / "settings"


def quiltstream(*words: str) -> str:
    """What a command says; it must end well."""
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_the_shipped_job_can_be_run_as_it_is(tmp_path: Path) -> None:
    shutil.copy(SETTINGS / "roster.csv", tmp_path)
    file = with_secrets_in(SETTINGS / "settings.yaml", tmp_path / "secrets")
    settings = read_settings(file)
    assert settings.windows.start is not None  # what a live job needs
    ledger = settings.ledger_url
    assert ledger.startswith("postgresql+psycopg://")  # and one on a cluster
    check_hosts("PortableRunner", StoreAddress(ledger))
    assert StoreAddress(ledger).resolve().password == "a-word-for-a-test"  # noqa: S105 - of this test alone
    # a forecast asks the ledger what is on record, and there is no server here
    here = text(file).replace(re.findall(r"^ledger: +(.+)$", text(file), re.MULTILINE)[0], "sqlite:///ledger.db")
    file.write_text(here, encoding="utf-8")
    said = quiltstream("run", "--dry-run", "--live", str(file))
    assert "weekly-load" in said
    assert "without end" in said
    assert "windows.stop" not in said
    # that puts nothing on record; the first thing that a run does is this
    register(make_plan(read_settings(file)))
    shown = quiltstream("ledger", "show", str(file))
    assert "weekly-load" in shown
    assert "after 0 windows charged" in shown


@pytest.mark.night
def test_the_shipped_gateway_settings_are_valid(tmp_path: Path, tool: Callable[[str], str]) -> None:
    file = with_secrets_in(SETTINGS / "gateway.yaml", tmp_path / "secrets")
    certificate(tmp_path / "secrets", "mosquitto", tool)
    shutil.copy(tmp_path / "secrets" / "mqtt-ca.pem", tmp_path / "secrets" / "mqtt-ca")
    changed = text(file).replace("/var/lib/quiltstream", str(tmp_path))
    file.write_text(changed, encoding="utf-8")
    assert "meters/+/readings" in quiltstream("gateway", "--check", str(file))
    settings = GatewaySettings.read(file)
    assert settings.metrics is not None
    # where its container and Prometheus look for the counts
    port = settings.metrics.port
    assert f"http://127.0.0.1:{port}/metrics" in services()["gateway"]["healthcheck"]["test"][-1]


def certificate(folder: Path, name: str, tool: Callable[[str], str]) -> None:
    """A CA and a broker's certificate in a folder, made by the guide's commands."""
    tool("openssl")
    script = guide_commands().replace("mkdir -m 700 secrets\n", "").replace("secrets/", f"{folder}/")
    run(["bash", "-euc", script.replace("DNS:broker.example", f"DNS:{name}.example,DNS:localhost")])


@pytest.mark.night
def test_kafka_accepts_its_configuration(tmp_path: Path, tool: Callable[[str], str]) -> None:
    jars, java = there(find_kafka), tool("java")
    shipped = text(FLINK / "kafka" / "server.properties")
    file = tmp_path / "server.properties"
    file.write_text(shipped.replace("/var/lib/kafka/data", f"{tmp_path}/data"), encoding="utf-8")
    identity = "MkU3OEVBNTcwNTJENDM2Qk"
    said = run(
        [java, "-Xmx256m", "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(file)]
    )
    assert (tmp_path / "data" / "meta.properties").is_file(), said


@pytest.fixture
def broker(tmp_path: Path, tool: Callable[[str], str]) -> Iterator[tuple[Path, int]]:
    """A Mosquitto with what its container has, but for paths, ports and who it runs as."""
    program, passwords = there(find_mosquitto), tool("mosquitto_passwd")
    folder = tmp_path / "secrets"
    folder.mkdir()
    certificate(folder, "broker", tool)
    plain, secure = free_ports(2)
    whole = text(FLINK.parent / "mqtt" / "mosquitto.conf") + text(FLINK / "mosquitto" / "listener.conf")
    for shipped, ours in {
        "listener 1883 127.0.0.1": f"listener {plain} 127.0.0.1",
        "\nlistener 8883\n": f"\nlistener {secure} 127.0.0.1\n",
        "/etc/mosquitto/broker.pem\n": f"{folder}/mqtt-certificate.pem\n",
        "/etc/mosquitto/broker.key\n": f"{folder}/mqtt-key.pem\n",
        "\npassword_file /etc/mosquitto/passwords": f"\npassword_file {folder}/passwords",
        "/etc/mosquitto/acl": f"{FLINK}/mosquitto/acl",
        "/var/lib/mosquitto/": f"{tmp_path}/",
    }.items():
        assert shipped in whole, shipped
        whole = whole.replace(shipped, ours)
    (folder / "passwords").touch(mode=0o600)
    for user in ("gateway", "m1", "m2"):
        run([passwords, "-b", str(folder / "passwords"), user, f"word-of-{user}"])
    if os.geteuid() == 0:
        whole += "\nuser root\n"
    (tmp_path / "mosquitto.conf").write_text(whole, encoding="utf-8")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([program, "-c", tmp_path / "mosquitto.conf"], stdout=log, stderr=log)
    (tmp_path / "pid").write_text(str(process.pid), encoding="ascii")
    deadline = time.monotonic() + 20
    while not accepts(secure):
        assert process.poll() is None, text(tmp_path / "log")
        assert time.monotonic() < deadline, text(tmp_path / "log")
        time.sleep(0.05)
    yield folder, secure
    process.terminate()
    process.wait(30)


class Client:
    """A client of MQTT 5 that remembers what it got."""

    def __init__(self, user: str, folder: Path, port: int, name: str = "") -> None:
        mqtt: Any = pytest.importorskip("paho.mqtt.client")
        self.got: list[tuple[str, bytes]] = []
        self.codes: list[str] = []
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name or user, protocol=mqtt.MQTTv5)
        self._client.tls_set(str(folder / "mqtt-ca.pem"))
        self._client.username_pw_set(user, f"word-of-{user}")
        self._client.on_message = lambda _client, _data, message: self.got.append((message.topic, message.payload))
        self._client.on_publish = lambda _c, _d, _mid, code, _p: self.codes.append(str(code))
        self._subscribed: list[str] = []
        self._client.on_subscribe = lambda _c, _d, _mid, codes, _p: self._subscribed.extend(map(str, codes))
        connected: list[str] = []
        self._client.on_connect = lambda _c, _d, _flags, code, _p: connected.append(str(code))
        self._client.connect("localhost", port)
        self._client.loop_start()
        wait(lambda: bool(connected))
        assert connected == ["Success"]

    def subscribe(self, *topics: str) -> None:
        self._client.subscribe([(topic, 1) for topic in topics])
        wait(lambda: len(self._subscribed) == len(topics))

    def publish(self, topic: str) -> str:
        """The broker's answer."""
        before = len(self.codes)
        self._client.publish(topic, b"{}", qos=1)
        wait(lambda: len(self.codes) > before)
        return self.codes[-1]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        del self._client  # it closes its sockets when nobody holds it, and its callbacks hold us


def wait(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "nothing came within 20 s"
        time.sleep(0.02)


@pytest.mark.night
def test_only_the_gateway_may_read_meter_topics(broker: tuple[Path, int]) -> None:
    """A meter publishes its own readings only, and reads nothing; the gateway reads, and publishes nothing.

    Mosquitto 2.0.11 ends a connection over which it was sent what it does not allow, if `max_queued_messages` is 0: so
    each of these has a connection of its own.
    """
    clients = {name: Client(name, *broker) for name in ("gateway", "m1", "m2")}
    clients["gateway"].subscribe("meters/+/readings")
    for name in ("m1", "m2"):
        clients[name].subscribe("meters/+/readings", "meters/#", "#")
    for number, (user, topic) in enumerate(
        [
            ("m1", "meters/m2/readings"),
            ("m1", "meters/m1/other"),
            ("gateway", "meters/m1/readings"),
        ]
    ):
        offender = Client(user, *broker, f"offender-{number}")
        assert offender.publish(topic) == "Not authorized"
        offender.close()
    assert clients["m1"].publish("meters/m1/readings") == "Success"
    wait(lambda: bool(clients["gateway"].got))
    for client in clients.values():
        client.close()
    assert clients["gateway"].got == [("meters/m1/readings", b"{}")]
    assert clients["m1"].got == clients["m2"].got == []


@pytest.mark.night
def test_a_meter_publishes_with_the_command_of_the_guide(broker: tuple[Path, int], tool: Callable[[str], str]) -> None:
    """Mosquitto's own client, with the guide's words but for host, port and folder."""
    folder, port = broker
    replaced = {"broker.example": "localhost", "8883": str(port), "$M1_PASSWORD": "word-of-m1"}

    (call,) = calls("operate-with-compose", "mosquitto_pub")
    assert set(replaced) < set(call)
    ours = [replaced.get(word, word.replace("secrets/", f"{folder}/")) for word in call[1:]]
    publish = [tool("mosquitto_pub"), *ours]
    gateway = Client("gateway", *broker)
    gateway.subscribe("meters/+/readings")
    assert run(publish) == ""
    wait(lambda: bool(gateway.got))
    topic, message = publish[publish.index("-t") + 1], publish[publish.index("-m") + 1]
    assert gateway.got == [(topic, message.encode())]
    gateway.close()
