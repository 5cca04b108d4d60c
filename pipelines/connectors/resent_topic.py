"""A topic that cannot be read back as the sink of a live job: the rows of the last windows are sent again.

Rows of record never change and are keyed by release id, so a row that comes twice is the same message.
"""

from __future__ import annotations

from ...store.specs import Registration
from ...store.store import Store
from ...transforms.sinks.messages import MessageTopic, SendRejects, SendReleases
from .table import LiveSink
from .undelivered import send_blocks

__all__ = ["ResentTopic"]


class ResentTopic(LiveSink):
    """A topic that a live job sends its rows or rejects to, and whose content is not read.

    Args:
        topic: the sink, or that of the rejects.
        resend: windows on record whose rows are sent again when a run begins.
    """

    def __init__(self, topic: MessageTopic, resend: int = 1) -> None:
        self.topic = topic
        self._resend = resend

    def releases(self) -> SendReleases:
        """The sending of releases."""
        return SendReleases(self.topic)

    def rejects(self) -> SendRejects:
        """The sending of rejects."""
        return SendRejects(self.topic)

    def unknown_ids(self, store: Store) -> list[str]:  # noqa: ARG002 - the signature is that of every sink
        """None that could be known."""
        return []

    def complete(self, store: Store, registration: Registration) -> int:
        """Send the blocks of the last windows on record, which a job that was killed may have left out.

        Returns:
            How many were sent.

        Raises:
            CommandError: they cannot be sent.
        """
        domain, query = registration.domain.name, registration.query.name
        entries = store.entries(domain) if self._resend else []
        starts = sorted(one.window_start for one in entries if one.query == query and one.decision == "charged")
        if not starts:
            return 0
        records = store.records(domain, query, after=(starts[-self._resend :][0], -1))
        return send_blocks(self.topic, registration, records)
