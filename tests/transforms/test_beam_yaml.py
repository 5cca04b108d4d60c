"""The transform for pipelines of Beam YAML: rows in, rows with a schema out."""

from __future__ import annotations

import csv
import json
import re
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from apache_beam.pvalue import Row
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from quiltstream.schemas import read_releases, tidy
from quiltstream.schemas.ledger import LEDGER_SCHEMA
from quiltstream.schemas.readings import READING_SCHEMA, REJECT_SCHEMA
from quiltstream.schemas.releases import RELEASE_SCHEMA
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.table_files import RELEASES, released_rows
from quiltstream.transforms import beam_yaml
from quiltstream.transforms.beam_yaml import PrivateHistogramsOfRows, row_type

from ..schemas.test_releases import make_batch, make_classed
from .sources.test_reading_rows import HOUR, START, document


@pytest.mark.night
@pytest.mark.parametrize("form", ["mapping", "file"])
def test_rows_of_beam_are_published_as_rows_with_a_schema(tmp_path: Path, form: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(document(tmp_path)), encoding="utf-8")
    given = [Row(series="m1", time=(START + n * HOUR).isoformat(), value=float(n % 2)) for n in range(48)]
    given += [Row(series="m1", time="never", value=1.0)]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        made = PrivateHistogramsOfRows(document(tmp_path) if form == "mapping" else str(path), accept_noise=True)
        found: Any = pipeline | beam.Create(given) | made
        assert list(found) == ["releases", "refused", "rejected"]
        assert found["releases"].element_type == row_type(RELEASE_SCHEMA)
        rows = found["releases"] | beam.Map(lambda row: (row.key, row.window_start, row.window_stop, len(row.counts)))
        day = [f"2024-03-0{number}T00:00:00Z" for number in (1, 2, 3)]
        assert_that(rows, equal_to([("m1", day[0], day[1], 2), ("m1", day[1], day[2], 2)]), label="rows")
        reasons = found["rejected"] | "Reasons" >> beam.Map(lambda row: row.reason)
        assert_that(reasons, equal_to(["unparsable-time"]), label="reasons")


def written(path: Path, form: str, batch: pa.RecordBatch) -> None:
    """Rows as the writers of Beam YAML write them: Parquet by Arrow, the others by pandas."""
    rows = [row.as_dict() for row in beam_yaml._rows(batch)]
    if form == "parquet":
        types = {field.name: pa.utf8() if pa.types.is_timestamp(field.type) else field.type for field in batch.schema}
        types |= dict.fromkeys(("quilt_left", "quilt_right"), pa.int64())
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema([(name, types[name]) for name in rows[0]])), path)
    elif form == "json":
        # ten digits, and slashes behind backslashes
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        path.write_text(re.sub(r"\d+\.\d{11,}", lambda one: f"{float(one[0]):.10f}", text).replace("/", "\\/"), "utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
@pytest.mark.parametrize("batch", [make_batch(), make_classed()], ids=["all-slots", "classes"])
def test_rows_that_beam_yaml_writes_are_read_back(form: str, batch: pa.RecordBatch, tmp_path: Path) -> None:
    given = [row | {"given_model": at == 0, "labels": None} for at, row in enumerate(batch.to_pylist())]
    batch = pa.RecordBatch.from_pylist(given, schema=RELEASE_SCHEMA)
    written(tmp_path / "rows", form, batch)
    assert released_rows([tmp_path / "rows"]).equals(RELEASES.sorted(pa.Table.from_batches([batch])))
    assert read_releases(tmp_path / "rows").num_rows == tidy(batch).num_rows


@pytest.mark.parametrize("schema", [RELEASE_SCHEMA, LEDGER_SCHEMA, REJECT_SCHEMA])
def test_a_row_has_every_column_and_one_column_per_struct_field(schema: Any) -> None:
    names = [name for name, _ in row_type(schema)._fields]
    assert [name for name in names if not name.startswith("quilt_")] == [one for one in schema.names if one != "quilt"]
    assert ("quilt_left" in names) == ("quilt" in schema.names)


def test_the_documented_pipeline_names_existing_classes_and_parameters(repository: Path) -> None:
    page = (repository / "docs" / "guides" / "own-pipeline.md").read_text(encoding="utf-8")
    (block,) = (one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "providers:" in one)
    found = yaml.safe_load(block)
    module, _, name = found["providers"][0]["transforms"]["PrivateHistograms"].rpartition(".")
    assert getattr(import_module(module), name) is PrivateHistogramsOfRows
    (step,) = (one for one in found["pipeline"]["transforms"] if one["type"] == "PrivateHistograms")
    assert set(step["config"]) <= set(signature(PrivateHistogramsOfRows).parameters)
    fields = next(one for one in found["pipeline"]["transforms"] if one["type"] == "MapToFields")["config"]["fields"]
    assert list(fields) == READING_SCHEMA.names


def test_settings_within_a_documented_pipeline_are_json_and_can_be_used(repository: Path) -> None:
    page = (repository / "docs" / "guides" / "own-pipeline.md").read_text(encoding="utf-8")
    (block,) = (one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "providers:" not in one)
    (step,) = yaml.safe_load(block)
    PrivateHistogramsOfRows(**json.loads(json.dumps(step["config"])), accept_noise=True)


def test_settings_that_cannot_be_used_are_refused_when_the_pipeline_is_built(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="privacy is missing"):
        PrivateHistogramsOfRows({name: one for name, one in document(tmp_path).items() if name != "privacy"})
