"""Topics of Kafka: as feeds of a live job, and as sinks."""
