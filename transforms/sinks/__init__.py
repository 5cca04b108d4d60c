"""Sinks: released rows and rejects to files, folders and topics of messages."""
