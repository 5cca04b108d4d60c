"""The shipped settings are taken by what they are for: quiltstream itself, and the real brokers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.pipelines.gateway.metrics import Tally
from quiltstream.schemas.settings.gateway import GatewaySettings
from quiltstream.schemas.settings.job import read_settings
from quiltstream.schemas.slots import parse_duration
from quiltstream.store.address import StoreAddress
from quiltstream.transforms.checks import check_hosts
from quiltstream.transforms.plan import make_plan
from quiltstream.transforms.registration import register

from ..e2e.installed import NotInstalledError
from ..e2e.kafka import find_kafka
from ..e2e.mosquitto import find_mosquitto
from ..e2e.processes import accepts, free_ports
from .conftest import REQUIRE
from .flink_files import FLINK, SECRETS, run, services, text, with_secrets_in
from .guide_calls import calls

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
    # of four meters the noise drowns the counts, as the guide says
    said = quiltstream("run", "--dry-run", "--live", "--accept-noise", str(file))
    assert "weekly-load" in said
    assert "without end" in said
    assert "windows.stop" not in said
    # that puts nothing on record; the first thing that a run does is this
    register(make_plan(read_settings(file)))
    shown = quiltstream("ledger", "show", str(file))
    assert "weekly-load" in shown
    assert "after 0 windows charged" in shown


def test_the_shipped_gateway_settings_are_valid(tmp_path: Path) -> None:
    file = with_secrets_in(SETTINGS / "gateway.yaml", tmp_path / "secrets")
    certificate(tmp_path / "secrets", "mosquitto")
    shutil.copy(tmp_path / "secrets" / "mqtt-ca.pem", tmp_path / "secrets" / "mqtt-ca")
    changed = text(file).replace("/var/lib/quiltstream", str(tmp_path))
    file.write_text(changed, encoding="utf-8")
    assert "meters/+/readings" in quiltstream("gateway", "--check", str(file))
    settings = GatewaySettings.read(file)
    assert settings.metrics is not None
    # where its container and Prometheus look for the counts
    port = settings.metrics.port
    assert f"http://127.0.0.1:{port}/metrics" in services()["gateway"]["healthcheck"]["test"][-1]
    assert Tally().prometheus().startswith("# HELP quiltstream_gateway_")


def test_a_path_that_the_gateway_writes_is_on_its_volume() -> None:
    written = re.findall(r"rejects: (/\S+)", text(SETTINGS / "gateway.yaml"))
    assert len(written) == 1
    assert "gateway:/var/lib/quiltstream" in services()["gateway"]["volumes"]
    assert all(path.startswith("/var/lib/quiltstream/") for path in written)
    assert not any(SECRETS in path for path in written)


def guide_commands() -> str:
    """The guide's commands that make the secrets."""
    page = text(FLINK.parents[1] / "docs" / "guides" / "operate-with-compose.md")
    block = page.split("it writes into the folder of the deployment -->\n```console\n")[1].split("```")[0]
    return re.sub(r"(?m)^[$>] ", "", block)


def certificate(folder: Path, name: str) -> None:
    """A CA and a broker's certificate in a folder, made by the guide's commands."""
    script = guide_commands().replace("mkdir -m 700 secrets\n", "").replace("secrets/", f"{folder}/")
    run(["bash", "-euc", script.replace("DNS:broker.example", f"DNS:{name}.example,DNS:localhost")])


@pytest.mark.night
def test_kafka_accepts_its_configuration(tmp_path: Path) -> None:
    try:
        jars = find_kafka()
    except NotInstalledError as error:
        if os.environ.get(REQUIRE):
            raise
        pytest.skip(str(error))
    shipped = text(FLINK / "kafka" / "server.properties")
    file = tmp_path / "server.properties"
    file.write_text(shipped.replace("/var/lib/kafka/data", f"{tmp_path}/data"), encoding="utf-8")
    identity = "MkU3OEVBNTcwNTJENDM2Qk"
    said = run(
        ["java", "-Xmx256m", "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(file)]
    )
    assert (tmp_path / "data" / "meta.properties").is_file(), said


def test_the_script_creates_each_topic_once_and_requires_a_broker_address(tmp_path: Path) -> None:
    fake = tmp_path / "kafka-topics.sh"
    fake.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/said\n', encoding="utf-8")
    fake.chmod(0o755)
    script = str(FLINK / "kafka" / "topics.sh")
    run(["bash", script, "kafka:9092"], env={"KAFKA_BIN": str(tmp_path)})
    lines = text(tmp_path / "said").splitlines()
    assert [re.findall(r"--topic (\S+)", line) for line in lines] == [["readings"], ["releases"], ["rejects"]]
    assert all("--bootstrap-server kafka:9092 --create --if-not-exists" in line for line in lines)
    assert "give HOST:PORT" in run(["bash", script], code=1)


def test_kafka_keeps_readings_for_two_windows_and_an_outage() -> None:
    """As docs/kafka.md asks: twice `windows.size`, and the longest outage that is to be survived: here one more."""
    days = parse_duration(read_settings(SETTINGS / "settings.yaml").windows.size) / parse_duration("1d")
    (topic,) = re.findall(
        r"^make readings .*--config retention\.ms=(\d+)$", text(FLINK / "kafka/topics.sh"), re.MULTILINE
    )
    (default,) = re.findall(r"^log\.retention\.ms=(\d+)$", text(FLINK / "kafka" / "server.properties"), re.MULTILINE)
    assert int(topic) == int(default) == 3 * days * 86_400_000
    guide = text(FLINK.parents[1] / "docs" / "guides" / "operate-with-compose.md")
    assert f"Kafka keeps readings for {3 * days:.0f} days" in guide


def test_settings_that_the_guide_proposes_make_a_live_job(tmp_path: Path) -> None:
    """The windows to try it with, as they stand there but for the day."""
    guide = text(FLINK.parents[1] / "docs" / "guides" / "operate-with-compose.md")
    (proposed,) = re.findall(r"`(windows: \{.*?\})`", guide)
    assert "TODAY" in proposed
    shutil.copy(SETTINGS / "roster.csv", tmp_path)
    file = with_secrets_in(SETTINGS / "settings.yaml", tmp_path / "secrets")
    shipped = re.sub(r"(?m)^windows: .*$", proposed.replace("TODAY", "2026-01-05"), text(file))
    file.write_text(re.sub(r"(?m)^ledger: .*$", "ledger: sqlite:///ledger.db", shipped), encoding="utf-8")
    assert "2026-01-05T00:00:00Z, without end" in quiltstream("run", "--dry-run", "--live", "--accept-noise", str(file))


@pytest.fixture
def broker(tmp_path: Path, tool: Callable[[str], str]) -> Iterator[tuple[Path, int]]:
    """A Mosquitto with what its container has, but for paths, ports and who it runs as."""
    program, passwords = find_mosquitto() or tool("mosquitto"), tool("mosquitto_passwd")
    folder = tmp_path / "secrets"
    folder.mkdir()
    certificate(folder, "broker")
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


def refused(user: str, folder: Path, port: int) -> bool:
    """Whether the broker refuses a user the password that it would have."""
    mqtt: Any = pytest.importorskip("paho.mqtt.client")
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, user, protocol=mqtt.MQTTv5)
    client.tls_set(str(folder / "mqtt-ca.pem"))
    client.username_pw_set(user, f"word-of-{user}")
    codes: list[str] = []
    client.on_connect = lambda _client, _data, _flags, code, _properties: codes.append(str(code))
    client.connect("localhost", port)
    client.loop_start()
    wait(lambda: bool(codes))
    client.disconnect()
    client.loop_stop()
    return codes[0] == "Not authorized"


def test_a_meter_added_later_can_sign_in_after_the_broker_reloads_its_files(
    broker: tuple[Path, int], tmp_path: Path, tool: Callable[[str], str]
) -> None:
    """With the guide's signal. The file stays the same one: a container has that one, whatever lies there later."""
    folder, port = broker
    (call,) = (call for call in calls("docker") if "kill" in call)
    assert call[-1] == "mosquitto"
    told = signal.Signals[f"SIG{call[call.index('--signal') + 1]}"]
    (added,) = {call[-1] for call in calls("docker") if "mosquitto_passwd" in call} - {
        "m1",
        "$(cat secrets/mqtt-gateway-password)",
    }
    before = Client("gateway", folder, port)
    before.subscribe("meters/+/readings")
    file = folder / "passwords"
    inode = file.stat().st_ino
    run([tool("mosquitto_passwd"), "-b", str(file), added, f"word-of-{added}"])
    assert file.stat().st_ino == inode
    assert refused(added, folder, port)
    os.kill(int(text(tmp_path / "pid")), told)
    wait(lambda: not refused(added, folder, port))
    later = Client(added, folder, port)
    assert later.publish(f"meters/{added}/readings") == "Success"
    # who was there stays: a client that had to come anew would have no subscription
    wait(lambda: bool(before.got))
    for client in (before, later):
        client.close()


def test_a_client_without_a_password_is_not_authorized(broker: tuple[Path, int]) -> None:
    script = (
        "import sys, paho.mqtt.client as m\n"
        "c = m.Client(m.CallbackAPIVersion.VERSION2, 'x', protocol=m.MQTTv5)\n"
        f"c.tls_set({str(broker[0] / 'mqtt-ca.pem')!r})\n"
        "c.on_connect = lambda c, d, f, code, p: (print(code), c.disconnect())\n"
        f"c.connect('localhost', {broker[1]})\nc.loop_forever()\n"
    )
    assert "Not authorized" in run([sys.executable, "-c", script])


def test_a_meter_publishes_with_the_command_of_the_guide(broker: tuple[Path, int], tool: Callable[[str], str]) -> None:
    """Mosquitto's own client, with the guide's words but for host, port and folder."""
    folder, port = broker
    replaced = {"broker.example": "localhost", "8883": str(port), "$M1_PASSWORD": "word-of-m1"}

    (call,) = calls("mosquitto_pub")
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
