"""Payloads of messages to readings: a source of messages uses ``decoder``.

``messages``, ``columns``
    what a broker hands over, and the readings in it as columns
``expressions``, ``units``
    readings by the JMESPath of the settings or of a recipe, in one unit
``parsing``, ``avro``
    forms of payloads
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from .avro import SchemaLookup as SchemaLookup
    from .decoder import PayloadDecoder as PayloadDecoder
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__)
