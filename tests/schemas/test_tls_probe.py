"""What a port speaks is told only where it is certain, and nobody is held up by one that says nothing."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import pytest

from quiltstream.schemas.tls_probe import mismatch, serves, speaks_kafka, speaks_mqtt, speaks_tls, wrong_port


@contextmanager
def serving(talk: Callable[[socket.socket], None]) -> Generator[tuple[str, int]]:
    """A server that does something to each of its connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    with peer, suppress(OSError):
                        talk(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[:2]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def by_tls(peer: socket.socket) -> None:
    """Without a certificate: the greeting is answered by an alert."""
    with ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_socket(peer, server_side=True):
        pass


def by_mqtt(peer: socket.socket) -> None:
    if peer.recv(64)[:1] == b"\x10":
        # refused: a name is wanted
        peer.sendall(b"\x20\x03\x00\x85\x00")


def by_kafka(peer: socket.socket) -> None:
    asked = peer.recv(64)
    if asked[4:6] == b"\x00\x12":
        peer.sendall(b"\x00\x00\x00\x0a" + asked[8:12] + b"\x00\x00\x00\x00\x00\x00")


def by_silence(peer: socket.socket) -> None:
    peer.recv(64)


def by_another_protocol(peer: socket.socket) -> None:
    peer.recv(64)
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    ("talk", "spoken"),
    [(by_tls, "tls"), (by_mqtt, "mqtt"), (by_kafka, "kafka"), (by_silence, None), (by_another_protocol, None)],
)
def test_a_port_is_identified_by_the_protocol_of_its_answer(
    talk: Callable[[socket.socket], None], spoken: str | None
) -> None:
    with serving(talk) as place:
        found = {
            name for name, ask in (("tls", speaks_tls), ("mqtt", speaks_mqtt), ("kafka", speaks_kafka)) if ask(*place)
        }
    assert found == ({spoken} if spoken else set())


def test_a_port_that_accepts_and_sends_nothing_is_given_up_at_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiltstream.schemas.tls_probe._TIMEOUT_S", 0.2)
    held = threading.Event()

    def hold(_: socket.socket) -> None:
        held.wait(30)

    with serving(hold) as place:
        assert not speaks_mqtt(*place)
        held.set()


def test_a_refused_connection_is_not_a_protocol_mismatch() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        # bound and not listening: whoever connects is refused
        place = one.getsockname()[:2]
        assert mismatch(*place, tls=False, plain=speaks_mqtt) is None
        assert mismatch(*place, tls=True, plain=speaks_mqtt) is None


def test_a_broker_serves_if_a_port_answers_as_its_protocol_says() -> None:
    with serving(by_kafka) as (host, plain), serving(by_tls) as (_, tls), serving(by_silence) as (_, silent):
        for protocol, port in (("PLAINTEXT", plain), ("SASL_PLAINTEXT", plain), ("ssl", tls)):
            assert serves(f"no-port, {host}:{silent}, x://{host}:{port}", {"security.protocol": protocol})
        assert not serves(f"{host}:{tls},{host}:{silent}", {})
        assert not serves(f"{host}:{plain}", {"security.protocol": "SSL"})


@pytest.mark.parametrize(("protocol", "wanted"), [(None, "SSL"), ("plaintext", "SSL"), ("SASL_PLAINTEXT", "SASL_SSL")])
def test_a_kafka_port_with_tls_is_reported_with_the_setting(protocol: str | None, wanted: str) -> None:
    options = {} if protocol is None else {"security.protocol": protocol}
    with serving(by_tls) as (host, port):
        said = wrong_port(f"{host}:{port}", options)
        assert wrong_port(f"{host}:{port}", {"security.protocol": "SSL"}) is None
    assert said is not None
    assert said.startswith(f"{host}:{port} speaks TLS, and security.protocol is {(protocol or 'PLAINTEXT').upper()}")
    assert f"set it to {wanted}, " in said


def test_a_kafka_port_without_tls_is_reported_for_any_of_the_servers() -> None:
    with serving(by_kafka) as (host, port), serving(by_silence) as (_, other):
        said = wrong_port(f"{host}:{other}, PLAINTEXT://{host}:{port}", {"security.protocol": "SASL_SSL"})
        assert wrong_port(f"{host}:{port}", {}) is None
        assert wrong_port("no-port-at-all", {}) is None
    assert said == (
        f"{host}:{port} speaks without TLS, and security.protocol is SASL_SSL: set it to SASL_PLAINTEXT, or name "
        "another port"
    )
