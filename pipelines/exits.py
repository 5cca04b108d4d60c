"""Exit codes of the command line, the same for every command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command ended with; a number is never given another meaning."""

    OK = 0
    FAILURE = 1
    SETTINGS = 2
    REFUSED = 3
    STORE = 4
    SOURCE = 5
    SINK = 6
    STOPPED = 130

    @property
    def text(self) -> str:
        """The code in words."""
        return _TEXTS[self]


_TEXTS = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "an unexpected failure",
    ExitCode.SETTINGS: "the command line, a settings file, a model or a roster cannot be used",
    ExitCode.REFUSED: "the budget refused a window, or did not allow the query at all",
    ExitCode.STORE: "the ledger of record cannot be used, or does not fit the job",
    ExitCode.SOURCE: "the input data could not be read, or no reading of them counts",
    ExitCode.SINK: "the sink or the rejects could not be written, e.g. because the disk is full",
    ExitCode.STOPPED: "stopped by Ctrl-C before it was done",
}
