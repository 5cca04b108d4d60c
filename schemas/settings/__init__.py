"""The settings documents: what a job and the gateway read. Every field has its description here.

``job``, ``gateway``
    the two documents
``mappings``, ``brokers``, ``model``
    sections of a job: where a message has its reading and which preset, Kafka and Pub/Sub, models that a job estimates
``secrets``, ``pseudonyms``
    where keys and passwords are, never what they are
``base``
    sections, field types, errors, and the reading of a document
"""
