"""A schema registry of the tests' own, which speaks Confluent's interface.

It is Apicurio's. It listens on the loopback address only and keeps everything in memory.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from .installed import NotInstalledError, installed
from .processes import Processes, accepts, free_ports

#: It takes 4 s on a quiet machine.
_READY_S = 90.0

#: It says this when its interface is there; it listens a little earlier.
_READY = "Listening on: http://127.0.0.1:"


def find_registry() -> Path:
    """The registry's program, a jar.

    Raises:
        NotInstalledError: it is not there, or there is no Java, or not Confluent's client.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise NotInstalledError("confluent-kafka is not installed: pip install 'quiltstream[kafka]'")
    found = installed("registry")
    if not found.folder.is_dir():
        raise NotInstalledError("the schema registry is not there (run `.ci/servers.sh registry`)")
    if shutil.which("java") is None:
        raise NotInstalledError("the schema registry needs Java 17, which is not on the path")
    return found.file("*-runner.jar")


class SchemaRegistry:
    """A registry; :meth:`start` starts it."""

    def __init__(self, program: Path) -> None:
        self._processes = Processes("registry")
        (self._port,) = free_ports(1)
        #: Where it speaks Confluent's interface.
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        java = ["java", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        own = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self._port}"]
        # what it unpacks goes with the folder, also if it is killed
        self._command = [*java, f"-Djava.io.tmpdir={self._processes.folder}", *own, "-jar", str(program)]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._processes.start("registry", self._command)
        self._processes.wait_for("registry", "answering", self._answers, _READY_S)

    def close(self) -> None:
        """End it and remove its files."""
        self._processes.close()

    def _answers(self) -> bool:
        log = self._processes.log_of("registry").read_text(encoding="utf-8", errors="replace")
        return _READY in log and accepts(self._port)
