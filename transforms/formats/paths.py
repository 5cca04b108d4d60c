"""Files by path or pattern, wherever Beam can reach them: found, opened, and read in blocks of whole lines.

Paths on this machine are opened directly; others (``gs://``, ``s3://``, ``hdfs://``) go through Beam's file systems,
which the matching extra of apache-beam brings.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ...schemas.errors import QuiltstreamError
from ...schemas.files import endless, is_file, is_folder, open_regular, reason
from ...schemas.settings.base import SettingsError

#: Compressions that are not read, by the end of the name.
_OTHER_COMPRESSIONS = (".zst", ".xz", ".lz4", ".snappy", ".deflate", ".7z")


_WILDCARDS = frozenset("*?[")


class SourceFileError(QuiltstreamError, ValueError):
    """A file that cannot be read to its end. The message names the file and what to do, never what the file holds."""


def file_systems() -> Any:
    """Beam's file systems, imported for places elsewhere and patterns only: importing Beam takes half a second."""
    from apache_beam.io.filesystems import FileSystems  # noqa: PLC0415

    return FileSystems


def is_local(path: str) -> bool:
    """Whether a path is on this machine."""
    return "://" not in path


def everywhere(path: str) -> str:
    """A path as workers see it, which may run in another folder than the process that names it."""
    return str(Path(path).absolute()) if is_local(path) else path


def expand(patterns: Iterable[str], resolve: Callable[[str], str], setting: str) -> list[str]:
    """Find the files that paths and glob patterns name."""
    found: dict[str, None] = {}
    problems: list[str] = []
    for pattern in patterns:
        where = resolve(pattern)
        try:
            paths = _matches(where)
        except (ValueError, OSError) as error:
            problems.append(unreachable(setting, where, error))
            continue
        problems += _mistakes(setting, where, paths)
        found.update(dict.fromkeys(paths))
    if problems:
        raise SettingsError(problems)
    for path in found:
        if path.endswith(_OTHER_COMPRESSIONS):
            raise SettingsError(
                f"{setting}: {path} is compressed in a way that is not read; use .gz, .bz2, .zip with one file in "
                "it, or none"
            )
    return list(found)


def _mistakes(setting: str, where: str, paths: Sequence[str]) -> list[str]:
    """What is wrong with a path or pattern and what it finds, a line for each mistake."""
    if paths:
        endless_ones = [(path, what) for path in paths if is_local(path) and (what := endless(path)) is not None]
        return [
            f"{setting}: {where} matches {path}, which is no file that ends, but {what}; take it away, or write a "
            "pattern that does not match it"
            for path, what in endless_ones
        ]
    if is_local(where) and is_folder(where):
        return [f"{setting}: {where} is a folder; name the files in it with a pattern such as {where.rstrip('/')}/*"]
    if is_local(where) and (what := endless(where)) is not None:
        return [
            f"{setting}: {where} is no file that ends, but {what}; copy what it gives into a file, or read a live "
            "job's standard input"
        ]
    return [
        f"{setting}: no file matches {where}; check the spelling (a relative path starts at the folder of the "
        "settings file)"
    ]


def unreachable(setting: str, path: str, error: Exception) -> str:
    """What to say of a place that cannot be looked up."""
    return (
        f"{setting}: {path} cannot be looked up ({type(error).__name__}); check its scheme and credentials, "
        "and install the extra of apache-beam for it, for example apache-beam[gcp] for gs://"
    )


def is_elsewhere(path: str, setting: str) -> bool:
    """Whether a file is there that is not on this machine."""
    try:
        return bool(file_systems().exists(path))
    except (ValueError, OSError) as error:
        raise SettingsError(unreachable(setting, path, error)) from None


def present(patterns: Iterable[str]) -> list[str]:
    """The files that are there now under absolute paths or patterns, sorted; none is no mistake."""
    found = {path for pattern in patterns for path in _matches(pattern)}
    return sorted(path for path in found if not path.endswith(_OTHER_COMPRESSIONS))


def _matches(where: str) -> list[str]:
    if is_local(where) and is_file(where):
        return [where]  # a name with brackets in it is itself before it is a pattern
    if is_local(where) and not _WILDCARDS & set(where):
        return []  # Beam would walk through everything under a folder
    # Beam lists no folder for a pattern that has a wildcard in its first part, so relative ones begin at this folder
    here = "./" if is_local(where) and not Path(where).is_absolute() else ""
    (result,) = file_systems().match([here + where])
    paths = sorted(one.path.removeprefix(here) for one in result.metadata_list)
    # no folders, and no links that lead nowhere
    return [path for path in paths if not is_local(path) or is_file(path) or endless(path) is not None]


def open_bytes(path: str) -> BinaryIO:
    """Open a file as it is, for reading from any place in it."""
    try:
        if is_local(path):
            return open_regular(Path(path))
        return file_systems().open(path, "application/octet-stream", compression_type="uncompressed")
    except OSError as error:
        raise SourceFileError(
            f"file {path} cannot be opened ({reason(error)}); check its permissions and that it is still there"
        ) from None


def open_text(path: str, encoding: str = "utf-8") -> BinaryIO:
    """Open a text file as bytes of UTF-8, unpacked if its name ends in ``.gz``, ``.bz2`` or ``.zip``."""
    raw = open_bytes(path)
    try:
        stream = _unpacked(raw, path)
    except BaseException:
        raw.close()
        raise
    return stream if encoding == "utf-8" else cast("BinaryIO", io.BufferedReader(_AsUtf8(stream, path, encoding)))


def _unpacked(raw: BinaryIO, path: str) -> BinaryIO:
    if path.endswith(".gz"):
        return cast("BinaryIO", io.BufferedReader(_Below(gzip.GzipFile(fileobj=raw, mode="rb"), raw)))
    if path.endswith(".bz2"):
        return cast("BinaryIO", io.BufferedReader(_Below(bz2.BZ2File(raw), raw)))
    if not path.endswith(".zip"):
        return raw
    try:
        archive = zipfile.ZipFile(raw)
        members = [one for one in archive.infolist() if not one.is_dir()]
        if len(members) == 1:
            return cast("BinaryIO", io.BufferedReader(_Below(cast("BinaryIO", archive.open(members[0])), raw)))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise SourceFileError(
            f"file {path} is no archive that can be read ({type(error).__name__}); unpack it, and name the file in it"
        ) from None
    raise SourceFileError(
        f"file {path} is an archive of {len(members):,} files, and one is read; unpack it, and name the files in it"
    )


class _Below(io.RawIOBase):
    """A stream that closes the file below it, too; damage of what is packed is an error of input."""

    def __init__(self, stream: Any, raw: BinaryIO) -> None:
        self._stream, self._raw = stream, raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (zipfile.BadZipFile, lzma.LZMAError) as error:
            raise OSError(str(error)) from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._raw.close()
        super().close()


class _AsUtf8(io.RawIOBase):
    """A stream of text in an encoding, as UTF-8. What is no text in it breaks the file, as its lines are not known."""

    def __init__(self, stream: BinaryIO, path: str, encoding: str) -> None:
        self._stream, self._path, self._encoding = stream, path, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            data = self._stream.read(len(buffer))
            try:
                self._rest = self._decoder.decode(data, final=not data).encode("utf-8")
            except UnicodeError:
                raise SourceFileError(
                    f"file {self._path} is no text in {self._encoding}; set source.encoding to what it is, or save the "
                    "file as UTF-8"
                ) from None
            if not data:
                break
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


_BOM = b"\xef\xbb\xbf"

#: Lines longer than this many bytes are no readings; they are skipped without being held in memory.
LONGEST_LINE = 1 << 24


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some whole lines.

    Attributes:
        first_line: number of the first line, from 1.
        data: the lines; each ends with a line feed. Empty for one line that was too long.
    """

    first_line: int
    data: bytes

    @property
    def lines(self) -> int:
        """How many lines the block stands for."""
        return self.data.count(b"\n") if self.data else 1


def is_text(text: str) -> bool:
    """Whether a string has a form in UTF-8: half of a surrogate pair has none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def text_blocks(stream: BinaryIO, path: str, block_bytes: int) -> Iterator[LineBlock]:
    """Cut a stream into blocks of about a size; a byte order mark is dropped, a missing last line feed added."""
    line, skipping = 1, False
    held: list[bytes] = []
    for whole_chunk in _chunks(stream, path, block_bytes):
        chunk = whole_chunk
        if skipping:
            _, feed, chunk = chunk.partition(b"\n")
            if not feed:
                continue
            yield LineBlock(line, b"")
            line, skipping = line + 1, False
        cut = chunk.rfind(b"\n") + 1
        if cut:
            block = LineBlock(line, b"".join([*held, chunk[:cut]]))
            yield block
            line, held = line + block.lines, []
        if cut < len(chunk):
            held.append(chunk[cut:])
        if sum(map(len, held)) > LONGEST_LINE:
            held, skipping = [], True
    if skipping:
        yield LineBlock(line, b"")
    elif held:
        yield LineBlock(line, b"".join([*held, b"\n"]))


def _chunks(stream: BinaryIO, path: str, size: int) -> Iterator[bytes]:
    """The bytes of a stream without a byte order mark."""
    start = b""
    while len(start) < len(_BOM) and (more := _read(stream, path, size)):
        start += more
    start = start.removeprefix(_BOM)
    if start:
        yield start
    while chunk := _read(stream, path, size):
        yield chunk


def _read(stream: BinaryIO, path: str, size: int) -> bytes:
    try:
        return stream.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceFileError(
            f"file {path} breaks off or is damaged ({type(error).__name__}); restore it, for example by copying it "
            "again: readings behind the damage cannot be recovered, and releases without them would be final"
        ) from None


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
