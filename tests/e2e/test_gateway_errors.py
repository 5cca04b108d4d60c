"""What only an operator can mend ends the gateway with a message; names, passwords and topics are not in it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .gateway_job import GatewayProcess, Meters, records_of, tally_of, to_folder
from .mosquitto import MosquittoBroker

PASSWORD = "not-to-be-seen-anywhere"  # noqa: S105 - of the tests

Broker = Callable[..., MosquittoBroker]


@pytest.fixture
def broker(mosquitto_program: Path) -> Iterator[Broker]:
    """Starts brokers, and ends them with the test."""
    made: list[MosquittoBroker] = []

    def start(lines: dict[str, str] | None = None, listener: str = "") -> MosquittoBroker:
        made.append(MosquittoBroker(mosquitto_program, lines, listener))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def run() -> Iterator[Callable[..., GatewayProcess]]:
    """Starts gateways that may end by themselves."""
    made: list[GatewayProcess] = []

    def start(settings: dict[str, Any], files: dict[str, str] | None = None, ready: str = "") -> GatewayProcess:
        made.append(GatewayProcess(settings))
        for name, text in (files or {}).items():
            (made[-1].folder / name).write_text(text, encoding="utf-8")
        made[-1].start(ready)
        return made[-1]

    yield start
    for one in made:
        one.close()


def passwords(folder: Path, password: str = PASSWORD) -> dict[str, str]:
    """A user for the broker, and what each user may do."""
    file, rights = folder / "passwords", folder / "rights"
    subprocess.run(["mosquitto_passwd", "-b", "-c", file, "gateway", password], check=True, capture_output=True)
    rights.write_text("user gateway\ntopic read meters/#\ntopic write released/#\n", encoding="utf-8")
    file.chmod(0o600)
    return {"allow_anonymous": "false", "password_file": str(file), "acl_file": str(rights)}


def with_password(settings: dict[str, Any]) -> dict[str, Any]:
    settings["mqtt"] |= {"user": "gateway", "password": {"file": "secret"}}
    return settings


@pytest.mark.assures("privacy", "A password is in no log")
def test_the_right_password_connects_and_is_in_no_log(
    broker: Broker, run: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    one = broker(passwords(tmp_path))
    gateway = run(with_password(to_folder(one.port)), {"secret": f"{PASSWORD}\n"}, "subscribed to")
    assert gateway.stop() == 0
    assert PASSWORD not in gateway.log


def test_a_wrong_password_ends_the_gateway(broker: Broker, run: Callable[..., GatewayProcess], tmp_path: Path) -> None:
    one = broker(passwords(tmp_path))
    gateway = run(with_password(to_folder(one.port)), {"secret": "something-else"})
    assert gateway.ended() == 2
    assert "Error: MQTT broker 127.0.0.1" in gateway.log
    assert "look at mqtt.user and mqtt.password" in gateway.log or "not authorised" in gateway.log
    assert "something-else" not in gateway.log


def test_a_password_that_is_changed_under_a_running_gateway_is_read_anew(
    broker: Broker, run: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    one = broker(passwords(tmp_path))
    settings = with_password(to_folder(one.port))
    gateway = run(settings, {"secret": PASSWORD}, "subscribed to")
    passwords(tmp_path, "another-password")
    one.reload()
    gateway.wait_until("refused", lambda: gateway.metrics()["refused"] == 1)
    assert "which it did before: " in gateway.log
    (gateway.folder / "secret").write_text("another-password\n", encoding="utf-8")
    gateway.wait_until("taken", lambda: gateway.metrics()["refused"] == 0, 60)
    assert gateway.log.count("subscribed to") == 2
    assert gateway.stop() == 0
    assert "another-password" not in gateway.log


def test_a_prefix_that_may_not_be_written_to_ends_the_gateway(
    broker: Broker, run: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    one = broker(passwords(tmp_path))
    settings = with_password(to_folder(one.port))
    settings["back"] = {"from": {"folder": {"path": "."}}, "prefix": "elsewhere"}
    row = '{"release_id": "r1", "query": "q", "key": "k", "window_stop": "2013-01-08T00:00:00Z"}\n'
    gateway = run(settings, {"secret": PASSWORD, "rows.jsonl": row})
    assert gateway.ended() == 2
    assert "does not take a message (Not authorized): not authorised; give this user the right" in gateway.log


def test_two_gateways_with_one_client_id_report_that_the_id_may_be_in_use(
    broker: Broker, run: Callable[..., GatewayProcess]
) -> None:
    """A broker that says why it ends the connection ends the gateway; Mosquitto 2.0 says nothing."""
    one = broker()
    both = [run(to_folder(one.port), ready="subscribed to") for _ in range(2)]
    told = "does another client use 'gateway-1'?"
    both[0].wait_until("told", lambda: any(told in gateway.log for gateway in both), 60)


def certificates(folder: Path) -> None:
    """An authority, certificates of it for localhost and for a gateway, and one of a stranger."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=tests", "-days", "2")
    for name, of, extension in (
        ("broker", "localhost", "subjectAltName=DNS:localhost"),
        ("client", "gateway", "extendedKeyUsage=clientAuth"),
    ):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={of}")
        (folder / f"{name}.names").write_text(f"{extension}\n", encoding="ascii")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.names", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    openssl("req", "-x509", *new, "-keyout", "other.key", "-out", "other.pem", "-subj", "/CN=other", "-days", "2")


def listener(folder: Path) -> str:
    return f"cafile {folder / 'ca.pem'}\ncertfile {folder / 'broker.pem'}\nkeyfile {folder / 'broker.key'}"


def test_messages_arrive_by_tls_and_an_untrusted_certificate_ends_the_gateway(
    broker: Broker, run: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    certificates(tmp_path)
    one = broker(listener=listener(tmp_path))
    settings = to_folder(one.port)
    settings["mqtt"] |= {"host": "localhost", "tls": {"ca": str(tmp_path / "ca.pem")}}
    gateway = run(settings, ready="subscribed to")
    Meters(one.port, range(3_000), ca=tmp_path / "ca.pem").join()
    gateway.wait_until("all acknowledged", lambda: gateway.metrics()["acknowledged_total"] == 3_000)
    assert gateway.stop() == 0
    assert tally_of(records_of(gateway.folder / "spool")) == dict.fromkeys(range(3_000), 1)

    settings["mqtt"]["tls"] = {"ca": str(tmp_path / "other.pem")}
    stranger = run(settings)
    assert stranger.ended() == 2
    assert "its certificate is not accepted" in stranger.log

    settings["mqtt"] |= {"tls": {"ca": str(tmp_path / "ca.pem")}, "host": "127.0.0.1"}
    misnamed = run(settings)
    assert misnamed.ended() == 2
    assert "its certificate is not accepted" in misnamed.log


@pytest.mark.parametrize("key", ["beside", "inside"])
def test_a_gateway_with_a_client_certificate_is_accepted_where_one_is_required(
    broker: Broker, run: Callable[..., GatewayProcess], tmp_path: Path, key: str
) -> None:
    certificates(tmp_path)
    one = broker({"require_certificate": "true"}, listener=listener(tmp_path))
    own = {"cert": str(tmp_path / "client.pem"), "key": str(tmp_path / "client.key")}
    if key == "inside":
        both = tmp_path / "both.pem"
        both.write_bytes((tmp_path / "client.pem").read_bytes() + (tmp_path / "client.key").read_bytes())
        own = {"cert": str(both)}
    settings = to_folder(one.port)
    settings["mqtt"] |= {"host": "localhost", "tls": {"ca": str(tmp_path / "ca.pem"), **own}}
    gateway = run(settings, ready="subscribed to")
    Meters(one.port, range(100), ca=tmp_path / "ca.pem", own=(tmp_path / "client.pem", tmp_path / "client.key")).join()
    gateway.wait_until("all acknowledged", lambda: gateway.metrics()["acknowledged_total"] == 100)
    assert gateway.stop() == 0
    assert tally_of(records_of(gateway.folder / "spool")) == dict.fromkeys(range(100), 1)


@pytest.mark.parametrize("own", [None, "other"])
def test_a_gateway_without_a_required_certificate_names_the_setting_to_check(
    broker: Broker, run: Callable[..., GatewayProcess], tmp_path: Path, own: str | None
) -> None:
    """It tries on: what the broker does to it cannot be told from what one does that is about to stop."""
    certificates(tmp_path)
    one = broker({"require_certificate": "true"}, listener=listener(tmp_path))
    settings = to_folder(one.port)
    settings["mqtt"] |= {"host": "localhost", "tls": {"ca": str(tmp_path / "ca.pem")}}
    if own is not None:
        settings["mqtt"]["tls"] |= {"cert": str(tmp_path / f"{own}.pem"), "key": str(tmp_path / f"{own}.key")}
    gateway = run(settings)
    said = "ended the connection before it was set up: does it want a certificate, or another one, as mqtt.tls.cert?"
    gateway.wait_until("told", lambda: said in gateway.log)
    assert "connected" not in gateway.log


def test_tls_to_a_broker_without_it_and_the_reverse_end_the_gateway_with_the_setting(
    broker: Broker, run: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    one = broker()
    settings = to_folder(one.port)
    settings["mqtt"]["tls"] = {}
    gateway = run(settings)
    assert gateway.ended() == 2
    assert "speaks without TLS, and mqtt.tls is set; leave mqtt.tls out" in gateway.log
    certificates(tmp_path)
    encrypted = broker(listener=listener(tmp_path))
    gateway = run(to_folder(encrypted.port))
    assert gateway.ended() == 2
    assert "speaks TLS, and mqtt.tls is left out; set mqtt.tls" in gateway.log


def test_two_gateways_cannot_write_to_one_folder(broker: Broker, run: Callable[..., GatewayProcess]) -> None:
    one = broker()
    first = run(to_folder(one.port), ready="subscribed to")
    settings = to_folder(one.port)
    settings["mqtt"]["client_id"] = "gateway-2"
    settings["forward"]["to"]["folder"]["path"] = str(first.folder / "spool")
    second = run(settings)
    assert second.ended() == 2
    assert "another gateway writes to it" in second.log
    assert first.stop() == 0
