"""The first line of a CSV file that is looked at: what it tells before Arrow takes the file apart.

Arrow's own texts quote what they could not read, and its callbacks print theirs, so nothing reaches it that it cannot
decode.
"""

from __future__ import annotations

import codecs
import csv
import re
from pathlib import Path
from typing import BinaryIO

from ..exits import ExitCode
from ..failures import CommandError

_MOST = 1 << 20
_DELIMITERS = (";", "\t", "|")
_NAMES = {"\t": "a tab"}
_DATA = re.compile(r"[-+]?[\d.]*\d([eE][-+]?\d+)?|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?")
_MARK = "quiltstream-mark"


def check_header(path: Path, file: BinaryIO) -> None:
    """Look at the first line that is not blank, and go back to the file's beginning.

    Raises:
        CommandError: there is none, it is not UTF-8 text, its columns are not divided by commas, or it is data.
    """
    line = b""
    while not line.strip():
        line = file.readline(_MOST)
        if not line:
            raise CommandError(f"{path}: it is empty; give a file that holds readings", ExitCode.SOURCE)
    file.seek(0)
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise CommandError(
            f"{path}: its first line is not a line of UTF-8 text; save it as UTF-8, or check that it is a CSV file",
            ExitCode.SOURCE,
        ) from None
    names = next(csv.reader([text]), [])
    if any(_DATA.fullmatch(name.strip()) for name in names):
        raise CommandError(
            f"{path}: its first line looks like data, not like the names of columns; put a line of names above it, "
            "for example meter,time,kwh",
            ExitCode.SOURCE,
        )
    found = next((one for one in _DELIMITERS if len(names) == 1 and one in text), None)
    if found is not None:
        raise CommandError(
            f"{path}: {_NAMES.get(found, repr(found))} looks like the delimiter of its columns, and init looks at "
            f"columns divided by commas; write the settings with source.delimiter: {_escaped(found)} by hand "
            "(docs/settings.md), or save the file with commas. Numbers need decimal points either way",
            ExitCode.SOURCE,
        )


def _escaped(delimiter: str) -> str:
    return '"\\t"' if delimiter == "\t" else f'"{delimiter}"'


def _marked(error: UnicodeError) -> tuple[str, int]:
    """A question mark for every byte that is no text, so that nothing becomes longer."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?" * (error.end - error.start), error.end


codecs.register_error(_MARK, _marked)


class Readable:
    """A file whose bytes are UTF-8 text throughout; those that are not are question marks."""

    def __init__(self, file: BinaryIO) -> None:
        """Read from where the file is."""
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")(_MARK)
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes; what was begun before comes on top of what is read now, and is at most three."""
        data = self._file.read(size - 3 if size > 3 else size)  # noqa: PLR2004 - as said above
        return self._decoder.decode(data, final=not data).encode("utf-8")

    def close(self) -> None:
        """Leave the file to its owner."""
        self.closed = True
