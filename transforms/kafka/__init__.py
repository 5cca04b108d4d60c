"""Topics of Kafka: as sources of a live job, and as sinks.

``source``, ``partitions``, ``messages``
    partition groups and what stands in the way; offsets and gaps of a partition; messages as columns
``sink``
    rows and rejects to a topic, and the rows that it has
``client``, ``schema_registry``
    consumers and producers with their errors, topics checked before a job begins; registries with Confluent's interface
"""
