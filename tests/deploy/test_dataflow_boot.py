"""What a container of the Flex Template starts with, run with stand-ins for Beam's boot program and Google."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: Google's client, which knows one secret and fails for others.
CLIENT = """\
from types import SimpleNamespace


class SecretManagerServiceClient:
    def access_secret_version(self, request):
        if request != {"name": "projects/p/secrets/s/versions/1"}:
            raise PermissionError("no such secret")
        return SimpleNamespace(payload=SimpleNamespace(data=b"correct horse"))
"""

#: Says which process it is, what it was given and what is in the file, and ends as nothing else does.
BOOT = """\
#!/bin/sh
{ echo "$$"; printf '%s\\n' "$@"; cat "$LEDGER_ACCESS_FILE"; } >"$BOOTED"
exit 73
"""


@pytest.fixture
def container(deploy: Path, tmp_path: Path) -> Path:
    """The image's files in a folder: its paths are below it."""
    template, boot = tmp_path / "template", tmp_path / "opt" / "apache" / "beam" / "boot"
    client = tmp_path / "packages" / "google" / "cloud" / "secretmanager.py"
    for folder in (template, boot.parent, client.parent, tmp_path / "bin"):
        folder.mkdir(parents=True)
    for package in client.parents[:2]:
        (package / "__init__.py").touch()
    client.write_text(CLIENT, encoding="utf-8")
    boot.write_text(BOOT, encoding="utf-8")
    boot.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    shipped = deploy / "dataflow"
    (template / "ledger_password.py").write_bytes((shipped / "ledger_password.py").read_bytes())
    script, below = re.subn(
        r" (/(?:template|opt)/)", rf" {tmp_path}\1", (shipped / "boot.sh").read_text(encoding="utf-8")
    )
    assert below == 2
    (template / "boot.sh").write_text(script, encoding="utf-8")
    (template / "boot.sh").chmod(0o755)
    return tmp_path


def started(container: Path, secret: str, *words: str) -> subprocess.Popen[str]:
    """The container's entry point with some words."""
    given = {
        "PATH": f"{container}/bin:{os.environ['PATH']}",
        "PYTHONPATH": f"{container}/packages",
        "LEDGER_ACCESS": secret,
        "LEDGER_ACCESS_FILE": f"{container}/run/quiltstream/ledger",
        "BOOTED": f"{container}/booted",
    }
    return subprocess.Popen([container / "template" / "boot.sh", *words], env=given, stderr=subprocess.PIPE, text=True)


def test_a_container_reads_its_password_before_the_beam_boot_program_starts(container: Path) -> None:
    words = ["--id=1-1", "--control_endpoint=localhost:1", "two words", ""]
    process = started(container, "projects/p/secrets/s/versions/1", *words)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (73, "")
    # signals for the container reach it, because it is the container's own process
    booted = (container / "booted").read_text(encoding="utf-8")
    assert booted == "\n".join([str(process.pid), *words, "correct horse"])
    assert (container / "run" / "quiltstream" / "ledger").stat().st_mode & 0o777 == 0o600


def test_a_container_without_its_password_does_not_boot(container: Path) -> None:
    process = started(container, "projects/p/secrets/another/versions/1")
    _, said = process.communicate(timeout=60)
    assert process.returncode not in (0, 73)
    assert "PermissionError" in said
    assert not (container / "booted").exists()
