"""Positions of a lane: the next offset of each of its partitions, as JSON that any later version can read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...schemas.settings import SettingsError
from .gaps import Gaps
from .start import Place


def position_text(
    offsets: Mapping[Place, int],
    stamps: Mapping[Place, int],
    gaps: Gaps,
    lanes: int,
    memory: str = "",
    ids: Mapping[str, str] | None = None,
) -> str:
    """A position.

    Args:
        offsets: the next offset of each partition.
        stamps: the broker's stamps, in milliseconds, of the last messages before it, where a decoder needs them.
        gaps: what was not read.
        lanes: how many lanes there are.
        memory: what the decoder must not forget of the messages before it.
        ids: the brokers' own names of the topics whose offsets they are, where they have any.
    """
    plain: dict[str, Any] = {"lanes": lanes, "topics": _by_topic(offsets)}
    if ids:
        plain["ids"] = dict(sorted(ids.items()))
    if stamps:
        plain["stamps"] = _by_topic(stamps)
    if gaps.plain:
        plain["gaps"] = gaps.plain
    if memory:
        plain["memory"] = memory
    return json.dumps(plain, separators=(",", ":"))


def offsets_of(position: str, topics: Sequence[str], lane: int, lanes: int) -> dict[Place, int]:
    """The offsets of a position; none at the beginning.

    Args:
        position: the text.
        topics: those that are read now, in their order.
        lane: whose position it is.
        lanes: how many lanes there are now.

    Raises:
        SettingsError: there were another number of lanes, or the lane no longer reads a partition that it read then.
    """
    if not position:
        return {}
    plain = json.loads(position)
    if plain["lanes"] != lanes:
        raise SettingsError(
            [
                f"source.kafka.lanes is {lanes}, and the runner's state was made with {plain['lanes']}: set it "
                "back, or begin the job anew without the state; it reads the topics again and publishes what is missing"
            ]
        )
    offsets = {
        (topic, int(partition)): offset
        for topic, partitions in plain["topics"].items()
        if topic in topics
        for partition, offset in partitions.items()
    }
    # another lane would read them from their beginning, and both declare windows by half of what they read
    if moved := [place for place in offsets if lane_of(topics, place, lanes) != lane]:
        raise SettingsError(
            [
                f"source.kafka.topics: the runner's state was made with {moved[0][0]} at another place in their order, "
                "by which lanes share the partitions: set the order back and add topics at the end, or begin the job "
                "anew without the state; it reads the topics again and publishes what is missing"
            ]
        )
    return offsets


def lane_of(topics: Sequence[str], place: Place, lanes: int) -> int:
    """The lane that reads a partition; topics take turns, so that small ones do not all meet in lane 0."""
    return (topics.index(place[0]) + place[1]) % lanes


def stamps_of(position: str) -> dict[Place, int]:
    """The broker's stamps, in milliseconds, of the last messages before a position."""
    topics: dict[str, dict[str, int]] = json.loads(position).get("stamps", {}) if position else {}
    return {(topic, int(one)): stamp for topic, mine in topics.items() for one, stamp in mine.items()}


def memory_of(position: str) -> str:
    """What the decoder must not forget of the messages before a position."""
    return str(json.loads(position).get("memory", "")) if position else ""


def ids_of(position: str) -> dict[str, str]:
    """The brokers' own names of the topics of a position; those of older versions tell none."""
    ids: dict[str, str] = json.loads(position).get("ids", {}) if position else {}
    return dict(ids)


def _by_topic(values: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in sorted(values.items()):
        topics.setdefault(topic, {})[str(partition)] = value
    return topics


def name_of_place(place: Place) -> str:
    """The name of a partition, as clocks and rejects have it."""
    return f"{place[0]}/{place[1]}"


__all__ = ["ids_of", "lane_of", "memory_of", "name_of_place", "offsets_of", "position_text", "stamps_of"]
