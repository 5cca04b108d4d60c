"""The files of the sinks: which rows they have. How a format is written is the same for all, ``schemas.rowfiles``."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ..schemas.files import part_name
from ..schemas.readings import LETTER_SCHEMA, REJECT_SCHEMA
from ..schemas.rowfiles import RELEASES, RowForm, read_rows, write_rows, write_stream

__all__ = [
    "LETTERS",
    "REJECTS",
    "RELEASES",
    "RowForm",
    "part_name",
    "read_releases",
    "read_rows",
    "write_rows",
    "write_stream",
]

#: Rejected rows, by where they were.
REJECTS = RowForm(
    REJECT_SCHEMA,
    {
        "type": "record",
        "name": "Reject",
        "namespace": "quiltstream.v1",
        "fields": [
            {"name": "reason", "type": "string"},
            {"name": "source", "type": "string"},
            {"name": "position", "type": "long"},
            {"name": "size", "type": ["null", "long"]},
        ],
    },
    ("source", "position", "reason"),
    private=True,
)


#: The same with letters.
LETTERS = RowForm(
    LETTER_SCHEMA,
    {
        **REJECTS.avro,
        "fields": [
            *REJECTS.avro["fields"],
            {"name": "letter", "type": ["null", "string"]},
        ],
    },
    REJECTS.order,
    private=True,
)


def read_releases(path: str | Path) -> pa.Table:
    """Read a file of releases of any of the formats, as a table of ``RELEASE_SCHEMA``."""
    return read_rows(path, RELEASES)
