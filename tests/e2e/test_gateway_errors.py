"""What only an operator can mend ends the gateway with a message; names, passwords and topics are not in it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .certificates import make_certificates
from .gateway_job import Meters, Start, records_of, tally_of, to_folder
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


def passwords(folder: Path, password: str = PASSWORD) -> dict[str, str]:
    """A user for the broker, and what each user may do."""
    file, rights = folder / "passwords", folder / "rights"
    subprocess.run(["mosquitto_passwd", "-b", "-c", file, "gateway", password], check=True, capture_output=True)
    rights.write_text("user gateway\ntopic read meters/#\n", encoding="utf-8")
    file.chmod(0o600)
    return {"allow_anonymous": "false", "password_file": str(file), "acl_file": str(rights)}


def with_password(settings: dict[str, Any]) -> dict[str, Any]:
    settings["mqtt"] |= {"user": "gateway", "password": {"file": "secret"}}
    return settings


def test_a_wrong_password_ends_the_gateway_and_a_changed_one_is_read_anew(
    broker: Broker, start_gateway: Start, tmp_path: Path
) -> None:
    one = broker(passwords(tmp_path))
    settings = with_password(to_folder(one.port))
    refused = start_gateway(settings, "", {"secret": "something-else"})
    assert refused.ended() == 2
    assert "Error: MQTT broker 127.0.0.1" in refused.log
    assert "look at mqtt in the settings" in refused.log
    gateway = start_gateway(settings, files={"secret": f"{PASSWORD}\n"})
    passwords(tmp_path, "another-password")
    one.reload()
    gateway.wait_until("refused", lambda: gateway.metrics()["refused"] == 1)
    (gateway.folder / "secret").write_text("another-password\n", encoding="utf-8")
    gateway.wait_until("taken", lambda: gateway.metrics()["refused"] == 0, 60)
    assert gateway.log.count("subscribed to") == 2
    assert gateway.metrics()["reconnects_total"] == 1
    assert gateway.stop() == 0
    assert not [one for one in (PASSWORD, "something-else", "another-password") if one in gateway.log + refused.log]


def test_by_tls_each_side_is_trusted_by_its_certificate_or_the_setting_is_named(
    broker: Broker, start_gateway: Start, tmp_path: Path
) -> None:
    make_certificates(tmp_path, "gateway")
    ca, own, key = (str(tmp_path / name) for name in ("ca.pem", "client.pem", "client.key"))
    mine = f"cafile {ca}\ncertfile {tmp_path / 'broker.pem'}\nkeyfile {tmp_path / 'broker.key'}"
    one = broker({"require_certificate": "true"}, listener=mine)
    settings = to_folder(one.port)
    settings["mqtt"] |= {"host": "localhost", "tls": {"ca": str(tmp_path / "other.pem")}}
    stranger = start_gateway(settings, "")
    assert stranger.ended() == 2
    assert "certificate verify failed" in stranger.log
    # it tries on: what the broker does to it cannot be told from what one does that is about to stop
    settings["mqtt"]["tls"] = {"ca": ca}
    refused = start_gateway(settings, "")
    refused.wait_until("told", lambda: "does it want TLS, or a certificate?" in refused.log)
    assert "connected to" not in refused.log
    settings["mqtt"]["tls"] |= {"cert": own, "key": key}
    gateway = start_gateway(settings)
    Meters(one.port, range(3_000), ca=tmp_path / "ca.pem", own=(Path(own), Path(key))).join()
    gateway.wait_until("all acknowledged", lambda: gateway.metrics()["acknowledged_total"] == 3_000)
    assert gateway.stop() == 0
    assert tally_of(records_of(gateway.folder / "spool")) == dict.fromkeys(range(3_000), 1)
