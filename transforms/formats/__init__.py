"""File formats to Arrow columns.

``csv``, ``jsonl``, ``parquet``, ``avro``
    one format each, to raw rows
``rows``, ``times``
    raw rows to readings, also those of wide tables; event times in any spelling to microseconds
``paths``
    files by pattern, opened, and in blocks of whole lines
"""
