"""Topics of Kafka: as sources of a live job, and as sinks.

``source``, ``partitions``
    partition groups with their messages and health; offsets and gaps of a partition
``sink``, ``topics``
    rows and rejects to a topic, and topics checked before a job begins
``client``, ``schema_registry``
    consumers and producers with their errors, and registries with Confluent's interface
"""
