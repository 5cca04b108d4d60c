"""Payloads of messages to readings: ``decoder`` is what a source of messages uses.

``messages``, ``columns``, ``parsing``
    what a broker hands over, and what a payload format makes of it
``mapped``, ``operators``, ``unit_names``
    the mappings of the settings: their arrays and conditions, their operators, and units
``containers``, ``avro``, ``avro_vectorised``
    forms of payloads beside JSON and CBOR
``plugins``
    formats that other distributions add
``trial``
    what a mapping makes of single messages, and why
``presets``
    the formats of platforms
``meter_registers``, ``bounded_cache``, ``dead_letters``
    increments of cumulative registers, memory by name within a bound, and encrypted rejects
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.contents import contents

if TYPE_CHECKING:
    from .avro import SchemaLookup as SchemaLookup
    from .decoder import PayloadDecoder as PayloadDecoder
else:
    __getattr__, __dir__, __all__ = contents(__name__)
