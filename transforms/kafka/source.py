"""Kafka topics as a live source: partition groups, offsets kept by the runner, and the health of partitions.

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

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...schemas.readings import RejectReason
from ...schemas.slots import format_instant, parse_instant
from ..common.batches import Rejects
from ..formats.rows import Decoded
from ..payloads.messages import Headers, MessageDecoder, Messages, SourceAwayError, rejects_of, sealed
from ..sources.contract import Attempts, PartitionedSource, Reader, SourceBatch, source_batch_of
from ..sources.progress import Reach
from .client import (
    LOG,
    LOOK_S,
    LOOKING,
    NO_GROUP,
    READING,
    SPEECHLESS,
    Cluster,
    KafkaUnavailableError,
    as_unavailable,
    headers_of,
    is_kafkas,
    is_passing,
    look,
    meaning_of,
    name_of,
    topic_partition,
    unavailable,
)
from .partitions import (
    EARLIEST,
    Gaps,
    KnownTopic,
    Partition,
    Start,
    TopicIdentities,
    begins,
    first_offsets,
    ids_of,
    lane_of,
    last_offsets,
    memory_of,
    offsets_of,
    partition_name,
    position_text,
    seek_again,
    stamps_of,
    to_the_end,
)

_YEAR_1971_US = parse_instant("1971-01-01")

#: The kind of a stamp that the broker made; ``TIMESTAMP_LOG_APPEND_TIME`` of confluent-kafka, which is an extra.
_THE_BROKERS = 2

#: The header by which the gateway says that the MQTT broker may have sent a message before.
REPEATED = ("mqtt-dup", b"1")


def decoded_by(decoder: MessageDecoder, group: list[Any]) -> tuple[Messages, list[Decoded]]:
    """Messages of confluent-kafka as columns, and what a decoder makes of them.

    Those whose headers cannot be read are rejects: it is unknown what they say of series and time, nor whether they say
    that the message may have come before. Tombstones are none, whatever their headers.
    """
    headers = [headers_of(one) for one in group]
    messages = messages_of(group, headers)
    legible = np.array(
        [had is not None or body is None for had, body in zip(headers, messages.payloads, strict=True)], np.bool_
    )
    if legible.all():
        return messages, decoder.decode(without_second_times(messages))
    readable = [one for one, can in zip(group, legible.tolist(), strict=True) if can]
    decoded = decoder.decode(without_second_times(messages_of(readable))) if readable else []
    bad = rejects_of(RejectReason.MALFORMED_ROW, messages, np.flatnonzero(~legible))
    return messages, [*decoded, Decoded(None, 0, (bad,))]


def lost_from(offset: int) -> Decoded:
    """What says that messages of a partition are lost from an offset on: one reject."""
    return Decoded(None, 0, (Rejects(RejectReason.DAMAGED_SOURCE, np.array([offset], dtype=np.int64)),))


def lost_at(place: Partition, offset: int, position: str, until_us: int | None) -> SourceBatch:
    """A batch of nothing else than that messages of a partition are lost."""
    name = partition_name(place)
    lost = source_batch_of(name, [lost_from(offset)], position, settled=False)
    return replace(lost, source=name, lost_us=until_us)


def messages_of(group: list[Any], headers: Sequence[Headers | None] | None = None) -> Messages:
    """Messages of confluent-kafka as columns; their headers are read unless they are given."""
    count = len(group)
    stamps = np.fromiter((one.timestamp()[1] for one in group), np.int64, count)
    return Messages(
        payloads=[one.value() for one in group],
        topics=[group[0].topic()] * count if group else [],
        keys=[one.key() for one in group],
        headers=[one or () for one in (map(headers_of, group) if headers is None else headers)],
        stamps_us=np.where(stamps < 0, -1, stamps * 1_000),
        positions=np.fromiter((one.offset() for one in group), np.int64, count),
    )


def came_us(group: Sequence[Any]) -> int | None:
    """When the last of some messages of confluent-kafka came, by the broker's clock.

    ``None`` unless the broker stamped them all: other stamps are the producers', and say nothing for certain.
    """
    # stamps cost a call each: in most topics they are all the producers', and the first message says so
    if not group or group[0].timestamp()[0] != _THE_BROKERS:
        return None
    stamps = [one.timestamp() for one in group]
    return _set(1_000 * max(at for _, at in stamps)) if all(kind == _THE_BROKERS for kind, _ in stamps) else None


def sent_us(messages: Messages) -> int | None:
    """When the last of some messages was stamped; ``None`` without a stamp, or by a clock that was never set."""
    return _set(int(messages.stamps_us.max(initial=-1)))


def _set(latest_us: int) -> int | None:
    return latest_us if latest_us >= _YEAR_1971_US else None


def without_second_times(messages: Messages) -> Messages:
    """The same, but for the stamps of those that may have come before.

    Such a stamp is not when the message came first: a reading without a time of its own would be counted in two slots,
    and the second is a copy, which no belief about the series explains. So it has none, and is rejected.
    """
    repeated = [REPEATED in one for one in messages.headers]
    if not any(repeated):
        return messages
    return replace(messages, stamps_us=np.where(repeated, -1, messages.stamps_us))


#: Seconds before the same thing is said again.
_SAID_AGAIN_S = 300.0

#: Partitions that a message names at most.
_SHOWN = 3

_NO_LEADER = "has no leader now, or is not there any more; its brokers may be away"


class Health:
    """The partitions of a partition group that cannot be read."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._leaderless: set[Partition] = set()
        self._denied: dict[Partition, str] = {}
        self._said: tuple[str | None, float] = (None, 0.0)

    @property
    def leaderless(self) -> frozenset[Partition]:
        """Those that no broker leads."""
        return frozenset(self._leaderless)

    @property
    def denied(self) -> frozenset[Partition]:
        """Those whose leader refuses to hand messages over."""
        return frozenset(self._denied)

    def __contains__(self, place: Partition) -> bool:
        """Whether a partition cannot be read."""
        return place in self._leaderless or place in self._denied

    @property
    def trouble(self) -> str | None:
        """What is wrong, in words; ``None`` if nothing is."""
        causes: Mapping[Partition, str] = dict.fromkeys(self._leaderless, _NO_LEADER) | self._denied
        found = [
            f"{_named(place for place, one in causes.items() if one == cause)} at {self._servers}: {cause}"
            for cause in sorted(set(causes.values()))
        ]
        return "; ".join(found) or None

    def looked(self, leaderless: Iterable[Partition]) -> None:
        """The brokers have said which partitions have no leader."""
        self._leaderless = set(leaderless)
        self._tell()

    def deny(self, place: Partition, cause: str) -> None:
        """A leader does not hand over what is in a partition."""
        self._denied[place] = cause
        self._tell()

    def heard(self, place: Partition) -> None:
        """Something came of a partition."""
        if place in self._denied:
            del self._denied[place]
            self._tell()

    def _tell(self) -> None:
        now, (before, since) = time.monotonic(), self._said
        text = self.trouble
        if text != before or (text is not None and now - since > _SAID_AGAIN_S):
            LOG.warning("%s", text or f"every partition at {self._servers} can be read again")
            self._said = (text, now)


def leaders(consumer: Any, topic: str, servers: str, timeout_s: float) -> dict[int, bool]:
    """The partitions of a topic, and whether a broker leads each."""
    metadata = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
    if metadata.error is not None:
        raise unavailable(f"topic {topic} at {servers}", metadata.error)
    return {one: metadata.partitions[one].leader >= 0 for one in metadata.partitions}


def reachable(
    consumer: Any, topics: Iterable[str], servers: str, places: Collection[Partition], timeout_s: float
) -> bool:
    """Whether brokers name some topics, and the leaders of some of their partitions answer.

    Neither where the consumer reads nor what it has fetched is touched.
    """
    with suppress(KafkaUnavailableError), as_unavailable(servers):
        led = {
            (topic, one): has for topic in topics for one, has in leaders(consumer, topic, servers, timeout_s).items()
        }
        return all(led.get(place) for place in places) and set(places) <= set(last_offsets(consumer, places, timeout_s))
    return False


def _named(places: Iterable[Partition]) -> str:
    named = [f"{topic}/{partition}" for topic, partition in sorted(places)]
    return ", ".join(named[:_SHOWN]) + (f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else "")


#: Messages that are taken from the client at once, and how long it may take to get so many.
_MESSAGES = 10_000
_WAIT_S = 0.1

#: How long a question to a broker may take, and one between two looks.
_ANSWER_S = 3.0
_CHECK_S = 1.0

#: Seconds for which the leaders' answer where the partitions end is good.
_LOG_ENDS_S = 1.0

#: Seconds from one question what a port speaks to the next.
_PORT_S = 60.0

#: Seconds from one commit for monitoring to the next.
_COMMIT_S = 5.0

#: Seconds without a message where the leaders name more of them, before the consumer is made anew, doubled up to the
#: second number as long as that does not help; and how many fetches are in vain at least.
_STUCK_S = 20.0
_LONGEST_STUCK_S = 320.0
_STUCK_TIMES = 5

#: Seconds for which a transaction may be open before it is said.
_OPEN_S = 30.0


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
    # what is on record of the topics, for a run that begins without a position
    known: Mapping[str, KnownTopic] = field(default_factory=dict[str, KnownTopic])
    # start of the first window that is not on record when a run begins: what came before it is not missed where it is
    # gone; ``None``: all that is gone is missed
    missing_us: int | None = None

    @property
    def parts(self) -> int:
        """The lanes."""
        return self.lanes

    def reader(self, part: int, position: str) -> KafkaReader:
        """A reader of a partition group; it has no connection before it reads."""
        return KafkaReader(self, part, position)


class KafkaReader(Reader):
    """Reads a partition group."""

    def __init__(self, source: KafkaPartitions, lane: int, position: str) -> None:
        self._source = source
        self._lane = lane
        self._decoder = source.decoder.fresh(memory_of(position))
        self._offsets = offsets_of(position, source.topics, lane, source.lanes)
        self._stamps = stamps_of(position)
        self._gaps = Gaps.of(position)
        known = ids_of(position) if position else {topic: one.id for topic, one in source.known.items()}
        self._ids = TopicIdentities(source.cluster, known)
        #: what lies before was passed on already, and is read again for the decoder's memory alone
        self._floors: dict[Partition, int] = {}
        #: where the last message before the start is read, for its stamp alone
        self._passed: set[Partition] = set()
        #: whose beginning is gone, until it is known what that cost
        self._cut: set[Partition] = set()
        self._begun = bool(position)
        self._consumer: Any = None
        self._assigned = False
        #: whether the brokers have named the partitions, and whether the decoder was given what it must remember
        self._named = self._remembers = False
        self._groups: deque[tuple[Partition, list[Any]]] = deque()
        self._batches: deque[SourceBatch] = deque()
        self._ends: dict[Partition, int] = {}
        #: where the leaders said that partitions end, and when
        self._log_ends: dict[Partition, int] = {}
        self._log_ends_at = float("-inf")
        self._behind: set[Partition] = set(self._offsets)
        self._reached: dict[Partition, Reach] = {}
        self._health = Health(source.cluster.servers)
        self._down = True
        self._attempts = Attempts()
        self._waiting: str | None = None
        self._cause: Any = None
        #: what was last said to be wrong, and when
        self._last_said = ("", 0.0)
        self._port: str | None = None
        self._port_at = 0.0
        self._commit_at = 0.0
        #: when the leaders' messages were first waited for, how often in vain, and how long that may go on
        self._fetching: tuple[float, int] | None = None
        self._stuck_s = _STUCK_S
        self._stuck: str | None = None
        #: which partitions end for readers before an offset that their log has, and since when
        self._open: dict[tuple[Partition, int], float] = {}
        self._hanging: str | None = None

    # The contract of a reader

    def read(self) -> SourceBatch | None:
        """The next messages of one partition, as readings."""
        # while something is in hand nothing is fetched, and who was at the end then may have spoken since
        self._reached = {place: Reach.UNSEEN if reach is Reach.END else reach for place, reach in self._reached.items()}
        if not self._batches:
            self._look()
        if self._assigned and not self._batches and not self._groups:
            self._fetch()
            self._reached = {place: self._reach(place) for place in self._offsets}
            self._behind -= {place for place, reach in self._reached.items() if reach is Reach.END}
            self._see_cut()
            self._see_open()
        if self._batches:
            return self._batches.popleft()
        return self._decoded() if self._groups else None

    @property
    def sources(self) -> Mapping[str, Reach]:
        """The lane's partitions; before the broker has named them, the topics."""
        away = self._down
        # a partition group without a partition follows the wall clock, but not while one may be made unseen
        if not self._named or (away and not self._offsets):
            return dict.fromkeys(self._source.topics, Reach.UNKNOWN)
        places = {*self._offsets, *self._health.leaderless}
        return {partition_name(one): Reach.UNKNOWN if away else self._reach_of(one) for one in sorted(places)}

    @property
    def trouble(self) -> str | None:
        """What is in the way."""
        return self._attempts.trouble or self._waiting or self._health.trouble or self._stuck or self._hanging

    def check(self) -> bool:
        """Whether brokers and leaders answer; nothing that was fetched meanwhile is touched."""
        source, places = self._source, [place for place in self._offsets if place not in self._health]
        consumer = self._consumer
        return consumer is not None and reachable(consumer, source.topics, source.cluster.servers, places, _CHECK_S)

    def kept(self) -> None:
        """Commit the offsets of the consumer group, if there is one; nothing depends on it."""
        source, now = self._source, time.monotonic()
        if source.group is None or source.start.kind == "group" or not self._assigned or now < self._commit_at:
            return
        self._commit_at = now + _COMMIT_S
        try:
            self._consumer.commit(
                offsets=[topic_partition(*place, offset) for place, offset in self._offsets.items()], asynchronous=True
            )
        except Exception as error:  # noqa: BLE001 - confluent-kafka's; monitoring must not stop the job
            LOG.warning("%s: the offsets cannot be committed: %s", self._name, meaning_of(error))

    def close(self) -> None:
        """Leave the brokers."""
        self._ids.close()
        self._drop()

    # The brokers

    @property
    def _name(self) -> str:
        return f"topic {', '.join(self._source.topics)} at {self._source.cluster.servers}"

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
                self._drop()
        except Exception as error:
            if not is_kafkas(error):
                raise
            cause = self._cause_of(error)
            self._failed(self._wrong_port(cause) or str(unavailable(self._name, cause)))
        else:
            self._cause = self._port = None
            if self._attempts.trouble is not None:
                LOG.warning("%s: it answers again", self._name)
                self._last_said = "", 0.0
            self._attempts.succeeded()
            self._down, self._attempts.due = False, time.monotonic() + self._source.discover_s

    def _drop(self) -> None:
        """Leave the consumer; the next look makes another one.

        A consumer keeps of a topic which leader epoch it saw last, by the topic's name. A topic that is made anew
        begins with epoch 0, which a consumer that has seen a higher one, as after any restart of the broker, takes
        for stale: it fetches nothing for ever, also when it is assigned again.
        """
        consumer, self._consumer, self._assigned = self._consumer, None, False
        self._groups.clear()
        if consumer is not None:
            consumer.close()

    def _wrong_port(self, cause: Any) -> str | None:
        """What a port speaks that is not what the settings say, probed now and then while there is no answer."""
        now = time.monotonic()
        if name_of(cause) in SPEECHLESS and now >= self._port_at:
            self._port_at, self._port = now + _PORT_S, self._source.cluster.wrong_port
        return None if self._port is None else f"{self._name}: {self._port}"

    def _cause_of(self, error: Any) -> Any:
        """What is behind a request without an answer: the client passes on the reason that it has when it is polled."""
        if self._consumer is not None and not self._assigned:
            self._consumer.poll(0)
        return self._cause if self._cause is not None and is_passing(error) else error

    def _failed(self, text: str) -> None:
        pause = self._attempts.failed(text)
        self._down = True
        self._tell(text, f"{text}; trying again in {pause:.3g} s")

    def _tell(self, what: str, text: str) -> None:
        now = time.monotonic()
        again = self._last_said[0] == what and now - self._last_said[1] < _SAID_AGAIN_S
        LOG.log(logging.DEBUG if again else logging.WARNING, "%s", text)
        if not again:
            self._last_said = what, now

    def _discover(self) -> None:
        source = self._source
        self._consume()
        there, leaderless = set[Partition](), set[Partition]()
        for topic in source.topics:
            led = leaders(self._consumer, topic, source.cluster.servers, _ANSWER_S)
            mine = {
                place: has
                for one, has in led.items()
                if lane_of(source.topics, place := (topic, one), source.lanes) == self._lane
            }
            there |= set(mine)
            leaderless |= {place for place, has in mine.items() if not has}
        anew = self._renew(there)
        self._health.looked(leaderless | (set(self._offsets) - there))
        # one without a leader is found when it has one; until then it is not known, and not silent
        fresh = sorted(there - leaderless - set(self._offsets))
        if fresh or not self._assigned:
            start = EARLIEST if self._begun else source.start
            now_us = time.time_ns() // 1_000
            found = begins(self._consumer, fresh, start, _ANSWER_S)
            for place, begin in found.items():
                self._offsets[place] = begin.offset
                self._gaps.begun(place, begin, start, now_us)
                if begin.cut:
                    self._cut.add(place)
                if not self._begun:
                    self._find_replaced(place, anew, now_us)
                if begin.last_passed is not None:
                    self._offsets[place], self._floors[place] = begin.last_passed, begin.offset
                    self._passed.add(place)
            self._behind |= set(found)
            if not self._remembers:
                self._look_back()
            self._assign()
            # what was found is kept by the runner before anything is read from there
            self._batches.append(SourceBatch(self._position, settled=not self._behind, lost_us=self._gaps.until_us))
            self._begun = True
        # the client reports only once what is denied, and not that it is denied no longer
        seek_again(self._consumer, {one: self._offsets[one] for one in self._health.denied & set(self._offsets)})
        self._read_ends()

    def _consume(self) -> None:
        if self._consumer is None:
            own = {**READING, "group.id": self._source.group or NO_GROUP}
            self._consumer = self._source.cluster.consume(own, self._said)

    def _find_replaced(self, place: Partition, anew: AbstractSet[str], now_us: int) -> None:
        """Note what a run without a position cannot read: what the topic held that this one replaced."""
        known = self._source.known.get(place[0])
        if place[0] in anew:
            self._gaps.found(place, now_us)
        elif known is not None and known.lost_us is not None:
            self._gaps.found(place, known.lost_us)

    def _renew(self, there: AbstractSet[Partition]) -> AbstractSet[str]:
        """Begin at the start of topics that were made anew, whose offsets are others; their names."""
        anew = self._ids.made_anew(self._source.topics, _ANSWER_S)
        places = [place for place in self._offsets if place[0] in anew]
        if not places:
            return anew
        LOG.error("%s: %s was made anew, and is read from its beginning", self._name, ", ".join(sorted(anew)))
        for place in places:
            self._stamps.pop(place, None)
        # a partition that the new one has not is waited for no longer
        self._begin_again(dict.fromkeys(places, 0), set(places) - there)
        self._behind = (self._behind | set(places)) & set(self._offsets)
        self._drop()
        self._consume()
        return anew

    def _read_ends(self) -> None:
        places = [place for place in self._offsets if place not in self._health]
        self._log_ends, self._log_ends_at = last_offsets(self._consumer, places, _ANSWER_S), time.monotonic()

    def _look_back(self) -> None:
        """Begin so long before the position as the decoder needs to remember what came before it."""
        back_ms = -(-self._decoder.lookback_us // 1_000)
        known = [place for place in self._stamps if place in self._offsets]
        if not back_ms or not known:
            return
        wanted = {place: Start("instant", max(0, self._stamps[place] - back_ms) * 1_000) for place in known}
        for place, start in wanted.items():
            found = first_offsets(self._consumer, [place], start, _ANSWER_S)[place]
            if found < self._offsets[place]:
                self._floors[place] = self._offsets[place]
                self._offsets[place] = found

    def _assign(self) -> None:
        """Fetch from the offsets on; what was fetched and not read yet is fetched again."""
        self._groups.clear()
        self._waiting = None
        self._ends.clear()
        self._consumer.assign([topic_partition(*place, offset) for place, offset in self._offsets.items()])
        self._assigned = self._named = self._remembers = True
        self._fetching = None
        self._reached = dict.fromkeys(self._offsets, Reach.UNKNOWN)

    def _said(self, error: Any) -> None:
        """An error of the client itself, mostly that a broker is gone: look soon whether it is."""
        if not is_passing(error):
            self._cause = error
        text = f"{self._name}: {meaning_of(error)}"
        self._tell(text, text)
        if not self._down:
            self._down = True
            self._attempts.trouble, self._attempts.due = text, 0.0

    # The messages

    def _fetch(self) -> None:
        try:
            with as_unavailable(self._name):
                messages = self._consumer.consume(_MESSAGES, _WAIT_S)
        except KafkaUnavailableError as error:
            self._failed(str(error))
        else:
            self._sort(messages)
            self._notice(bool(messages))

    def _notice(self, came: bool) -> None:
        """See whether messages come where the leaders say that there are more; if not, the consumer is made anew."""
        if came:
            self._fetching, self._stuck, self._stuck_s = None, None, _STUCK_S
            return
        if not any(self._comes_before(place, end) for place, end in self._log_ends.items() if place in self._offsets):
            self._fetching = None
            return
        since, times = self._fetching or (time.monotonic(), 0)
        self._fetching = since, times + 1
        # a runner may let long times pass between two calls, in which nothing is fetched
        if times < _STUCK_TIMES or time.monotonic() - since < self._stuck_s:
            return
        self._stuck = f"{self._name}: the brokers have messages and hand none over; they are asked by a new connection"
        LOG.warning("%s", self._stuck)
        self._stuck_s = min(2 * self._stuck_s, _LONGEST_STUCK_S)
        self._drop()
        self._down, self._attempts.due = True, 0.0

    def _see_cut(self) -> None:
        """Count the partitions that lost their beginning and have no message behind it."""
        for place in sorted(self._cut):
            if self._reached.get(place) is Reach.END and self._notes_cut(place):
                self._batches.append(lost_at(place, 0, self._position, self._gaps.until_us))

    def _notes_cut(self, place: Partition) -> bool:
        """Note once what a partition lost before the start; whether it may belong to a missing window."""
        self._cut.discard(place)
        until_us, missing_us = self._gaps.of_partition(place), self._source.missing_us
        if until_us is None or (missing_us is not None and until_us <= missing_us):
            return False
        LOG.error(
            "%s at %s: its messages before offset %d are not there any more; windows that start before %s may lack "
            "readings by it",
            partition_name(place),
            self._source.cluster.servers,
            self._offsets[place],
            format_instant(until_us),
        )
        return True

    def _see_open(self) -> None:
        """See where a transaction is open: a partition ends there for readers, until it is over."""
        now, in_hand = time.monotonic(), {place for place, _ in self._groups}
        held = [
            (place, end)
            for place, end in self._log_ends.items()
            if self._reached.get(place) is Reach.BEHIND and place not in in_hand and not self._comes_before(place, end)
        ]
        self._open = {one: self._open.get(one, now) for one in held}
        # an answer from before the log grew says nothing of it
        long = sorted(one for one, since in self._open.items() if since < min(self._log_ends_at, now - _OPEN_S))
        self._hanging = None
        if long:
            named = [f"{name}/{number}: a transaction is open since offset {end}" for (name, number), end in long]
            more = f" and in {len(named) - _SHOWN} more partitions" if len(named) > _SHOWN else ""
            self._hanging = (
                f"{', '.join(named[:_SHOWN])}{more}; its messages and those behind it wait for its end "
                "(kafka-transactions.sh find-hanging)"
            )
            self._tell(self._hanging, self._hanging)

    def _sort(self, messages: Iterable[Any]) -> None:
        groups: dict[Partition, list[Any]] = {}
        again = False
        for one in messages:
            place = (one.topic(), one.partition())
            error = one.error()
            if error is None:
                group = groups.get(place)
                if group is None:
                    group = groups[place] = []
                    self._health.heard(place)
                group.append(one)
            else:
                again |= self._event(place, one.offset(), error)
        self._groups.extend(groups.items())
        if again:
            self._assign()

    def _event(self, place: Partition, offset: int, error: Any) -> bool:
        """An event in the place of a message; whether the fetching must be begun anew."""
        from confluent_kafka import KafkaError  # noqa: PLC0415 - an extra; the event came from it

        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            # control records at the end are no messages, and are passed over
            self._ends[place] = offset
            self._health.heard(place)
            return False
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - its public name
            return self._lost(place)
        if place[0] not in self._source.topics:
            # the client requests its group at once, though nothing but monitoring may need it
            LOG.log(logging.WARNING if self._source.group else logging.DEBUG, "%s: %s", self._name, meaning_of(error))
        elif not is_passing(error):
            self._health.deny(place, meaning_of(error))
        else:
            self._said(error)
        return False

    def _lost(self, place: Partition) -> bool:
        """The offset is gone by retention, or the topic was made anew: begin at its start."""
        try:
            with as_unavailable(self._name):
                found = first_offsets(self._consumer, [place], EARLIEST, _ANSWER_S)
        except KafkaUnavailableError as error:
            self._failed(str(error))
            # fetching begins anew at the offset that is not there, and comes here again
            return True
        LOG.error(
            "%s at %s: offset %d is not there any more, reading goes on at %d; what was between is lost, or the topic "
            "was made anew",
            partition_name(place),
            self._source.cluster.servers,
            self._offsets[place],
            found[place],
        )
        self._begin_again(found)
        return True

    def _begin_again(self, found: Mapping[Partition, int], gone: AbstractSet[Partition] = frozenset()) -> None:
        """Go on elsewhere in some partitions, or in some of them not at all: what was to come there is lost."""
        before = {place: self._offsets[place] for place in found}
        self._offsets = {place: offset for place, offset in (self._offsets | {**found}).items() if place not in gone}
        for place in found:
            self._floors.pop(place, None)
            self._passed.discard(place)
            # counted anew, with what else is lost
            self._cut.discard(place)
            self._gaps.found(place, time.time_ns() // 1_000)
        # a runner may keep any of these positions: all of them are behind all of it
        position, until_us = self._position, self._gaps.until_us
        self._batches.extend(lost_at(place, before[place], position, until_us) for place in found)

    def _decoded(self) -> SourceBatch | None:
        place, group = self._groups[0]
        floor = self._floors.get(place, 0)
        again = bisect_left(group, floor, key=_offset)
        try:
            messages, decoded = decoded_by(self._decoder, group[:again] or group)
            if again:
                decoded = []
                if again < len(group):
                    messages, decoded = decoded_by(self._decoder, group[again:])
        except SourceAwayError as error:
            # nothing is wrong with the messages: they wait
            self._waiting = str(error)
            return None
        self._waiting = None
        self._groups.popleft()
        first = 0 if place in self._passed else again
        if first < len(group):
            self._passed.discard(place)
            self._gaps.read(place, came_us(group[first : first + 1]))
        if place in self._cut and self._notes_cut(place):
            decoded = [*decoded, lost_from(0)]
        self._offsets[place] = int(messages.positions[-1]) + 1
        if self._offsets[place] >= floor:
            self._floors.pop(place, None)
        if self._decoder.lookback_us:
            # a producer's clock may run ahead, and what is sought before it would be too little
            self._stamps[place] = min(int(messages.stamps_us[-1]), time.time_ns() // 1_000) // 1_000
        end = self._ends.get(place, -1)
        if end > self._offsets[place] and not any(other == place for other, _ in self._groups):
            self._offsets[place] = end
        self._reached[place] = self._reach(place)
        if self._reached[place] is Reach.END:
            self._behind.discard(place)
        name = partition_name(place)
        batch = source_batch_of(name, decoded, self._position, settled=not self._behind)
        rejects = sealed(batch.rejects, messages, self._decoder.letters)
        taken = group[again:] or group
        batch = replace(batch, came_us=came_us(taken), sent_us=sent_us(messages))
        return replace(batch, source=name, rejects=rejects, lost_us=self._gaps.until_us)

    def _reach_of(self, place: Partition) -> Reach:
        if place in self._health:
            return Reach.UNKNOWN
        reach = self._reached[place]
        # while messages wait for what their decoder needs there are no polls, and producers may wait for the same
        return Reach.UNKNOWN if self._waiting is not None and reach is not Reach.BEHIND else reach

    def _reach(self, place: Partition) -> Reach:
        if self._down or place in self._health:
            return Reach.UNKNOWN
        _, end = self._consumer.get_watermark_offsets(topic_partition(*place, -1), cached=True)
        if end < 0:
            return Reach.UNKNOWN
        if self._comes_before(place, end) or any(other == place for other, _ in self._groups):
            return Reach.BEHIND
        if time.monotonic() - self._log_ends_at > _LOG_ENDS_S:
            try:
                with as_unavailable(self._name):
                    self._read_ends()
            except KafkaUnavailableError as error:
                self._failed(str(error))
                return Reach.UNKNOWN
        if place not in self._log_ends:
            return Reach.UNKNOWN
        return Reach.BEHIND if self._comes_before(place, self._log_ends[place]) else Reach.END

    def _comes_before(self, place: Partition, end: int) -> bool:
        """Whether a partition was read up to before an offset; control records at its end are no messages."""
        return self._offsets[place] < end and self._ends.get(place, -1) < end

    @property
    def _position(self) -> str:
        offsets = {place: max(offset, self._floors.get(place, 0)) for place, offset in self._offsets.items()}
        return position_text(
            offsets, self._stamps, self._gaps, self._source.lanes, self._decoder.memory, self._ids.known
        )


def _offset(message: Any) -> int:
    return int(message.offset())


#: Seconds without a message before the last ones of topics are given up.
_LAST_S = 10.0


def last_messages(cluster: Cluster, topics: Sequence[str], count: int) -> Messages:
    """The last messages of topics, by their stamps; nothing is committed, and no offset is kept."""
    look(cluster, topics)
    consumer = cluster.consume(LOOKING)
    try:
        with as_unavailable(f"brokers {cluster.servers}"):
            found = _last(consumer, topics, count)
    finally:
        consumer.close()
    found.sort(key=lambda one: one.timestamp()[1])
    last = found[-count:]
    return replace(messages_of(last), topics=[one.topic() for one in last])


def _last(consumer: Any, topics: Sequence[str], count: int) -> list[Any]:
    places = [
        (topic, one) for topic in topics for one in consumer.list_topics(topic, timeout=LOOK_S).topics[topic].partitions
    ]
    ends = {
        place: consumer.get_watermark_offsets(topic_partition(*place, -1), timeout=LOOK_S, cached=False)
        for place in places
    }
    starts = {place: max(first, end - count) for place, (first, end) in ends.items() if first < end}
    consumer.assign([topic_partition(*place, offset) for place, offset in starts.items()])
    left, found = set(starts), list[Any]()
    for one in to_the_end(consumer, left, _LAST_S):
        last = ends[one.topic(), one.partition()][1] - 1
        if one.offset() <= last:
            found.append(one)
        if one.offset() >= last:
            left.discard((one.topic(), one.partition()))
    return found
