"""Files as source and sink of live jobs: folders that are followed or added to, and standard input."""

from __future__ import annotations

import glob
import os
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from apache_beam.io.filesystems import FileSystems

from ...schemas.files import is_file, is_folder
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import FileFormat, FileSink, RejectSink
from ...schemas.settings.job import Settings
from ...store.domain_changes import SourceId
from ...store.errors import StoreMissing
from ...store.exports import rows_of
from ...store.specs import Record, Registration
from ...store.store import Store
from ...transforms.formats.paths import everywhere, is_local, unreachable
from ...transforms.formats.rows import Labels
from ...transforms.sinks import WriteBlocks, WriteDeadLetters, WriteRejects, block_name, in_folder, write_block
from ...transforms.sources.arriving_files import ArrivingFiles, StandardInput
from ...transforms.sources.contract import PartitionedSource
from ...transforms.sources.files import decoder_of
from ...transforms.sources.reader import PollingPolicy, ReadLive
from .files import ids_in, try_folder, try_places
from .live import LiveSink, LiveSource
from .places import Place, check_places, check_topics, places_of
from .undelivered import Field, recorded_blocks

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
    inside = [Place(field, in_folder(folder, f"{_LIKE}.{form}"), written=True) for field, folder, form in found]
    check_places([*places_of(settings), *inside])


def make_folders(settings: Settings) -> None:
    """Make the folders of sink and rejects, and try to write there, before anything is charged.

    Raises:
        SettingsError: one cannot be made or written.
        SinkError: no room is left there.
    """
    try_places(settings, lambda folder: try_folder(folder, "trial"), "mend it, or name another folder")


class FollowedFiles(LiveSource):
    """Files that appear in folders, or standard input.

    Args:
        settings: the job.
        group: the column of the group, where readings name one.

    Raises:
        SettingsError: its columns cannot be read so, or a folder is not there.
    """

    def __init__(self, settings: Settings, group: str | None) -> None:
        source, readings = settings.source, settings.readings
        if source is None or readings is None:
            raise SettingsError(["source is missing: it names the files to follow, e.g. {jsonl: inbox/*.jsonl}"])
        if readings.ambiguous == "in-order":
            raise SettingsError(
                [
                    "readings.ambiguous is in-order, and files that are followed may be read from their middle on; set "
                    "earliest or latest"
                ]
            )
        zone, labels = settings.slots.timezone, Labels.of(settings.space)
        decoder = decoder_of(source, readings, timezone=zone, group=group, labels=labels)
        self._grouped = group is not None
        self._source: PartitionedSource
        if source.stdin:
            self._source = StandardInput(decoder)
            return
        patterns = tuple(everywhere(settings.path(pattern)) for pattern in source.patterns)
        for pattern in patterns:
            folder = Path(pattern).parent
            if is_local(pattern) and not glob.has_magic(str(folder)) and not is_folder(folder):
                raise SettingsError([f"{source.setting}: the folder {folder} is not there; make it, or check its name"])
        self._source = ArrivingFiles(decoder, patterns)

    def read(self, pace: PollingPolicy, known: Mapping[str, SourceId] | None = None) -> ReadLive:  # noqa: ARG002 - of topics
        """The reading of the files."""
        return ReadLive(self._source, pace, grouped=self._grouped)


class SinkFolder(LiveSink):
    """A folder that a live job adds files to.

    The record is gone through once, block by block, and each block's file is looked for; what is kept in memory does
    not grow with the record, but for sixteen bytes for a block that has no file.

    Args:
        settings: the job.
        given: its sink, or that of its rejects.
    """

    def __init__(self, settings: Settings, given: FileSink) -> None:
        self._settings = settings
        self._given = given
        self._format: FileFormat = given.format
        self._folder = settings.path(given.path)
        self._absent: list[array[int]] | None = None

    def releases(self) -> WriteBlocks:
        """The writing of blocks, each a file."""
        return WriteBlocks(everywhere(self._folder), self._format)

    def rejects(self) -> WriteRejects:
        """The writing of rejects, those of a bundle a file."""
        encrypted = isinstance(self._given, RejectSink) and self._given.encrypted is not None
        return (WriteDeadLetters if encrypted else WriteRejects)(everywhere(self._folder), self._format)

    def unknown_ids(self, store: Store) -> list[str]:
        """The names of the releases in files that are not those of blocks on record.

        Args:
            store: the ledger; it may not be there yet, or not know the query.

        Raises:
            SettingsError: a file holds another query's rows.
            CommandError: a file holds no releases.
        """
        # of files that were written meanwhile the blocks are on record before
        there = sum(map(hash, self._names()))
        registration = None
        with suppress(StoreMissing):
            registration = store.registered(self._settings.domain, self._settings.query)
        found = 0 if registration is None else self._look(store, registration)
        if there == found:
            return []
        strangers = set(self._names())
        if registration is not None:
            strangers.difference_update(name for _, name in self._blocks(store, registration))
        return [one for name in sorted(strangers) for one in ids_in(in_folder(self._folder, name), self._settings)]

    def complete(self, store: Store, registration: Registration) -> int:
        """Write the files of blocks on record that are not there: a job that was killed may have left some out.

        Returns:
            How many were written.
        """
        if self._absent is None:
            self._look(store, registration)
        absent = iter(()) if self._absent is None else zip(*self._absent, strict=True)
        following, written = next(absent, None), 0
        if following is None:
            return 0
        for record, _ in self._blocks(store, registration, after=(following[0], following[1] - 1)):
            if (record.window.start, record.shard) == following:
                write_block(self._folder, self._format, rows_of(registration, record))
                written, following = written + 1, next(absent, None)
                if following is None:
                    break
        return written

    def _look(self, store: Store, registration: Registration) -> int:
        """Note the blocks that have no file; the sum of the hashes of the names of those that have one."""
        absent, found = [array("q"), array("q")], 0
        there = None if is_local(self._folder) else set(self._names())
        for record, name in self._blocks(store, registration):
            if Path(in_folder(self._folder, name)).exists() if there is None else name in there:
                found += hash(name)
            else:
                for column, value in zip(absent, (record.window.start, record.shard), strict=True):
                    column.append(value)
        self._absent = absent
        return found

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


def source(settings: Settings, group: str | None) -> LiveSource:
    """The source of settings that name files or standard input."""
    return FollowedFiles(settings, group)


def sink(settings: Settings, field: Field, given: FileSink) -> LiveSink:  # noqa: ARG001 - of topics
    """A sink of settings that name a folder."""
    return SinkFolder(settings, given)
