"""What each command does, and what all of them do: ``--debug``, quiet libraries, exit codes, garbage collection.

``pipelines.cli`` has the arguments.

``plan``, ``run``, ``dry_run``
    which mechanism, window and group an error takes; a job; what it will do and cost
``init``
    settings from a look at data or messages
``fit``, ``fit_checks``, ``fit_text``, ``check``, ``remarks``, ``check_messages``
    a model from a history; what is in the data, and what the settings make of messages
``demo``, ``show``
    the tour, and released rows as text
``ledger``, ``schema``
    the ledger of record, and the JSON Schema

Beam's workers, threads, drivers and libraries print tracebacks and texts that may quote a reading: none is shown
without ``--debug``, and the command says in its own words why a job failed.

Imports and Beam's graph make some hundred thousand objects that stay. The cyclic collector's passes over them, one of
them when the process ends, took a quarter of a job of ten million readings: so it does not run while a command is being
put together, nor at the very end.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, TextIO, cast

import click

from ..errors import ExitCode, OutputError, explain

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
    if not isinstance(threading.excepthook, _Quiet):
        threading.excepthook = _Quiet(threading.excepthook)
    if not isinstance(sys.unraisablehook, _Quiet):
        sys.unraisablehook = _Quiet(sys.unraisablehook)


def _say_nothing(*given: Any, **named: Any) -> None:
    if logging.getLogger("apache_beam").propagate:
        print(*given, **named)  # noqa: T201 - as the module itself would, with --debug


@dataclass(frozen=True)
class _Quiet:
    """Tells of the end of a thread, destructor or callback what ``tell`` does, but nothing of a library's.

    Of a thread of this package it says no text.
    """

    tell: Callable[[Any], Any]

    def __call__(self, ended: Any) -> None:
        if _is_librarys(ended.exc_type, ended.exc_traceback):
            return
        name = str(getattr(getattr(ended, "thread", None), "name", ""))
        if name.startswith("quiltstream"):
            click.echo(f"Error: {ended.exc_type.__name__} in the thread {name}; --debug shows more", err=True)
        else:
            self.tell(ended)


def _is_librarys(kind: type[BaseException], trace: TracebackType | None) -> bool:
    modules = {one.__module__ for one in kind.__mro__}
    modules |= {str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(trace)}
    return any(module.partition(".")[0] in _LIBRARIES for module in modules)


@contextmanager
def held_back() -> Generator[None]:
    """Hold the collector back for a command, until :func:`settled` or the command's end."""
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def settled() -> None:
    """What there is now stays: leave it out of every collection from here on, and let the collector run."""
    gc.freeze()
    gc.enable()


def leave_at_exit() -> None:
    """Leave memory to the operating system when the process ends."""
    atexit.register(gc.freeze)


_DEBUG = "quiltstream.debug"

#: Said after Ctrl-C, SIGTERM and SIGHUP; true of every command: those that write do so in whole transactions or files.
STOPPED = "stopped; what is on record stays: run the same command again and it goes on from there"


def _note_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().meta[_DEBUG] = True


def _debug_option() -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_note_debug,
        help="Show traceback and logs, which may quote data.",
    )


class Command(click.Command):
    """A command with ``--debug``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = _as_written(self.help)
        self.params.append(_debug_option())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with quiet logs; end with a message and an exit code where it fails."""
        debug = bool(ctx.find_root().meta.get(_DEBUG))
        _log(debug=debug)
        try:
            with held_back(), _noted():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            _end_stopped()
        except (click.ClickException, click.exceptions.Exit, click.Abort, OutputError):
            raise
        except Exception as error:  # noqa: BLE001 - this is where every error ends
            if debug:
                traceback.print_exc()
            failure = explain(error)
            # a runner wraps a stop into an error of the step that it interrupted; an error with a code is printed
            if STOP_SIGNALS and failure.code is ExitCode.FAILURE:
                _end_stopped()
            _say(failure.text)
            ctx.exit(failure.code)


def _say(text: str) -> None:
    """Say the message of an error."""
    from ..console import printable  # noqa: PLC0415 - --help is quick without the console

    lines = [printable(line) for line in text.splitlines()]
    click.echo("\n".join(["Error: " + lines[0], *("       " + line for line in lines[1:])]), err=True)


class _Output:
    """Standard output, or its bytes, of which what cannot be written is an error of its own.

    Where it is closed before the command begins it is ``None``, and takes what is written, as Python has it.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._failed: OSError | None = None  # click tries whether a stream can be written, and hides that it cannot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> _Output:
        """Its bytes."""
        return _Output(None if self._stream is None else self._stream.buffer)

    def write(self, text: Any) -> int:
        """Write text or bytes."""
        if self._stream is None:
            return len(text)
        return self._done(lambda: self._stream.write(text))

    def flush(self) -> None:
        """Write what is held."""
        if self._failed is not None:
            raise OutputError.of(self._failed)
        if self._stream is not None:
            self._done(self._stream.flush)

    def _done(self, one: Callable[[], Any]) -> Any:
        try:
            return one()
        except OSError as error:
            # Python writes what it holds when it ends, and would fail again
            with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            self._failed = error
            raise OutputError.of(error) from error


@contextmanager
def _written() -> Generator[None]:
    """Tell errors of standard output from others, and have it written at the end."""
    before = sys.stdout
    output = cast("TextIO", _Output(before))
    sys.stdout = output
    try:
        yield
        output.flush()
    except BaseException as end:
        well = isinstance(end, SystemExit) and not end.code  # as click ends every command that did its work
        with suppress(*() if well else (OutputError,)):  # what ended the command first is its end
            output.flush()
        raise
    finally:
        sys.stdout = before


#: Signals by which the command is to end. Python drops a ``KeyboardInterrupt`` that comes into a destructor, or into a
#: callback of an import; code that waits for long looks here as well.
STOP_SIGNALS: list[int] = []

#: What is done at such a signal, before it is raised.
_AT_STOP: list[Callable[[], None]] = []


def on_stop_signal(number: int, frame: FrameType | None) -> None:
    """Note a signal, which raises a ``KeyboardInterrupt`` whichever it is, as Ctrl-C always does."""
    STOP_SIGNALS.append(number)
    for one in _AT_STOP:
        one()
    signal.default_int_handler(number, frame)


#: The signals that stop a command, and Python's own handler of each. A shell starts a command in its background with
#: Ctrl-C ignored: a signal with another handler keeps it.
_USUAL: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that stop what goes on until it is stopped: the end of its terminal, too, unless that is ignored."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return signal.SIGINT, signal.SIGTERM, *hangup


@contextmanager
def _noted() -> Generator[None]:
    """Note that Ctrl-C, SIGTERM or SIGHUP came."""
    here = threading.current_thread() is threading.main_thread()
    # a live job puts the handler of a stop in place again, after Beam's
    usual = [number for number, does in _USUAL.items() if here and signal.getsignal(number) in (does, on_stop_signal)]
    STOP_SIGNALS.clear()
    for number in usual:
        signal.signal(number, on_stop_signal)
    try:
        yield
    finally:
        for number in usual:
            signal.signal(number, _USUAL[number])


#: Seconds between two looks for processes that are left.
_AGAIN_S = 0.1


@contextmanager
def children_end_with_a_stop() -> Generator[None]:
    """End the processes that are begun meanwhile when the command is stopped.

    Beam waits for the workers that it began as processes of their own, and only Ctrl-C at a terminal reaches them.
    """
    # what an older child begins meanwhile is its own
    before, over = frozenset(_children()), threading.Event()

    def end() -> None:
        while not over.is_set():  # a thread of Beam may be about to begin another one
            for pid in _children(before):
                with suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
            over.wait(_AGAIN_S)

    def at_stop() -> None:
        threading.Thread(target=end, name="quiltstream-ending", daemon=True).start()

    _AT_STOP.append(at_stop)
    try:
        yield
    finally:
        over.set()
        _AT_STOP.remove(at_stop)


def _children(others: frozenset[int] = frozenset()) -> list[int]:
    """The processes that this one began, and those that they began, by Linux's list of them; elsewhere none.

    Some others, and what they began, are left out.
    """
    found, waiting = list[int](), [os.getpid()]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with suppress(OSError):
                begun = [pid for word in path.read_text(encoding="ascii").split() if (pid := int(word)) not in others]
                found += begun
                waiting += begun
    return found


def code_of(stops: Sequence[int]) -> ExitCode:
    """What a command ends with that signals stopped, by the first of them."""
    return ExitCode.TERMINATED if stops and stops[0] != signal.SIGINT else ExitCode.STOPPED


def _end_stopped() -> NoReturn:
    with suppress(OSError):  # its terminal may be closed
        click.echo(STOPPED, err=True)
    code = code_of(STOP_SIGNALS)
    STOP_SIGNALS.clear()
    raise click.exceptions.Exit(code)


class Group(click.Group):
    """A group of commands whose help ends with the exit codes."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = _as_written(self.help)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run what the words say; end by one rule where standard output cannot be written."""
        try:
            with _written():
                return super().main(*args, **kwargs)
        except OutputError as error:
            if error.exit_code is not ExitCode.PIPE:
                _say(str(error))
            sys.exit(error.exit_code)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the words before the command; Ctrl-C ends that as it ends a command."""
        try:
            return super().make_context(*args, **kwargs)
        except KeyboardInterrupt:
            _end_stopped()

    def invoke(self, ctx: click.Context) -> Any:
        """Find the command and run it; Ctrl-C ends a search that imports as it ends a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _end_stopped()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        super().format_epilog(ctx, formatter)
        codes = ", ".join(f"{code.value} {code.name.lower()}" for code in ExitCode)
        formatter.write_paragraph()
        formatter.write_text(f"Exit codes: {codes}; docs/cli.md says what to do.")


def _as_written(text: str | None) -> str | None:
    """Click's mark before lines that are not to be wrapped, from the raw docstrings that the commands have."""
    return None if text is None else text.replace("\\b\n", "\b\n")


class _Lost(logging.Handler):
    """Says on standard error what a source has lost: on a local runner the readers run in this process."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message alone; reading goes on where nothing takes it."""
        with suppress(OSError, ValueError):
            click.echo(record.getMessage(), err=True)


_LOST = _Lost(logging.ERROR)


def _log(*, debug: bool) -> None:
    """Keep the libraries' logs away, which quote data, and their remarks about themselves, but with ``--debug``."""
    root = logging.getLogger()
    if debug:
        logging.basicConfig(level=logging.INFO)
        return
    if not root.handlers:
        root.addHandler(logging.NullHandler())  # else the first warning of a library sets up printing
    logging.getLogger("quiltstream").addHandler(_LOST)  # once, however often
    for library in ("apache_beam", "sqlalchemy"):
        logging.getLogger(library).propagate = False
        logging.getLogger(library).addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
