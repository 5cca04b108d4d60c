"""A row-wise SELECT over Arrow batches of files, by DuckDB.

The relation ``files`` is one batch of one file: its columns, of text files all as text, and ``filename`` and ``line``.
 The result has ``series``, ``time`` and ``value``, and the column that ``group_by`` names; what they hold is
read as plain columns are. A worker has one connection a thread: no files, no network, no extensions, no settings that
change, one thread, bounded memory.

>>> query = Select("select meter as series, ts as time, num(kwh) * 2000 as value from files")
>>> batch = pa.record_batch({"meter": ["a", "b"], "ts": ["2024-01-01", "2024-01-02"], "kwh": ["0.5", "x"]})
>>> query.over(batch, np.array([2, 3]), "june.csv")[0].to_pydict()["value"]
[1000.0, None]
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ...schemas.settings.base import SettingsError
from ..common.batches import Ints, whole
from ..formats.columns import RawRows, named_once
from ..formats.paths import SourceFileError
from .row_wise import NEEDED, check_plan, check_tree, columns_in, nodes

MACROS = Path(__file__).with_name("macros.sql")
CASES = Path(__file__).with_name("macro_cases.csv")

_LINE = "__line"
_MEMORY = "512MB"


class _Connections(threading.local):
    """A connection of this thread's own, made anew after a fork."""

    process = 0
    connection: Any = None

    def get(self) -> Any:
        if self.connection is None or self.process != os.getpid():
            self.connection, self.process = connect(), os.getpid()
        return self.connection


_connections = _Connections()


def connect(memory: str = _MEMORY) -> Any:
    """A connection to no files and no network, with the macros."""
    connection = duckdb.connect(
        config={
            "threads": 1,
            "memory_limit": memory,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
            "temp_directory": "",
            "max_temp_directory_size": "0B",
        }
    )
    connection.execute("set TimeZone = 'UTC'; set explain_output = 'all'")
    connection.execute(MACROS.read_text(encoding="utf-8"))
    connection.execute("set enable_external_access = false; set lock_configuration = true")
    return connection


def digest() -> str:
    """What the shipped macros make of their cases: another one means that the same SELECT reads otherwise."""
    connection = _connections.get()
    found = hashlib.blake2b(digest_size=16)
    with CASES.open(encoding="utf-8", newline="") as file:
        for case in csv.DictReader(file, delimiter="|"):
            made = connection.execute(f"select cast({case['expression']} as varchar)").fetchall()[0][0]
            found.update(f"{case['expression']}|{made}\n".encode())
    return found.hexdigest()


class Select:
    """One SELECT of the settings; a plain value that travels to any machine.

    Args:
        text: the statement.
        columns: what its result is to have.

    Raises:
        SettingsError: it is not one row-wise SELECT.
    """

    def __init__(self, text: str, columns: tuple[str, ...] = NEEDED) -> None:
        self.text, self.columns = text, columns
        self._tree = self._parsed()
        check_tree(self._tree)
        self._statement = text  # without own columns among those that are unpivoted, and with the number of the line
        self._checked: pa.Schema | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (Select, (self.text, self.columns))

    def check(self, schema: pa.Schema, path: str) -> None:
        """See that the statement fits the columns of a file.

        Raises:
            SettingsError: a column is missing, or the plan is not row by row.
        """
        if self._checked is not None and self._checked.equals(schema):
            return
        connection = self._with(_files(schema.empty_table(), np.empty(0, np.int64), path))
        tree = self._without_own(connection)
        text = self.text if tree is self._tree else _text_of(connection, tree)
        try:
            plan = json.loads(connection.execute(f"explain (format json) {text}").fetchall()[0][1])
            names = [one[0] for one in connection.execute(f"describe {text}").fetchall()]
        except duckdb.Error as error:
            raise SettingsError(self._misfit(error, schema.names, path)) from None
        check_plan(plan)
        if missing := [name for name in self.columns if name not in names]:
            raise SettingsError(f"readings: the SELECT has no column {missing[0]!r}; add it as `... as {missing[0]}`")
        self._statement = self._with_lines(connection, tree) or text
        self._checked = schema

    def over(self, batch: pa.RecordBatch, lines: Ints, path: str) -> tuple[pa.Table, Ints, Ints]:
        """Evaluate the statement over some rows.

        Args:
            batch: n rows of one file.
            lines: their numbers, shape (n,).
            path: of the file.

        Returns:
            The result, m rows; the line of each, shape (m,), that of the batch's first row where the statement does not
            keep lines; and the lines of rows that the statement fails on, shape (k,).
        """
        self.check(batch.schema, path)
        found, failed = list[pa.Table](), list[int]()
        for table, kept in self._halved(batch, lines, path):
            if table is None:
                failed += kept.tolist()
            else:
                found.append(table)
        every = pa.concat_tables(found) if found else pa.table({name: pa.array([], pa.utf8()) for name in self.columns})
        if _LINE in every.column_names:
            at = every.column(_LINE).to_numpy()
        else:
            at = np.full(every.num_rows, lines[0] if len(lines) else 0)
        return every.select(list(self.columns)), at.astype(np.int64), np.array(failed, dtype=np.int64)

    def rows(self, raw: RawRows, path: str) -> RawRows:
        """The rows that the statement makes of some rows of a file."""
        if not len(raw.positions):
            return RawRows.lost(raw.malformed)
        batch = pa.RecordBatch.from_arrays(list(raw.columns.values()), list(raw.columns))
        table, lines, failed = self.over(batch, raw.positions, path)
        columns = {name: whole(table.column(name)) for name in self.columns}
        return RawRows(columns, lines, np.sort(np.concatenate([raw.malformed, failed])))

    def _halved(self, batch: pa.RecordBatch, lines: Ints, path: str) -> Iterator[tuple[pa.Table | None, Ints]]:
        """The result of a batch; of one that fails that of its halves, down to the rows that fail alone."""
        try:
            yield self._with(_files(batch, lines, path)).sql(self._statement).to_arrow_table(), lines
        except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException):
            if batch.num_rows <= 1:
                yield None, lines
                return
            half = batch.num_rows // 2
            yield from self._halved(batch.slice(0, half), lines[:half], path)
            yield from self._halved(batch.slice(half), lines[half:], path)
        except duckdb.Error as error:
            raise SourceFileError(
                f"file {path}: the SELECT of readings fails at line {lines[0]} or after ({type(error).__name__})"
            ) from None

    def _with(self, files: pa.Table) -> Any:
        connection = _connections.get()
        connection.register("files", files)
        return connection

    def _parsed(self) -> dict[str, Any]:
        answer = json.loads(_connections.get().execute("select json_serialize_sql(?)", [self.text]).fetchall()[0][0])
        if answer["error"]:
            raise SettingsError(f"readings: the SELECT {_where(answer, self.text)}")
        return answer

    def _without_own(self, connection: Any) -> dict[str, Any]:
        """The tree whose unpivots of ``*`` leave out ``filename`` and ``line``, which are no columns of the file."""
        tree = json.loads(json.dumps(self._tree))
        pivots = (one for node in nodes(tree) for one in nodes(node.get("pivots")))
        stars = [one for one in pivots if one.get("class") == "STAR" and one["expr"] is None]
        for star in stars:
            star["exclude_list"] = sorted({*star["exclude_list"], "filename", "line"})
        try:
            connection.execute(f"describe {_text_of(connection, tree)}").fetchall()
        except duckdb.Error:
            return self._tree  # what is unpivoted does not have them
        return tree if stars else self._tree

    def _with_lines(self, connection: Any, tree: dict[str, Any]) -> str | None:
        """The statement with the number of the line in its result; ``None`` where a part of it does not hand it on."""
        tree = json.loads(json.dumps(tree))
        column = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": _LINE, "column_names": ["line"]}
        tree["statements"][0]["node"]["select_list"].append(column)
        try:
            text = _text_of(connection, tree)
            connection.execute(f"describe {text}").fetchall()
        except duckdb.Error:
            return None
        return text

    def _misfit(self, error: Exception, header: Sequence[str], path: str) -> str:
        known = {name.lower() for name in (*header, "filename", "line")}
        given = {str(one["alias"]).lower() for one in nodes(self._tree) if one.get("alias")}
        given |= {str(name).lower() for one in nodes(self._tree) for name in one.get("unpivot_names") or []}
        for name in sorted(columns_in(self._tree) - known - given):
            near = difflib.get_close_matches(name, [one for one in header if not any(map(str.isdigit, one))], 3)
            then = f"near it are {', '.join(map(repr, near))}" if near else f"it has {len(header)} columns"
            return f"readings: the SELECT reads the column {name!r}, which {path} does not have; {then}"
        return f"readings: the SELECT does not fit the columns of {path} ({type(error).__name__})"


def _text_of(connection: Any, tree: dict[str, Any]) -> str:
    return connection.execute("select json_deserialize_sql(?::json)", [json.dumps(tree)]).fetchall()[0][0]


def _files(rows: pa.RecordBatch | pa.Table, lines: Ints, path: str) -> pa.Table:
    names = named_once(rows.schema.names)
    table = pa.table({name: rows.column(at) for at, name in enumerate(names)})
    name = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(lines), np.int32)), pa.array([path], pa.utf8()))
    return table.append_column("filename", name).append_column("line", pa.array(lines, pa.int64()))


def _where(answer: dict[str, Any], text: str) -> str:
    """What the parser says of a statement, by its place: the words around the place are the settings' own."""
    if answer.get("error_type") == "not implemented":
        return "is another statement; write one SELECT"
    at = int(answer.get("position") or 0)
    line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
    near = text[at:].split(maxsplit=1)[:1]
    return f"does not parse at line {line}, column {column}" + (f", near {near[0]!r}" if near else ", at its end")
