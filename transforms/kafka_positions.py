"""Positions of a lane: the next offset of each of its partitions, as JSON that any later version can read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from ..schemas.settings import SettingsError
from .kafka_start import Place


def position_text(offsets: Mapping[Place, int], stamps: Mapping[Place, int], lanes: int) -> str:
    """A position.

    Args:
        offsets: the next offset of each partition.
        stamps: the broker's stamps, in milliseconds, of the last messages before it, where a decoder needs them.
        lanes: how many lanes there are.
    """
    plain: dict[str, Any] = {"lanes": lanes, "topics": _by_topic(offsets)}
    if stamps:
        plain["stamps"] = _by_topic(stamps)
    return json.dumps(plain, separators=(",", ":"))


def offsets_of(position: str, topics: Collection[str], lanes: int) -> dict[Place, int]:
    """The offsets of a position; none at the beginning.

    Args:
        position: the text.
        topics: those that are read now.
        lanes: how many lanes there are now.

    Raises:
        SettingsError: there were another number of lanes.
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
    return {
        (topic, int(partition)): offset
        for topic, partitions in plain["topics"].items()
        if topic in topics
        for partition, offset in partitions.items()
    }


def stamps_of(position: str) -> dict[Place, int]:
    """The broker's stamps, in milliseconds, of the last messages before a position."""
    topics: dict[str, dict[str, int]] = json.loads(position).get("stamps", {}) if position else {}
    return {(topic, int(one)): stamp for topic, mine in topics.items() for one, stamp in mine.items()}


def _by_topic(values: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in sorted(values.items()):
        topics.setdefault(topic, {})[str(partition)] = value
    return topics


def name_of_place(place: Place) -> str:
    """The name of a partition, as clocks and rejects have it."""
    return f"{place[0]}/{place[1]}"


__all__ = ["name_of_place", "offsets_of", "position_text", "stamps_of"]
