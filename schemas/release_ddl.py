"""SQL that declares the topic of released rows to an engine: Flink SQL, RisingWave and ClickHouse.

Columns and types are made from ``RELEASE_SCHEMA``, for rows as JSON, the format of a topic unless its settings say
otherwise. A row that is sent again is the same bytes under the same ``release_id``, so each declaration keeps one.

>>> print(release_ddl("risingwave", "load-released", "broker:9092").splitlines()[0])
CREATE TABLE releases (
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from .releases import RELEASE_SCHEMA

Engine = Literal["flink", "risingwave", "clickhouse"]

#: Name of the table.
TABLE = "releases"

_KEY = "release_id"


def release_ddl(engine: Engine, topic: str, servers: str) -> str:
    """The statements that declare a topic of released rows.

    Args:
        engine: what reads it.
        topic: its name.
        servers: the brokers, ``host:port`` with commas.

    Raises:
        ValueError: The engine is none of these.
    """
    if engine not in _STATEMENTS:
        raise ValueError(f"engine is {engine!r:.40}, but must be one of {', '.join(_STATEMENTS)}")
    return _STATEMENTS[engine](_text(topic), _text(servers))


def _flink(topic: str, servers: str) -> str:
    columns = _columns(_flink_type, "`", " NOT NULL")
    return f"""\
CREATE TABLE {TABLE} (
{columns},
  PRIMARY KEY (`{_KEY}`) NOT ENFORCED,
  WATERMARK FOR `window_stop` AS `window_stop`
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = {topic},
  'properties.bootstrap.servers' = {servers},
  'properties.group.id' = 'quiltstream-{TABLE}',
  'key.format' = 'raw',
  'value.format' = 'json',
  'value.json.timestamp-format.standard' = 'ISO-8601'
);
"""


def _risingwave(topic: str, servers: str) -> str:
    columns = _columns(_risingwave_type, '"', "")
    return f"""\
CREATE TABLE {TABLE} (
{columns},
  PRIMARY KEY ("{_KEY}")
) WITH (
  connector = 'kafka',
  topic = {topic},
  properties.bootstrap.server = {servers},
  scan.startup.mode = 'earliest'
) FORMAT PLAIN ENCODE JSON;
"""


def _clickhouse(topic: str, servers: str) -> str:
    stamps = [field.name for field in RELEASE_SCHEMA if pa.types.is_timestamp(field.type)]
    parsed = ", ".join(f"parseDateTime64BestEffort(`{name}`, 6, 'UTC') AS `{name}`" for name in stamps)
    return f"""\
CREATE TABLE {TABLE} (
{_columns(_clickhouse_type, "`", "")}
) ENGINE = ReplacingMergeTree
ORDER BY (`domain`, `query`, `key`, `window_start`, `{_KEY}`);

CREATE TABLE {TABLE}_queue (
{_columns(_clickhouse_text, "`", "")}
) ENGINE = Kafka
SETTINGS
  kafka_broker_list = {servers},
  kafka_topic_list = {topic},
  kafka_group_name = 'quiltstream-{TABLE}',
  kafka_format = 'JSONEachRow';

CREATE MATERIALIZED VIEW {TABLE}_reader TO {TABLE} AS
SELECT * REPLACE ({parsed})
FROM {TABLE}_queue;
"""  # noqa: S608 - it is printed, and what is given is quoted


_STATEMENTS: Mapping[str, Callable[[str, str], str]] = MappingProxyType(
    {"flink": _flink, "risingwave": _risingwave, "clickhouse": _clickhouse}
)


def _columns(type_of: Callable[[pa.Field], str], quote: str, required: str) -> str:
    return ",\n".join(
        f"  {quote}{field.name}{quote} {type_of(field)}{'' if field.nullable else required}" for field in RELEASE_SCHEMA
    )


def _flink_type(field: pa.Field) -> str:
    kind = field.type
    if pa.types.is_list(kind):
        return f"ARRAY<{_flink_type(kind.value_field)}>"
    if pa.types.is_struct(kind):
        parts = [f"`{part.name}` {_flink_type(part)}" for part in kind]
        return f"ROW<{', '.join(parts)}>"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP_LTZ(3)"  # a watermark takes no finer one, and windows begin on whole milliseconds
    return {pa.utf8(): "STRING", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}[kind]


def _risingwave_type(field: pa.Field) -> str:
    kind = field.type
    if pa.types.is_list(kind):
        return f"{_risingwave_type(kind.value_field)}[]"
    if pa.types.is_struct(kind):
        parts = [f'"{part.name}" {_risingwave_type(part)}' for part in kind]
        return f"STRUCT<{', '.join(parts)}>"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMPTZ"
    return {pa.utf8(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE PRECISION", pa.bool_(): "BOOLEAN"}[kind]


def _clickhouse_type(field: pa.Field) -> str:
    kind = field.type
    if pa.types.is_list(kind):
        # ClickHouse has no array that may be null: one that is becomes empty
        return f"Array({_clickhouse_scalar(kind.value_type)})"
    if pa.types.is_struct(kind):
        parts = [f"`{part.name}` {_clickhouse_type(part)}" for part in kind]
        return f"Tuple({', '.join(parts)})"
    name = _clickhouse_scalar(kind)
    return f"Nullable({name})" if field.nullable else name


def _clickhouse_text(field: pa.Field) -> str:
    """The type of a column as it comes: instants are text."""
    return "String" if pa.types.is_timestamp(field.type) else _clickhouse_type(field)


def _clickhouse_scalar(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "DateTime64(6, 'UTC')"
    return {pa.utf8(): "String", pa.int64(): "Int64", pa.float64(): "Float64", pa.bool_(): "Bool"}[kind]


def _text(value: str) -> str:
    """A text as SQL writes it."""
    escaped = value.replace("'", "''")
    return f"'{escaped}'"
