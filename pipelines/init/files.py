"""The files that are given, how they are laid out, and their first rows as one table of texts."""

from __future__ import annotations

import codecs
import csv
import glob
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.files import is_file, is_folder, open_regular, reason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import SourceFormat
from ...transforms.common.batches import is_text_type
from ...transforms.formats.lines import Layout
from ...transforms.formats.paths import SourceFileError, is_utf8, open_text, present, unlisted
from ...transforms.formats.rows import RawRows
from ...transforms.readings.tables import rows_of
from ..console import plural
from ..errors import CommandError, ExitCode
from .words import DELIMITERS, FORMATS, PACKED, TIME, format_of, without_packing

#: The most rows that `init` reads, a year of hourly readings of twenty series, and the most files that share them.
ROWS, _FILES = 200_000, 40
#: Cells that are looked at, of tables with very many columns.
_CELLS = 8_000_000
#: Bytes and lines of a file of text that its layout is seen in, and of how many lines one may be damaged.
_BYTES, _LINES, _LINES_A_DAMAGED = 1 << 20, 200, 20
_DATA = re.compile(
    r"[-+]?[\d.,]*\d([eE][-+]?\d+)?|(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d.*)?"
)


@dataclass(frozen=True, slots=True)
class Rows:
    """What is looked at of the files."""

    path: Path  # the first of them
    files: Path  # what was given: the file, or a pattern
    kind: SourceFormat
    layout: Layout
    table: pa.Table  # their rows with all columns, and ``filename``
    complete: bool  # whether these are all rows
    count: int  # files that there are
    nested: tuple[str, ...] = ()  # columns of objects or lists, which are left out
    options: dict[str, Any] = field(default_factory=dict[str, Any])  # of the source


def rows_at(given: Path) -> Rows:
    """The first rows of a file, of a folder or of a pattern."""
    paths = _files(given)
    path = paths[0]
    pattern = given / _like(path, given) if is_folder(given) else given
    try:
        for one in paths[:1]:
            open_regular(one).close()
        kind, layout = _kind(path)
        # at even distances among the files, as names are often in the order of time or of meters
        some = [paths[at] for at in np.unique(np.linspace(0, len(paths) - 1, min(len(paths), _FILES)).astype(int))]
        tables, complete = list[pa.Table](), len(some) == len(paths)
        for one in some:
            rows, whole = _first(one, kind, layout, ROWS // len(some))
            tables.append(rows)
            complete = complete and whole
    except FileNotFoundError as error:
        raise CommandError(f"{path}: there is no such file; check the path", ExitCode.SOURCE) from error
    except (SourceFileError, SettingsError) as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    except (OSError, pa.ArrowException, ValueError, EOFError, csv.Error) as error:
        raise CommandError(
            f"{path}: cannot be read as {format_of(path)} ({reason(error)}); check the file and its ending",
            ExitCode.SOURCE,
        ) from error
    table = _joined(tables)
    if not table.num_rows:
        raise CommandError(
            f"{path}: it has no rows to look at; give a file with a row for each reading"
            + (", below the names of its columns, with every quote closed" if kind == "csv" else ""),
            ExitCode.SOURCE,
        )
    nested = tuple(one.name for one in table.schema if pa.types.is_nested(one.type) or _is_json(kind, table[one.name]))
    table = table.drop_columns([*nested, *_empty(table)])
    options: dict[str, Any] = {}
    for name, usual in (("delimiter", ","), ("encoding", "utf-8"), ("skip", 0), ("names", ())):
        if getattr(layout, name) != usual:
            options[name] = getattr(layout, name)
    return Rows(path, pattern, kind, layout, table, complete, len(paths), nested, options)


def _is_json(kind: SourceFormat, column: pa.ChunkedArray) -> bool:
    """Whether a column has objects or lists as text, as rows of JSON have them."""
    if kind not in ("json", "jsonl") or not is_text_type(column.type):
        return False
    first = next((one for one in column.slice(0, _LINES).to_pylist() if one is not None), "")
    return first[:1] in ("{", "[")


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one below the other; a column of several types is text."""
    kinds: dict[str, set[pa.DataType]] = {}
    for one in tables:
        for field_ in one.schema:
            kinds.setdefault(field_.name, set()).add(field_.type)
    mixed = {name for name, found in kinds.items() if len(found - {pa.null()}) > 1}
    alike = [
        pa.table({name: one[name].cast(pa.utf8()) if name in mixed else one[name] for name in one.column_names})
        for one in tables
    ]
    return pa.concat_tables(alike, promote_options="default")


def _empty(table: pa.Table) -> list[str]:
    """Columns without a name and a value, as those behind delimiters at the ends of lines."""
    columns = [name for name in table.column_names if re.fullmatch(r"column\d+(_\d+)?", name)]
    return [name for name in columns if set(table[name].unique().to_pylist()) <= {None, ""}]


def _files(given: Path) -> list[Path]:
    """The file, or those of a folder or a pattern, of what a run would find."""
    if is_folder(given):
        files = [file for file in _found(given, str(Path(glob.escape(str(given)), "**"))) if _is_known(file)]
        kinds = sorted({_like(file, given) for file in files})
        if len(kinds) != 1:
            what = f"files of {len(kinds)} kinds, {', '.join(kinds)}" if kinds else "no file of a known ending"
            example = given / (kinds or ["*.csv"])[0]
            raise CommandError(f"{given}: the folder has {what}; name those to read with a pattern such as '{example}'")
        return files
    if not is_file(given) and glob.has_magic(str(given)):
        files = _found(given, str(given))
        if not files:
            raise CommandError(f"{given}: no file matches; check the path", ExitCode.SOURCE)
        return files
    return [given]


def _found(given: Path, pattern: str) -> list[Path]:
    """The files that a run finds by a pattern; ``given`` is what the command line has."""
    found = present([pattern])
    closed = [unlisted(folder, error) for folder, error in sorted(found.closed.items())]
    if closed:
        raise CommandError(
            f"{given}: {closed[0]}; give this user the right to list it, or name the files with a pattern that leaves "
            "it out",
            ExitCode.SOURCE,
        )
    return [Path(file) for file in found.paths]


def _is_known(file: Path) -> bool:
    """Whether a file has a known ending, or is an archive, in which such a file may be."""
    return file.suffix.lower() == ".zip" or without_packing(file).suffix.lower() in FORMATS


def _like(file: Path, folder: Path) -> str:
    """The pattern, below a folder, of the files that are as deep in it and end as one."""
    *inside, name = file.relative_to(folder).parts
    unpacked = without_packing(Path(name)).suffix if Path(name).suffix.lower() in PACKED else ""
    ending = (unpacked if unpacked.lower() in FORMATS else "") + Path(name).suffix
    return str(Path(*("*" for _ in inside), f"*{ending}"))


def _kind(path: Path) -> tuple[SourceFormat, Layout]:
    """The format of a file, by its name and its first bytes, and how its text is laid out."""
    named = format_of(path)
    if named not in ("csv", "json"):
        return named, Layout()
    with open_text(str(path)) as file:
        sample = file.read(_BYTES)
    begin = sample.removeprefix(codecs.BOM_UTF8).lstrip()
    if named == "csv" and begin.startswith(b"100,NEM12"):
        return "nem12", Layout()
    if begin.startswith(b"<"):
        return "greenbutton", Layout()
    return (named, Layout()) if named == "json" else ("csv", _layout(path, sample))


def _layout(path: Path, sample: bytes) -> Layout:
    """Encoding, delimiter, lines above the names, and the names where there is no line of them."""
    encoding = _encoding(sample)
    text = sample.decode("utf-8-sig" if encoding == "utf-8" else encoding, "replace")
    lines = text.splitlines()[:_LINES]
    if not any(line.strip() for line in lines):
        raise CommandError(f"{path}: it is empty; give a file that holds readings", ExitCode.SOURCE)
    first = next(line for line in lines if line.strip())
    if any(unicodedata.category(character) == "Cc" for character in first if character != "\t"):
        raise CommandError(
            f"{path}: its first line is not a line of text; save it as UTF-8, or check that it is a CSV file",
            ExitCode.SOURCE,
        )
    delimiter, width = _delimiter(lines)
    widths = [_width(line, delimiter) if line.strip() else 0 for line in lines]
    skip = next((at for at, wide in enumerate(widths) if wide == width), 0)
    if not any(line.strip() for line in lines[:skip]):
        skip = 0  # blank lines are none of the table anyway
    names = next(csv.reader([lines[skip if widths[skip] == width else widths.index(width)]], delimiter=delimiter))
    rest = [row for row in csv.reader(lines[skip + 1 :], delimiter=delimiter) if len(row) == width]
    if _are_data(names):
        columns = tuple(f"column{at}" for at in range(len(names)))
        return Layout(delimiter, encoding, skip, columns)
    twice = [name for name, count in Counter(map(str.strip, names)).items() if count > 1 and name]
    if twice:
        raise CommandError(
            f"{path}: it has {names.count(twice[0])} columns {twice[0]!r}; rename all but one", ExitCode.SOURCE
        )
    if rest == [] and len(lines) > skip + 1 and any(widths[skip + 1 :]):
        usual = Counter(wide for wide in widths[skip + 1 :] if wide).most_common(1)[0][0]
        raise CommandError(
            f"{path}: its first line has {plural(width, 'column')}, and the lines below it have {usual}; begin the "
            "file with a line of the names of all columns",
            ExitCode.SOURCE,
        )
    return Layout(delimiter, encoding, skip)


def _encoding(sample: bytes) -> Any:
    """UTF-16 by its mark; else UTF-8, unless many lines or the first one are none."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    lines = sample.splitlines()[:-1] or [sample]
    damaged = [at for at, line in enumerate(lines) if not is_utf8(line)]
    # a damaged line here and there is a reject; bytes of zero are no text in any of these
    if b"\0" in lines[0] or not damaged or (damaged[0] > 0 and len(damaged) * _LINES_A_DAMAGED < len(lines)):
        return "utf-8"
    try:
        sample.decode("windows-1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "windows-1252"


def _delimiter(lines: Sequence[str]) -> tuple[str, int]:
    """The delimiter by which most lines have one number of columns, and that number."""
    best = (0.0, ",", 1)
    for one in (*DELIMITERS, " "):
        counts = Counter(_width(line, one) for line in lines if line.strip())
        width, often = max(counts.items(), key=lambda pair: (pair[1], pair[0]))
        share = often / counts.total()
        # where two do as well the one that makes more columns; of blanks, which are in times and names, only last
        score = share * min(width, 50) ** 0.5 if width > 1 and share > 1 / 2 else 0.0
        if score > best[0] * (4 if one == " " and best[0] else 1):
            best = (score, one, width)
    return best[1], best[2] if best[0] else Counter(_width(line, ",") for line in lines if line.strip()).most_common(1)[
        0
    ][0]


def _width(line: str, delimiter: str) -> int:
    return len(next(csv.reader([line], delimiter=delimiter), []))


def _are_data(names: Sequence[str]) -> bool:
    """Whether the first line is data: whole numbers, as of meters or hours, are names beside that of a time."""
    whole = [name.strip() for name in names if name.strip().isdecimal()]
    others = [name for name in names if not name.strip().isdecimal()]
    instants = [name for name in others if re.match(r"20\d\d-\d\d-\d\d[T ]", name.strip())]
    are_names = len(set(whole)) == len(whole) and (any(map(TIME.search, others)) or len(whole) + 2 >= len(names) > 20)
    if len(instants) > 3 and len(others) > len(instants):
        return False
    return any(_DATA.fullmatch(name.strip()) for name in others) or (bool(whole) and not (are_names and len(whole) > 2))


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Check that SQL can tell the columns apart."""
    lower = Counter(name.lower() for name in (*names, "filename", "line"))
    twice = [name for name in names if lower[name.lower()] > 1]
    if twice:
        raise CommandError(
            f"{path}: rename the column {twice[0]!r}, whose name another one, or one of init, has but for case"
        )


def _first(path: Path, kind: SourceFormat, layout: Layout, most: int) -> tuple[pa.Table, bool]:
    """The first rows of a file, and whether these are all."""
    tables, count, columns = list[pa.Table](), 0, 1
    batches = rows_of(str(path), kind, layout, batch_rows=1 << 16)
    for batch in _present(batches):
        _check_names(path, list(batch.columns))
        tables.append(pa.table({name: _plain(one) for name, one in batch.columns.items()}))
        count, columns = count + batch.positions.size, max(1, len(batch.columns))
        if count >= min(most, max(_CELLS // columns, 200)):
            break
    whole = next(islice(_present(batches), 1), None) is None
    table = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    name = pa.array([str(path)] * table.num_rows, pa.utf8())
    return (table.append_column("filename", name) if table.num_columns else table), whole


def _present(batches: Iterator[RawRows]) -> Iterator[RawRows]:
    return (one for one in batches if one.columns and one.positions.size)


def _plain(column: pa.Array) -> pa.Array:
    """A column with each value in its row, and every text of one type."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.utf8()) if is_text_type(column.type) or pa.types.is_null(column.type) else column
