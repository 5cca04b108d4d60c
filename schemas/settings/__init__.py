"""The settings documents: what a job and the gateway read. Every field has its description here.

``job``, ``gateway``
    the two documents
``connectors``, ``mappings``, ``model``
    sections of a job: sources and sinks, where a message has its reading and which preset, models that a job estimates
``places``
    where a part of a reading is, with the operators; connectors and payload formats of other distributions
``recipes`` (a folder of YAML)
    presets that are mappings
``secrets``
    where keys and passwords are, never what they are; pseudonyms
``base``
    sections, field types, errors, and the reading of a document
"""
