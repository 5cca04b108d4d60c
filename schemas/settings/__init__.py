"""The settings documents: what a job and the gateway read. Every field has its description here.

``job``, ``gateway``
    the two documents
``connectors``, ``mappings``, ``model``
    sections of a job: sources and sinks, where a message has its reading and which preset, models that a job estimates
``secrets``
    where keys and passwords are, never what they are; pseudonyms
``base``
    sections, field types, errors, and the reading of a document
"""
