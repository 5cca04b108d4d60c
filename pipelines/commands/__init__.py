"""What each command does; ``pipelines.cli`` has the arguments.

``plan``, ``run``, ``dry_run``
    which mechanism, window and group an error takes; a job; what it will do and cost
``init``, ``data_preview``, ``message_preview``
    settings from a look at data or messages
``fit``, ``check``
    a model from a history; what is in the data, and what a mapping makes of messages
``demo``, ``show``
    the tour, and released rows as text
``ledger``, ``schema``, ``dead_letters``
    the ledger of record and its audit, the JSON Schema, and encrypted rejects
"""
