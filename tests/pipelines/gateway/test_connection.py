"""Waiting, reasons, secrets and certificates; connections are tried at real brokers in the end-to-end tests."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway.connection import (
    FAILURE,
    Action,
    Backoff,
    BrokerError,
    Connection,
    Ending,
    Login,
    Session,
    State,
    lasting,
    next_state,
)
from quiltstream.pipelines.gateway.run import options_of, secret_of, tls_context
from quiltstream.schemas.settings.gateway import Tls
from quiltstream.schemas.settings.secrets import FromEnvironment, FromFile

from .blunt_broker import CONNACK, CONNECT, SUBACK, SUBSCRIBE, packet
from .threaded_broker import ThreadedBroker, packets


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 2_000))
def test_waits_grow_to_the_longest_and_never_beyond(draw: float, tries: int) -> None:
    patience = Backoff(first=0.5, longest=30.0, draw=lambda: draw)
    waits = [patience.wait() for _ in range(tries)]
    assert all(0.25 <= wait <= 30.0 for wait in waits)
    assert waits == sorted(waits)
    assert waits[0] <= 0.5
    patience.reset()
    assert patience.wait() == waits[0]


def test_two_gateways_do_not_wait_equally_long() -> None:
    assert len({Backoff().wait() for _ in range(20)}) > 1


def test_only_permanent_reason_codes_are_failures() -> None:
    assert all(lasting(code) is None for code in range(FAILURE))
    passing = [
        0x80,
        0x88,
        0x89,
        0x8B,
        0x8D,
        0x93,
        0x97,
        0x9C,
        0x9F,
    ]  # unavailable, busy, shutting down, quota, rate ...
    assert all(lasting(code) is None for code in passing)
    assert "mqtt.password" in str(lasting(0x86))
    # the same message would come again and be refused again
    assert "raise its limit" in str(lasting(0x95))


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
        with pytest.raises(CommandError, match=r"^mqtt\.password: ") as caught:
            secret_of("mqtt.password", secret, place(tmp_path))
        assert "worker" not in str(caught.value), "a gateway has none"


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


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_session_does_not_show_its_password() -> None:
    assert "hunter2" not in repr(Session("h", 1, "c", user="u", password="hunter2"))  # noqa: S106 - of the test


def test_a_refused_connection_is_retried_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("paho.mqtt.client")
    connection = Connection(Session("127.0.0.1", free_port(), "c"))
    until = time.monotonic() + 3
    while caplog.text.count("trying again in") < 2 and time.monotonic() < until:
        connection.turn(0.05)
    assert "cannot be reached (Connection refused); trying again in" in caplog.text
    assert not connection.connected
    connection.close()


def turn_until(connection: Connection, true: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until
        connection.turn(0.05)


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


def reason(code: int) -> Any:
    return SimpleNamespace(value=code)


def test_a_session_taken_over_by_another_client_ends_the_gateway() -> None:
    pytest.importorskip("paho.mqtt.client")
    connection = Connection(Session("127.0.0.1", free_port(), "c", expiry=10))
    connection._connected(None, None, SimpleNamespace(session_present=True), reason(0), None)
    assert connection.connected
    connection._disconnected(None, None, SimpleNamespace(is_disconnect_packet_from_server=True), reason(0x8E), None)
    assert not connection.connected
    with pytest.raises(BrokerError, match="give each gateway its own"):
        connection.turn(0.01)


@pytest.mark.parametrize("code", [0x84, 0x85, 0x86, 0x87, 0x8C])
def test_a_refused_connection_that_stays_refused_ends_the_gateway(code: int) -> None:
    pytest.importorskip("paho.mqtt.client")
    connection = Connection(Session("127.0.0.1", free_port(), "c"))
    connection._connected(None, None, None, reason(code), None)
    assert connection.epoch == 0
    with pytest.raises(BrokerError, match=r"MQTT broker 127\.0\.0\.1:\d+ does not take the connection"):
        connection.turn(0.01)


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


@pytest.mark.parametrize("filters", [(), ("meters/+",)])
def test_a_password_that_is_changed_while_the_gateway_runs_is_waited_for(
    filters: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("paho.mqtt.client")
    caplog.set_level("WARNING", "quiltstream.gateway")
    broker, secrets = PasswordBroker(), ["old"]

    def login() -> Login:
        if not secrets:
            raise CommandError("mqtt.password: the file is not there")
        return Login("gateway", secrets[-1], None)

    session = Session("127.0.0.1", broker.port, "c", user="gateway", password="old", filters=filters, login=login)  # noqa: S106 - of the test
    connection = Connection(session)
    connection._backoff.longest = 0.01

    def until(true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not true():
            assert time.monotonic() < deadline, caplog.text
            connection.turn(0.01)

    until(lambda: connection.ready)
    broker.change(b"new")
    secrets.clear()
    until(lambda: caplog.text.count("does not take the connection") > 2)
    assert "ended the connection (Not authorized), which it did before: not authorised; give this user" in caplog.text
    assert "mqtt.password: the file is not there; what was read before is used" in caplog.text
    assert connection.refused
    secrets.append("new")
    until(lambda: connection.ready)
    assert not connection.refused
    assert connection.epoch == 2
    connection.close()
    broker.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ssl.SSLCertVerificationError(1, "secret"), "its certificate is not accepted (certificate has expired)"),
        (ssl.SSLError(1, "secret"), "TLS cannot be set up (TLSV1_ALERT_UNKNOWN_CA)"),
    ],
)
def test_a_certificate_refused_after_a_session_was_taken_is_waited_for(
    error: ssl.SSLError, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("paho.mqtt.client")
    caplog.set_level("WARNING", "quiltstream.gateway")
    error.reason, error.verify_message = "TLSV1_ALERT_UNKNOWN_CA", "certificate has expired"  # type: ignore[attr-defined]

    def refused() -> None:
        raise error

    def connection() -> Connection:
        made = Connection(Session("127.0.0.1", 1, "c"))
        monkeypatch.setattr(made._client, "reconnect", refused)
        made._backoff.longest = 0.001
        return made

    with pytest.raises(BrokerError) as caught:
        connection().turn(0.0)
    assert said in str(caught.value)
    later = connection()
    later._taken()
    while later._backoff.tries < 3:
        later.turn(0.001)
    assert f"cannot be used: {said}, and it could be before; look at mqtt." in caplog.text
    assert later.refused
    assert "secret" not in caplog.text + str(caught.value)
    later._taken()
    assert not later.refused


def test_certificates_are_read_anew_for_each_connection_but_the_first(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("paho.mqtt.client")
    caplog.set_level("WARNING", "quiltstream.gateway")
    first = ssl.create_default_context()
    read: list[ssl.SSLContext | None] = [ssl.create_default_context(), None, ssl.create_default_context()]
    left = iter(read)

    def login() -> Login:
        context = next(left)
        if context is None:
            raise CommandError("mqtt.tls.ca: ca.pem holds no certificate in PEM form")
        return Login(None, None, context)

    connection = Connection(Session("127.0.0.1", free_port(), "c", tls=first, login=login))
    connection._backoff.longest = 0.001
    used: list[Any] = []
    while connection._backoff.tries < 4:
        before = connection._backoff.tries
        connection.turn(0.001)
        if connection._backoff.tries > before:
            used.append(connection._client._ssl_context)
    # a file that is just being written leaves what was read before
    assert used == [first, read[0], read[0], read[2]]
    assert "mqtt.tls.ca: ca.pem holds no certificate in PEM form; what was read before is used" in caplog.text


@pytest.mark.parametrize("accepted", [True, False])
def test_a_certificate_refused_after_the_handshake_is_reported_as_refused(
    accepted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of TLS 1.3 the handshake is over before the broker looks at the certificate."""
    pytest.importorskip("paho.mqtt.client")
    caplog.set_level("WARNING", "quiltstream.gateway")
    connection = Connection(Session("127.0.0.1", free_port(), "c", tls=ssl.create_default_context()))
    connection._accepted = accepted
    said = "failed to receive on socket: [SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"
    connection._logged(None, None, 8, said)
    connection._disconnected(None, None, SimpleNamespace(is_disconnect_packet_from_server=False), reason(0x80), None)
    assert connection.refused is accepted
    if accepted:
        assert (
            "TLS cannot be set up (TLSV13_ALERT_CERTIFICATE_REQUIRED), and it could be before; look at" in caplog.text
        )
    else:
        assert "does it want a certificate, or another one, as mqtt.tls.cert?" in caplog.text


def test_each_connection_has_a_number_and_a_lost_session_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("paho.mqtt.client")
    connection = Connection(Session("127.0.0.1", free_port(), "c", expiry=10))
    for present in (False, True, False):
        connection._connected(None, None, SimpleNamespace(session_present=present), reason(0), None)
    assert (connection.epoch, connection.reconnects, connection.fresh) == (3, 2, 1)
    assert caplog.text.count("what was published while we were away is lost") == 1
