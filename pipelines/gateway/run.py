"""The command ``quiltstream gateway``: both directions side by side, until a signal or an error ends them."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ...schemas.gateway import read_gateway_settings, seconds
from ..console import facts, heading, results
from ..exits import ExitCode
from ..failures import CommandError
from ..garbage import settled
from .back import Back
from .connection import BrokerError, Connection
from .forward import Forward
from .hops import HopError
from .page import MetricsPage
from .parts import Parts, facts_of, parts_of
from .rejects import RejectFile
from .sent import Sent
from .tally import Tally

_LOG = logging.getLogger("quiltstream.gateway")


def check(path: Path) -> None:
    """Check a settings file and say what a gateway with it will do; nothing is connected or written.

    Raises:
        SettingsError: a setting is wrong.
        CommandError: a secret, certificate or library is missing, or a place cannot be written.
    """
    parts = parts_of(read_gateway_settings(path))
    console = results()
    heading(console, f"{path}: a gateway with it")
    facts(console, list(facts_of(parts)))


def run_gateway(path: Path) -> int:
    """Run a gateway until SIGTERM or SIGINT.

    Returns:
        The exit code; 0 after a signal.

    Raises:
        SettingsError: a setting is wrong.
        CommandError: what only an operator can mend, such as a wrong password or a missing topic.
    """
    parts = parts_of(read_gateway_settings(path))
    stop = threading.Event()
    with _logging(), _signals(stop), _closing(parts) as (tally, rejects):
        settled()
        ways: list[Callable[[], None]] = []
        if parts.forward is not None:
            ways.append(lambda: _forward(parts, tally, rejects, stop.is_set))
        if parts.back is not None:
            ways.append(lambda: _back(parts, tally, rejects, stop.is_set))
        threads = [_Way(way, stop) for way in ways]
        for thread in threads:
            thread.start()
        _report(tally, stop, seconds(parts.settings.metrics.every))
        for thread in threads:
            thread.join()
        _LOG.info("stopped: %s", tally.line(tally.received, 0.0))
        for thread in threads:
            if thread.error is not None:
                raise _said(thread.error)
    return ExitCode.OK


class _Way(threading.Thread):
    """One direction in a thread of its own; its end is the end of the other."""

    def __init__(self, way: Callable[[], None], stop: threading.Event) -> None:
        super().__init__(name="quiltstream-gateway", daemon=True)
        self._way = way
        self._stop_all = stop
        self.error: Exception | None = None

    def run(self) -> None:
        """Run it."""
        try:
            self._way()
        except Exception as error:  # noqa: BLE001 - it is raised again where the command ends
            self.error = error
        finally:
            self._stop_all.set()


def _said(error: Exception) -> Exception:
    return CommandError(str(error)) if isinstance(error, (BrokerError, HopError)) else error


def _forward(parts: Parts, tally: Tally, rejects: RejectFile, stop: Callable[[], bool]) -> None:
    given = parts.settings.forward
    if given is None or parts.forward is None:
        return
    forward = Forward(
        parts.hop(),
        messages=given.limits.messages,
        bytes_=given.limits.bytes,
        largest=given.limits.message,
        retained=given.retained == "forward",
        tally=tally,
        rejects=rejects,
        names=parts.names,
    )
    forward.run(Connection(parts.forward, on_message=forward.take), stop, seconds(parts.settings.stop))


def _back(parts: Parts, tally: Tally, rejects: RejectFile, stop: Callable[[], bool]) -> None:
    given = parts.settings.back
    if given is None or parts.back is None:
        return
    sent = Sent(parts.settings.path(given.state))
    try:
        back = Back(parts.source(sent), sent, prefix=given.prefix, retain=given.retain, tally=tally, rejects=rejects)
        back.run(Connection(parts.back, on_sent=back.confirmed), stop, seconds(parts.settings.stop))
    finally:
        sent.close()


def _report(tally: Tally, stop: threading.Event, every: float) -> None:
    """Write a line of counts now and then; signals come to this thread."""
    before, last = 0, time.monotonic()
    while not stop.wait(min(0.2, every)):
        now = time.monotonic()
        if now - last >= every:
            _LOG.info("%s", tally.line(before, now - last))
            before, last = tally.received, now


@contextmanager
def _closing(parts: Parts) -> Generator[tuple[Tally, RejectFile]]:
    tally = Tally()
    port = parts.settings.metrics.port
    rejects = parts.rejects()
    page = None
    try:
        if port is not None:
            page = MetricsPage(port, tally.prometheus)
            _LOG.info("counts are at 127.0.0.1:%d/metrics", page.port)
        yield tally, rejects
    finally:
        if page is not None:
            page.close()
        rejects.close()


@contextmanager
def _signals(stop: threading.Event) -> Generator[None]:
    def told(number: int, _: FrameType | None) -> None:
        _LOG.info("%s: stopping", signal.Signals(number).name)
        stop.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _logging() -> Generator[None]:
    """The gateway's own log on stderr; those of libraries stay away."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level, _LOG.propagate = _LOG.level, False
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        _LOG.setLevel(level)


__all__ = ["check", "run_gateway"]
