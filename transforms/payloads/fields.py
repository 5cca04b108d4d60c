"""What stands beside the payload: topics, headers, keys and stamps as columns, one value for each message."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from typing import Any

from ...schemas.mappings import Constant, Place
from ..messages import Headers, Messages

#: The header in which the gateway keeps the MQTT topic.
MQTT_TOPIC = "mqtt-topic"

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def field_column(place: Place | Constant, messages: Messages, chosen: Sequence[int]) -> list[Any]:
    """What a place beside the payload holds.

    Args:
        place: a topic level, header, key, stamp or constant.
        messages: the messages.
        chosen: the numbers of those that count.

    Returns:
        One value for each that counts: text, an instant, or ``None`` where there is nothing readable.
    """
    if isinstance(place, Constant):
        return [place.constant] * len(chosen)
    if place.topic is not None:
        found = topics(messages, chosen)
        known = {one: level_of(one, place.topic) for one in set(found)}
        return [known[one] for one in found]
    if place.stamp:
        return stamps(messages, chosen)
    raw = [messages.keys[one] for one in chosen] if place.key else headers(messages, chosen, str(place.header))
    texts = [text_of(one) for one in raw]
    if place.level is None:
        return texts
    level = place.level
    return [None if one is None else level_of(str(one), level) for one in texts]


def topics(messages: Messages, chosen: Sequence[int]) -> list[str]:
    """The topic of each message; the MQTT one where a gateway noted it."""
    found: list[str] = []
    for one in chosen:
        given = last_header(messages.headers[one], MQTT_TOPIC) if messages.headers[one] else None
        topic = messages.topics[one]
        if given is not None:
            try:
                topic = given.decode("utf-8")
            except UnicodeDecodeError:
                topic = ""
        found.append(topic)
    return found


def level_of(text: str, level: int) -> str | None:
    """A level of a topic: between slashes, or between dots where there is no slash; ``None`` if it has not so many."""
    levels = text.split("/" if "/" in text else ".")
    try:
        return levels[level - 1 if level > 0 else level]
    except IndexError:
        return None


def headers(messages: Messages, chosen: Sequence[int], name: str) -> list[bytes | None]:
    """The header of a name of each message."""
    return [last_header(messages.headers[one], name) for one in chosen]


def last_header(given: Headers, name: str) -> bytes | None:
    """The last header of a name: who writes one anew appends it."""
    for key, value in reversed(given):
        if key == name:
            return value
    return None


def stamps(messages: Messages, chosen: Sequence[int]) -> list[dt.datetime | None]:
    """The broker's own stamps; ``None`` where there is none, or none that a calendar has."""
    return [_instant(int(messages.stamps_us[one])) for one in chosen]


def _instant(stamp_us: int) -> dt.datetime | None:
    if stamp_us < 0:
        return None
    try:
        return _EPOCH + dt.timedelta(microseconds=stamp_us)
    except OverflowError:
        return None


#: Event Hubs hands the annotations of an AMQP message on in AMQP's own encoding, whose first byte is a type.
_AMQP_SHORT_TEXT = (0xA1, 0xA3)
_AMQP_LONG_TEXT = (0xB1, 0xB3)
_AMQP_TIME = 0x83
_AMQP_TIME_BYTES = 9
_LONG_HEAD = 5


def text_of(value: bytes | None) -> Any:
    """The bytes of a header or key as text, or as an instant where they are AMQP's; ``None`` if they are neither.

    The type bytes of AMQP begin no text in UTF-8, so nothing is read in two ways.
    """
    if not value:
        return None
    kind = value[0]
    try:
        if kind in _AMQP_SHORT_TEXT and len(value) > 1 and value[1] == len(value) - 2:
            return value[2:].decode("utf-8")
        if kind in _AMQP_LONG_TEXT and struct.unpack_from(">I", value, 1)[0] == len(value) - _LONG_HEAD:
            return value[_LONG_HEAD:].decode("utf-8")
        if kind == _AMQP_TIME and len(value) == _AMQP_TIME_BYTES:
            return _instant(1_000 * struct.unpack(">q", value[1:])[0])
        return value.decode("utf-8")
    except (UnicodeDecodeError, struct.error):
        return None


__all__ = ["MQTT_TOPIC", "field_column", "headers", "last_header", "level_of", "stamps", "text_of", "topics"]
