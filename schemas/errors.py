r"""The base class of all errors that have a name of their own, and what a command ends with when one ends it.

A runner hands an error of a worker on as the text of a traceback. A traceback prints a mark behind the message of every
error here, so that kind, message and exit code are found in any text (:func:`in_text`).

>>> in_text("Traceback (most recent call last):\nquiltstream.x.LostError: it is lost\n[quiltstream LostError 4]\n")
[Marked(kind='LostError', code=<ExitCode.STORE: 4>, text='it is lost')]
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Self


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
    FAILURE = 1, "an unexpected failure: begin again, at most five times an hour"
    SETTINGS = 2, "the command line, a settings file, a model or a roster cannot be used"
    REFUSED = 3, "the budget refused a window, or did not allow the query at all"
    STORE = 4, "the ledger of record is lost, damaged, older or another one, or does not fit the job: ask a person"
    SOURCE = 5, "the input data could not be read, or no reading of them counts"
    SINK = 6, "the sink, the rejects or standard output refused what was written"
    AWAY = 75, "something is away that may come back: a server, room on a disk, a folder, the runner: begin again"
    STOPPED = 130, "stopped before it was done, by Ctrl-C or because a question was not answered by yes"
    PIPE = 141, "what read standard output closed it, as `head` does, before everything was printed"
    TERMINATED = 143, "stopped before it was done, by SIGTERM or SIGHUP"

    @property
    def final(self) -> bool:
        """Whether the same would end so again, until a person mends something."""
        return self in {ExitCode.SETTINGS, ExitCode.REFUSED, ExitCode.STORE, ExitCode.SOURCE, ExitCode.SINK}


class QuiltstreamError(Exception):
    """Base class of every error that this package defines; most are a ``ValueError`` or a ``RuntimeError`` as well.

    Its message holds no data, so that it may be shown.

    Attributes:
        exit_code: what a command ends with that it ends.
    """

    exit_code: ClassVar[int] = ExitCode.FAILURE

    #: To Beam: it names its step already. Beam would make it anew to name it, without its attributes.
    _tagged_with_step = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.add_note(f"[quiltstream {type(self).__name__} {self.exit_code:d}]")


class ArgumentError(QuiltstreamError, ValueError):
    """A wrong argument of a function, which may be a setting: the message names it, its value and the limit."""

    exit_code = ExitCode.SETTINGS


class Marked(NamedTuple):
    """An error of this package in a text."""

    kind: str
    code: ExitCode
    text: str  # its message


#: The name of a class of this package, its message, and the mark of the same class: no other's text is between them.
_MARKED = re.compile(
    r"\bquiltstream(?:\.\w+)*\.(?P<kind>\w+): (?P<text>(?:(?!\bquiltstream(?:\.\w+)+: ).)*?)"
    r"(?: \[while running '[^']*'\])?\s*\n\[quiltstream (?P=kind) (?P<code>\d+)\]",
    re.DOTALL,
)


def in_text(text: str) -> list[Marked]:
    """The errors of this package in a traceback's text, first to last."""
    found = (one for one in _MARKED.finditer(text) if int(one["code"]) in list(ExitCode))
    return list(dict.fromkeys(Marked(one["kind"], ExitCode(int(one["code"])), one["text"]) for one in found))
