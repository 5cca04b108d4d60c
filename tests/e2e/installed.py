"""Where the servers of the streaming tests are, as ``.ci/servers.sh`` tells."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class NotInstalledError(RuntimeError):
    """A server is not there; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Installed:
    """One server: its version, and the folder it is or would be in."""

    version: str
    folder: Path

    def file(self, pattern: str) -> Path:
        """The only file of the folder that matches a pattern."""
        found = list(self.folder.glob(pattern))
        if len(found) != 1:
            raise NotInstalledError(f"{self.folder} holds {len(found)} files {pattern}, not one (run .ci/servers.sh)")
        return found[0]


def installed(name: str) -> Installed:
    """What the script tells of a server.

    Raises:
        NotInstalledError: The script is not beside the tests, as in a copy of the tests alone.
    """
    script = ROOT / ".ci" / "servers.sh"
    if not script.is_file():
        raise NotInstalledError(f"{script} is absent: it builds the servers and knows where they are")
    shown = subprocess.run(
        [script, "--show"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout
    known = {
        parts[0]: Installed(parts[1], Path(parts[2])) for parts in (line.split(" ", 2) for line in shown.splitlines())
    }
    return known[name]
