"""Released rows read back from what a sink wrote: files of any of its formats, and folders of a live job.

For whoever works with published rows: nothing here needs Beam, a ledger or settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from .files import FileError, is_folder, open_regular, reason
from .releases import RELEASE_SCHEMA, Release, tidy
from .table_files import RELEASES, read_rows

#: Endings of the files of a folder that hold rows.
_ENDINGS = frozenset({".parquet", ".avro", ".jsonl", ".csv"})

#: Columns that rows of before have not, and what their lack means.
_LATER: dict[str, Any] = {field.name: field.default for field in fields(Release) if field.default is not MISSING}

#: What readers raise at the content of a file that holds something else.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, StopIteration, pa.ArrowException)


def read_releases(path: str | Path | Sequence[str | Path]) -> pa.Table:
    """Read published releases as a table with one row a count, for data frames and charts.

    ``pandas`` gets it by ``.to_pandas()``, ``polars`` by ``polars.from_arrow``. Rows that stand in several files are
    read once.

    Args:
        path: a file that a sink or ``quiltstream ledger export`` wrote (Parquet, Avro, JSON Lines or CSV; its first
            bytes say which), the folder of a live job's sink, or several of these.

    Returns:
        A table of ``quiltstream.schemas.releases.TIDY_SCHEMA``: domain, query, key and window; class of slots and bin
        with their labels and edges; the noisy count, its 95 % band, its estimate and the public total; and where it is
        from: the law and the exact scale of its noise, mechanism, loss, belief and its provenance, release id.

    Raises:
        FileError: there is no such file, or it holds no releases. The text says which, and no value.
    """
    return tidy(released_rows([path] if isinstance(path, (str, Path)) else path))


def released_rows(paths: Sequence[str | Path]) -> pa.Table:
    """Read published releases as they are, one row a release, sorted by window and key, each once.

    Args:
        paths: files and folders, as for :func:`read_releases`.

    Returns:
        A table of ``RELEASE_SCHEMA``.

    Raises:
        FileError: a file is not there or holds no releases.
    """
    tables = [_rows_in(file) for path in paths for file in _files(Path(path))]
    return RELEASES.sorted(pa.concat_tables([RELEASE_SCHEMA.empty_table(), *tables]))


def _files(path: Path) -> Iterator[Path]:
    if not is_folder(path):
        yield path
        return
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({reason(error)})") from None
    found = [one for one in inside if one.suffix in _ENDINGS and not one.name.startswith(".")]
    if not found:
        raise FileError(f"{path}: the folder holds no file of releases ({', '.join(sorted(_ENDINGS))})")
    yield from found


def _rows_in(path: Path) -> pa.Table:
    try:
        names = _columns(path)
    except FileNotFoundError:
        raise FileError(f"{path}: there is no such file; give what a sink wrote, or its folder") from None
    except _UNREADABLE as error:
        raise FileError(f"{path}: holds no releases ({reason(error)})") from None
    absent = sorted({field.name for field in RELEASE_SCHEMA} - set(names) - set(_LATER))
    if absent:
        # names of columns of some other file may be data
        raise FileError(f"{path}: holds no releases (the column {absent[0]} is missing); give what a sink wrote")
    try:
        return _completed(path, set(names))
    except _UNREADABLE as error:
        raise FileError(f"{path}: its releases cannot be read ({reason(error)}); is it whole?") from None


def _columns(path: Path) -> list[str]:
    """The names of the columns, from the beginning of a file; those of releases for an empty one."""
    with open_regular(path) as file:
        head = file.readline()
        file.seek(0)
        if head.startswith(b"PAR1"):
            return list(pq.read_schema(file).names)
        if head.startswith(b"Obj\x01"):
            schema: Any = fastavro.reader(file).writer_schema
            return [field["name"] for field in schema["fields"]]
        if head.startswith(b"{"):
            return list(json.loads(head))
        return head.decode().rstrip("\r\n").split(",") if head else RELEASE_SCHEMA.names


def _completed(path: Path, names: set[str]) -> pa.Table:
    """The rows of a file, with the columns that came later."""
    absent = [name for name in RELEASE_SCHEMA.names if name not in names]
    form = RELEASES if not absent else RELEASES.without(absent)
    table = read_rows(path, form)
    for name in absent:
        field = RELEASE_SCHEMA.field(name)
        table = table.append_column(field, pa.array([_LATER[name]] * table.num_rows, field.type))
    return table.select(RELEASE_SCHEMA.names).cast(RELEASE_SCHEMA)
