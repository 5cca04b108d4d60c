"""Payloads: the conventions in which messages carry readings, one module each, and the decoder that knows them all.

``decoder`` is what a source of messages uses; ``mapped`` serves the mappings of the settings, the other modules the
presets that take payloads apart by a convention of their own.
"""

from __future__ import annotations

from .decoder import PayloadDecoder, SchemaLookup

__all__ = ["PayloadDecoder", "SchemaLookup"]
