"""Where readings come from, except brokers (``transforms.kafka``, ``transforms.pubsub``).

``contract``
    what a live source gives: partitions, and batches with an offset behind them
``reader``, ``progress``
    the unbounded splittable DoFn over the partitions, and its restrictions, watermarks and heartbeats
``arriving_files``
    live sources: files that appear in a folder, and lines of standard input
``files``, ``message_files``
    files that are read once: tables of readings, with what needs all rows of a series, and messages
``reading_rows``
    readings of a pipeline of the user's own, as record batches
"""
