"""A throw-away Redis for the end-to-end tests of the example of a plug-in."""

from __future__ import annotations

import shutil
from pathlib import Path

from .installed import NotInstalledError
from .processes import Processes, accepts, free_ports

START_SECONDS = 30


def find_redis() -> Path:
    """The server's program; Debian's tools for its files are the same one, which goes by the name that it is called.

    Raises:
        NotInstalledError: there is none.
    """
    found = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if found is None:
        raise NotInstalledError("no Redis server is installed (run `.ci/servers.sh redis`)")
    return Path(found)


class RedisServer:
    """A server that writes every entry to its disk, and can be killed and started again.

    Args:
        program: the server's.
    """

    def __init__(self, program: Path) -> None:
        self._processes = Processes("redis")
        (self.port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}"
        named = self._processes.folder / "redis-server"
        named.symlink_to(program)
        settings = {"port": self.port, "bind": "127.0.0.1", "dir": self._processes.folder}
        settings |= {"appendonly": "yes", "appendfsync": "always", "save": '""'}
        self._command = [named, *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._processes.start("redis", self._command)
        self._processes.wait_for("redis", "listening", lambda: accepts(self.port), START_SECONDS)

    def kill(self) -> None:
        """Kill it (``kill -9``)."""
        self._processes.kill("redis")

    def close(self) -> None:
        """End it and remove its files."""
        self._processes.close()
