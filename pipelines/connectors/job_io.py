"""What a job or command reads and writes: paths, topics and outputs; which must not be the same, and their errors.

Nothing here reads or writes, and Beam is not imported: a dry run checks the paths of a job, too. What is released is
put on record before it is written, so an output that fails loses nothing: the same rows can be written later.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Literal

from ...schemas.files import SQLITE_BEGIN, FileError, begin_of, check_replaceable, is_folder
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import FileSink
from ...schemas.settings.job import Settings
from ...store.address import StoreAddress
from ...transforms.formats.paths import WILDCARDS, SourceFileError, expand, is_local
from ..errors import CommandError, ExitCode, failed_step

Field = Literal["sink", "rejects"]

#: Files that SQLite keeps beside a database.
_BESIDE = ("-wal", "-shm", "-journal")

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

#: Where Python and Arrow write the number of an error; it may stand in a path, too. The runner hands on texts only.
_NUMBER = re.compile(r"(?:^(?:[\w.]+: )*|Detail: )\[errno (\d+)\]", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JobPath:
    """A file that a setting names."""

    field: str  # the setting
    path: str  # the file, or a pattern of files
    written: bool = False  # whether something is written there


def job_paths(settings: Settings) -> list[JobPath]:
    """Every file that the settings name, as far as it can be known without reading one.

    Raises:
        SecretError: the ledger's URL cannot be filled in here.
    """
    found: list[JobPath] = []
    source = settings.source
    if source is not None:
        field = source.setting
        for pattern in source.patterns:
            where = settings.path(pattern)
            found.append(JobPath(field, where))
            if is_local(where):
                with suppress(SettingsError, SourceFileError):  # what is not there is said where it is read
                    found += [JobPath(field, path) for path in expand([pattern], settings.path, field)]
    if settings.model_file is not None:
        found.append(JobPath("model", settings.model_file))
    if settings.roster_file is not None:
        field = "roster" if settings.roster is not None else "group_by"
        found.append(JobPath(field, settings.path(settings.roster_file.file)))
    address = StoreAddress(settings.ledger_url)
    if address.is_sqlite:
        path = str(address.resolve().database)
        found += [JobPath("ledger", path + end, written=True) for end in ("", *_BESIDE)]
    found += [JobPath(field, settings.path(one.path), written=True) for field, one in _sinks(settings) if one.is_files]
    return list(dict.fromkeys(found))  # a path is what it finds, too


def check_apart(settings: Settings) -> None:
    """Refuse settings under which a job would write over a file that it reads, or that holds something else of it.

    Raises:
        SettingsError: two settings name the same file, and one of them is written; links and ``..`` are followed. Or
            something that is no file and no folder is where one is to be written.
    """
    paths = job_paths(settings)
    check_paths(paths)
    problems = [
        f"{one.field}: {one.path} cannot be written ({why})"
        for one in paths
        if one.written and is_local(one.path) and (why := _not_writable(one)) is not None
    ]
    if problems:
        raise SettingsError(problems)


def _not_writable(one: JobPath) -> str | None:
    """Why what is at a path can be neither a file nor a folder that is written; a ledger may be behind a link."""
    path = os.path.realpath(one.path) if one.field == "ledger" or is_folder(one.path) else one.path
    if is_folder(path):
        return None  # of a live job; what is not live says what it needs where it looks at the file
    try:
        check_replaceable(Path(path))
    except FileError as error:
        return str(error)
    except OSError:
        return None  # said where it is written
    return None


def check_paths(paths: list[JobPath]) -> None:
    """Refuse paths of which two settings name the same one, and one of them writes there.

    Raises:
        SettingsError: there are such settings; links and ``..`` are followed.
    """
    problems: dict[str, None] = {}
    # asked once: a source may have a hundred thousand files
    found = [(at, one, _whereabouts(one.path)) for at, one in enumerate(paths)]
    for at, written, there in found:
        for beside, other, where in found if written.written else ():
            if written.field != other.field and (beside > at or not other.written) and _same(there, where):
                one, two = (written, other) if at < beside else (other, written)
                target = two if two.written else one
                problems[
                    f"{one.field} and {two.field} name the same file, {target.path}: writing the one would destroy the "
                    f"other; give {target.field} a file of its own"
                ] = None
    if problems:
        raise SettingsError(problems)


_Where = tuple[tuple[int, int] | None, str]
"""Device and number of what is at a path, ``None`` if nothing is there; and the path without links and ``..``."""


def _whereabouts(path: str) -> _Where:
    path = path.removeprefix("file://")
    if not is_local(path):
        return None, path
    with suppress(OSError):  # it is not there yet
        found = Path(path).stat()
        return (found.st_dev, found.st_ino), os.path.realpath(path)
    return None, os.path.realpath(path)


def _same(one: _Where, other: _Where) -> bool:
    if one[0] is not None and other[0] is not None:
        return one[0] == other[0]
    return _matches(one[1], other[1]) or _matches(other[1], one[1])


def _matches(path: str, pattern: str) -> bool:
    """Whether a path is a pattern's, part by part: a sink that the source's pattern finds is read by the next run."""
    if path == pattern or not WILDCARDS & set(pattern):
        return path == pattern
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def check_output(
    output: Path,
    read: Iterable[JobPath | Path],
    what: str = "the output (-o)",
    begins: bytes | None = None,
    holds: Callable[[Path], bool] | None = None,
) -> None:
    """Refuse to write what a command makes over a file that it reads, that its settings name, or that is to be kept.

    Args:
        output: the file to be written.
        read: the other files.
        what: the file that is written, for messages.
        begins: how it will begin; a file that is there and begins otherwise is kept. ``None``: any begin will do.
        holds: whether a file that begins so holds the like of what is written, where its begin does not say it.

    Raises:
        SettingsError: it is one of them, a SQLite database, the sink of a job, or begins otherwise.
    """
    written = JobPath(what, str(output), written=True)
    for one in read:
        check_paths([one if isinstance(one, JobPath) else JobPath("the command", str(one)), written])
    try:
        begin = begin_of(output, 2 * len(SQLITE_BEGIN + (begins or b"")))
    except OSError:
        return  # said where it is written
    kept = None
    if begin.startswith(SQLITE_BEGIN):
        kept = "is a SQLite database, which may be a ledger and is never replaced: name another file"
    elif any(output.parent.glob(f".{escape(output.name)}.quiltstream.*")):
        kept = (
            "is the sink of a job, whose ledger the hidden files beside it remember, and is never replaced: name "
            "another file"
        )
    elif begin and not (_plain(begin).startswith(_plain(begins or b"")) and (holds is None or holds(output))):
        kept = "holds something else than what is to be written: name another file, or remove this one first"
    if kept is not None:
        raise SettingsError(f"{what}: {output} {kept}")


def _plain(begin: bytes) -> bytes:
    """The begin of a file without what other programs write otherwise: blanks, line ends and quotes."""
    return begin.translate(None, b' \t\r\n"')


def check_topics(settings: Settings) -> None:
    """See that no topic is written that is read, or that holds something else of the job.

    Raises:
        SettingsError: one is.
    """
    source = settings.source
    named = {} if source is None else dict.fromkeys(source.named_topics, source.setting)
    for section, sink in _sinks(settings):
        for topic in sink.named_topics:
            field = f"{section}.{topic[0]}"
            other = named.setdefault(topic, field)
            if other != field:
                text = f"{other} and {field} name the same topic, {topic[1]}; give {field} a topic of its own"
                raise SettingsError([text])


def _sinks(settings: Settings) -> list[tuple[Field, FileSink]]:
    """Sink and rejects, as far as the settings name them."""
    named: tuple[tuple[Field, FileSink | None], ...] = (("sink", settings.sink), ("rejects", settings.rejects))
    return [(field, one) for field, one in named if one is not None]


def sink_of(settings: Settings, *, live: bool) -> FileSink:
    """The sink, which every run needs.

    Raises:
        SettingsError: there is none.
    """
    if settings.sink is None:
        what, example = ("folder", "releases") if live else ("file", "releases.parquet")
        text = f"sink is missing: it names the {what} for the released rows, e.g. {{parquet: {example}}}"
        raise SettingsError([text])
    return settings.sink


def refuse_topics(settings: Settings) -> None:
    """Refuse a job that ends whose settings name topics, which never do.

    Raises:
        SettingsError: they do.
    """
    source = settings.source
    fields = [] if source is None or source.broker is None else [source.broker]
    fields += [f"{field}.{sink.kind}" for field, sink in _sinks(settings) if not sink.is_files]
    if fields:
        text = f"{', '.join(fields)}: topics are for live jobs: use quiltstream run --live, which ends by itself at "
        raise SettingsError([f"{text}windows.stop, or name files"])


@dataclass(frozen=True, slots=True)
class Output:
    """What a step of a graph writes."""

    field: Field  # the setting
    place: str  # folder, file or topic
    files: bool  # whether it is a place for files

    @property
    def step(self) -> str:
        """The step of the graph that writes it."""
        return self.field.capitalize()

    @property
    def kept(self) -> str:
        """What is not lost."""
        return "The rows are on record" if self.field == "sink" else "What was charged is on record"

    def failed(self, error: BaseException) -> str:
        """What went wrong, in words that hold no data."""
        if self.files and is_full(error):
            return f"{self.field}: {self.place} could not be written, because no room is left on its disk"
        return f"{self.field}: {self.place} could not be written ({failed_step(error)[1]})"

    def mend(self, error: BaseException) -> str:
        """What to do."""
        return f"{'make room there' if self.files and is_full(error) else 'mend the place'}, or name another"


class SinkError(CommandError):
    """Sink or rejects could not be written: they refuse it, or no room is left there."""

    def __init__(self, output: Output, error: BaseException, then: str) -> None:
        """Name the place and the next step."""
        full = output.files and is_full(error)
        super().__init__(f"{output.failed(error)}. {then}", ExitCode.AWAY if full else ExitCode.SINK)


def outputs_of(settings: Settings) -> tuple[Output, ...]:
    """What a job's graph writes."""
    return tuple(
        Output(field, settings.path(sink.path) if sink.is_files else sink.text, sink.is_files)
        for field, sink in _sinks(settings)
    )


def output_of(error: BaseException, outputs: tuple[Output, ...]) -> Output | None:
    """What the step writes in which an error was raised; ``None`` if it was in another one."""
    step, _ = failed_step(error)
    return next((one for one in outputs if f"{step}/".startswith(f"{one.step}/")), None)


def is_full(error: BaseException) -> bool:
    """Whether an error, or the last one in a traceback's text, says that no room is left."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    numbers = _NUMBER.findall(str(error))
    return bool(numbers) and int(numbers[-1]) in _FULL


@contextmanager
def filling(outputs: tuple[Output, ...]) -> Generator[None]:
    """Say of an error within that it was the sink's, which gets what it lacks of the record.

    Raises:
        SinkError: there was one.
    """
    try:
        yield
    except OSError as error:
        sink = next(one for one in outputs if one.field == "sink")
        then = f"{sink.kept}: {sink.mend(error)}, and run again; it is given what it lacks first"
        raise SinkError(sink, error, then) from error
