"""`PrivateHistograms` in pipelines of Beam YAML, which have rows with a schema instead of record batches.

    providers:
      - type: python
        config: {}
        transforms: {PrivateHistograms: quiltstream.transforms.beam_yaml.PrivateHistogramsOfRows}

Released rows have the columns of ``RELEASE_SCHEMA``, but instants are ISO 8601 texts, as in JSON Lines, and the quilt
is two columns, ``quilt_left`` and ``quilt_right``: every writer of Beam YAML takes these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import Row
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import typehints
from apache_beam.typehints.row_type import RowTypeConstraint

from ..schemas.ledger import LEDGER_SCHEMA
from ..schemas.readings import REJECT_SCHEMA
from ..schemas.releases import RELEASE_SCHEMA
from ..schemas.settings.job import Settings, read_settings
from ..schemas.slots import format_instant
from .private_histograms import PrivateHistograms


class PrivateHistogramsOfRows(beam.PTransform[Any, Any]):
    """Rows with the fields ``series``, ``time``, ``value`` to rows of releases.

    Args:
        settings: path of a settings file, or the settings as a mapping; source and sink are not used. In a mapping
            quote the dates, ``start: "2013-01-01"``: Beam dumps the config as JSON, and dates of YAML are not JSON.
        accept_noise: as of `PrivateHistograms`.
        accept_stand_in: likewise.
        accept_cover: likewise.
        even_if_empty: likewise.
        by_watermark: likewise.

    Returns the outputs ``releases``, ``refused`` and ``rejected``.
    """

    def __init__(
        self,
        settings: str | Mapping[str, Any],
        *,
        accept_noise: bool = False,
        accept_stand_in: bool = False,
        accept_cover: bool = False,
        even_if_empty: bool = False,
        by_watermark: bool = False,
    ) -> None:
        super().__init__()
        read = read_settings(Path(settings)) if isinstance(settings, str) else Settings.parse(dict(settings))
        self._histograms = PrivateHistograms(
            read,
            accept_noise=accept_noise,
            accept_stand_in=accept_stand_in,
            accept_cover=accept_cover,
            even_if_empty=even_if_empty,
            by_watermark=by_watermark,
        )

    def expand(self, input_or_inputs: Any) -> dict[str, Any]:
        """Publish, and turn each output into rows."""
        published: Any = input_or_inputs | "Publish" >> self._histograms
        bounded = input_or_inputs.is_bounded
        outputs = (("releases", RELEASE_SCHEMA), ("refused", LEDGER_SCHEMA), ("rejected", REJECT_SCHEMA))
        found: dict[str, Any] = {}
        for name, schema in outputs:
            made = beam.FlatMap(_rows).with_output_types(row_type(schema))
            rows = getattr(published, name) | f"Rows of {name}" >> made
            # a writer of files makes one for each window, and a job that ends has one sink
            found[name] = rows | f"All {name}" >> beam.WindowInto(GlobalWindows()) if bounded else rows
        return found


def row_type(schema: pa.Schema) -> RowTypeConstraint:
    """The type of Beam's rows for the columns of a schema."""
    return RowTypeConstraint.from_fields([(name, kind) for field in schema for name, kind in _fields(field)])


def _fields(field: pa.Field) -> Iterator[tuple[str, Any]]:
    if pa.types.is_struct(field.type):
        for part in field.type:
            yield f"{field.name}_{part.name}", typehints.Optional[_KINDS[part.type]]
        return
    if pa.types.is_list(field.type):
        kind: Any = typehints.List[_KINDS[field.type.value_type]]
    else:
        kind = str if pa.types.is_timestamp(field.type) else _KINDS[field.type]
    yield field.name, typehints.Optional[kind] if field.nullable else kind


_KINDS: dict[pa.DataType, Any] = {pa.utf8(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool}


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    stamps = {field.name for field in batch.schema if pa.types.is_timestamp(field.type)}
    for place, name in enumerate(batch.schema.names):
        if name in stamps:
            batch = batch.set_column(place, name, batch.column(place).cast(pa.int64()))
    for plain in batch.to_pylist():
        found: dict[str, Any] = {}
        for name, value in plain.items():
            if isinstance(value, dict):
                found |= {f"{name}_{part}": one for part, one in value.items()}
            else:
                found[name] = format_instant(value) if name in stamps and value is not None else value
        yield Row(**found)
