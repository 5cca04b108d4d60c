"""A throw-away Mosquitto for the end-to-end tests, with the configuration that is shipped."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from .installed import NotInstalledError
from .processes import Processes, accepts, free_ports

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "mqtt" / "mosquitto.conf"

START_SECONDS = 30
STOP_SECONDS = 60

#: What a test has in place of the shipped lines: a port of its own, a folder of its own, nobody's password.
REPLACED = ("listener", "allow_anonymous", "password_file", "persistence_location")


def find_mosquitto() -> Path:
    """The broker's program: on the path, or where Debian keeps it.

    Raises:
        NotInstalledError: there is none.
    """
    found = shutil.which("mosquitto", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if found is None:
        raise NotInstalledError("no Mosquitto is installed (Debian: apt-get install mosquitto, or .ci/servers.sh)")
    return Path(found)


class MosquittoBroker:
    """A broker that can be stopped, killed and started again on the same port with the same store.

    Args:
        program: the broker's program.
        lines: further lines of its configuration; one that is shipped is replaced.
        listener: lines that go with the listener, for TLS.
    """

    def __init__(self, program: Path, lines: Mapping[str, str] | None = None, listener: str = "") -> None:
        self._program = program
        self._processes = Processes("mosquitto")
        self.folder = self._processes.folder
        (self.port,) = free_ports(1)
        self.store = self.folder / "store"
        self.store.mkdir()
        own = {
            "listener": f"{self.port} 127.0.0.1\n{listener}",
            "allow_anonymous": "true",
            "persistence_location": f"{self.store}/",
            **(lines or {}),
        }
        if os.geteuid() == 0:
            # else it becomes a user that cannot see the test's folder
            own["user"] = "root"
        shipped = [
            line
            for line in CONFIGURATION.read_text(encoding="utf-8").splitlines()
            if line.split(" ")[0] not in {*REPLACED, *own}
        ]
        text = "\n".join([*shipped, *(f"{name} {value}" for name, value in own.items()), ""])
        (self.folder / "mosquitto.conf").write_text(text, encoding="utf-8")
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process."""
        return self._processes.pid("mosquitto")

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._processes.start("mosquitto", [self._program, "-c", self.folder / "mosquitto.conf"])
        self._processes.wait_for("mosquitto", "listening", lambda: accepts(self.port), START_SECONDS)

    def stop(self) -> None:
        """Stop it in order: it writes its store."""
        os.kill(self.pid, signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while self._processes.runs("mosquitto") and time.monotonic() < until:
            time.sleep(0.02)
        self._processes.end("mosquitto")

    def kill(self) -> None:
        """Kill it (``kill -9``): it writes nothing."""
        self._processes.kill("mosquitto")

    def close(self) -> None:
        """End it and remove its files."""
        self._processes.close()
