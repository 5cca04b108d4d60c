"""What libraries write to stderr by themselves, kept away from the operator unless ``--debug`` asks for it.

A worker of Beam prints the traceback of a step that failed, threads print that of their end, and what a driver or a
library says may quote a reading. The command says in its own words why a job has failed.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import click

#: Packages whose threads, callbacks and destructors end in ways that are noticed elsewhere.
_LIBRARIES = frozenset({"apache_beam", "confluent_kafka", "google", "grpc", "paho", "psycopg", "sqlalchemy", "urllib3"})


def keep_quiet() -> None:
    """Keep tracebacks of libraries away from now on, also of threads that outlive a job; nothing with ``--debug``."""
    if logging.getLogger("apache_beam").propagate:
        return
    from apache_beam.runners.worker import log_handler, sdk_worker  # noqa: PLC0415 - a command without Beam is quick

    for module in (log_handler, sdk_worker):
        # a name of the module goes before that of the language
        module.__dict__["print"] = _say_nothing
    if not isinstance(threading.excepthook, _QuietThreads):
        threading.excepthook = _QuietThreads(threading.excepthook)
    if not isinstance(sys.unraisablehook, _QuietRest):
        sys.unraisablehook = _QuietRest(sys.unraisablehook)


def _say_nothing(*given: Any, **named: Any) -> None:
    if logging.getLogger("apache_beam").propagate:
        print(*given, **named)  # noqa: T201 - as the module itself would, with --debug


@dataclass(frozen=True)
class _QuietThreads:
    """Tells of a thread's end what ``tell`` does, but nothing of a library's, and of this package's no text."""

    tell: Callable[[Any], Any]

    def __call__(self, ended: Any) -> None:
        if _is_librarys(ended.exc_type, ended.exc_traceback):
            return
        name = "" if ended.thread is None else ended.thread.name
        if name.startswith("quiltstream"):
            click.echo(f"Error: {ended.exc_type.__name__} in the thread {name}; --debug shows more", err=True)
        else:
            self.tell(ended)


@dataclass(frozen=True)
class _QuietRest:
    """The same for destructors, callbacks and generators that are collected."""

    tell: Callable[[Any], Any]

    def __call__(self, ended: Any) -> None:
        if not _is_librarys(ended.exc_type, ended.exc_traceback):
            self.tell(ended)


def _is_librarys(kind: type[BaseException], trace: TracebackType | None) -> bool:
    modules = {one.__module__ for one in kind.__mro__} | set(_modules(trace))
    return any(module.partition(".")[0] in _LIBRARIES for module in modules)


def _modules(trace: TracebackType | None) -> Iterator[str]:
    while trace is not None:
        yield str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next


__all__ = ["keep_quiet"]
