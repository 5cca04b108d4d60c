"""TLS probe: whether a port speaks TLS, by a short connection of its own after a client failed to connect.

Client libraries do not report it: a TLS server closes a plain connection and a plain server closes a TLS one, and to
the client both look like a server that is away. The probe sends no secret, checks no certificate and closes its
connection after the first answer. Only a TLS handshake record, or an answer in the protocol itself, counts.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: A request of Kafka for the versions that a broker knows, which it answers before authentication: length, number,
#: version, correlation id and an empty client id.
_KAFKA = b"\x00\x00\x00\x0a\x00\x12\x00\x00qsqs\xff\xff"

#: A connection of MQTT 5 with no name and no session, and what the packet that answers it begins with.
_MQTT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"
_CONNACK = 0x20

#: Bytes that a TLS record has before its content, and the first of those that a server answers a greeting with.
_RECORD = 5
_HANDSHAKE, _ALERT = 0x16, 0x15

_TIMEOUT_S = 3.0


def speaks_tls(host: str, port: int) -> bool:
    """Whether a port answers the greeting of TLS with a record of TLS; ``False`` where that is not certain."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    greeting = context.wrap_bio(incoming, outgoing, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        greeting.do_handshake()
    answer = _answer(host, port, outgoing.read())
    return len(answer) >= _RECORD and answer[0] in (_HANDSHAKE, _ALERT) and answer[1] == 3  # noqa: PLR2004 - TLS


def speaks_kafka(host: str, port: int) -> bool:
    """Whether a port answers a request of Kafka without TLS."""
    return _answer(host, port, _KAFKA)[4:8] == _KAFKA[8:12]


def speaks_mqtt(host: str, port: int) -> bool:
    """Whether a port answers a connection of MQTT without TLS, be it by a refusal."""
    return _answer(host, port, _MQTT)[:1] == bytes([_CONNACK])


def mismatch(host: str, port: int, *, tls: bool, plain: Callable[[str, int], bool]) -> str | None:
    """What a port speaks, in words, where it is certain that it is not what the settings say; else ``None``.

    With ``plain`` a port answers in the protocol without TLS.
    """
    if tls:
        return f"{host}:{port} speaks without TLS" if plain(host, port) else None
    return f"{host}:{port} speaks TLS" if speaks_tls(host, port) else None


def wrong_port(servers: str, options: Mapping[str, Any]) -> str | None:
    """What the brokers' port speaks where it is not what ``security.protocol`` says, and what to set; else ``None``.

    The answer names the first of several servers that speaks another protocol.
    """
    protocol = str(options.get("security.protocol", "PLAINTEXT")).upper()
    tls, sasl = protocol.endswith("SSL"), "SASL_" if protocol.startswith("SASL_") else ""
    for host, port in _places(servers):
        if (found := mismatch(host, port, tls=tls, plain=speaks_kafka)) is not None:
            wanted = sasl + ("PLAINTEXT" if tls else "SSL")
            return f"{found}, and security.protocol is {protocol}: set it to {wanted}, or name another port"
    return None


def serves(servers: str, options: Mapping[str, Any]) -> bool:
    """Whether a broker's port answers, before it asks who connects, as ``security.protocol`` says; as above."""
    tls = str(options.get("security.protocol", "PLAINTEXT")).upper().endswith("SSL")
    return any((speaks_tls if tls else speaks_kafka)(host, port) for host, port in _places(servers))


def _places(servers: str) -> Iterator[tuple[str, int]]:
    """Hosts and ports of brokers, as far as they have one."""
    for server in servers.split(","):
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        if port.isdecimal():
            yield host.strip("[]"), int(port)


def _answer(host: str, port: int, question: bytes) -> bytes:
    """The first bytes of the answer to a question; none where there is none."""
    found = b""
    with contextlib.suppress(OSError), socket.create_connection((host, port), _TIMEOUT_S) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.sendall(question)
        while len(found) < len(_KAFKA) and (more := sock.recv(64)):
            found += more
    return found
