"""File formats to Arrow columns.

``csv``, ``jsonl``, ``parquet``, ``avro``
    one format each, to raw rows
``columns``
    the columns that readings are made of, and whether a file has them
``rows``, ``times``
    raw rows to readings; event times in any spelling to microseconds
``lines``
    text in blocks of whole lines, of which a bad one costs itself
``paths``
    files by pattern, and opened
"""
