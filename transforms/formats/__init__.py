"""File formats to Arrow columns.

``csv``, ``jsonl``, ``parquet``, ``avro``
    one format each, to raw rows
``rows``, ``times``
    raw rows to readings; event times in any spelling to microseconds
``lines``
    text in blocks of whole lines, of which a bad one costs itself
``paths``
    files by pattern, and opened
"""
