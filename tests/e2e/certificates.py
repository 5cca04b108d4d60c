"""Certificates of the tests' own: an authority, a broker and a client that it vouches for, and a stranger."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
_VARIABLE = "QUILTSTREAM_TESTS_KEY_PASSWORD"


def make_certificates(folder: Path, client: str, password: str = "") -> None:
    """Write ``ca.pem``, ``broker.pem`` for the loopback address, ``client.pem`` and the stranger's ``other.pem``.

    The keys are beside them, as ``.key``.

    Args:
        folder: where to.
        client: the client's name.
        password: of the client's key, if it is to have one; the broker's has none.
    """

    def openssl(*arguments: str) -> None:
        environment = os.environ | {_VARIABLE: password}
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, env=environment)

    for name in ("ca", "other"):
        openssl("req", "-x509", *_NEW, "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", *_subject(name))
    (folder / "broker.names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n", encoding="ascii")
    (folder / "client.names").write_text("extendedKeyUsage=clientAuth\n", encoding="ascii")
    for name, of, locked in (
        ("broker", "localhost", ("-nodes",)),
        ("client", client, ("-passout", f"env:{_VARIABLE}") if password else ("-nodes",)),
    ):
        openssl("req", *_NEW, *locked, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={of}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.names", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)


def _subject(name: str) -> tuple[str, ...]:
    return ("-subj", f"/CN={name}", "-days", "2")
