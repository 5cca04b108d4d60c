"""The folders a live job adds files to: what they may hold, and what of the record they lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from apache_beam.io.filesystems import FileSystems

from ..schemas.releases import release_ids
from ..schemas.settings import FileFormat, FileSink, Settings, SettingsError
from ..schemas.slots import SlotGrid
from ..store.errors import StoreMissing
from ..store.records import Store
from ..store.rows import rows_of
from ..store.specs import Record, Registration
from ..transforms.files import is_local
from ..transforms.live_sinks import block_name, in_folder, write_block
from .places import Place, check_places, places_of, try_folder
from .sinks import ids_in

#: A name as the files of a live sink have it, to see whether a pattern of the source would find them.
_LIKE = "20130101T000000-0123456789abcdef"


def sink_of(settings: Settings) -> FileSink:
    """The settings' sink.

    Raises:
        SettingsError: there is none.
    """
    if settings.sink is None:
        raise SettingsError(["sink is missing: it names the folder for the released rows, e.g. {parquet: releases}"])
    return settings.sink


def check_folders(settings: Settings) -> None:
    """See that sink and rejects are folders of their own that can be written, before anything is charged.

    Raises:
        SettingsError: one is missing, is a file, cannot be written, or is where the source is looked for.
    """
    problems: list[str] = []
    found = [("sink", sink_of(settings)), *([("rejects", settings.rejects)] if settings.rejects is not None else [])]
    for field, sink in found:
        folder = settings.path(sink.path)
        if not is_local(folder):
            continue
        if Path(folder).is_file():
            problems.append(f"{field}: {folder} is a file, and a live job adds files to a folder; name a folder")
            continue
        try:
            try_folder(Path(folder), "trial")
        except OSError as error:
            problems.append(
                f"{field}: {folder} cannot be written ({type(error).__name__}); nothing was charged: mend it, or name "
                "another folder"
            )
    if problems:
        raise SettingsError(problems)
    inside = [
        Place(field, in_folder(settings.path(sink.path), f"{_LIKE}.{sink.format}"), written=True)
        for field, sink in found
    ]
    check_places([*places_of(settings), *inside])


class SinkFolder:
    """What is in the sink of a live job.

    Args:
        settings: the job.
    """

    def __init__(self, settings: Settings) -> None:
        sink = sink_of(settings)
        self._settings = settings
        self._format: FileFormat = sink.format
        self._folder = settings.path(sink.path)

    def unknown_ids(self, store: Store) -> list[str]:
        """The names of the releases in files that are not those of blocks on record.

        Args:
            store: the ledger; it may not be there yet, or not know the query.

        Raises:
            SettingsError: a file holds another query's rows.
            CommandError: a file holds no releases.
        """
        there = self._there() if is_local(self._folder) else []
        if not there:
            return []
        registration = None
        with suppress(StoreMissing):
            registration = store.registered(self._settings.domain, self._settings.query)
        known = set() if registration is None else {name for _, name in self._blocks(store, registration)}
        strangers = sorted(name for name in there if name not in known)
        return [one for name in strangers for one in ids_in(Path(in_folder(self._folder, name)), self._settings)]

    def complete(self, store: Store, registration: Registration) -> int:
        """Write the files of blocks on record that are not there: a job that was killed may have left some out.

        Returns:
            How many were written.
        """
        there, written = set(self._there()), 0
        for record, name in self._blocks(store, registration):
            if name not in there:
                write_block(self._folder, self._format, rows_of(registration, record))
                written += 1
        return written

    def _blocks(self, store: Store, registration: Registration) -> Iterator[tuple[Record, str]]:
        """The blocks on record and the names of their files."""
        names = (registration.domain.name, registration.query.name)
        grid = SlotGrid(**registration.domain.grid)
        for record in store.records(*names):
            if record.block is not None:
                window = (grid.time_of(record.window.start), grid.time_of(record.window.stop))
                ids = release_ids(*names, registration.digest, window, record.block.keys)
                yield record, block_name(window[0], ids, self._format)

    def _there(self) -> list[str]:
        """The names of the files in the folder, but for those that are being written."""
        end = f".{self._format}"
        if is_local(self._folder):
            with suppress(FileNotFoundError):
                return [path.name for path in Path(self._folder).iterdir() if path.name.endswith(end)]
            return []
        (found,) = FileSystems.match([in_folder(self._folder, f"*{end}")])
        return [FileSystems.split(one.path)[1] for one in found.metadata_list]
