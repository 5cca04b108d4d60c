"""File formats to Arrow columns.

``csv``, ``jsonl``, ``parquet``, ``avro``
    one format each, to raw rows
``rows``, ``times``
    raw rows to readings; event times in any spelling to microseconds
``paths``, ``text``, ``avro_schemas``
    files by pattern, blocks of whole lines, schemas that can be read as a whole
"""
