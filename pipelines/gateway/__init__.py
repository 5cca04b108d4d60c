"""The MQTT gateway: a process of its own, without Beam.

A message is acknowledged at the broker when the delivery target has stored it. What the gateway holds in between is
bounded, and may be lost with the process: the broker sends it again.

``run``
    the command: its parts from the settings, with passwords and certificates
``connection``
    the MQTT connection; a look at what a broker sends, for ``init``
``forward``, ``delivery``
    messages to a delivery target: a folder or a Kafka topic
``metrics``, ``pseudonyms``
    counters and dropped messages; names as keyed hashes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .delivery import DeliveryError as DeliveryError
    from .delivery import DeliveryTarget as DeliveryTarget
    from .delivery import Message as Message
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
