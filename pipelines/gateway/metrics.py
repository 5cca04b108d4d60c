"""Counters of the gateway for its log and for Prometheus, stalls, and the file of dropped messages.

That file has lines of JSON: reason, digest of the topic, size and time; never a topic, never content. The digest is
keyed with a number drawn when the process starts: a topic can be guessed, so a plain digest would name the device,
while with the key one still sees whether one device is behind a thousand rejects or a thousand are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

from ...schemas.files import open_private, reason
from ..errors import CommandError
from ..metrics_page import MetricFamily, metrics_text


class Dropped(StrEnum):
    """Why a message goes no further."""

    TOO_LARGE = "too-large"
    RETAINED = "retained"
    BAD_TOPIC = "bad-topic"
    REFUSED = "refused-by-next-hop"


@dataclass
class Tally:
    """Counts since the start; each is written by one thread."""

    received: int = 0  # messages from the broker
    acknowledged: int = 0  # those acknowledged to it
    duplicates: int = 0  # those it flagged as perhaps sent before
    unconfirmed: int = 0  # those published with QoS 0, which are never repeated
    stale: int = 0  # those that the delivery target had after the connection was gone; the broker sends them again
    in_flight: int = 0  # those that the delivery target does not have yet, now
    bytes_in_flight: int = 0  # bytes of these, about
    reconnects: int = 0  # connections after the first
    sessions_lost: int = 0  # connections after the first for which the broker had kept nothing
    refused: int = 0  # 1 while the broker does not take login, filters or messages that it took before
    dropped: Counter[Dropped] = field(default_factory=Counter[Dropped])  # what goes no further, by reason

    def line(self, before: int, seconds: float) -> str:
        """The counts in one line; ``before`` is how many messages were received until ``seconds`` ago.

        >>> Tally(received=1200, acknowledged=1190, in_flight=10).line(200, 10.0)
        'received 1,200 (100/s), acknowledged 1,190, in flight 10'
        """
        rate = (self.received - before) / seconds if seconds > 0 else 0.0
        parts = [f"received {self.received:,} ({rate:,.0f}/s), acknowledged {self.acknowledged:,}"]
        parts.append(f"in flight {self.in_flight:,}")
        more = [
            ("duplicates", self.duplicates),
            ("unconfirmed", self.unconfirmed),
            ("reconnects", self.reconnects),
            ("sessions lost", self.sessions_lost),
            *((f"dropped as {reason.value}", count) for reason, count in sorted(self.dropped.items())),
        ]
        return ", ".join([*parts, *(f"{name} {count:,}" for name, count in more if count)])

    def prometheus(self) -> str:
        """The counts in Prometheus' text format."""
        return metrics_text(self._families())

    def _families(self) -> Iterator[MetricFamily]:
        for name, kind, about in _METRICS:
            full = f"quiltstream_gateway_{name}{'_total' if kind == 'counter' else ''}"
            yield MetricFamily.single(full, kind, about, getattr(self, name))
        yield MetricFamily(
            "quiltstream_gateway_dropped_total",
            "counter",
            "Messages that go no further",
            [({"reason": why.value}, self.dropped[why]) for why in Dropped],
        )


_METRICS: Sequence[tuple[str, Literal["counter", "gauge"], str]] = (
    ("received", "counter", "Messages from the broker"),
    ("acknowledged", "counter", "Messages acknowledged to the broker"),
    ("duplicates", "counter", "Messages that the broker flagged as perhaps sent before"),
    ("unconfirmed", "counter", "Messages published with QoS 0"),
    ("stale", "counter", "Messages that the next hop had when their connection was gone"),
    ("in_flight", "gauge", "Messages that the next hop does not have yet"),
    ("bytes_in_flight", "gauge", "Bytes of these, about"),
    ("reconnects", "counter", "Connections to the broker after the first"),
    ("sessions_lost", "counter", "Connections for which the broker had kept no session"),
    ("refused", "gauge", "Whether the broker refuses a login, filters or messages that it took before"),
)


@dataclass
class Stall:
    """Time since the last progress, and since a stall was last reported."""

    after: float = 15.0  # seconds without progress after which a stall is reported
    repeat: float = 60.0  # seconds after which it is reported again
    clock: Callable[[], float] = time.monotonic  # seconds of a clock that only goes forward; the tests' own
    _since: float = field(init=False)
    _reported: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        """Begin now."""
        self.moved()

    def moved(self) -> None:
        """Note progress, or the beginning of what may make progress."""
        self._since = self.clock()

    def to_report(self) -> float | None:
        """Seconds since the last progress if a stall is to be reported now, else nothing.

        >>> now = [0.0]
        >>> stall = Stall(clock=lambda: now[0])
        >>> found = []
        >>> for now[0] in (0.0, 15.0, 16.0, 17.0, 76.0, 77.0):
        ...     found.append(stall.to_report())
        >>> found
        [None, None, 16.0, None, None, 77.0]
        """
        now = self.clock()
        if now - self._since <= self.after or now - self._reported <= self.repeat:
            return None
        self._reported = now
        return now - self._since


_BYTES = 16 << 20
_FILES = 4


class RejectFile:
    """A file that is begun anew at so many bytes, with the four before it kept.

    Without a path nothing is kept.

    Raises:
        CommandError: it cannot be written.
    """

    def __init__(self, path: Path | None, most: int = _BYTES) -> None:
        self._key = secrets.token_bytes(16)
        self._handler: _File | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = _File(path, maxBytes=most, backupCount=_FILES, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"forward.rejects {path}: cannot be written ({reason(error)})") from None

    def add(self, reason: Dropped, topic: bytes, size: int) -> None:
        """Write a line; a disk that is full costs the line and nothing else.

        The topic is under its pseudonym, where the gateway makes one, and the size is in bytes.
        """
        if self._handler is None:
            return
        line: dict[str, Any] = {"reason": reason.value, "topic": self.digest(topic), "bytes": size}
        line["time"] = round(time.time(), 3)
        record = logging.LogRecord("rejects", logging.INFO, "", 0, json.dumps(line), None, None)
        self._handler.handle(record)

    def digest(self, topic: bytes) -> str:
        """A topic's name within this run of the process."""
        return hashlib.blake2b(topic, key=self._key, digest_size=8).hexdigest()

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()


class _File(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        handle = open_private(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND)
        return TextIOWrapper(os.fdopen(handle, "ab"), encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its base class calls it so
        """Pass over an error of the disk: the drop is counted in any case."""
