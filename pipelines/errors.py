"""Errors of commands: exit codes, and messages that never show data.

Messages of this package's own errors name the field, the value, the limit and the next step, and hold no data, so they
are shown. Texts of other errors may quote a value (Arrow's do) and are not shown: their kind and their place are.
Beam wraps what a worker raises into a ``RuntimeError`` with the traceback as its text; the package's own message is
taken out of that text.
"""

from __future__ import annotations

import builtins
import dis
import re
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from ..schemas.errors import QuiltstreamError
from ..schemas.files import reason


class ExitCode(IntEnum):
    """What a command ended with; a number is never given another meaning."""

    text: str  # the code in words

    def __new__(cls, number: int, text: str) -> Self:
        """A code and its words."""
        code = int.__new__(cls, number)
        code._value_ = number
        code.text = text
        return code

    OK = 0, "done"
    FAILURE = 1, "an unexpected failure"
    SETTINGS = 2, "the command line, a settings file, a model or a roster cannot be used"
    REFUSED = 3, "the budget refused a window, or did not allow the query at all"
    STORE = 4, "the ledger of record is lost, damaged, older or another one, or does not fit the job: ask a person"
    SOURCE = 5, "the input data could not be read, or no reading of them counts"
    SINK = 6, "the sink, the rejects or standard output could not be written, e.g. because the disk is full"
    AWAY = 75, "the ledger of record does not answer, is locked or has no room: begin again"
    STOPPED = 130, "stopped before it was done, by Ctrl-C or because a question was not answered by yes"
    PIPE = 141, "what read standard output closed it, as `head` does, before everything was printed"
    TERMINATED = 143, "stopped before it was done, by SIGTERM or SIGHUP"


_PACKAGE = "quiltstream."

#: The instruction that a ``raise`` is to Python.
_RAISE = dis.opmap["RAISE_VARARGS"]

#: Exit codes by the name of a class; the first that an error's class or one of its bases has.
_CODES = {
    "SettingsError": ExitCode.SETTINGS,
    "ModelError": ExitCode.SETTINGS,
    "RosterError": ExitCode.SETTINGS,
    "ChainError": ExitCode.SETTINGS,
    "EstimationError": ExitCode.SETTINGS,
    "SecretError": ExitCode.SETTINGS,
    "BudgetExceeded": ExitCode.REFUSED,
    "SourceFileError": ExitCode.SOURCE,
    "NoReadingsError": ExitCode.SOURCE,
    "NothingCountsError": ExitCode.SOURCE,
}

_RAISED = re.compile(
    r"^(?P<kind>quiltstream(?:\.\w+)+): (?P<text>.+?)(?=\n\n|\nTraceback|\n\s+at |\nCaused by: |\Z)",
    re.MULTILINE | re.DOTALL,
)
_STEP = re.compile(r" ?\[while running '(?P<step>[^']*)'\]")
_KIND = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Exceeded))\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Failure:
    """What to tell the user."""

    code: ExitCode
    text: str  # the message; one line for each problem
    kind: str = ""  # name of the package's own class of the error; empty for any other error
    passing: bool = False  # whether the same may go well later, with nothing done about it


class CommandError(QuiltstreamError):
    """A command cannot go on; the message is for the user.

    Attributes:
        code: the exit code.
        cause: the message without what is true at a first start only.
    """

    def __init__(self, text: str, code: ExitCode = ExitCode.SETTINGS, *, at_first: str = "") -> None:
        """Keep the message and the code; ``at_first``: sentences behind it that are true at a first start only."""
        super().__init__(f"{text}. {at_first}" if at_first else text)
        self.code = code
        self.cause = text


Part = Literal["ledger", "source", "sink", "cluster"]
"""What a live job needs and waits for."""


class AwayError(CommandError):
    """Something that a job needs does not answer now; a live job waits for it.

    Attributes:
        part: what is away.
    """

    def __init__(self, text: str, code: ExitCode, part: Part, *, at_first: str = "") -> None:
        """Keep the message, the code and the part."""
        super().__init__(text, code, at_first=at_first)
        self.part: Part = part


class LoginError(CommandError):
    """A server does not take a login, or one side the other's certificate; it may, once all have the new ones."""


#: True of a job that was not begun before.
NOT_CHARGED = "Nothing was charged: mend it and run again"


class OutputError(CommandError):
    """Standard output cannot be written."""

    @classmethod
    def of(cls, error: OSError) -> OutputError:
        """The error of a write to standard output."""
        text = (
            f"standard output: cannot be written ({reason(error)}); make room or send it elsewhere, and run the "
            "command again: what is on record stays"
        )
        return cls(text, ExitCode.PIPE if isinstance(error, BrokenPipeError) else ExitCode.SINK)


@contextmanager
def writing(path: Path, mend: str = "check the folder") -> Generator[None]:
    """Say which file cannot be written, and how to mend it.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise CommandError(f"{path}: cannot be written ({reason(error)}); {mend}") from error


def explain(error: BaseException) -> Failure:
    """Find the exit code and the message of any error; URLs in it have no credentials."""
    found = _explained(error)
    return replace(found, text=_WORD.sub(_without_credentials, found.text))


_WORD = re.compile(r"\S+")

#: The user in a URL, with what begins the password; of a URL that was taken for a path, one slash is left.
_USER = re.compile(r"://?[^\s@/]*:")


def _without_credentials(word: re.Match[str]) -> str:
    """A word without user and password of a URL: up to the last ``@``, as a password may hold any character."""
    text, at = word[0], word[0].rfind("@")
    user = None if at < 0 else _USER.search(text, 0, at)
    return text if user is None else f"{text[: user.start()]}://***@{text[at + 1 :]}"


def _explained(error: BaseException) -> Failure:
    if isinstance(error, CommandError):
        return Failure(error.code, str(error), type(error).__name__)
    error, step = _raised_first(error)
    known, kind = _code_of(type(error)), type(error).__name__
    if known is not None:
        return Failure(known, _STEP.sub("", str(error)), kind, known is ExitCode.AWAY)
    if isinstance(error, ValueError) and _ours(error.__traceback__):
        return Failure(ExitCode.SETTINGS, str(error), kind)  # a check of an argument, which is a setting here
    if isinstance(error, ImportError):
        name = f"the module {error.name}" if error.name else "a module"
        mend = "install the package again, with the extra that the job needs"
        return Failure(ExitCode.FAILURE, f"{name} cannot be imported; {mend}", kind)
    wrapped = _unwrap(str(error)) if isinstance(error, RuntimeError) else None
    return Failure(ExitCode.FAILURE, _unexpected(error, step)) if wrapped is None else wrapped


def failed_step(error: BaseException) -> tuple[str, str]:
    """The step of the pipeline in which an error was raised and the error's kind; empty texts if it was in none."""
    text = str(error)
    found = _STEP.search(text.replace("\n", ""))
    if found is None:
        return "", ""
    return _place(found), next(iter(_KIND.findall(text)), type(error).__name__)


def _raised_first(error: BaseException) -> tuple[BaseException, str]:
    """The error that a step raised, and the step: Beam calls its class again, with the step's name in the message."""
    found = _STEP.search(str(error).replace("\n", ""))
    if found is None:
        return error, ""
    before = error.__context__
    return error if before is None or type(before) is not type(error) else before, _place(found)


def _code_of(kind: type) -> ExitCode | None:
    marked = getattr(kind, "exit_code", None)
    if isinstance(marked, int) and kind.__module__.startswith(_PACKAGE):
        return ExitCode(marked)
    for base in kind.__mro__:
        if base.__module__.startswith(_PACKAGE) and base.__name__ in _CODES:
            return _CODES[base.__name__]
    return None


def _ours(trace: TracebackType | None) -> bool:
    """Whether an error was raised by this package itself and not by a library it called.

    What is written in C, such as ``float``, has no frame of its own: the last one is that of its caller, and stands at
    the call instead of at a ``raise``.
    """
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def _unwrap(text: str) -> Failure | None:
    """The last error of this package in a traceback's text.

    Beam raises an error again with the step's name appended to its message; the original, without it, comes first.
    """
    found: Failure | None = None
    for match in _RAISED.finditer(text):
        module, _, name = match["kind"].rpartition(".")
        kind = getattr(sys.modules.get(module), name, None)
        code = _code_of(kind) if isinstance(kind, type) else None
        again = found is not None and _STEP.search(match["text"])
        if code is not None and not again:
            found = Failure(code, _STEP.sub("", match["text"]).strip(), name, code is ExitCode.AWAY)
    if found is not None:
        return found
    step = _STEP.search(text)
    if step is None:
        return None
    kind = next(iter(_KIND.findall(text)), "an error")
    return Failure(ExitCode.FAILURE, f"{kind} in the step {_place(step)!r} of the pipeline{_ADVICE}")


def _place(step: re.Match[str]) -> str:
    return step["step"].split("-ptransform-")[0]


_ADVICE = (
    "; its text may quote data and is not shown: run the command again with --debug to see it, and keep what that "
    "prints inside the trust boundary"
)


def _unexpected(error: BaseException, step: str) -> str:
    name, place = type(error).__name__, ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_PACKAGE):
            place = f" at {module}, line {line}"
    own = "" if getattr(builtins, name, None) is type(error) else f"{type(error).__module__}."
    within = f" in the step {step!r} of the pipeline" if step else ""
    return f"{own}{name}{place}{within}{_ADVICE}"
