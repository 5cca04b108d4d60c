"""Every feed holds the contract of memories: Kafka, Pub/Sub, and folders of messages."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest

from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.contract import PartitionedSource, SourceBatch
from quiltstream.transforms.sources.message_files import MessageFileDecoder
from quiltstream.transforms.sources.progress import Reach

from ..kafka.contract import pieces_until
from ..kafka.fake import FakeBroker
from ..pubsub.fake import FakeService
from .memory_contract import BirthsContract, RegistersContract
from .test_message_files import SCHEMA


class KafkaSource:
    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.topic = self.broker.topic(1)

    def feed(self, decoder: PayloadDecoder) -> PartitionedSource:
        return KafkaPartitions(self.broker.cluster, (self.topic,), decoder)

    def send(self, data: bytes, topic: str, at_s: int) -> None:
        headers = [("mqtt-topic", topic.encode())]
        self.broker.topics[self.topic][0].messages.append((data, at_s * 1_000, None, headers))

    def read(self, reader: Any) -> list[SourceBatch]:
        return pieces_until(reader, lambda pieces: bool(pieces) and set(reader.sources.values()) == {Reach.END})

    def keep(self, reader: Any) -> None:
        reader.kept()


class PubSubSource:
    def __init__(self) -> None:
        self.service = FakeService()

    def feed(self, decoder: PayloadDecoder) -> PartitionedSource:
        return self.service.feed(decoder, settle_s=0.0)

    def send(self, data: bytes, topic: str, at_s: int) -> None:
        assert datetime.fromtimestamp(at_s, UTC)
        headers: dict[str, Any] = {"mqtt-topic": topic}
        self.service.publish(data, **headers)

    def read(self, reader: Any) -> list[SourceBatch]:
        return all_of(reader)

    def keep(self, reader: Any) -> None:
        receipt = reader.receipt()
        assert receipt is not None
        receipt()


class FolderSource:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0

    def feed(self, decoder: PayloadDecoder) -> PartitionedSource:
        files = MessageFileDecoder("avro", ",", decoder.readings)
        return ArrivingFiles(files, (str(self.folder / "*.avro"),))

    def send(self, data: bytes, topic: str, at_s: int) -> None:
        self.number += 1
        with (self.folder / f"{self.number:04}.avro").open("wb") as stream:
            fastavro.writer(stream, SCHEMA, [{"topic": topic, "payload": data, "received": at_s * 1_000_000}])

    def read(self, reader: Any) -> list[SourceBatch]:
        return all_of(reader)

    def keep(self, reader: Any) -> None:
        reader.kept()


def all_of(reader: Any) -> list[SourceBatch]:
    found: list[SourceBatch] = []
    while (piece := reader.read()) is not None:
        found.append(piece)
    return found


class TestKafka(BirthsContract, RegistersContract):
    @pytest.fixture
    def source(self) -> KafkaSource:
        return KafkaSource()


class TestPubSub(BirthsContract):
    @pytest.fixture
    def source(self, monkeypatch: pytest.MonkeyPatch) -> PubSubSource:
        monkeypatch.setattr("quiltstream.transforms.pubsub._WAIT_S", 0.002)
        return PubSubSource()


class TestFolder(BirthsContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> FolderSource:
        return FolderSource(tmp_path)
