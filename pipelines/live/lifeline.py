"""Programs that end with the command that started them, also when that is killed with SIGKILL.

A program is started below a keeper, ``python lifeline.py PARENT PROGRAM ARGUMENT...``, which this file is. The keeper
waits for the end of the program or of the parent, whichever comes first, and leaves nothing of the program behind. The
kernel's own parent-death signal ends the program where the keeper itself is killed: the keeper requests it, because
that signal comes with the end of a thread, and the keeper has only one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

#: Of ``prctl(2)``: a signal at the end of the parent; processes without a parent become children of this one.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: Seconds between two looks at the parent.
_LOOK_S = 0.2


def kept(command: Sequence[str]) -> list[str]:
    """The command line that runs a program below a keeper, for this process to start."""
    return [sys.executable, "-I", "-S", str(Path(__file__).absolute()), str(os.getpid()), *map(str, command)]


def keep_servers() -> None:
    """Let every server that Beam starts from now on for a job of this process end with this process.

    Beam starts them all in one place: Prism, and the job servers and expansion services of its Java part.
    """
    from apache_beam.utils.subprocess_server import SubprocessServer  # noqa: PLC0415 - the keeper itself has no Beam

    begun: Any = SubprocessServer.__init__
    if getattr(begun, "keeps", False):
        return

    def __init__(self: Any, stub_class: Any, cmd: Sequence[str], *more: Any, **named: Any) -> None:  # noqa: N807
        begun(self, stub_class, kept(cmd), *more, **named)

    vars(__init__)["keeps"] = True
    SubprocessServer.__init__ = __init__  # type: ignore[method-assign] - see above


def _keep(parent: int, command: Sequence[str]) -> int:
    """Run a program until it ends, or the parent does; the program's exit code."""
    control = _prctl()
    control(_PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()

    def bound() -> None:
        control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)

    if os.getppid() != parent:
        return 1
    program = subprocess.Popen(command, preexec_fn=bound)  # noqa: PLW1509, S603 - one thread; the caller's own program

    def hand_on(number: int, _frame: FrameType | None) -> None:
        program.send_signal(number)

    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, hand_on)
    try:
        while program.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                program.wait(_LOOK_S)
            if os.getppid() != parent:
                program.kill()
    finally:
        _end_rest()
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def _end_rest() -> None:
    """End what the program has started and left behind; it came to this process when the program ended."""
    while True:
        try:
            text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        except OSError:
            return
        for pid in map(int, text.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _prctl() -> Callable[..., int]:
    """The system's call; one that does nothing where there is none."""
    try:
        return ctypes.CDLL(None, use_errno=True).prctl
    except (AttributeError, OSError):
        return lambda *_: -1


if __name__ == "__main__":
    sys.exit(_keep(int(sys.argv[1]), sys.argv[2:]))
