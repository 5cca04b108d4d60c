"""The settings documents: what a job and the gateway read. Every field has its description here.

``job``, ``gateway``
    the two documents
``connectors``, ``readings``, ``model``
    sections of a job: sources and sinks, the columns or expressions of a reading, models that a job estimates
``recipes``
    how to read the messages of platforms and devices that are known by name
``secrets``
    where keys and passwords are, never what they are; pseudonyms
``base``
    sections, field types, errors, and the reading of a document
"""
