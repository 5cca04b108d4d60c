"""What Beam's threads say by themselves, kept away from whoever runs a command."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from apache_beam.runners.worker import sdk_worker


@contextmanager
def quiet_threads() -> Generator[None]:
    """Keep the tracebacks of Beam's threads away, unless asked for.

    A worker prints that of a step that failed, and what a driver or a library says may quote a reading; the command
    says in its own words why a job has failed. And Ctrl-C ends the threads' runner before it ends them.

    That a runner has gone is noticed where its state is asked for. A thread may notice it only after the job, so what
    is said of lost connections is kept away for good.
    """
    before = threading.excepthook
    if logging.getLogger("apache_beam").propagate:
        yield
        return
    threading.excepthook = lambda _: None
    # a name of the module goes before that of the language
    names: dict[str, Any] = sdk_worker.__dict__
    names["print"] = lambda *_, **__: None
    try:
        yield
    finally:
        names.pop("print", None)
        threading.excepthook = before if isinstance(before, ButLostRunners) else ButLostRunners(before)


@dataclass(frozen=True)
class ButLostRunners:
    """Tells of a thread's end what ``tell`` does, but nothing of the connection to a runner that is gone."""

    tell: Callable[[Any], Any]

    def __call__(self, ended: Any) -> None:
        # Beam's own dependency, and not ours
        if not any(kind.__module__.partition(".")[0] == "grpc" for kind in ended.exc_type.__mro__):
            self.tell(ended)


__all__ = ["quiet_threads"]
