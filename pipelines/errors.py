"""Errors of commands: exit codes, and messages that never show data.

Messages of this package's own errors name the field, the value, the limit and the next step, and hold no data, so they
are shown, also where a runner hands them on as a text. Texts of other errors may quote a value (Arrow's do) and are not
shown: their kind and their place are.
"""

from __future__ import annotations

import builtins
import re
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..schemas.errors import ExitCode as ExitCode  # noqa: PLC0414 - a name of this module, too
from ..schemas.errors import QuiltstreamError, in_text
from ..schemas.files import reason

_PACKAGE = "quiltstream."

#: What Beam puts behind the message of an error of a step.
_STEP = re.compile(r" ?\[while running '(?P<step>[^']*)'\]")
_KIND = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception))\b", re.MULTILINE)

#: User and password of a URL, up to the last ``@`` of a word, as a password may hold any character; of a URL that was
#: taken for a path, one slash is left.
_CREDENTIALS = re.compile(r"://?[^\s@/]*:\S*@")


@dataclass(frozen=True, slots=True)
class Failure:
    """What to tell the user."""

    code: ExitCode
    text: str  # the message; one line for each problem
    kind: str = ""  # name of the package's own class of the error; empty for any other error


class CommandError(QuiltstreamError):
    """A command cannot go on; the message is for the user.

    Attributes:
        exit_code: what the command ends with.
    """

    def __init__(self, text: str, code: ExitCode = ExitCode.SETTINGS) -> None:
        """Keep the message and the code."""
        self.exit_code: ExitCode = code  # type: ignore[misc] - of other errors their class has it
        super().__init__(text)


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
    return replace(found, text=_CREDENTIALS.sub("://***@", found.text))


def _explained(error: BaseException) -> Failure:
    if isinstance(error, QuiltstreamError):
        return Failure(ExitCode(error.exit_code), _STEP.sub("", str(error)), type(error).__name__)
    if isinstance(error, ImportError):
        name = f"the module {error.name}" if error.name else "a module"
        mend = "install the package again, with the extra that the job needs"
        return Failure(ExitCode.FAILURE, f"{name} cannot be imported; {mend}", type(error).__name__)
    if marked := in_text(str(error)):
        kind, code, text = marked[-1]
        return Failure(code, text, kind)
    return Failure(ExitCode.FAILURE, _unexpected(error))


def failed_step(error: BaseException) -> tuple[str, str]:
    """The step of the pipeline in which an error was raised, or an empty text, and the error's kind."""
    text = str(error)
    step = _STEP.search(text.replace("\n", ""))
    kinds = _KIND.findall(text) if step is not None else []
    name = type(error).__name__
    own = "" if getattr(builtins, name, None) is type(error) else f"{type(error).__module__}."
    return ("" if step is None else step["step"].split("-ptransform-")[0]), next(iter(kinds), f"{own}{name}")


def _unexpected(error: BaseException) -> str:
    step, kind = failed_step(error)
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_PACKAGE):
            place = f" at {module}, line {line}"
    within = f" in the step {step!r} of the pipeline" if step else ""
    return (
        f"{kind}{'' if step else place}{within}; its text may quote data and is not shown: run the command again with "
        "--debug to see it, and keep what that prints inside the trust boundary"
    )
