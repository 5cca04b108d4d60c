"""The files that are given, how their text is laid out, and their first rows as one table of texts."""

from __future__ import annotations

import codecs
import csv
import glob
import json
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.files import is_file, is_folder, open_regular, reason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import SourceFormat
from ...transforms.common.batches import is_text_type, pc
from ...transforms.formats.columns import named_once
from ...transforms.formats.lines import Layout
from ...transforms.formats.paths import DAMAGE, SourceFileError, is_utf8, open_text, present, unlisted
from ...transforms.formats.rows import MISSING
from ...transforms.readings.tables import rows_of
from ..errors import CommandError, ExitCode
from .words import DELIMITERS, FORMATS, PACKED, TIME, literal, quoted

#: The most rows and cells that `init` reads, and the most files that share them; bytes and lines for the layout.
ROWS, _CELLS, _FILES, _BYTES, _LINES = 200_000, 8_000_000, 40, 1 << 20, 200
_DATA = re.compile(r"[-+]?[\d.,]*\d([eE][-+]?\d+)?|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ]\d.*)?")


@dataclass(slots=True)
class Rows:
    """What is looked at of the files."""

    path: Path  # the first of them
    files: Path  # what was given: the file, or a pattern
    kind: SourceFormat
    options: dict[str, Any]  # of the source: delimiter, encoding, skip, names
    table: pa.Table  # their first rows, all columns text and null where nothing is, with ``filename``
    complete: bool  # whether these are all rows
    count: int  # files that there are
    types: dict[str, pa.DataType]  # of the columns, as they are in the files
    relation: str = "files"
    nested: list[str] = field(default_factory=list[str])  # columns of objects or lists that are not looked into


def rows_at(given: Path) -> Rows:
    """The first rows of a file, of a folder or of a pattern."""
    paths = _files(given)
    path, files = paths[0], given / _like(paths[0], given) if is_folder(given) else given
    try:
        open_regular(path).close()
        kind, layout = _kind(path)
        # at even distances among the files, as names are often in the order of time or of meters
        some = [paths[at] for at in np.unique(np.linspace(0, len(paths) - 1, min(len(paths), _FILES)).astype(int))]
        parts = [_first(one, kind, layout, ROWS // len(some)) for one in some]
    except FileNotFoundError as error:
        raise CommandError(f"{path}: there is no such file; check the path", ExitCode.SOURCE) from error
    except (SourceFileError, SettingsError) as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    except (*DAMAGE, pa.ArrowException, ValueError, csv.Error) as error:
        why = f"cannot be read as {format_of(path)} ({reason(error)}); check the file and its ending"
        raise CommandError(f"{path}: {why}", ExitCode.SOURCE) from error
    types = {one.name: one.type for table, _ in reversed(parts) for one in table.schema}
    table = pa.concat_tables([_texts(table, str(one)) for (table, _), one in zip(parts, some, strict=True)],
                             promote_options="default")  # fmt: skip
    table = table.drop_columns([one for one in table.column_names if _is_unnamed_and_empty(one, table[one])])
    if not table.num_rows:
        raise CommandError(f"{path}: it has no rows to look at; give a file with a row for each reading, below a line "
                           "of names, with every quote closed", ExitCode.SOURCE)  # fmt: skip
    usual = Layout()
    options = {name: getattr(layout, name) for name in ("delimiter", "encoding", "skip", "names")}
    options = {name: one for name, one in options.items() if one != getattr(usual, name)}
    whole = len(some) == len(paths) and all(complete for _, complete in parts)
    rows = Rows(path, files, kind, options, table, whole, len(paths), types)
    rows.nested = [one for one, type_ in types.items() if one not in table.column_names and pa.types.is_nested(type_)]
    if kind in ("json", "jsonl"):
        _look_into(rows)
    return rows


def _files(given: Path) -> list[Path]:
    """The file, or those of a folder or a pattern that a run would find."""
    if not is_folder(given):
        found = _found(given, str(given)) if not is_file(given) and glob.has_magic(str(given)) else [given]
        if not found:
            raise CommandError(f"{given}: no file matches; check the path", ExitCode.SOURCE)
        return found
    found = _found(given, str(Path(glob.escape(str(given)), "**")))
    files = [one for one in found if one.suffix.lower() == ".zip" or without_packing(one).suffix.lower() in FORMATS]
    kinds = sorted({_like(file, given) for file in files})
    if len(kinds) != 1:
        what = f"files of {len(kinds)} kinds, {', '.join(kinds)}" if kinds else "no file of a known ending"
        example = given / (kinds or ["*.csv"])[0]
        raise CommandError(f"{given}: the folder has {what}; name those to read with a pattern such as '{example}'")
    return files


def _found(given: Path, pattern: str) -> list[Path]:
    found = present([pattern])
    for folder, error in sorted(found.closed.items()):
        what = "give this user the right to list it, or name the files with a pattern that leaves it out"
        raise CommandError(f"{given}: {unlisted(folder, error)}; {what}", ExitCode.SOURCE)
    return [Path(file) for file in found.paths]


def _like(file: Path, folder: Path) -> str:
    """The pattern, below a folder, of the files that are as deep in it and end as one."""
    *inside, name = file.relative_to(folder).parts
    unpacked = without_packing(Path(name)).suffix if Path(name).suffix.lower() in PACKED else ""
    ending = (unpacked if unpacked.lower() in FORMATS else "") + Path(name).suffix
    return str(Path(*("*" for _ in inside), f"*{ending}"))


def format_of(path: Path) -> SourceFormat:
    """The format that a file's name says it has; of a ``.zip`` without another ending that of the file in it."""
    unpacked = without_packing(path)
    if path.suffix.lower() == ".zip" and unpacked.suffix.lower() not in FORMATS and is_file(path):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            unpacked = Path(next((member.filename for member in archive.infolist() if not member.is_dir()), ""))
    found = FORMATS.get(unpacked.suffix.lower())
    if found is None:
        what = f"{', '.join(FORMATS)}, and behind it, where text is packed, one of {', '.join(PACKED)}"
        raise CommandError(f"{path}: its name does not say what it is; name it with one of the endings {what}")
    return found


def without_packing(path: Path) -> Path:
    """The name of a file without the ending of its packing."""
    return Path(path.stem) if path.suffix.lower() in PACKED else path


def _kind(path: Path) -> tuple[SourceFormat, Layout]:
    """The format of a file, by its name and its first bytes, and how its text is laid out."""
    named = format_of(path)
    if named not in ("csv", "json", "greenbutton"):
        return named, Layout()
    with open_text(str(path)) as file:
        sample = file.read(_BYTES)
    begin = sample.removeprefix(codecs.BOM_UTF8).lstrip()
    if begin.startswith(b"<"):
        return "greenbutton", Layout()
    if named == "csv" and begin.startswith(b"100,NEM12"):
        return "nem12", Layout()
    return ("csv", _layout(path, sample)) if named == "csv" else (named, Layout())


def _layout(path: Path, sample: bytes) -> Layout:
    """Encoding, delimiter, lines above the names, and the names where there is no line of them."""
    encoding: Any = _encoding(sample)
    text = sample.decode("utf-8-sig" if encoding == "utf-8" else encoding, "replace")
    lines = text.splitlines()[:_LINES]
    if not any(map(str.strip, lines)):
        raise CommandError(f"{path}: it is empty; give a file that holds readings", ExitCode.SOURCE)
    first = next(line for line in lines if line.strip())
    if any(unicodedata.category(one) == "Cc" for one in first if one != "\t"):
        raise CommandError(f"{path}: its first line is not a line of text; save it as UTF-8, or check that it is a CSV "
                           "file", ExitCode.SOURCE)  # fmt: skip
    best, delimiter, width = 0.0, ",", 0
    for one in (*DELIMITERS, " "):
        counts = Counter(_width(line, one) for line in lines if line.strip() and not line.lower().startswith("sep="))
        usual, often = max(counts.items(), key=lambda pair: (pair[1], pair[0]))
        share = often / counts.total()
        # of two that do as well the one that makes more columns; blanks, which are in times and names, only last
        score = share * min(usual, 50) ** 0.5 if usual > 1 and share > 1 / 2 else 0.0
        if score > best * (4 if one == " " and best else 1):
            best, delimiter, width = score, one, usual
    widths = [_width(line, delimiter) if line.strip() and not line.lower().startswith("sep=") else 0 for line in lines]
    skip = next((at for at, wide in enumerate(widths) if wide == (width or wide)), 0)
    names = next(csv.reader([lines[skip] or first], delimiter=delimiter))
    skip = skip if any(map(str.strip, lines[:skip])) else 0  # blank lines are none of the table anyway
    return Layout(
        delimiter, encoding, skip, tuple(f"column{at}" for at in range(len(names))) if _are_data(names) else ()
    )


def _encoding(sample: bytes) -> str:
    """UTF-16 by its mark; else UTF-8, unless many lines or the first one are none."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    lines = sample.splitlines()[:-1] or [sample]
    damaged = [at for at, line in enumerate(lines) if not is_utf8(line)]
    # a damaged line here and there is a reject; bytes of zero are no text in any of these
    if b"\0" in lines[0] or not damaged or (damaged[0] > 0 and len(damaged) * 20 < len(lines)):
        return "utf-8"
    try:
        sample.decode("windows-1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "windows-1252"


def _width(line: str, delimiter: str) -> int:
    return len(next(csv.reader([line], delimiter=delimiter), []))


def _are_data(names: Sequence[str]) -> bool:
    """Whether the first line is data: whole numbers, as of meters or hours, are names beside that of a time."""
    whole = [name.strip() for name in names if name.strip().isdecimal()]
    others = [name.strip() for name in names if not name.strip().isdecimal()]
    instants = [name for name in others if re.match(r"(19|20)\d\d-\d\d-\d\d[T ]", name)]
    if len(instants) > 3 and len(others) > len(instants):
        return False
    are_names = len(set(whole)) == len(whole) > 2 and (
        any(map(TIME.search, others)) or len(whole) + 2 >= len(names) > 20
    )
    return any(map(_DATA.fullmatch, others)) or (bool(whole) and not are_names)


def _first(path: Path, kind: SourceFormat, layout: Layout, most: int) -> tuple[pa.Table, bool]:
    """The first rows of a file, and whether these are all."""
    tables, count = list[pa.Table](), 0
    found = rows_of(str(path), kind, layout, batch_rows=1 << 16)
    batches = (one for one in found if one.columns and one.positions.size)
    for batch in batches:
        names = named_once(list(batch.columns))
        tables.append(pa.table(dict(zip(names, batch.columns.values(), strict=True))))
        count += batch.positions.size
        if count >= min(most, max(_CELLS // len(batch.columns), 200)):
            break
    whole = next(islice(batches, 1), None) is None
    return (pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})), whole


def _texts(table: pa.Table, path: str) -> pa.Table:
    """Single values as text without blanks around it, null where a value is missing; and the file's name."""
    made: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name]
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            continue
        if pa.types.is_dictionary(column.type):
            column = pa.chunked_array([one.dictionary_decode() for one in column.chunks], column.type.value_type)
        if is_text_type(column.type):
            column = pc.utf8_trim_whitespace(column.cast(pa.utf8()))
            column = pc.if_else(pc.is_in(column, pa.array(MISSING, pa.utf8())), None, column)
        made[name] = column.cast(pa.utf8())
    return pa.table(made | {"filename": pa.array([path] * table.num_rows, pa.utf8())})


def _is_unnamed_and_empty(name: str, column: pa.ChunkedArray) -> bool:
    """Whether a column has neither a name nor a value, as those behind delimiters at the ends of lines."""
    return re.fullmatch(r"column\d+(_\d+)?", name) is not None and column.null_count == len(column)


def _look_into(rows: Rows) -> None:
    """Make columns of the fields of objects, and rows of the elements of a list of objects."""
    first = {one: next(filter(None, rows.table[one].to_pylist()), "") for one in rows.table.column_names}
    lists = [one for one, text in first.items() if re.match(r"\[\s*[^{\s]", text)]
    rows.table, rows.nested = rows.table.drop_columns(lists), [*rows.nested, *lists]
    name = next((one for one, text in first.items() if re.match(r"\{|\[\s*\{", text)), None)
    if name is None:
        return
    others = [one for one in rows.table.column_names if one not in (name, "filename")]
    made: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for row in rows.table.to_pylist():
        value = json.loads(row[name] or "{}")
        made += [(row, one) for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
    taken, q = {*others, "filename", "line"}, quoted(name)
    named = {key: f"{name}_{key}" if key in taken else key for _, one in made for key in one}
    columns = {one: pa.array([row[one] for row, _ in made], pa.utf8()) for one in (*others, "filename")}
    for key, one in named.items():
        values = [part.get(key) for _, part in made]
        texts = [each if each is None or isinstance(each, str) else json.dumps(each) for each in values]
        columns[one] = pa.array(texts, pa.utf8())
    fields = [*map(quoted, others), *(f"{q} ->> {literal(key)} as {quoted(one)}" for key, one in named.items())]
    is_list, source = first[name].startswith("["), rows.relation
    source = f"(select * replace (unnest({q}::json[]) as {q}) from {source})" if is_list else source
    rows.table, rows.types = pa.table(columns), dict.fromkeys(columns, pa.utf8())
    rows.relation = f"(select {', '.join(fields)}, filename from {source})"
    _look_into(rows)
