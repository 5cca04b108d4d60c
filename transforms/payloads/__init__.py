"""Payloads of messages to readings: a source of messages uses ``decoder``, which also explains a mapping.

``messages``, ``columns``
    what a broker hands over, and what a payload format makes of it
``expressions``
    the mappings of the settings by JMESPath, and the recipes
``mapped``
    the mappings of the settings: arrays, conditions, operators
``parsing``, ``avro``
    forms of payloads
``presets``
    the formats of platforms, and increments of cumulative registers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .avro import SchemaLookup as SchemaLookup
    from .decoder import PayloadDecoder as PayloadDecoder
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
