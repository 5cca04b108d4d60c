"""Record batches of readings and rejects: schemas, columns, counters, and their coder in Beam (``batches``)."""
