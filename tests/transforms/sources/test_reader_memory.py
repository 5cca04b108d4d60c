"""A reader that is taken back to a position knows what the first one knew there, and nothing of what came behind it."""

from __future__ import annotations

from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.kafka.source import KafkaPartitions, KafkaReader
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sources.contract import BEGIN, SourceBatch
from quiltstream.transforms.sources.progress import Reach

from ..kafka.contract import pieces_until
from ..kafka.fake import FakeBroker
from ..payloads.payloads import NOON_S

SLOT_S = 900
Row = tuple[str, int, float]


def rows_there(reader: KafkaReader) -> tuple[list[Row], str]:
    """What is there now, as far as it has not been read, and the position behind it."""
    pieces = pieces_until(reader, lambda found: bool(found) and set(reader.sources.values()) == {Reach.END})
    return [row for piece in pieces for row in rows_of(piece)], pieces[-1].position


def rows_of(piece: SourceBatch) -> list[Row]:
    rows: list[Row] = []
    for batch in piece.batches:
        times = batch.column("time").cast("int64").to_pylist()
        rows += zip(batch.column("series").to_pylist(), times, batch.column("value").to_pylist(), strict=True)
    return rows


def cells(rows: list[Row]) -> dict[tuple[str, int], tuple[int, float]]:
    """What the cells keep: the value with the latest time in each slot."""
    kept: dict[tuple[str, int], tuple[int, float]] = {}
    for name, time, value in rows:
        slot, offset = divmod(time, SLOT_S * 1_000_000)
        kept[name, slot] = max(kept.get((name, slot), (-1, 0.0)), (offset, value))
    return kept


def test_a_counter_is_never_differenced_with_readings_after_the_position() -> None:
    """A reader that another one has overtaken gives the same differences, from whatever position it goes on."""
    broker = FakeBroker()
    topic = broker.topic(1)
    readings = Readings.model_validate({"series": {"topic": 1}, "time": "t", "value": {"register": {"path": "v"}}})
    decoder = PayloadDecoder(readings, grid=SlotGrid(SLOT_S * 1_000_000, 0))
    source = KafkaPartitions(broker.cluster, (topic,), decoder)
    reader = source.reader(0, BEGIN)
    positions, rows = list[str](), list[list[Row]]()
    for number in range(12):
        body = b'{"t": %d, "v": %d}' % (NOON_S + 450 * number, number * number)
        stamp_ms = (NOON_S + 450 * number) * 1_000
        broker.topics[topic][0].messages.append((body, stamp_ms, None, [("mqtt-topic", b"m1")]))
        found, position = rows_there(reader)
        positions.append(position)
        rows.append(found)
    whole = cells([row for one in rows for row in one])
    assert len(whole) == 6
    for at, position in enumerate(positions[:-1]):
        again = source.reader(0, position)
        after, _ = rows_there(again)
        again.close()
        before = [row for one in rows[: at + 1] for row in one]
        assert cells(before + after) == whole, at
        # what was open at the position is given again as a whole
        assert cells(after).items() <= whole.items(), at
