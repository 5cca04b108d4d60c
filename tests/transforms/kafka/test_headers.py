"""Headers that confluent-kafka cannot read, from its own client: any producer can send them, but not confluent-kafka's.

The broker is the one in memory that librdkafka brings with it for tests. The message is put together by hand, as the
protocol has it (a Produce request with one batch of one record).
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from quiltstream.schemas.readings import RejectReason
from quiltstream.transforms.kafka.client import Cluster, KafkaUnavailableError
from quiltstream.transforms.kafka.sink import Topic
from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.kafka.topics import read_ids
from quiltstream.transforms.sinks.messages import DOMAIN, QUERY, SCHEMA
from quiltstream.transforms.sources.contract import BEGIN

from .contract import names_of, pieces_until, rows
from .messages import JsonMessages, reading

_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes) -> int:
    """The sum that a batch of Kafka has, bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def sized(data: bytes) -> bytes:
    """Bytes behind their number, in zigzag and seven bits each; below 8,192."""
    doubled = len(data) << 1
    return (bytes([doubled]) if doubled < 128 else bytes([doubled & 127 | 128, doubled >> 7])) + data


def produce(address: tuple[str, int], topic: str, value: bytes, header: tuple[bytes, bytes]) -> None:
    """Send a message with a header to partition 0."""
    record = sized(b"\0\0\0\1" + sized(value) + b"\2" + sized(header[0]) + sized(header[1]))
    now = time.time_ns() // 1_000_000
    summed = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + record
    batch = struct.pack(">ibI", -1, 2, crc32c(summed)) + summed
    records = struct.pack(">qi", 0, len(batch)) + batch
    name = topic.encode()
    asked = struct.pack(">hhih", 0, 3, 1, -1) + struct.pack(">hhii", -1, 1, 5_000, 1)
    asked += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(asked)) + asked)
        connection.settimeout(10)
        assert connection.recv(1_000)


@pytest.fixture
def broker() -> Any:
    """A client that is a broker beside it."""
    return Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "here"})


def address_of(broker: Producer) -> tuple[str, int]:
    (one,) = broker.list_topics(timeout=10).brokers.values()
    return one.host, one.port


@pytest.mark.assures(
    "brokers",
    "Kafka: a message with header names that are no UTF-8 is a reject, and the job continues",
)
def test_the_client_gives_no_headers_with_a_name_that_is_no_text_and_the_job_goes_on(broker):
    broker.produce("readings", reading("a", 0), partition=0)
    assert broker.flush(10) == 0
    host, port = address_of(broker)
    produce((host, port), "readings", reading("b", 0), (b"\xff\xfe", b"1"))
    produce((host, port), "readings", reading("c", 0), ("ü".encode(), b"1"))
    feed = KafkaPartitions(Cluster(f"{host}:{port}"), ("readings",), JsonMessages())
    reader = feed.reader(0, BEGIN)
    pieces = pieces_until(reader, lambda found: rows(found) >= 2)
    assert [name for one in pieces for name in names_of(one)] == ["a", "c"]
    assert [one.rejected for one in pieces if one.rejected] == [{RejectReason.MALFORMED_ROW: 1}]
    reader.close()


def test_a_message_whose_headers_cannot_be_read_is_no_release(broker):
    headers = [(SCHEMA, b"release"), (DOMAIN, b"another"), (QUERY, b"q")]
    broker.produce("rows", b"{}", key=b"1", headers=headers, partition=0)
    assert broker.flush(10) == 0
    host, port = address_of(broker)
    produce((host, port), "rows", b"{}", (b"\xff\xfe", b"1"))
    with pytest.raises(KafkaUnavailableError, match="holds messages that are no releases"):
        read_ids(Topic(Cluster(f"{host}:{port}"), "rows"), "d", "q", lambda _: None, patience_s=5)
