"""Topics as the places of a job, whichever broker has them: which they are, and which of them do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import FileSink, Settings
from ...transforms.sinks.messages import MessageTopic
from .kafka import topic_of
from .pubsub import pubsub_topic_of


def message_topic(settings: Settings, sink: FileSink) -> MessageTopic | None:
    """The topic that a sink is; ``None`` where it is files."""
    return pubsub_topic_of(sink) or topic_of(settings, sink)


def check_message_topics(settings: Settings) -> None:
    """See that no topic is written that is read, or that holds something else of the job.

    Raises:
        SettingsError: one is.
    """
    named: dict[tuple[str, str], str] = {}
    if settings.source is not None and settings.source.kafka is not None:
        named = {("kafka", one): "source.kafka" for one in settings.source.kafka.all_topics}
    problems: list[str] = []
    for field, sink in (("sink", settings.sink), ("rejects", settings.rejects)):
        topic = None if sink is None else message_topic(settings, sink)
        if topic is None:
            continue
        field = f"{field}.{topic.kind}"  # noqa: PLW2901 - its whole name
        other = named.setdefault((topic.kind, topic.name), field)
        if other != field:
            problems.append(f"{other} and {field} name the same topic, {topic.name}; give {field} a topic of its own")
    if problems:
        raise SettingsError(problems)


def refuse_topics(settings: Settings) -> None:
    """Refuse a job that ends whose settings name topics, which never do.

    Raises:
        SettingsError: they do.
    """
    problems = [
        f"{field} is for live jobs: use quiltstream run --live, or name files"
        + ("; a live job ends by itself at windows.stop" if field.startswith("source") else "")
        for field in _topics_of(settings)
    ]
    if problems:
        raise SettingsError(problems)


def _topics_of(settings: Settings) -> Iterator[str]:
    """The settings that name topics."""
    for kind in ("kafka", "pubsub"):
        for place in ("source", "sink", "rejects"):
            if getattr(getattr(settings, place), kind, None) is not None:
                yield f"{place}.{kind}"


__all__ = ["check_message_topics", "message_topic", "refuse_topics"]
