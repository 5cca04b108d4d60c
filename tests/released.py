"""Released rows as the tests make them: a batch of releases, and a file of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from quiltstream.schemas.releases import RELEASE_SCHEMA, Release
from quiltstream.schemas.settings.connectors import FileFormat
from quiltstream.schemas.table_files import RELEASES, RowForm, in_one, write_parts


def batch_from_releases(releases: Sequence[Release]) -> pa.RecordBatch:
    """Releases as a record batch of ``RELEASE_SCHEMA``: the inverse of ``releases_from_batch``."""
    return pa.RecordBatch.from_pylist([one.to_dict() for one in releases], schema=RELEASE_SCHEMA)


def write_rows(path: str | Path, format_: FileFormat, table: pa.Table, form: RowForm = RELEASES) -> None:
    """Write rows, given in any order, as a file."""
    write_parts(path, format_, in_one(form.sorted(table)), form)
