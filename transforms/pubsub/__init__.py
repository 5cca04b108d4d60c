"""Google Cloud Pub/Sub, for live jobs.

``source``
    subscriptions, acknowledged when the runner has committed what was read
``sink``
    rows and rejects to a topic
``client``
    clients with their errors
"""
