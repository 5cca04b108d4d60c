"""Topics of Kafka: as sources of a live job, and as sinks.

``source``, ``partitions``, ``messages``
    partition groups with their health, offsets and gaps of a partition, messages as columns
``sink``, ``topics``
    rows and rejects to a topic, and topics checked before a job begins
``client``, ``schema_registry``
    consumers and producers with their errors, and registries with Confluent's interface
"""
