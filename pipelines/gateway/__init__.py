"""The MQTT gateway: a bridge, a process of its own without Beam.

``bridge``
    the MQTT connection, and messages on their way
``run``
    the command: its parts from the settings, its log and its counts
``targets``
    where messages go: files in a folder, or a Kafka topic
"""
