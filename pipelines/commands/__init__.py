"""What each command does; ``pipelines.cli`` has the arguments.

``plan``, ``run``, ``dry_run``, ``init``, ``data_preview``
    which mechanism, window and group an error takes; a job, what it will do and cost, its settings from a look at data
``fit``, ``fit_beliefs``
    a model from a history
``check``, ``audit``
    what is in the data of a settings file, and a whole ledger derived again from its rows
``demo``, ``show``, ``charts``, ``report``
    the tour, released rows as text, and a ledger as one HTML file
``ledger``, ``schema``, ``dead_letters``
    the ledger of record, the JSON Schema, and encrypted rejects
"""
