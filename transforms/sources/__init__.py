"""Sources: the contract of a source that never ends, its splittable reader, and the sources of files.

``contract``
    what a source gives: partitions and batches with an offset behind them
``reader``
    the unbounded splittable DoFn over the partitions
``progress``
    restrictions, partition watermarks and heartbeats
``batch_files``, ``file_registers``
    files that are read once
``arriving_files``, ``stdin``
    files that appear in a folder, and lines of standard input
"""
