"""How every command behaves: ``--debug``, quiet logs, and errors that become a message and an exit code."""

from __future__ import annotations

import logging
import signal
import threading
import traceback
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click

from .exits import ExitCode
from .failures import explain
from .garbage import held_back

_DEBUG = "quiltstream.debug"

#: Said after Ctrl-C; true of every command: those that write do so in whole transactions or whole files.
STOPPED = "stopped; what is on record stays: run the same command again and it goes on from there"


def _debug_option() -> click.Option:
    def note(context: click.Context, _option: click.Parameter, value: bool) -> None:
        if value:
            context.find_root().meta[_DEBUG] = True

    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=note,
        help="Show the traceback of an error and the logs of the runner. They may quote data.",
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
        told: list[int] = []
        try:
            with held_back(), _noted(told):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            _end_stopped(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - this is where every error ends
            if debug:
                traceback.print_exc()
            if told:  # a runner makes Ctrl-C a failure of the step that it came into
                _end_stopped(ctx)
            failure = explain(error)
            lines = failure.text.splitlines()
            click.echo("\n".join(["Error: " + lines[0], *("       " + line for line in lines[1:])]), err=True)
            ctx.exit(failure.code)


@contextmanager
def _noted(told: list[int]) -> Generator[None]:
    """Note that Ctrl-C came, which raises a ``KeyboardInterrupt`` as it always does."""
    usual = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not usual:
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        told.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_stopped(context: click.Context) -> NoReturn:
    click.echo(STOPPED, err=True)
    context.exit(ExitCode.STOPPED)


class Group(click.Group):
    """A group of commands whose help ends with the exit codes."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = _as_written(self.help)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(f"{code.value}", code.text) for code in ExitCode])


def _as_written(text: str | None) -> str | None:
    """Click's mark before lines that are not to be wrapped, from the raw docstrings that the commands have."""
    return None if text is None else text.replace("\\b\n", "\b\n")


def _log(*, debug: bool) -> None:
    """Keep the libraries' logs away, which quote data, and their remarks about themselves, unless asked for."""
    root = logging.getLogger()
    if debug:
        logging.basicConfig(level=logging.INFO)
        return
    if not root.handlers:
        root.addHandler(logging.NullHandler())  # else the first warning of a library sets up printing
    for library in ("apache_beam", "sqlalchemy", "alembic"):
        logging.getLogger(library).propagate = False
        logging.getLogger(library).addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
