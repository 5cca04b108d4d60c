"""Where a job reads and writes: files, folders, Kafka topics and Pub/Sub, and what of the record a sink lacks."""
