"""Payload formats of plug-ins: a function of another author from a payload to its plain value.

Whatever that function does with a message is about this message alone: an error, or a value that no document of JSON
could hold, makes it one reject, counted once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ...schemas.settings.base import SettingsError
from ...schemas.settings.mappings import Readings
from ...schemas.settings.plugins import PAYLOAD_PLUGINS
from .parsing import Parser, parse_each

__all__ = ["checked_value", "plugin_parser"]

#: Levels of a value, as of other formats.
_DEPTH = 32
_TOO_DEEP = "more levels than a payload may have"


def plugin_parser(readings: Readings) -> Parser:
    """The parser of the payload format that settings take from a plug-in.

    Raises:
        SettingsError: it is not installed here, cannot be imported or lacks what the contract asks for; the message
            names the distribution.
    """
    name = readings.payload_name
    plugin = PAYLOAD_PLUGINS.named(name)
    if plugin is None:
        raise SettingsError([f"readings.payload is {name}, and no distribution that is installed here has this format"])
    parse: Any = plugin.imported("parser").parser(readings.payload[name])
    if not callable(parse):
        raise SettingsError([f"{plugin.text}: parser() gives no function; ask its author for one"])
    one = cast("Callable[[bytes], Any]", parse)
    return lambda payloads, numbers: parse_each(payloads, numbers, lambda payload: checked_value(one(payload)))


def checked_value(value: Any, depth: int = _DEPTH) -> Any:
    """A value made of mappings with names, lists, texts, numbers and nothing.

    Raises:
        ValueError: something else is in it, or it has more levels than other payloads may have.
    """
    if depth == 0:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, dict):
        return {_name(key): checked_value(one, depth - 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [checked_value(one, depth - 1) for one in value]
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise ValueError("a value that is none of a document")


def _name(key: Any) -> str:
    if type(key) is not str:
        raise ValueError("a name that is no text")
    return key
