"""What every feed does for decoders that remember: inherit the contract and give a source of messages.

A reader that is taken back to a position knows what the first one knew there, and nothing of what came behind it.
"""

from __future__ import annotations

import pickle
from typing import Any, Protocol

import pytest

from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.sources.contract import BEGIN, PartitionedSource, SourceBatch

from ..payloads.payloads import NOON_MS, NOON_S
from ..payloads.sparkplug import metric, payload

SLOT_S = 900
GRID = SlotGrid(SLOT_S * 1_000_000, 0)

Outcome = tuple[list[tuple[str, int, float]], dict[str, int]]


class Source(Protocol):
    def feed(self, decoder: PayloadDecoder) -> PartitionedSource: ...

    def send(self, data: bytes, topic: str, at_s: int) -> None:
        """Add a message under an MQTT topic that the broker stamps with an instant."""
        ...

    def read(self, reader: Any) -> list[SourceBatch]:
        """What is there now, as far as it has not been read."""
        ...

    def keep(self, reader: Any) -> None: ...


def outcome(pieces: list[SourceBatch]) -> Outcome:
    """Sorted (series, microseconds, value), and the rejects by reason."""
    rows: list[tuple[str, int, float]] = []
    rejected: dict[str, int] = {}
    for piece in pieces:
        for batch in piece.batches:
            times = batch.column("time").cast("int64").to_pylist()
            rows += zip(batch.column("series").to_pylist(), times, batch.column("value").to_pylist(), strict=True)
        for reason, count in piece.rejected.items():
            rejected[reason.value] = rejected.get(reason.value, 0) + count
    return sorted(rows), rejected


def cells(rows: list[tuple[str, int, float]]) -> dict[tuple[str, int], tuple[int, float]]:
    """What the cells keep: the value with the latest time in each slot."""
    kept: dict[tuple[str, int], tuple[int, float]] = {}
    for name, time, value in rows:
        slot, offset = divmod(time, SLOT_S * 1_000_000)
        kept[name, slot] = max(kept.get((name, slot), (-1, 0.0)), (offset, value))
    return kept


BIRTH = payload(NOON_MS, metric("power", 5, kind=10, double=1.5), metric("bdSeq", 6, kind=8, long=0))


def data(number: int, alias: int = 5) -> bytes:
    return payload(NOON_MS + number, metric(alias=alias, double=float(number)), sequence=number)


#: What comes together, and how many readings and rejects it is.
SENT = [
    # before the birth nobody can tell what the first says; whoever has read them once must not know better
    ([("DDATA", data(1)), ("DBIRTH", BIRTH)], (1, 1)),
    ([("DDATA", data(2))], (1, 0)),
    ([("DDATA", data(3, alias=6))], (0, 0)),  # another metric
    ([("DDATA", data(4, alias=7))], (0, 1)),  # an alias that the birth did not tell
    ([("DDATA", data(5))], (1, 0)),
]


class BirthsContract:
    def test_births_are_restored_from_the_position(self, source: Source) -> None:
        """Whichever worker goes on, and however far another had come, what is read from a position on is the same."""
        decoder = PayloadDecoder(Readings(preset="sparkplug", value="power"))
        feed = source.feed(decoder)
        elsewhere = source.feed(pickle.loads(pickle.dumps(decoder)))
        position = BEGIN
        for number, (given, expected) in enumerate(SENT):
            for kind, one in given:
                source.send(one, f"spBv1.0/plant/{kind}/edge1/press", NOON_S + number)
            lives: list[Outcome] = []
            pieces: list[SourceBatch] = []
            for last, other in enumerate((feed, feed, elsewhere), -2):
                reader = other.reader(0, position)
                pieces = source.read(reader)
                lives.append(outcome(pieces))
                if not last:
                    source.keep(reader)
                reader.close()
            assert lives == [lives[0]] * 3, number
            rows, rejected = lives[0]
            assert (len(rows), sum(rejected.values())) == expected
            position = pieces[-1].position
        assert len(position) < 500


class RegistersContract:
    """Inherit it as well where the source can be read again; give the fixture ``source``."""

    def test_a_counter_is_never_differenced_with_readings_after_the_position(self, source: Source) -> None:
        """A reader that another one has overtaken gives the same differences, from whatever position it goes on."""
        readings = Readings.model_validate({"series": {"topic": 1}, "time": "t", "value": {"register": {"path": "v"}}})
        feed = source.feed(PayloadDecoder(readings, grid=GRID))
        reader = feed.reader(0, BEGIN)
        positions, rows = list[str](), list[list[tuple[str, int, float]]]()
        for number in range(12):
            body = b'{"t": %d, "v": %d}' % (NOON_S + 450 * number, number * number)
            source.send(body, "m1", NOON_S + 450 * number)
            pieces = source.read(reader)
            positions.append(pieces[-1].position)
            rows.append(outcome(pieces)[0])
        whole = cells([row for one in rows for row in one])
        assert len(whole) == 6
        for at, position in enumerate(positions[:-1]):
            again = feed.reader(0, position)
            after = outcome(source.read(again))[0]
            again.close()
            before = [row for one in rows[: at + 1] for row in one]
            assert cells(before + after) == whole, at
            # what was open at the position is given again as a whole
            assert cells(after).items() <= whole.items(), at


@pytest.fixture
def source() -> Source:
    raise NotImplementedError("give a source of messages")
