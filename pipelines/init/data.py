"""Rows of files in DuckDB, for counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from ...schemas.settings.base import SettingsError
from ...transforms.common.batches import is_text_type, pc
from ...transforms.formats.rows import MISSING, read_values
from .files import Rows
from .parts import literal

#: Rows whose texts are looked at.
SAMPLE = 2_000


class Data:
    """Rows in DuckDB, all columns text without blanks around them, and null where a value is missing."""

    def __init__(self, rows: Rows) -> None:
        try:
            from ...transforms.readings.select import connect  # noqa: PLC0415 - DuckDB, an extra
        except ModuleNotFoundError:
            raise SettingsError("init looks at files with DuckDB: install quiltstream[sql]") from None
        self.rows, self.connection = rows, connect("2GB")
        self.columns = [name for name in rows.table.column_names if name != "filename"]
        self.types = {one.name: one.type for one in rows.table.schema}
        self.relation = "files"
        lines = pa.array(range(1, rows.table.num_rows + 1), pa.int64())
        kept = {name: _plain(rows.table[name]) for name in rows.table.column_names}
        self.connection.register("given", pa.table(kept | {"line": lines}))
        cast = [f"{safe(name)}::varchar as {safe(name)}" for name in kept if not is_text_type(kept[name].type)]
        replaced = f" replace ({', '.join(cast)})" if cast else ""
        self.connection.execute(f"create table t as select *{replaced} from given")

    def unpivot(self, columns: Sequence[str], pattern: str, name: str, value: str) -> None:
        """Make a row of each cell of some columns."""
        listed_ = ", ".join(map(safe, columns))
        cells = f"(unpivot t on {listed_} into name {name} value {value})"
        self.connection.execute(f"create table w as select * exclude line, row_number() over () as line from {cells}")
        self.connection.execute("drop table t; alter table w rename to t")
        matched = [one for one in self.columns if re.search(pattern, one)]
        of = f"columns({literal(pattern)})" if matched == list(columns) else listed_
        self.relation = f"(unpivot files on {of} into name {name} value {value})"
        self.columns = [one for one in self.columns if one not in columns] + [name, value]
        self.__dict__.pop("sample", None)

    def table(self, text: str) -> pa.Table:
        """Rows."""
        return self.connection.sql(text).to_arrow_table()

    def one(self, text: str) -> Any:
        """A single value."""
        return self.connection.execute(text).fetchall()[0][0]

    @cached_property
    def count(self) -> int:
        """How many rows there are."""
        return self.one("select count(*) from t")

    @cached_property
    def sample(self) -> dict[str, list[str]]:
        """Texts of each column in some rows, without missing ones."""
        rows = f"select * from t using sample reservoir({SAMPLE} rows) repeatable (7)"
        table = self.table(rows)
        names = [name for name in table.column_names if name != "line"]
        return {name: [str(one) for one in table[name].drop_null().to_pylist()] for name in names}

    def distinct(self, *names: str) -> int:
        """How many different rows some columns have."""
        return self.one(f"select count(*) from (select distinct {', '.join(map(safe, names))} from t)")

    def is_typed(self, name: str) -> bool:
        """Whether a column has a type of its own, not that of text."""
        return name in self.types and not is_text_type(self.types[name])

    def texts(self, name: str) -> list[str]:
        """All texts of a column by the order of rows; an empty one where it is missing."""
        found = self.connection.execute(f"select coalesce({safe(name)}, '') from t order by line").fetchall()
        return [one[0] for one in found]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of text without blanks around it, null where a value is missing; of another type as it is."""
    if not is_text_type(column.type):
        return column
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(trimmed, pa.array(MISSING, column.type)), None, trimmed)


def safe(name: str) -> str:
    """A name of a column in SQL, in quotes."""
    return '"' + name.replace('"', '""') + '"'


def are_numbers(texts: Sequence[str], decimal: str, least: float = 0.5) -> bool:
    """Whether so many of some texts are numbers."""
    if not texts:
        return False
    marked = [one.replace(".", "").replace(",", ".") for one in texts] if decimal == "," else texts
    values, problems = read_values(pa.array(marked, pa.utf8()))
    lost = sum(int(one.rows.sum()) for one in problems)
    return len(values) - lost >= max(1, least * len(texts))
