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

import json
import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...schemas.readings import RejectReason
from ...schemas.slots import format_instant, parse_instant
from ..formats.rows import Decoded
from ..payloads.messages import Headers, MessageDecoder, Messages, rejects_of
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
    LOOK_S,
    LOOKING,
    NO_GROUP,
    READING,
    Cluster,
    KafkaUnavailableError,
    as_unavailable,
    headers_of,
    is_kafkas,
    is_login,
    is_passing,
    look,
    meaning_of,
    topic_partition,
    unavailable,
)
from .partitions import (
    EARLIEST,
    Begin,
    Gaps,
    Health,
    Partition,
    Said,
    Start,
    TopicIdentities,
    begins,
    by_topic,
    first_offsets,
    lane_of,
    last_offsets,
    leaders,
    offsets_of,
    partition_name,
    reachable,
    seek_again,
    shown,
    to_the_end,
)

_YEAR_1971_US = parse_instant("1971-01-01")

#: The kind of a stamp that the broker made; ``TIMESTAMP_LOG_APPEND_TIME`` of confluent-kafka, which is an extra.
_THE_BROKERS = 2

#: The headers by which the gateway says that the MQTT broker may have sent a message before, or had kept it.
REPEATED = frozenset({("mqtt-dup", b"1"), ("mqtt-retain", b"1")})

#: The header by which the gateway says when it took a message.
_RECEIVED = "mqtt-received-us"


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


def _decoded_behind(decoder: MessageDecoder, group: list[Any], again: int) -> tuple[Messages, list[Decoded]]:
    """The same, where the first of the messages are for the decoder's memory alone."""
    messages, decoded = decoded_by(decoder, group[:again] or group)
    if not again:
        return messages, decoded
    return decoded_by(decoder, group[again:]) if again < len(group) else (messages, [])


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
    """The same, but for the times of arrival of those that may have come before: the stamp, and the gateway's header.

    Such a time is not when the message came first: a reading without a time of its own would be counted in two slots,
    and the second is a copy, which no belief about the series explains. So it has none, and is rejected.
    """
    repeated = [not REPEATED.isdisjoint(one) for one in messages.headers]
    if not any(repeated):
        return messages
    headers = [
        [pair for pair in one if pair[0] != _RECEIVED] if again else one
        for one, again in zip(messages.headers, repeated, strict=True)
    ]
    return replace(messages, headers=headers, stamps_us=np.where(repeated, -1, messages.stamps_us))


#: Messages that are taken from the client at once, and how long it may take to get so many.
_MESSAGES = 10_000
_WAIT_S = 0.1

#: How long a question to a broker may take, and one between two looks.
_ANSWER_S = 3.0
_CHECK_S = 1.0

#: Seconds for which the leaders' answer where the partitions end is good.
_LOG_ENDS_S = 1.0

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
    # start of the first window that is not on record when a run begins: what came before it is not missed where it is
    # gone; ``None``: all that is gone is missed
    missing_us: int | None = None

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


class GroupPosition:
    """How far a partition group was read, and what the runner keeps of that."""

    def __init__(self, source: KafkaPartitions, lane: int, text: str) -> None:
        plain: dict[str, Any] = json.loads(text) if text else {}
        self._source = source
        self.decoding = WaitingDecoder(source.decoder)
        self.offsets = offsets_of(plain, source.topics, lane, source.lanes)
        self.gaps = Gaps(plain.get("gaps", ()))
        self.ids = TopicIdentities(source.cluster, plain.get("ids", {}))
        self.begun = bool(text)
        #: what lies before is read for its stamps alone
        self._floors: dict[Partition, int] = {}
        #: where the last message before the start is read, for its stamp alone
        self._passed: set[Partition] = set()
        #: whose beginning is gone, until it is known what that cost
        self._cut: set[Partition] = set()

    @property
    def text(self) -> str:
        """What the runner keeps; positions of older versions lack some of it."""
        offsets = {place: max(offset, self._floors.get(place, 0)) for place, offset in self.offsets.items()}
        more = {
            "ids": dict(sorted(self.ids.known.items())),
            "gaps": self.gaps.plain,
        }
        plain = {"lanes": self._source.lanes, "topics": by_topic(offsets)}
        return json.dumps(plain | {name: one for name, one in more.items() if one}, separators=(",", ":"))

    def begin(self, found: Mapping[Partition, Begin], start: Start, now_us: int) -> None:
        """Read some partitions for the first time, some of whose topics may have been made anew."""
        for place, begin in found.items():
            self.offsets[place] = begin.offset
            self.gaps.begun(place, begin, start, now_us)
            if begin.cut:
                self._cut.add(place)
            if begin.last_passed is not None:
                self.offsets[place], self._floors[place] = begin.last_passed, begin.offset
                self._passed.add(place)

    def begin_again(self, found: Mapping[Partition, int], gone: AbstractSet[Partition]) -> list[SourceBatch]:
        """Go on elsewhere in some partitions, or in some of them not at all: what was to come there is lost."""
        before = {place: self.offsets[place] for place in found}
        self.offsets = {place: offset for place, offset in (self.offsets | {**found}).items() if place not in gone}
        for place in found:
            self._floors.pop(place, None)
            self._passed.discard(place)
            # counted anew, with what else is lost
            self._cut.discard(place)
            self.gaps.found(place, time.time_ns() // 1_000)
        # a runner may keep any of these positions: all of them are behind all of it
        return self._lost(before)

    def passed_on(self, place: Partition, group: Sequence[Any]) -> int:
        """How many of the next messages of a partition are read for their stamps alone."""
        return bisect_left(group, self._floors.get(place, 0), key=_offset)

    def read(self, place: Partition, group: Sequence[Any], again: int, messages: Messages) -> bool:
        """Note that messages were read, the first of them again; whether some before them are lost."""
        first = 0 if place in self._passed else again
        if first < len(group):
            self._passed.discard(place)
            self.gaps.read(place, came_us(group[first : first + 1]))
        lost = place in self._cut and self._notes_cut(place)
        self.offsets[place] = int(messages.positions[-1]) + 1
        if self.offsets[place] >= self._floors.get(place, 0):
            self._floors.pop(place, None)
        return lost

    def without_beginning(self, ended: AbstractSet[Partition]) -> list[SourceBatch]:
        """Count those of some partitions without a message that lost their beginning."""
        return self._lost({place: 0 for place in sorted(self._cut & ended) if self._notes_cut(place)})

    def _lost(self, offsets: Mapping[Partition, int]) -> list[SourceBatch]:
        """Batches of nothing else than that messages of partitions are lost."""
        made: list[SourceBatch] = []
        for place, offset in offsets.items():
            name = partition_name(place)
            lost = source_batch_of(name, [damaged(offset)], self.text, settled=False)
            made.append(replace(lost, source=name, lost_us=self.gaps.until_us))
        return made

    def _notes_cut(self, place: Partition) -> bool:
        """Note once what a partition lost before the start; whether it may belong to a missing window."""
        self._cut.discard(place)
        until_us, missing_us = self.gaps.of_partition(place), self._source.missing_us
        if until_us is None or (missing_us is not None and until_us <= missing_us):
            return False
        LOG.error(
            "%s at %s: its messages before offset %d are not there any more; windows that start before %s may lack "
            "readings by it",
            partition_name(place),
            self._source.cluster.servers,
            self.offsets[place],
            format_instant(until_us),
        )
        return True


class GroupConsumer:
    """The client of a partition group: what it has fetched, where partitions end, and which cannot be read."""

    def __init__(self, source: KafkaPartitions, position: GroupPosition, said: Callable[[Any], None]) -> None:
        self._source, self._position, self._said = source, position, said
        self.client: Any = None
        self.assigned = False
        self.health = Health(source.cluster.servers)
        self.groups: deque[tuple[Partition, list[Any]]] = deque()
        #: where the client came to the end of partitions
        self._ends: dict[Partition, int] = {}
        #: where the leaders said that partitions end, and when
        self._log_ends: dict[Partition, int] = {}
        self.log_ends_at = float("-inf")

    def open(self) -> None:
        """Make the client, if there is none."""
        if self.client is None:
            own = {**READING, "group.id": self._source.group or NO_GROUP}
            self.client = self._source.cluster.consume(own, self._said)

    def close(self) -> None:
        """Leave the client; where there is more to read, another one is made.

        A consumer keeps of a topic which leader epoch it saw last, by the topic's name. A topic that is made anew
        begins with epoch 0, which a consumer that has seen a higher one, as after any restart of the broker, takes
        for stale: it fetches nothing for ever, also when it is assigned again.
        """
        client, self.client, self.assigned = self.client, None, False
        self.groups.clear()
        if client is not None:
            client.close()

    def assign(self) -> None:
        """Fetch from the position on; what was fetched and not read yet is fetched again."""
        self.groups.clear()
        self._ends.clear()
        self.client.assign(self.places())
        self.assigned = True

    def partitions(self, lane: int) -> dict[Partition, bool]:
        """The partitions of a group that are there, and whether a broker leads each."""
        source = self._source
        led = leaders(self.client, source.topics, source.cluster.servers, _ANSWER_S)
        return {place: has for place, has in led.items() if lane_of(source.topics, place, source.lanes) == lane}

    def read_ends(self) -> None:
        """Have the leaders say where partitions end."""
        self._log_ends, self.log_ends_at = last_offsets(self.client, self.readable(), _ANSWER_S), time.monotonic()

    def fetch(self) -> tuple[bool, list[Partition]]:
        """Take what the client has; whether something came, and the partitions whose offset is not there any more."""
        with as_unavailable(self._source.text):
            messages = self.client.consume(_MESSAGES, _WAIT_S)
        groups: dict[Partition, list[Any]] = {}
        gone: list[Partition] = []
        for one in messages:
            place = (one.topic(), one.partition())
            error = one.error()
            if error is None:
                group = groups.get(place)
                if group is None:
                    group = groups[place] = []
                    self.health.heard(place)
                group.append(one)
            elif self._is_gone(place, one.offset(), error):
                gone.append(place)
        self.groups.extend(groups.items())
        return bool(messages), gone

    def _is_gone(self, place: Partition, offset: int, error: Any) -> bool:
        """Take an event in the place of a message; whether it says that the offset is not there any more."""
        from confluent_kafka import KafkaError  # noqa: PLC0415 - an extra; the event came from it

        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            self._ends[place] = offset
            self.health.heard(place)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - its public name
            return True
        elif place[0] not in self._source.topics:
            # the client requests its group at once, though nothing but monitoring may need it
            level = logging.WARNING if self._source.group else logging.DEBUG
            LOG.log(level, "%s: %s", self._source.text, meaning_of(error))
        elif not is_passing(error):
            self.health.deny(place, meaning_of(error))
        else:
            self._said(error)
        return False

    def pass_end(self, place: Partition) -> None:
        """Pass over the control records at the end of a partition, which are no messages."""
        end = self._ends.get(place, -1)
        if end > self._position.offsets[place] and not self._holds(place):
            self._position.offsets[place] = end

    def reach(self, place: Partition) -> Reach:
        """How far a partition was read, by the client and by its leader, which is asked now and then."""
        if place in self.health:
            return Reach.UNKNOWN
        _, end = self.client.get_watermark_offsets(topic_partition(*place, -1), cached=True)
        if end < 0:
            return Reach.UNKNOWN
        if self._comes_before(place, end) or self._holds(place):
            return Reach.BEHIND
        if time.monotonic() - self.log_ends_at > _LOG_ENDS_S:
            with as_unavailable(self._source.text):
                self.read_ends()
        if place not in self._log_ends:
            return Reach.UNKNOWN
        return Reach.BEHIND if self._comes_before(place, self._log_ends[place]) else Reach.END

    @property
    def waits(self) -> bool:
        """Whether the leaders say that there are more messages."""
        ends = self._log_ends.items()
        return any(place in self._position.offsets and self._comes_before(place, end) for place, end in ends)

    def held(self, behind: AbstractSet[Partition]) -> list[tuple[Partition, int]]:
        """Those of some partitions that were read up to where their log ends by their leaders, and that offset."""
        ends = [(place, end) for place, end in self._log_ends.items() if place in behind]
        return [(place, end) for place, end in ends if not self._comes_before(place, end) and not self._holds(place)]

    def _comes_before(self, place: Partition, end: int) -> bool:
        """Whether a partition was read up to before an offset; control records at its end are no messages."""
        return self._position.offsets[place] < end and self._ends.get(place, -1) < end

    def _holds(self, place: Partition) -> bool:
        return any(other == place for other, _ in self.groups)

    def places(self) -> list[Any]:
        """The position as the client wants it."""
        return [topic_partition(*place, offset) for place, offset in self._position.offsets.items()]

    def readable(self) -> list[Partition]:
        """The partitions that can be read."""
        return [place for place in self._position.offsets if place not in self.health]


class Outage:
    """What is between a reader and its brokers, how often that is said, and when they are tried again."""

    def __init__(self, source: KafkaPartitions) -> None:
        self._name = source.text
        self.attempts = Attempts()
        self.down = True
        self._said = Said()
        self._cause: Any = None

    def failed(self, text: str) -> None:
        """An attempt failed."""
        pause = self.attempts.failed(text)
        self.down = True
        self.tell(text, f"; trying again in {pause:.3g} s")

    def unanswered(self, error: Any) -> None:
        """A request had no answer: the client may have said why."""
        cause = self._cause if self._cause is not None and is_passing(error) else error
        self.failed(str(unavailable(self._name, cause)))

    def refused(self) -> bool:
        """Whether the client said that its login or certificate is not taken; it says so once, of each client."""
        refused, self._cause = self._cause is not None and is_login(self._cause), None
        return refused

    def said(self, error: Any) -> None:
        """An error of the client itself, mostly that a broker is gone: look soon whether it is."""
        if not is_passing(error):
            self._cause = error
        text = f"{self._name}: {meaning_of(error)}"
        self.tell(text)
        if not self.down:
            self.attempts.trouble = text
            self.look_now()

    def look_now(self) -> None:
        """It is not known any more that the brokers answer."""
        self.down, self.attempts.due = True, 0.0

    def answered(self, next_s: float) -> None:
        """The brokers answered, and are looked at again after some seconds."""
        self._cause = None
        if self.attempts.succeeded():
            LOG.warning("%s: it answers again", self._name)
            self._said = Said()
        self.down, self.attempts.due = False, time.monotonic() + next_s

    def tell(self, text: str, more: str = "") -> None:
        """Log what is wrong, now and then."""
        LOG.log(logging.DEBUG if self._said.again(text) else logging.WARNING, "%s%s", text, more)


@dataclass(frozen=True, slots=True)
class VainFetches:
    """How long nothing has come where the leaders say that there are messages."""

    limit_s: float  # how long that may go on
    since: float | None = None  # monotonic seconds of the first fetch in vain
    times: int = 0
    stuck: str | None = None  # what to say where the consumer was made anew for it, and nothing came since

    def after(self, now: float, *, waits: bool) -> VainFetches:
        """After a fetch that gave nothing."""
        if not waits:
            return replace(self, since=None, times=0)
        return replace(self, since=now if self.since is None else self.since, times=self.times + 1)

    def too_long(self, now: float) -> bool:
        """Whether the consumer is to be made anew."""
        # a runner may let long times pass between two calls, in which nothing is fetched
        return self.since is not None and self.times > _STUCK_TIMES and now - self.since >= self.limit_s


class OpenTransactions:
    """Where transactions are open: a partition ends there for readers, until they are over."""

    def __init__(self) -> None:
        #: which partitions end for readers before an offset that their log has, and since when
        self._since: dict[tuple[Partition, int], float] = {}
        self.trouble: str | None = None

    def see(self, held: Iterable[tuple[Partition, int]], answered_at: float) -> None:
        """Note where partitions are held, by an answer of their leaders."""
        now = time.monotonic()
        self._since = {one: self._since.get(one, now) for one in held}
        # an answer from before the log grew says nothing of it
        long = sorted(one for one, since in self._since.items() if since < min(answered_at, now - _OPEN_S))
        self.trouble = None
        if long:
            named = [f"{partition_name(place)}: a transaction is open since offset {end}" for place, end in long]
            self.trouble = (
                f"{shown(named, 'in {} more partitions')}; its messages and those behind it wait for its end "
                "(kafka-transactions.sh find-hanging)"
            )


class KafkaReader(Reader):
    """Reads a partition group."""

    def __init__(self, source: KafkaPartitions, lane: int, position: str) -> None:
        self._source = source
        self._lane = lane
        self._outage = Outage(source)
        self._position = GroupPosition(source, lane, position)
        self._consumer = GroupConsumer(source, self._position, self._outage.said)
        self._batches: deque[SourceBatch] = deque()
        #: whether the brokers have named the partitions
        self._named = False
        #: what was not read to its end yet since it was found
        self._behind: set[Partition] = set(self._position.offsets)
        self._reached: dict[Partition, Reach] = {}
        self._vain = VainFetches(_STUCK_S)
        self._transactions = OpenTransactions()
        self._commit_at = 0.0

    def read(self) -> SourceBatch | None:
        """The next messages of one partition, as readings."""
        # while something is in hand nothing is fetched, and who was at the end then may have spoken since
        self._reached = {place: Reach.UNSEEN if reach is Reach.END else reach for place, reach in self._reached.items()}
        if not self._batches:
            self._look()
        if self._consumer.assigned and not self._batches and not self._consumer.groups:
            self._fetch()
        if self._batches:
            return self._batches.popleft()
        return self._decoded() if self._consumer.groups else None

    @property
    def sources(self) -> Mapping[str, Reach]:
        """The lane's partitions; before the broker has named them, the topics."""
        away, health = self._outage.down, self._consumer.health
        # a partition group without a partition follows the wall clock, but not while one may be made unseen
        if not self._named or (away and not self._position.offsets):
            return dict.fromkeys(self._source.topics, Reach.UNKNOWN)
        places = sorted(self._position.offsets.keys() | health.leaderless)
        reached = {one: Reach.UNKNOWN if away or one in health else self._reached[one] for one in places}
        if self._position.decoding.waiting is not None:
            # while messages wait for what their decoder needs there are no polls, and producers may wait for the same
            reached = {one: reach if reach is Reach.BEHIND else Reach.UNKNOWN for one, reach in reached.items()}
        return {partition_name(one): reach for one, reach in reached.items()}

    @property
    def trouble(self) -> str | None:
        """What is in the way."""
        found = self._outage.attempts.trouble or self._position.decoding.waiting or self._consumer.health.trouble
        return found or self._vain.stuck or self._transactions.trouble

    def check(self) -> bool:
        """Whether brokers and leaders answer; nothing that was fetched meanwhile is touched."""
        topics, servers, client = self._source.topics, self._source.cluster.servers, self._consumer.client
        return client is not None and reachable(client, topics, servers, self._consumer.readable(), _CHECK_S)

    def kept(self) -> None:
        """Commit the offsets of the consumer group now and then, if there is one; nothing depends on it."""
        source, consumer, now = self._source, self._consumer, time.monotonic()
        if source.group is None or source.start.kind == "group" or not consumer.assigned or now < self._commit_at:
            return
        self._commit_at = now + _COMMIT_S
        try:
            consumer.client.commit(offsets=consumer.places(), asynchronous=True)
        except Exception as error:  # noqa: BLE001 - confluent-kafka's; monitoring must not stop the job
            LOG.warning("%s: the offsets cannot be committed: %s", source.text, meaning_of(error))

    def close(self) -> None:
        """Leave the brokers."""
        self._position.ids.close()
        self._consumer.close()

    def _look(self) -> None:
        """See which partitions there are, if it is time to; whatever stands in the way is said and tried again."""
        if time.monotonic() < self._outage.attempts.due:
            return
        try:
            self._discover()
        except KafkaUnavailableError as error:
            self._outage.failed(str(error))
            if not error.passing:
                # a topic that is gone may come back as another one, also where its brokers have no ids
                self._consumer.close()
        except Exception as error:
            if not is_kafkas(error):
                raise
            if self._consumer.client is not None and not self._consumer.assigned:
                # the client passes on the reason that it has when it is polled
                self._consumer.client.poll(0)
            self._outage.unanswered(error)
            if self._outage.refused():
                # the next one is made with the secrets of then
                self._consumer.close()
        else:
            self._outage.answered(self._source.discover_s)

    def _discover(self) -> None:
        consumer, position = self._consumer, self._position
        consumer.open()
        led = consumer.partitions(self._lane)
        leaderless = {place for place, has in led.items() if not has}
        self._renew(led.keys())
        consumer.health.looked(leaderless | (position.offsets.keys() - led.keys()))
        # one without a leader is found when it has one; until then it is not known, and not silent
        fresh = sorted(led.keys() - leaderless - position.offsets.keys())
        if fresh or not consumer.assigned:
            self._begin(fresh)
        # the client reports only once what is denied, and not that it is denied no longer
        denied = consumer.health.denied.keys() & position.offsets.keys()
        seek_again(consumer.client, {one: position.offsets[one] for one in denied})
        consumer.read_ends()

    def _begin(self, fresh: Sequence[Partition]) -> None:
        """Read some partitions for the first time, and all from the position on."""
        position, now_us = self._position, time.time_ns() // 1_000
        start = EARLIEST if position.begun else self._source.start
        position.begin(begins(self._consumer.client, fresh, start, _ANSWER_S), start, now_us)
        self._behind |= set(fresh)
        self._assign()
        # what was found is kept by the runner before anything is read from there
        self._batches.append(SourceBatch(position.text, settled=not self._behind, lost_us=position.gaps.until_us))
        position.begun = True

    def _renew(self, there: AbstractSet[Partition]) -> None:
        """Begin at the start of topics that were made anew, whose offsets are others."""
        position = self._position
        anew = position.ids.made_anew(self._source.topics, _ANSWER_S)
        places = [place for place in position.offsets if place[0] in anew]
        if not places:
            return
        LOG.error("%s: %s was made anew, and is read from its beginning", self._source.text, ", ".join(sorted(anew)))
        # a partition that the new one has not is waited for no longer
        self._batches.extend(position.begin_again(dict.fromkeys(places, 0), set(places) - there))
        self._behind = (self._behind | set(places)) & position.offsets.keys()
        self._consumer.close()
        self._consumer.open()

    def _assign(self) -> None:
        self._consumer.assign()
        self._named, self._position.decoding.waiting = True, None
        self._vain = replace(self._vain, since=None, times=0)
        self._reached = dict.fromkeys(self._position.offsets, Reach.UNKNOWN)

    def _fetch(self) -> None:
        """Take what the brokers have, and see how far every partition was read."""
        try:
            came, gone = self._consumer.fetch()
        except KafkaUnavailableError as error:
            self._outage.failed(str(error))
        else:
            for place in gone:
                self._lose(place)
            if gone:
                self._assign()
            self._notice(came=came)
        self._reached = {place: self._reach(place) for place in self._position.offsets}
        ended = {place for place, reach in self._reached.items() if reach is Reach.END}
        self._behind -= ended
        self._batches.extend(self._position.without_beginning(ended))
        behind = {place for place, reach in self._reached.items() if reach is Reach.BEHIND}
        self._transactions.see(self._consumer.held(behind), self._consumer.log_ends_at)
        if self._transactions.trouble is not None:
            self._outage.tell(self._transactions.trouble)

    def _notice(self, *, came: bool) -> None:
        """See whether messages come where the leaders say that there are more; if not, the consumer is made anew."""
        now = time.monotonic()
        self._vain = VainFetches(_STUCK_S) if came else self._vain.after(now, waits=self._consumer.waits)
        if self._vain.too_long(now):
            text = (
                f"{self._source.text}: the brokers have messages and hand none over; they are asked by a new connection"
            )
            LOG.warning("%s", text)
            self._vain = replace(self._vain, limit_s=min(2 * self._vain.limit_s, _LONGEST_STUCK_S), stuck=text)
            self._consumer.close()
            self._outage.look_now()

    def _lose(self, place: Partition) -> None:
        """The offset is gone by retention, or the topic was made anew: begin at its start."""
        try:
            with as_unavailable(self._source.text):
                found = first_offsets(self._consumer.client, [place], EARLIEST, _ANSWER_S)
        except KafkaUnavailableError as error:
            # fetching begins anew at the offset that is not there, and comes here again
            self._outage.failed(str(error))
            return
        LOG.error(
            "%s at %s: offset %d is not there any more, reading goes on at %d; what was between is lost, or the topic "
            "was made anew",
            partition_name(place),
            self._source.cluster.servers,
            self._position.offsets[place],
            found[place],
        )
        self._batches.extend(self._position.begin_again(found, frozenset()))

    def _decoded(self) -> SourceBatch | None:
        consumer, position = self._consumer, self._position
        place, group = consumer.groups[0]
        again = position.passed_on(place, group)
        found = position.decoding.decoded(lambda decoder: _decoded_behind(decoder, group, again))
        if found is None:
            return None
        messages, decoded = found
        consumer.groups.popleft()
        if position.read(place, group, again, messages):
            decoded = [*decoded, damaged(0)]
        consumer.pass_end(place)
        self._reached[place] = self._reach(place)
        if self._reached[place] is Reach.END:
            self._behind.discard(place)
        name, settled = partition_name(place), not self._behind
        times = {
            "came_us": came_us(group[again:] or group),
            "sent_us": sent_us(messages),
            "lost_us": position.gaps.until_us,
        }
        return position.decoding.batch(name, decoded, position.text, settled=settled, source=name, **times)

    def _reach(self, place: Partition) -> Reach:
        if self._outage.down:
            return Reach.UNKNOWN
        try:
            return self._consumer.reach(place)
        except KafkaUnavailableError as error:
            self._outage.failed(str(error))
            return Reach.UNKNOWN


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
