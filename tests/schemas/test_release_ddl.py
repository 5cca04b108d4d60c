"""The declarations of the releases topic against the schema of the rows, column by column."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest

from quiltstream.schemas.releases import RELEASE_SCHEMA, release_ddl

#: Text, whole number, number, truth, instant, and what a list and a struct of whole numbers are.
TYPES = {
    "flink": ("STRING", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP_LTZ(3)", "ARRAY<{}>", "ROW<`left` {0}, `right` {0}>"),
    "risingwave": (
        "VARCHAR",
        "BIGINT",
        "DOUBLE PRECISION",
        "BOOLEAN",
        "TIMESTAMPTZ",
        "{}[]",
        'STRUCT<"left" {0}, "right" {0}>',
    ),
    "clickhouse": (
        "String",
        "Int64",
        "Float64",
        "Bool",
        "DateTime64(6, 'UTC')",
        "Array({})",
        "Tuple(`left` Nullable({0}), `right` Nullable({0}))",
    ),
}


def expected(engine: str, field: pa.Field) -> str:
    text, whole, number, truth, instant, several, struct = TYPES[engine]
    plain = {pa.utf8(): text, pa.int64(): whole, pa.float64(): number, pa.bool_(): truth}
    if pa.types.is_list(field.type):
        found = several.format(plain[field.type.value_type])
    elif pa.types.is_struct(field.type):
        found = struct.format(whole)
    else:
        found = instant if pa.types.is_timestamp(field.type) else plain[field.type]
        if engine == "clickhouse" and field.nullable:
            return f"Nullable({found})"
    return found + (" NOT NULL" if engine == "flink" and not field.nullable else "")


def columns(statement: str) -> dict[str, str]:
    """Name and type of each column of a CREATE TABLE."""
    body = statement.partition("(\n")[2].partition("\n)")[0]
    found = (re.fullmatch(r'  [`"](\w+)[`"] (.*?),?', line) for line in body.splitlines())
    return {one[1]: one[2] for one in found if one is not None}


@pytest.mark.parametrize("engine", TYPES)
def test_a_declaration_has_every_column_of_the_rows_with_its_type(engine: str) -> None:
    text = release_ddl(engine, "load-released", "broker:9092")  # pyright: ignore[reportArgumentType] - one of three
    wanted = {field.name: expected(engine, field) for field in RELEASE_SCHEMA}
    assert columns(text) == wanted
    assert list(columns(text)) == RELEASE_SCHEMA.names
    assert "release_id" in text.partition("\n)")[2] or "PRIMARY KEY" in text
    if engine == "clickhouse":
        queue = columns(text.split(";")[1])
        stamps = [field.name for field in RELEASE_SCHEMA if pa.types.is_timestamp(field.type)]
        assert queue == {**wanted, **dict.fromkeys(stamps, "String")}
        assert all(f"parseDateTime64BestEffort(`{name}`, 6, 'UTC') AS `{name}`" in text for name in stamps)


@pytest.mark.parametrize("engine", TYPES)
def test_names_of_topics_and_brokers_are_texts_of_sql(engine: str) -> None:
    text = release_ddl(engine, "o'clock", "a:1,b:2")  # pyright: ignore[reportArgumentType] - one of three
    assert "'o''clock'" in text
    assert "'a:1,b:2'" in text
    assert json.dumps(text).count(";") == (3 if engine == "clickhouse" else 1)


def test_another_engine_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="engine is 'duckdb', but must be one of flink, risingwave, clickhouse"):
        release_ddl("duckdb", "t", "b:1")  # pyright: ignore[reportArgumentType] - that is the point
