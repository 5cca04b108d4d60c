"""Where readings come from, except brokers (``transforms.kafka``, ``transforms.pubsub``).

``contract``
    what a live source gives: partitions, and batches with an offset behind them
``reader``, ``progress``
    the unbounded splittable DoFn over the partitions, and its restrictions, watermarks and heartbeats
``arriving_files``, ``stdin``
    live sources: files that appear in a folder, lines of standard input
``batch_files``, ``file_decoder``, ``message_files``, ``file_registers``
    files that are read once: tables of readings, messages, and increments of meter registers in them
"""
