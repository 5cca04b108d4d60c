"""Files by path or pattern, wherever Beam can reach them: found and opened.

Paths on this machine are opened directly; others (``gs://``, ``s3://``, ``hdfs://``) go through Beam's file systems,
which the matching extra of apache-beam brings.
"""

from __future__ import annotations

import codecs
import errno
import lzma
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa

from ...schemas.errors import ExitCode, QuiltstreamError
from ...schemas.files import endless, is_file, is_folder, open_regular, reason
from ...schemas.settings.base import SettingsError

#: Compressions that are not read, by the end of the name, and what to do.
_OTHER_COMPRESSIONS = (".xz", ".lz4", ".snappy", ".deflate", ".7z")
_UNREAD = "is compressed in a way that is not read; use .gz, .bz2, .zst, .zip with one file in it, or none"


WILDCARDS = frozenset("*?[")


class SourceFileError(QuiltstreamError, ValueError):
    """A file that cannot be read to its end. The message names the file and what to do, never what the file holds."""

    exit_code = ExitCode.SOURCE


class NoRightsError(SourceFileError):
    """A file that this user may not read now; it is whole as soon as the right is given."""


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


@dataclass
class Found:
    """What paths and patterns find."""

    paths: list[str] = field(default_factory=list[str])  # the files; what is neither a file nor a folder, too
    # folders that may hold more files and cannot be listed, with the error
    closed: dict[str, OSError] = field(default_factory=dict[str, OSError])

    @classmethod
    def together(cls, found: Iterable[Found]) -> Found:
        """What several patterns find; each path stands once, where it was first."""
        given = list(found)
        whole = cls(list(dict.fromkeys(path for one in given for path in one.paths)))
        for one in given:
            whole.closed |= one.closed
        return whole


def expand(patterns: Iterable[str], resolve: Callable[[str], str], setting: str) -> list[str]:
    """Find the files that paths and glob patterns name.

    Raises:
        SettingsError: one names no file, or what is not read.
        SourceFileError: a folder that may hold some of the files cannot be listed.
    """
    every: list[Found] = []
    problems: list[str] = []
    for pattern in patterns:
        where = resolve(pattern)
        try:
            found = _matches(where)
        except (ValueError, OSError) as error:
            problems.append(unreachable(setting, where, error))
            continue
        problems += _mistakes(setting, where, found)
        every.append(found)
    if problems:
        raise SettingsError(problems)
    whole = Found.together(every)
    for path in whole.paths:
        if path.endswith(_OTHER_COMPRESSIONS):
            raise SettingsError(f"{setting}: {path} {_UNREAD}")
    if whole.closed:
        raise SourceFileError(
            "\n".join(
                f"{setting}: {unlisted(folder, error)}; give this user the right to list it and to open its files, or "
                "write a pattern that leaves it out: releases without its readings would be final"
                for folder, error in sorted(whole.closed.items())
            )
        )
    return whole.paths


def unlisted(folder: str, error: OSError) -> str:
    """What to say of a folder that cannot be listed."""
    return f"the folder {folder} cannot be listed ({reason(error)})"


def _mistakes(setting: str, where: str, found: Found) -> list[str]:
    """What is wrong with a path or pattern and what it finds, a line for each mistake."""
    if (what := endless(where)) is not None:
        return [
            f"{setting}: {where} is no file that ends, but {what}; copy what it gives into a file, or read a live "
            "job's standard input"
        ]
    if found.paths or found.closed:  # a folder that cannot be listed is said by itself
        return []
    if is_local(where) and is_folder(where):
        return [f"{setting}: {where} is a folder; name the files in it with a pattern such as {where.rstrip('/')}/*"]
    return [
        f"{setting}: no file matches {where}; check the spelling (a relative path starts at the folder of the settings "
        "file)"
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


def present(patterns: Iterable[str]) -> Found:
    """The files that are there now under absolute paths or patterns, sorted; none is no mistake."""
    whole = Found.together(map(_matches, patterns))
    whole.paths.sort()
    return whole


def fixed_folder(pattern: str) -> str:
    """The folder of a path or pattern on this machine, up to the first part that has a wildcard."""
    return os.path.dirname(re.split(r"[*?[]", pattern, maxsplit=1)[0])  # noqa: PTH120 - keeps a dot at its beginning


def _matches(where: str) -> Found:
    if not is_local(where):
        (result,) = file_systems().match([where])
        paths = sorted(one.path for one in result.metadata_list)
        return Found([path for path in paths if not _is_hidden(path, where)])
    # a name with brackets in it is itself before it is a pattern
    if is_file(where) or not WILDCARDS & set(where):
        found = Found()
        _look_at(where, found)
        return found
    return _listed(where)


def _listed(where: str) -> Found:
    """What a pattern of this machine finds, by the rules of Beam's, but for what is hidden.

    Beam's own search says nothing of folders it may not list.
    """
    from apache_beam.io.filesystem import FileSystem  # noqa: PLC0415 - as above

    # a relative pattern begins at this folder
    here = "" if Path(where).is_absolute() else "./"
    pattern = f"{here}{where}*" if where.endswith("/") else here + where
    parts = pattern.split("/")
    # what a file must match, and the folders at each depth
    matching = [re.compile(FileSystem.translate_pattern("/".join(parts[: n + 1]))) for n in range(len(parts))]
    # from the part on that stands for any depth every folder may hold one
    deep = next((n for n, part in enumerate(parts) if "**" in part), len(parts))

    found, folders = Found(), [fixed_folder(pattern)]

    def may_hold_some(folder: str) -> bool:
        depth = folder.count("/")
        on_the_way = depth >= deep or (depth < len(parts) - 1 and matching[depth].match(folder) is not None)
        return on_the_way and not _is_hidden(folder, pattern, is_folder=True)

    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders += [entry.path] if may_hold_some(entry.path) else []
                    elif matching[-1].match(entry.path) and not _is_hidden(entry.path, pattern):
                        _look_at(entry.path, found)
        except OSError as error:
            # else there is no folder, or none any more
            if error.errno not in _NOTHING:
                found.closed[folder.removeprefix(here)] = error
    found.paths = sorted(path.removeprefix(here) for path in found.paths)
    return found


def _is_hidden(path: str, pattern: str, *, is_folder: bool = False) -> bool:
    """Whether a wildcard of a pattern would stand for the dot at the beginning of a name, as it does in no shell.

    Such names are what other programs keep beside the data: files that are not whole yet, and those that hold the
    attributes of another. A pattern that writes such a dot behind its fixed folder finds hidden folders, and one whose
    last part does finds hidden files.
    """
    if not is_folder and os.path.basename(path)[:1] == "." != os.path.basename(pattern)[:1]:  # noqa: PTH119 - any path
        return True
    fixed = len(fixed_folder(pattern).rstrip("/"))
    return "/." in path[fixed:] and "/." not in pattern[fixed:]


#: Errors at a path where nothing is.
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


def _look_at(path: str, found: Found) -> None:
    """Note what is at a path of this machine; what cannot be found out is said when it is opened."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a name may hold NUL
        if not stat.S_ISDIR(mode):
            found.paths.append(path)
    except ValueError:
        return
    except OSError as error:
        if error.errno not in _NOTHING:
            found.paths.append(path)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file is like at a moment; another one has another text."""

    text: str  # its size, and the time of its last change
    size: int  # bytes
    came_us: int | None  # when it came, or changed; ``None`` where that is not known


def stamp_of(path: str) -> Stamp | None:
    """What a file is like now; ``None`` if it is not there, or does not tell.

    Raises:
        NoRightsError: this user may not look at it.
    """
    if is_local(path):
        try:
            found = Path(path).stat()
        except PermissionError as error:
            raise unopened(path, error) from None
        except OSError:
            return None
        # the time of a change of name or content, which cannot be set, and copying does not keep
        return Stamp(f"{found.st_size}-{found.st_mtime_ns}", found.st_size, found.st_ctime_ns // 1_000)
    with suppress(ValueError, OSError):  # those of Beam are of the latter
        (match,) = file_systems().match([path])
        for one in match.metadata_list:
            changed = one.last_updated_in_seconds
            return Stamp(f"{one.size_in_bytes}-{changed}", one.size_in_bytes, round(changed * 1e6) or None)
    return None


def is_changed(now: Stamp | None, noted: str | None) -> bool:
    """Whether a file is another than it was; one that is gone was read to its end by who has it open."""
    return now is not None and noted is not None and now.text != noted


@contextmanager
def unchanged(path: str, noted: str | None) -> Generator[None]:
    """See that a file which is read in the block is what it was when its stamp was noted.

    Raises:
        SourceFileError: it is another; whatever was read of it is neither the old file nor the new one.
    """
    try:
        yield
    except SourceFileError:
        _check_unchanged(path, noted)
        raise
    _check_unchanged(path, noted)


def _check_unchanged(path: str, noted: str | None) -> None:
    if is_changed(stamp_of(path), noted):
        raise SourceFileError(
            f"file {path} changed while it was read: its size or time is not what it was when the job began; nothing "
            "was charged: wait until nothing writes to it, or read a copy, and run again"
        )


def open_bytes(path: str) -> BinaryIO:
    """Open a file as it is, for reading from any place in it."""
    if path.endswith(_OTHER_COMPRESSIONS):
        raise SourceFileError(f"file {path} {_UNREAD}")
    try:
        if is_local(path):
            return open_regular(Path(path))
        return file_systems().open(path, "application/octet-stream", compression_type="uncompressed")
    except OSError as error:
        raise unopened(path, error) from None


def unopened(path: str, error: OSError) -> SourceFileError:
    """A file that cannot be opened as an error that can be shown."""
    kind = NoRightsError if isinstance(error, PermissionError) else SourceFileError
    return kind(f"file {path} cannot be opened ({reason(error)}); check its permissions and that it is still there")


@contextmanager
def open_text(path: str, encoding: str = "utf-8") -> Generator[BinaryIO]:
    """A text file as bytes of UTF-8, open in the block; ``.gz``, ``.bz2``, ``.zst`` and ``.zip`` are unpacked."""
    with ExitStack() as opened:
        stream = opened.enter_context(open_bytes(path))
        if (codec := _PACKED.get(os.path.splitext(path)[1])) is not None:  # noqa: PTH122 - any path
            stream = opened.enter_context(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), codec))
        elif path.endswith(".zip"):
            stream = opened.enter_context(_member(stream, path))
        yield cast("BinaryIO", stream if encoding == "utf-8" else _AsUtf8(stream, path, encoding))


#: Errors of a file that breaks off, or is damaged, while it is unpacked.
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)

#: Compressions by the end of a name.
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


def _member(raw: BinaryIO, path: str) -> IO[bytes]:
    """The one file in an archive."""
    try:
        archive = zipfile.ZipFile(raw)
        members = [one for one in archive.infolist() if not one.is_dir()]
        if len(members) == 1:
            return archive.open(members[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise SourceFileError(
            f"file {path} is no archive that can be read ({type(error).__name__}); unpack it, and name the file in it"
        ) from None
    raise SourceFileError(
        f"file {path} is an archive of {len(members):,} files, and one is read; unpack it, and name the files in it"
    )


class _AsUtf8:
    """A stream of text in an encoding, as UTF-8. What is no text in it breaks the file, as its lines are not known."""

    def __init__(self, stream: Any, path: str, encoding: str) -> None:
        self._stream, self._path, self._encoding = stream, path, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def read(self, size: int) -> bytes:
        """About so many bytes; none at the end."""
        found, data = b"", b"more"
        try:
            while data and not found:
                data = self._stream.read(size)
                found = self._decoder.decode(data, final=not data).encode("utf-8")
        except UnicodeError:
            raise SourceFileError(
                f"file {self._path} is no text in {self._encoding}; set source.encoding to what it is, or save the "
                "file as UTF-8"
            ) from None
        return found


def is_text(text: str) -> bool:
    """Whether a string has a form in UTF-8: half of a surrogate pair has none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
