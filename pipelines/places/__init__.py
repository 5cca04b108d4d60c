"""Where a job reads and writes: files, folders, topics, and what of the record a sink lacks."""
