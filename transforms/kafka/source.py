"""Kafka topics as a live source: partition groups, offsets kept by the runner, and what stands in the way.

The number of a source's partitions is fixed when the graph is built, because each must declare every window complete;
partitions of a topic come and go. So each reader has a partition group: group i of n reads the partitions whose number
leaves i when divided by n, and finds new ones by itself. Partitions are assigned, never subscribed to, and the offset
of a group is the next offset of each of its partitions. Whatever the runner repeats is read again from there; a
consumer group is only informed.

A reader keeps a watermark for each of its partitions (see :mod:`..sources.progress`). A partition that was never read
to its end, or whose broker does not answer, is not silent but unknown, and holds the group's watermark. Where a
partition ends is read from its leader: what came with the last messages is old when the leader hangs. What is not read
of a partition, because it was gone or lies before the start, is kept as a gap (see :mod:`.partitions`).
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ...schemas.backoff import Backoff
from ..payloads.messages import MessageDecoder
from ..sources.contract import (
    Attempts,
    PartitionedSource,
    Reader,
    SourceBatch,
    WaitingDecoder,
    damaged,
    source_batch_of,
)
from ..sources.progress import Reach
from .client import (
    LOG,
    NO_GROUP,
    READING,
    Cluster,
    KafkaUnavailableError,
    as_unavailable,
    is_kafkas,
    is_login,
    is_passing,
    meaning_of,
    name_of,
    topic_partition,
    unavailable,
)
from .messages import came_us, decoded_by, sent_us
from .partitions import (
    EARLIEST,
    Gaps,
    Partition,
    Start,
    by_topic,
    first_offsets,
    lane_of,
    last_offsets,
    leaders,
    offsets_of,
    partition_name,
    topic_ids,
)

#: Messages that are taken from the client at once, and how long it may take to get so many.
_MESSAGES = 10_000
_WAIT_S = 0.1

#: How long a question to a broker may take, and one between two looks.
_ANSWER_S = 3.0
_CHECK_S = 1.0

#: Seconds for which the leaders' answer where the partitions end is good.
_ENDS_S = 1.0

#: Seconds from one commit for monitoring to the next, and before the same thing is logged again.
_COMMIT_S = 5.0
_SAID_AGAIN_S = 300.0

#: Time without a message where the leaders name more of them, before the consumer is made anew, growing as long as that
#: does not help; and how many fetches are in vain at least.
_STUCK = Backoff(20.0, 320.0)
_STUCK_TIMES = 5

#: Partitions that a message names at most.
_SHOWN = 3

_NO_LEADER = "has no leader now, or is not there any more; its brokers may be away"


@dataclass(frozen=True)
class KafkaPartitions(PartitionedSource):
    """Messages of some topics."""

    cluster: Cluster
    topics: tuple[str, ...]  # names, in an order that stays
    decoder: MessageDecoder
    lanes: int = 1
    start: Start = EARLIEST
    group: str | None = None  # consumer group that a start names, or else whose offsets are committed for monitoring
    discover_s: float = 10.0  # seconds from one look for new partitions to the next

    @property
    def parts(self) -> int:
        """The lanes."""
        return self.lanes

    @property
    def text(self) -> str:
        """It in words."""
        return f"topic {', '.join(self.topics)} at {self.cluster.servers}"

    def reader(self, part: int, position: str) -> KafkaReader:
        """A reader of a partition group; it has no connection before it reads."""
        return KafkaReader(self, part, position)


@dataclass(slots=True)
class _Vain:
    """Fetches that gave nothing where the leaders say that there is more."""

    limits: Iterator[float]
    limit_s: float = field(init=False)  # how long that may go on
    since: float | None = None  # monotonic seconds of the first
    times: int = 0

    def __post_init__(self) -> None:
        self.limit_s = next(self.limits)

    def after(self, now: float, *, waits: bool) -> bool:
        """Count one; whether the consumer is to be made anew."""
        self.since = (self.since or now) if waits else None
        self.times = self.times + 1 if waits else 0
        # a runner may let long times pass between two calls, in which nothing is fetched
        return self.since is not None and self.times > _STUCK_TIMES and now - self.since >= self.limit_s


class KafkaReader(Reader):
    """Reads a partition group."""

    def __init__(self, source: KafkaPartitions, lane: int, position: str) -> None:
        plain: dict[str, Any] = json.loads(position) if position else {}
        self._source, self._lane = source, lane
        self._offsets = offsets_of(plain, source.topics, lane, source.lanes)
        self._gaps = Gaps(plain.get("gaps", ()))
        self._ids: dict[str, str] = plain.get("ids", {})
        self._begun = bool(position)
        self._decoding = WaitingDecoder(source.decoder)
        self._client: Any = None
        self._assigned = False
        #: what is read and not handed on, and what is fetched and not decoded
        self._batches: deque[SourceBatch] = deque()
        self._groups: deque[tuple[Partition, list[Any]]] = deque()
        #: where the client came to the end of partitions, and where their leaders said that they end, and when
        self._ended: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._ends_at = float("-inf")
        #: whether the brokers have named the partitions, and what was not read to its end yet since it was found
        self._named = False
        self._behind: set[Partition] = set(self._offsets)
        self._reached: dict[Partition, Reach] = {}
        #: partitions that cannot be read, and why: those that no broker leads, and what their leader refuses
        self._leaderless: frozenset[Partition] = frozenset()
        self._denied: dict[Partition, str] = {}
        self._attempts = Attempts()
        self._down = True
        self._cause: Any = None
        self._vain, self._stuck = _Vain(_STUCK.pauses()), ""
        self._commit_at = 0.0
        self._said: dict[str, float] = {}

    # The contract of a reader

    def read(self) -> SourceBatch | None:
        """The next messages of one partition, as readings."""
        # while something is in hand nothing is fetched, and who was at the end then may have spoken since
        self._reached = {place: Reach.UNSEEN if reach is Reach.END else reach for place, reach in self._reached.items()}
        if not self._batches:
            self._look()
        if self._assigned and not self._batches and not self._groups:
            self._fetch()
        if self._batches:
            return self._batches.popleft()
        return self._decoded() if self._groups else None

    @property
    def sources(self) -> Mapping[str, Reach]:
        """The lane's partitions; before the broker has named them, the topics."""
        # a partition group without a partition follows the wall clock, but not while one may be made unseen
        if not self._named or (self._down and not self._offsets):
            return dict.fromkeys(self._source.topics, Reach.UNKNOWN)
        places, sick = sorted(self._offsets.keys() | self._leaderless), self._leaderless | self._denied.keys()
        reached = {one: Reach.UNKNOWN if self._down or one in sick else self._reached[one] for one in places}
        if self._decoding.waiting is not None:
            # while messages wait for what their decoder needs there are no polls, and producers may wait for the same
            reached = {one: reach if reach is Reach.BEHIND else Reach.UNKNOWN for one, reach in reached.items()}
        return {partition_name(one): reach for one, reach in reached.items()}

    @property
    def trouble(self) -> str | None:
        """What is in the way."""
        return self._attempts.trouble or self._decoding.waiting or self._sickness or self._stuck or None

    def check(self) -> bool:
        """Whether brokers and leaders answer; nothing that was fetched meanwhile is touched."""
        source, places, client = self._source, self._readable, self._client
        with suppress(KafkaUnavailableError), as_unavailable(source.text):
            if client is not None:
                led = leaders(client, source.topics, source.cluster.servers, _CHECK_S)
                return all(led.get(one) for one in places) and set(places) <= set(
                    last_offsets(client, places, _CHECK_S)
                )
        return False

    def kept(self) -> None:
        """Commit the offsets of the consumer group now and then, if there is one; nothing depends on it."""
        source, now = self._source, time.monotonic()
        if source.group is None or source.start.kind == "group" or not self._assigned or now < self._commit_at:
            return
        self._commit_at = now + _COMMIT_S
        try:
            self._client.commit(offsets=self._places, asynchronous=True)
        except Exception as error:  # noqa: BLE001 - confluent-kafka's; monitoring must not stop the job
            LOG.warning("%s: the offsets cannot be committed: %s", source.text, meaning_of(error))

    def close(self) -> None:
        """Leave the client; where there is more to read, another one is made.

        A consumer keeps of a topic which leader epoch it saw last, by the topic's name. A topic that is made anew
        begins with epoch 0, which a consumer that has seen a higher one, as after any restart of the broker, takes
        for stale: it fetches nothing for ever, also when it is assigned again.
        """
        client, self._client, self._assigned = self._client, None, False
        self._groups.clear()
        if client is not None:
            client.close()

    # Brokers and partitions

    def _look(self) -> None:
        """See which partitions there are, if it is time to; whatever stands in the way is said and tried again."""
        if time.monotonic() < self._attempts.due:
            return
        try:
            self._discover()
        except KafkaUnavailableError as error:
            self._failed(str(error))
            if not error.passing:
                # a topic that is gone may come back as another one, also where its brokers have no ids
                self.close()
        except Exception as error:
            if not is_kafkas(error):
                raise
            if self._client is not None and not self._assigned:
                # the client passes on the reason that it has when it is polled
                self._client.poll(0)
            cause, self._cause = self._cause, None
            self._failed(str(unavailable(self._source.text, error if cause is None else cause)))
            if cause is not None and is_login(cause):
                # it says so once; the next one is made with the secrets of then
                self.close()
        else:
            self._cause = None
            if self._attempts.succeeded():
                LOG.warning("%s: it answers again", self._source.text)
                self._said = {}
            self._down, self._attempts.due = False, time.monotonic() + self._source.discover_s

    def _discover(self) -> None:
        source = self._source
        self._open()
        led = leaders(self._client, source.topics, source.cluster.servers, _ANSWER_S)
        led = {place: has for place, has in led.items() if lane_of(source.topics, place, source.lanes) == self._lane}
        self._renew(led.keys())
        # one without a leader is found when it has one; until then it is not known, and not silent
        missing = frozenset(place for place, has in led.items() if not has)
        self._leaderless = missing | (self._offsets.keys() - led.keys())
        fresh = sorted(led.keys() - missing - self._offsets.keys())
        if fresh or not self._assigned:
            self._begin(fresh)
        for place in self._denied.keys() & self._offsets.keys():
            # the client reports only once what is denied; one that was assigned this moment cannot be sought yet
            with suppress(KafkaUnavailableError), as_unavailable(place[0]):
                self._client.seek(topic_partition(*place, self._offsets[place]))
        if self._sickness:
            self._tell(self._sickness)
        self._read_ends()

    def _open(self) -> None:
        if self._client is None:
            own = {**READING, "group.id": self._source.group or NO_GROUP}
            self._client = self._source.cluster.consume(own, self._hear)

    def _renew(self, there: AbstractSet[Partition]) -> None:
        """Begin at the start of topics that were made anew, whose offsets are others."""
        source = self._source
        found = topic_ids(source.cluster, source.topics, _ANSWER_S)
        anew = {topic for topic, one in found.items() if self._ids.get(topic, one) != one}
        self._ids |= found
        places = [place for place in self._offsets if place[0] in anew]
        if not places:
            return
        LOG.error("%s: %s was made anew, and is read from its beginning", source.text, ", ".join(sorted(anew)))
        # a partition that the new one has not is waited for no longer
        self._lose(dict.fromkeys(places, 0), set(places) - there)
        self._behind = (self._behind | set(places)) & self._offsets.keys()
        self.close()
        self._open()

    def _begin(self, fresh: Sequence[Partition]) -> None:
        """Read some partitions for the first time, and all from the position on."""
        now_us, start = time.time_ns() // 1_000, EARLIEST if self._begun else self._source.start
        for place, (offset, first) in first_offsets(self._client, fresh, start, _ANSWER_S).items():
            self._offsets[place] = offset
            if offset:
                self._gaps.found(place, now_us, start if offset > first else EARLIEST)
            if offset == first > 0 and start.kind != "latest":
                text = "%s at %s: its messages before offset %d are not there any more"
                LOG.warning(text, partition_name(place), self._source.cluster.servers, offset)
        self._behind |= set(fresh)
        self._assign()
        # what was found is kept by the runner before anything is read from there
        self._batches.append(SourceBatch(self._position, settled=not self._behind, lost_us=self._gaps.until_us))
        self._begun = True

    def _assign(self) -> None:
        """Fetch from the position on; what was fetched and not read yet is fetched again."""
        self._groups.clear()
        self._ended.clear()
        self._client.assign(self._places)
        self._assigned = self._named = True
        self._decoding.waiting, self._vain.since, self._vain.times = None, None, 0
        self._reached = dict.fromkeys(self._offsets, Reach.UNKNOWN)

    def _lose(self, found: Mapping[Partition, int], gone: AbstractSet[Partition]) -> None:
        """Go on elsewhere in some partitions, or in some of them not at all: what was to come there is lost."""
        before = {place: self._offsets[place] for place in found}
        self._offsets = {place: offset for place, offset in (self._offsets | {**found}).items() if place not in gone}
        for place in found:
            self._gaps.found(place, time.time_ns() // 1_000)
        # a runner may keep any of these positions: all of them are behind all of it
        for place, offset in before.items():
            name = partition_name(place)
            lost = source_batch_of(name, [damaged(offset)], self._position, settled=False)
            self._batches.append(replace(lost, source=name, lost_us=self._gaps.until_us))

    # Messages

    def _fetch(self) -> None:
        """Take what the brokers have, and see how far every partition was read."""
        try:
            with as_unavailable(self._source.text):
                came = self._client.consume(_MESSAGES, _WAIT_S)
            groups: dict[Partition, list[Any]] = {}
            gone: list[Partition] = []
            for one in came:
                place = (one.topic(), one.partition())
                if one.error() is None:
                    groups.setdefault(place, []).append(one)
                elif self._is_gone(place, one):
                    gone.append(place)
            self._denied = {place: why for place, why in self._denied.items() if place not in groups}
            self._groups.extend(groups.items())
            if gone:
                self._begin_again(gone)
            self._see_whether_stuck(came=bool(came))
        except KafkaUnavailableError as error:
            self._failed(str(error))
        self._reached = {place: self._reach(place) for place in self._offsets}
        self._behind -= {place for place, reach in self._reached.items() if reach is Reach.END}

    def _is_gone(self, place: Partition, event: Any) -> bool:
        """Take an event in the place of a message; whether it says that the offset is not there any more."""
        error, name = event.error(), name_of(event.error())
        if name == "_PARTITION_EOF":
            self._ended[place] = event.offset()
            self._denied.pop(place, None)
        elif name == "_AUTO_OFFSET_RESET":
            return True
        elif place[0] not in self._source.topics:
            # the client requests its group at once, though nothing but monitoring may need it
            level = logging.WARNING if self._source.group else logging.DEBUG
            LOG.log(level, "%s: %s", self._source.text, meaning_of(error))
        elif not is_passing(error):
            self._denied[place] = meaning_of(error)
        else:
            self._hear(error)
        return False

    def _begin_again(self, gone: Sequence[Partition]) -> None:
        """Offsets are gone by retention, or the topic was made anew: begin at its start."""
        # the client has left these partitions: where the brokers do not answer now, all are assigned anew later
        self._assigned = False
        with as_unavailable(self._source.text):
            found = first_offsets(self._client, gone, EARLIEST, _ANSWER_S)
        for place, (offset, _) in found.items():
            LOG.error(
                "%s at %s: offset %d is not there any more, reading goes on at %d; what was between is lost, or the "
                "topic was made anew",
                partition_name(place),
                self._source.cluster.servers,
                self._offsets[place],
                offset,
            )
        self._lose({place: offset for place, (offset, _) in found.items()}, frozenset())
        self._assign()

    def _see_whether_stuck(self, *, came: bool) -> None:
        """See whether messages come where the leaders say that there are more; if not, the consumer is made anew."""
        if came:
            self._vain, self._stuck = _Vain(_STUCK.pauses()), ""
            return
        waits = any(place in self._offsets and self._comes_before(place, end) for place, end in self._ends.items())
        if self._vain.after(time.monotonic(), waits=waits):
            self._vain = _Vain(self._vain.limits)
            said = "the brokers have messages and hand none over; they are asked by a new connection"
            self._stuck = f"{self._source.text}: {said}"
            LOG.warning("%s", self._stuck)
            self.close()
            self._down, self._attempts.due = True, 0.0

    def _decoded(self) -> SourceBatch | None:
        place, group = self._groups[0]
        found = self._decoding.decoded(lambda decoder: decoded_by(decoder, group))
        if found is None:
            return None
        messages, decoded = found
        self._groups.popleft()
        self._gaps.read(place, came_us(group[:1]))
        self._offsets[place] = int(messages.positions[-1]) + 1
        self._reached[place] = self._reach(place)
        if self._reached[place] is Reach.END:
            self._behind.discard(place)
        name, known = partition_name(place), {"came_us": came_us(group), "sent_us": sent_us(messages)}
        settled, lost_us = not self._behind, self._gaps.until_us
        return self._decoding.batch(
            name, decoded, self._position, settled=settled, source=name, lost_us=lost_us, **known
        )

    # Where everything stands

    @property
    def _position(self) -> str:
        """What the runner keeps."""
        more = {"ids": dict(sorted(self._ids.items())), "gaps": self._gaps.plain}
        plain = {"lanes": self._source.lanes, "topics": by_topic(self._offsets)}
        return json.dumps(plain | {name: one for name, one in more.items() if one}, separators=(",", ":"))

    @property
    def _places(self) -> list[Any]:
        """The position as the client wants it."""
        return [topic_partition(*place, offset) for place, offset in self._offsets.items()]

    @property
    def _readable(self) -> list[Partition]:
        return [place for place in self._offsets if place not in self._leaderless and place not in self._denied]

    def _read_ends(self) -> None:
        self._ends, self._ends_at = last_offsets(self._client, self._readable, _ANSWER_S), time.monotonic()

    def _reach(self, place: Partition) -> Reach:
        """How far a partition was read, by the client and by its leader, which is asked now and then."""
        if self._down or self._client is None or place in self._leaderless or place in self._denied:
            return Reach.UNKNOWN
        _, end = self._client.get_watermark_offsets(topic_partition(*place, -1), cached=True)
        if end < 0:
            return Reach.UNKNOWN
        if self._comes_before(place, end) or any(other == place for other, _ in self._groups):
            return Reach.BEHIND
        # control records at the end of a partition are no messages
        self._offsets[place] = max(self._offsets[place], self._ended.get(place, -1))
        try:
            if time.monotonic() - self._ends_at > _ENDS_S:
                with as_unavailable(self._source.text):
                    self._read_ends()
        except KafkaUnavailableError as error:
            self._failed(str(error))
        if self._down or place not in self._ends:
            return Reach.UNKNOWN
        return Reach.BEHIND if self._comes_before(place, self._ends[place]) else Reach.END

    def _comes_before(self, place: Partition, end: int) -> bool:
        return self._offsets[place] < end and self._ended.get(place, -1) < end

    # Trouble

    @property
    def _sickness(self) -> str:
        """Which partitions cannot be read, by cause."""
        causes = dict.fromkeys(self._leaderless, _NO_LEADER) | self._denied
        found: list[str] = []
        for cause in sorted(set(causes.values())):
            named = [partition_name(one) for one in sorted(causes) if causes[one] == cause]
            more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
            found.append(f"{', '.join(named[:_SHOWN])}{more} at {self._source.cluster.servers}: {cause}")
        return "; ".join(found)

    def _failed(self, text: str) -> None:
        """An attempt failed."""
        pause = self._attempts.failed(text)
        self._down = True
        self._tell(text, f"; trying again in {pause:.3g} s")

    def _hear(self, error: Any) -> None:
        """An error of the client itself, mostly that a broker is gone: look soon whether it is."""
        if not is_passing(error):
            self._cause = error
        text = f"{self._source.text}: {meaning_of(error)}"
        self._tell(text)
        if not self._down:
            self._attempts.trouble, self._attempts.due, self._down = text, 0.0, True

    def _tell(self, text: str, more: str = "") -> None:
        """Log what is wrong, the same only now and then."""
        now = time.monotonic()
        again = now - self._said.get(text, float("-inf")) < _SAID_AGAIN_S
        LOG.log(logging.DEBUG if again else logging.WARNING, "%s%s", text, more)
        if not again:
            self._said[text] = now
