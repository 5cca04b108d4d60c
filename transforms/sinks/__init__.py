"""Where rows and rejects go.

``files``
    one sorted file of a bounded job, or a file a block in the folder of a live job
``messages``
    a topic of any broker: a row under its release id (``kafka.sink`` and ``pubsub.sink`` send them)
"""
