"""The gateway between an MQTT broker and everything else: a process of its own, which imports nothing of Beam.

A message is acknowledged to the broker only when the next hop has it, on its own disk. What the gateway holds in
between is bounded, and may be lost with the process: the broker sends it again.
"""

from __future__ import annotations

from .contracts import Hop, HopError, Message

__all__ = ["Hop", "HopError", "Message"]
