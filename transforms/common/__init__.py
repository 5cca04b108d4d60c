"""What several steps share.

``batches``
    record batches of readings, and their coder
``rejects``
    where rejected rows were, and why
``prefetch``
    work that runs ahead in a thread of its own
``runner_checks``, ``ledger_waits``
    a job checked against its runner, and workers that wait for a ledger
"""
