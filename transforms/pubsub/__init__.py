"""Google Cloud Pub/Sub: subscriptions as feeds of a live job, and topics as sinks."""
