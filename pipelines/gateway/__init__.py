"""The MQTT gateway: a process of its own, without Beam.

A message is acknowledged at the broker when the delivery target has stored it. What the gateway holds in between is
bounded, and may be lost with the process: the broker sends it again.

``run``
    the command: its parts from the settings
``connection``, ``mqtt_client``, ``credentials``
    the MQTT connection, the library's client, passwords and certificates
``forward``, ``to_kafka``, ``to_folder``
    messages to a delivery target
``publish_back``
    released rows to the broker
``contracts``, ``metrics``, ``rejects``, ``pseudonyms``
    messages and delivery targets, counters, dropped messages, names as keyed hashes
"""

from __future__ import annotations

from .contracts import DeliveryError, DeliveryTarget, Message

__all__ = ["DeliveryError", "DeliveryTarget", "Message"]
