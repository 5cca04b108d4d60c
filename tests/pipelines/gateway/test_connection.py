"""Logins, certificates and refusals; connections are tried at real brokers in the end-to-end tests."""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway.connection import (
    Action,
    BrokerError,
    Connection,
    Ending,
    Login,
    Session,
    State,
    next_state,
)
from quiltstream.pipelines.gateway.run import options_of, secret_of, tls_context
from quiltstream.schemas.settings.gateway import Tls
from quiltstream.schemas.settings.secrets import FromEnvironment, FromFile

from ...e2e.certificates import make_certificates
from .blunt_broker import CONNACK, CONNECT, SUBACK, SUBSCRIBE, BluntBroker, ThreadedBroker, packet, packets

pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")


def place(tmp_path: Path) -> Any:
    return lambda text: tmp_path / text


def test_a_secret_is_read_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "one")
    (tmp_path / "secret").write_text("two\n", encoding="utf-8")
    assert secret_of("mqtt.password", FromEnvironment(env="GATEWAY_SECRET"), place(tmp_path)) == "one"
    assert secret_of("mqtt.password", FromFile(file="secret"), place(tmp_path)) == "two"
    options = {"sasl.username": "u", "sasl.password": FromFile(file="secret")}
    assert options_of("x", options, place(tmp_path)) == {"sasl.username": "u", "sasl.password": "two"}


def test_a_missing_secret_is_reported_by_its_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEWAY_SECRET", raising=False)
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    for secret in (FromEnvironment(env="GATEWAY_SECRET"), FromFile(file="none"), FromFile(file="empty")):
        with pytest.raises(CommandError, match=r"^mqtt\.password: "):
            secret_of("mqtt.password", secret, place(tmp_path))


def test_invalid_certificates_are_reported_by_their_setting(tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("no certificate", encoding="ascii")
    with pytest.raises(CommandError, match=r"mqtt\.tls\.ca: the file none\.pem cannot be read"):
        tls_context(Tls(ca="none.pem"), place(tmp_path))
    with pytest.raises(CommandError, match=r"mqtt\.tls\.ca: text\.pem holds no certificate"):
        tls_context(Tls(ca="text.pem"), place(tmp_path))
    with pytest.raises(CommandError, match=r"mqtt\.tls: text\.pem and the key in it are no certificate"):
        tls_context(Tls(cert="text.pem"), place(tmp_path))


def test_certificate_and_name_of_the_broker_are_always_checked(tmp_path: Path) -> None:
    context = tls_context(Tls(), place(tmp_path))
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_session_does_not_show_its_password() -> None:
    assert "hunter2" not in repr(Session("h", 1, "c", user="u", password="hunter2"))  # noqa: S106 - of the test


def turn_until(connection: Connection, true: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until
        connection.turn(0.01)


def test_a_broker_that_is_away_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        connection = Connection(Session("127.0.0.1", int(one.getsockname()[1]), "c"))
        turn_until(connection, lambda: caplog.text.count("cannot be reached (Connection refused); trying again in") > 1)
    connection.close()


NEVER = Ending()
SOON = Ending(connected=True, ready=True, seconds=1.0)
BROKEN = replace(SOON, unreadable=True)


@pytest.mark.parametrize(
    ("state", "ending", "after", "action"),
    [
        # a broker that is away, one that ends connections at once, and one that ended a long one
        (State(), NEVER, State(), Action.RETRY),
        (State(short=2), SOON, State(short=3), Action.RETRY),
        (State(short=2), NEVER, State(short=2), Action.RETRY),
        (State(short=2), Ending(connected=True), State(short=2), Action.RETRY),
        (State(short=2), replace(SOON, seconds=5.0), State(), Action.RETRY),
        # a message that the library refuses comes by MQTT 3.1.1, and that stays until it is left on purpose
        (State(), BROKEN, State(plain=True, short=1, unreadable=1), Action.PLAIN),
        (State(plain=True, unreadable=1), SOON, State(plain=True, short=1), Action.RETRY),
        (State(plain=True, unreadable=1), BROKEN, State(plain=True, short=1, unreadable=2), Action.RETRY),
        # a broker that does not take MQTT 3.1.1, whether it says so or sends what cannot be read
        (State(plain=True, unreadable=1), NEVER, State(unreadable=1), Action.RETRY),
        (State(plain=True, unreadable=1), Ending(unreadable=True), State(unreadable=2), Action.RETRY),
        # what was never a broker
        (State(), Ending(unreadable=True), State(plain=True, unreadable=1), Action.RETRY),
        (State(unreadable=4), Ending(unreadable=True), State(plain=True, unreadable=5), Action.GIVE_UP),
        # the same soon and after a calm connection
        (State(unreadable=4), BROKEN, State(plain=True, short=1, unreadable=5), Action.GIVE_UP),
        (State(unreadable=4), replace(BROKEN, seconds=600.0), State(plain=True, unreadable=1), Action.PLAIN),
        (State(unreadable=4), Ending(connected=True), State(), Action.RETRY),
    ],
)
def test_what_follows_a_connection(state: State, ending: Ending, after: State, action: Action) -> None:
    assert next_state(state, ending) == (after, action)


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        (lambda: BluntBroker([packet(0xE0, b"\x8e\0")]), "ended the connection.*give each gateway its own"),
        *(
            (lambda code=code: BluntBroker([], instead=packet(CONNACK, bytes([0, code, 0]))), "does not take the conn")
            for code in (0x84, 0x85, 0x86, 0x87, 0x8C)
        ),
    ],
)
def test_a_refusal_that_stays_ends_the_gateway(broker: Callable[[], BluntBroker], said: str) -> None:
    one = broker()
    connection = Connection(Session("127.0.0.1", one.port, "c", filters=("#",)))
    with pytest.raises(BrokerError, match=said):
        turn_until(connection, lambda: False)
    one.close()


class PasswordBroker(ThreadedBroker):
    """The broker authorises clients with the password that it was given, and refuses all others.

    Attributes:
        password: what it takes.
    """

    def __init__(self) -> None:
        self.password = b"old"
        self._peers: list[socket.socket] = []
        super().__init__()

    def talk(self, peer: socket.socket) -> None:
        for first, body in packets(peer):
            kind = first[0] & 0xF0
            if kind == CONNECT:
                told = body.endswith(self.password)
                if told:
                    self._peers.append(peer)
                peer.sendall(packet(CONNACK, bytes([0, 0 if told else 0x87, 0])))
                if not told:
                    return
            elif kind == SUBSCRIBE:
                peer.sendall(packet(SUBACK, body[:2] + b"\0\1"))

    def change(self, password: bytes) -> None:
        """Take another password, and end the connection of who had the old one, as Mosquitto does."""
        self.password = password
        self._peers[-1].sendall(packet(0xE0, b"\x87\0"))
        self._peers[-1].shutdown(socket.SHUT_RDWR)


def test_a_password_that_is_changed_while_the_gateway_runs_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "quiltstream.gateway")
    broker, secrets = PasswordBroker(), ["old"]

    def login() -> Login:
        if not secrets:
            raise CommandError("mqtt.password: the file is not there")
        return Login("gateway", secrets[-1], None)

    session = Session("127.0.0.1", broker.port, "c", user="gateway", password="old", filters=("m/+",), login=login)  # noqa: S106 - of the test
    connection = Connection(session)
    turn_until(connection, lambda: connection.ready)
    broker.change(b"new")
    secrets.clear()
    turn_until(connection, lambda: caplog.text.count("does not take the connection") > 2)
    assert "ended the connection (Not authorized), which it did before: not authorised; give this user" in caplog.text
    assert "mqtt.password: the file is not there; what was read before is used" in caplog.text
    assert connection.refused
    secrets.append("new")
    turn_until(connection, lambda: connection.ready)
    assert not connection.refused
    assert connection.epoch == 2
    connection.close()
    broker.close()


class SecureBroker(ThreadedBroker):
    """Takes every connection, by TLS."""

    def __init__(self, folder: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "broker.pem", folder / "broker.key")
        self._peers: list[socket.socket] = []
        super().__init__()

    def talk(self, peer: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(peer, server_side=True) as secure:
            self._peers.append(secure)
            for first, _ in packets(secure):
                if first[0] & 0xF0 == CONNECT:
                    secure.sendall(packet(CONNACK, bytes(3)))

    def hang_up(self) -> None:
        """End the connection."""
        self._peers[-1].shutdown(socket.SHUT_RDWR)


# the library leaves the socket of a handshake that failed to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_certificates_are_read_anew_and_a_refused_one_is_waited_for_after_a_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    caplog.set_level("WARNING", "quiltstream.gateway")
    make_certificates(tmp_path, "gateway")
    broker, authority = SecureBroker(tmp_path), ["ca.pem"]

    def login() -> Login:
        return Login(None, None, tls_context(Tls(ca=authority[-1]), place(tmp_path)))

    session = Session("127.0.0.1", broker.port, "c", tls=login().tls, login=login)
    connection = Connection(session)
    turn_until(connection, lambda: connection.ready)
    # a file that is just being written leaves what was read before
    authority.append("none.pem")
    broker.hang_up()
    turn_until(connection, lambda: connection.epoch == 2)
    assert "mqtt.tls.ca: the file none.pem cannot be read; what was read before is used" in caplog.text
    authority.append("other.pem")
    broker.hang_up()
    turn_until(connection, lambda: connection.refused)
    assert "its certificate is not accepted" in caplog.text
    assert "and it could be before; look at mqtt.tls.ca" in caplog.text
    stranger = Connection(replace(session, tls=login().tls, login=None))
    with pytest.raises(BrokerError, match="its certificate is not accepted"):
        turn_until(stranger, lambda: False)
    authority.append("ca.pem")
    turn_until(connection, lambda: connection.ready)
    assert not connection.refused
    connection.close()
    broker.close()
