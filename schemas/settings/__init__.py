"""The settings documents: what a job, an estimated model, a broker connection and the gateway are told.

``base``
    sections, documents and their errors
``job``, ``gateway``
    the two documents
``mappings``, ``brokers``, ``model``
    sections of a job: where readings stand in a message, Kafka and Pub/Sub, and models estimated by the job
``secrets``, ``pseudonyms``
    where keys and passwords are, never what they are
"""
