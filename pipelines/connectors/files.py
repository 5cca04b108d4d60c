"""Files and standard input as source and sink, of jobs that end and of live ones.

A job that ends reads files that are there and writes one: tried before anything is charged, and read back. A live job
follows folders, or standard input, and adds files to a folder.

A model is marked as fitted on protected series if a run reads a file that it was fitted on, found by the content of the
files: names can differ where the data are the same, since a file that is one series has the name its settings give it.
The names of the series overrule this only where they show that the fit used other series.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from apache_beam.io.filesystems import FileSystems

from ...schemas.files import check_replaceable, is_file, is_folder, open_regular, part_name, reason
from ...schemas.model_file import Model
from ...schemas.releases import RELEASE_SCHEMA
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import FileFormat, FileSink, FileSource
from ...schemas.settings.job import Readings, Settings, read_roster
from ...schemas.table_files import UNREADABLE, columns_of
from ...store.exports import rows_of
from ...store.specs import Record, Registration
from ...store.store import Store
from ...transforms.formats.paths import everywhere, expand, is_elsewhere, is_local, open_bytes, unreachable
from ...transforms.formats.rows import Labels
from ...transforms.readings.slots import words_of
from ...transforms.sinks import (
    REJECTS,
    WriteBlocks,
    WriteRejects,
    WriteRows,
    block_name,
    in_folder,
    read_release_rows,
    write_block,
)
from ...transforms.sources.arriving_files import ArrivingFiles, StandardInput
from ...transforms.sources.contract import PartitionedSource
from ...transforms.sources.files import decoder_of
from ...transforms.sources.reader import PollingPolicy, ReadLive
from ..errors import CommandError, ExitCode
from .job_io import Field, JobPath, SinkError, check_paths, check_topics, is_full, job_paths, outputs_of
from .live import LiveSink, LiveSource, recorded_blocks


def check_writable(settings: Settings, *, live: bool = False) -> None:
    """Make the folders of sink and rejects, and try to write there, before anything is charged.

    Files of other machines are not tried. A trial has a name that no pattern finds.

    Raises:
        SettingsError: a folder cannot be made, or nothing can be written in it.
        SinkError: no room is left there.
    """
    problems: list[str] = []
    for output in outputs_of(settings):
        if not output.files or not is_local(output.place):
            continue
        place = Path(output.place)
        trial = place / part_name("trial") if live else place.parent / part_name(place.name)
        try:
            trial.parent.mkdir(parents=True, exist_ok=True)
            trial.touch(exist_ok=False)
            trial.unlink()
        except OSError as error:
            if is_full(error):
                then = f"Nothing was charged by this run: {output.mend(error)}, and run again"
                raise SinkError(output, error, then) from error
            advice = "mend it, or name another folder" if live else "mend its folder, or name another file"
            problems.append(
                f"{output.field}: {output.place} cannot be written ({reason(error)}); nothing was charged: {advice}"
            )
    if problems:
        raise SettingsError(problems)


#: Where a model file says which column named its series.
SERIES_COLUMN = "series_column"

_CHUNK = 1 << 20


def series_column(settings: Settings) -> str | None:
    """The column with the names of the series; ``None`` of a single series."""
    readings = settings.readings
    return readings.series if readings is not None and isinstance(readings.series, str) else None


def source_digests(settings: Settings) -> tuple[str, ...]:
    """BLAKE2 digests of the content of every source file, sorted, each once.

    Raises:
        SettingsError: a pattern names no file.
        SourceFileError: a file cannot be read.
    """
    source = settings.source
    if source is None:
        return ()
    files = expand(source.patterns, settings.path, source.setting)
    return tuple(sorted({_digest_of(path) for path in files}))


def _digest_of(path: str) -> str:
    found = hashlib.blake2b(digest_size=16)
    with open_bytes(path) as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def labelled(settings: Settings, model: Model) -> Model:
    """The model, marked as estimated from protected series if the run reads a file that it was fitted on.

    It is not marked if fit and run take the names of the series from the same column, and no series of the roster was
    used for the fit. A history that was converted, cut or compressed anew is another file, and is not noticed.

    Raises:
        SettingsError: a pattern of the source names no file.
        RosterError: the roster cannot be read.
        SourceFileError: a source file cannot be read.
    """
    origin = model.provenance
    if origin.from_protected or not origin.source_digests or _disjoint(settings, model):
        return model
    if set(origin.source_digests).isdisjoint(source_digests(settings)):
        return model
    return replace(model, provenance=replace(origin, from_protected=True))


def labelled_so_far(settings: Settings, model: Model) -> Model:
    """As :func:`labelled`, for a live job: by the files that are there now; there may be none yet."""
    with suppress(SettingsError):
        return labelled(settings, model)
    return model


def _disjoint(settings: Settings, model: Model) -> bool:
    """Whether names show that the model was fitted on other series than the roster's."""
    roster, column = read_roster(settings, grouped=False), series_column(settings)
    if roster is None or column is None or model.diagnostics.get(SERIES_COLUMN) != column:
        return False
    return model.provenance.used(roster.series) == 0


def write_releases(releases: Any, settings: Settings) -> None:
    """Add the writing of released rows to a graph."""
    if settings.sink is not None:
        _ = releases | "Sink" >> WriteRows(settings.path(settings.sink.path), settings.sink.format)


def write_rejects(rejected: Any, settings: Settings) -> None:
    """Add the writing of rejects to a graph."""
    if settings.rejects is not None:
        _ = rejected | "Rejects" >> WriteRows(settings.path(settings.rejects.path), settings.rejects.format, REJECTS)


def released_ids(settings: Settings) -> list[str]:
    """The names of the releases in the sink.

    Raises:
        SettingsError: the rows there are another query's, which this job would replace; or its place cannot be reached.
        CommandError: what is there are no releases.
    """
    path = None if settings.sink is None else _there(settings.path(settings.sink.path), "sink", "releases")
    why = "which this job would replace; name another file"
    return [] if path is None else _ids(path, settings, "the file there holds", why)


def _ids(path: str, settings: Settings, what: str, why: str) -> list[str]:
    with _holding("sink", path, "releases"):
        _check_form(path, RELEASE_SCHEMA.names)
        table = read_release_rows(path)
    names = set(zip(table["domain"].to_pylist(), table["query"].to_pylist(), strict=True))
    own = (settings.domain, settings.query)
    others = sorted(f"{query} over {domain}" for domain, query in names if (domain, query) != own)
    if others:
        raise SettingsError([f"sink: {what} rows of {', '.join(others)}, {why}"])
    return table["release_id"].to_pylist()


def check_rejects(settings: Settings) -> None:
    """Refuse to replace a file that is not of rejects.

    Raises:
        CommandError: the file is there and holds something else.
    """
    path = None if settings.rejects is None else _there(settings.path(settings.rejects.path), "rejects", "rejects")
    if path is not None:
        with _holding("rejects", path, "rejects"):
            _check_form(path, REJECTS.schema.names)


def _there(path: str, field: str, what: str) -> str | None:
    with _holding(field, path, what, (OSError,)):
        return path if (check_replaceable(Path(path)) if is_local(path) else is_elsewhere(path, field)) else None


@contextmanager
def _holding(field: str, path: str, what: str, errors: tuple[type[Exception], ...] = UNREADABLE) -> Generator[None]:
    try:
        yield
    except errors as error:
        text = f"{field}: {path} exists and holds no {what} ({reason(error)}); name another file, or move that one"
        raise CommandError(text) from error


def _check_form(path: str, names: list[str]) -> None:
    """Look at the beginning of a file: it is empty, or its columns are these."""
    with open_regular(Path(path)) if is_local(path) else open_bytes(path) as file:
        if columns_of(file) not in ([], names):
            raise ValueError("other columns")


#: A name as the files of a live sink have it, to see whether a pattern of the source would find them.
_LIKE = "20130101T000000-0123456789abcdef"


def check_folders(settings: Settings) -> None:
    """See that sink and rejects are folders of their own; nothing is made yet.

    Raises:
        SettingsError: one is a file, or is where the source is looked for.
    """
    check_topics(settings)
    named = (("sink", settings.sink), ("rejects", settings.rejects))
    found = [(field, settings.path(one.path), one.format) for field, one in named if one is not None and one.is_files]
    problems = [
        f"{field}: {folder} is a file, and a live job adds files to a folder; name a folder"
        for field, folder, _ in found
        if is_local(folder) and is_file(folder)
    ]
    if problems:
        raise SettingsError(problems)
    inside = [JobPath(field, in_folder(folder, f"{_LIKE}.{form}"), written=True) for field, folder, form in found]
    check_paths([*job_paths(settings), *inside])


class FollowedFiles(LiveSource):
    """Files that appear in folders, or standard input.

    Raises:
        SettingsError: its columns cannot be read so.
        CommandError: a folder is not there.
    """

    def __init__(self, settings: Settings, source: FileSource, group: str | None = None) -> None:
        readings = cast("Readings", settings.readings)  # which every source has
        readings.check_followed()
        zone, labels = settings.slots.timezone, Labels.of(settings.space)
        words = words_of(readings, settings.slots.of)
        decoder = decoder_of(source, readings, timezone=zone, group=group, labels=labels, words=words)
        self._source: PartitionedSource
        if source.stdin:
            self._source = StandardInput(decoder)
            return
        patterns = tuple(everywhere(settings.path(pattern)) for pattern in source.patterns)
        for pattern in patterns:
            folder = Path(pattern).parent
            if is_local(pattern) and not glob.has_magic(str(folder)) and not is_folder(folder):
                # a disk that is not mounted yet
                text = f"{source.setting}: the folder {folder} is not there; mount or make it, or check its name"
                raise CommandError(text, ExitCode.AWAY)
        self._source = ArrivingFiles(decoder, patterns)

    def read(self, pace: PollingPolicy) -> ReadLive:
        """The reading of the files."""
        return ReadLive(self._source, pace)


class SinkFolder(LiveSink):
    """A folder that a live job adds files to.

    The record is gone through once, block by block, and each block's file is looked for.
    """

    def __init__(self, settings: Settings, given: FileSink) -> None:
        self._settings = settings
        self._format: FileFormat = given.format
        self._folder = settings.path(given.path)
        self._absent: set[tuple[int, int]] | None = None  # window and shard of each block without a file

    def releases(self) -> WriteBlocks:
        """The writing of blocks, each a file."""
        return WriteBlocks(everywhere(self._folder), self._format)

    def rejects(self) -> WriteRejects:
        """The writing of rejects, those of a bundle a file."""
        return WriteRejects(everywhere(self._folder), self._format)

    def unknown_ids(self, store: Store) -> list[str]:
        """The names of the releases in files that are not those of blocks on record.

        Raises:
            SettingsError: a file holds another query's rows.
            CommandError: a file holds no releases.
        """
        registration = None
        if store.is_there():
            registration = store.registered(self._settings.domain, self._settings.query)
        strangers = set(self._names()) if registration is None else self._look(store, registration)
        paths = [in_folder(self._folder, name) for name in sorted(strangers)]
        why = "and a folder is one query's; name another folder"
        return [one for path in paths for one in _ids(path, self._settings, f"{path} holds", why)]

    def complete(self, store: Store, registration: Registration) -> int:
        """Write the files of blocks on record that are not there: a job that was killed may have left some out.

        Returns:
            How many were written.
        """
        if self._absent is None:
            self._look(store, registration)
        absent = self._absent or set()
        if not absent:
            return 0
        start, shard = min(absent)
        for record, _ in self._blocks(store, registration, after=(start, shard - 1)):
            if (record.window.start, record.shard) in absent:
                write_block(self._folder, self._format, rows_of(registration, record))
        return len(absent)

    def _look(self, store: Store, registration: Registration) -> set[str]:
        """Note the blocks that have no file; the names of the files that are of no block."""
        # of files that are written meanwhile the blocks are on record before
        strangers, self._absent = set(self._names()), set()
        for record, name in self._blocks(store, registration):
            if name in strangers:
                strangers.remove(name)
            else:
                self._absent.add((record.window.start, record.shard))
        return strangers

    def _blocks(
        self, store: Store, registration: Registration, after: tuple[int, int] | None = None
    ) -> Iterator[tuple[Record, str]]:
        """The blocks on record and the names of their files."""
        for record, start_us, ids in recorded_blocks(store, registration, after):
            yield record, block_name(start_us, ids, self._format)

    def _names(self) -> Iterator[str]:
        """The names of the files in the folder, but for those that are being written."""
        end = f".{self._format}"
        if is_local(self._folder):
            with suppress(FileNotFoundError), os.scandir(self._folder) as found:
                yield from (one.name for one in found if one.name.endswith(end))
            return
        try:
            (match,) = FileSystems.match([in_folder(self._folder, f"*{end}")])
        except ValueError as error:  # no file system has that scheme
            raise SettingsError([unreachable("sink", self._folder, error)]) from None
        yield from (FileSystems.split(one.path)[1] for one in match.metadata_list)


def sink(settings: Settings, field: Field, given: FileSink) -> LiveSink:  # noqa: ARG001 - as every connector's
    """A sink of settings that name a folder."""
    return SinkFolder(settings, given)


source = FollowedFiles
