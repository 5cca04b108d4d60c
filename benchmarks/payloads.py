"""How fast messages become readings, in one process and without a broker.

Run as ``python benchmarks/payloads.py``. It decodes 20,000 messages of each convention in batches of 5,000, five times,
and prints the best. The first half of the table is what a Kafka source needs most: JSON and Avro with one reading a
message and with 16.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cbor2
import fastavro
import numpy as np

from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Messages

MESSAGES, BATCH, RUNS, SERIES = 20_000, 5_000, 5, 1_000
START_MS = 1_767_614_400_000

ONE = {"series": "id", "time": "ts", "time_unit": "ms", "value": "values.power"}
MANY = {"series": "id", "time": "readings[*].ts", "time_unit": "ms", "value": "readings[*].value"}

READING = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "value", "type": "double"},
    ],
}
SCHEMAS: dict[int, Any] = {
    1: {
        "type": "record",
        "name": "One",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "ts", "type": "long"},
            {
                "name": "values",
                "type": {
                    "type": "record",
                    "name": "Values",
                    "fields": [{"name": "power", "type": "double"}, {"name": "phase", "type": "int"}],
                },
            },
        ],
    },
    2: {
        "type": "record",
        "name": "Many",
        "fields": [{"name": "id", "type": "string"}, {"name": "readings", "type": {"type": "array", "items": READING}}],
    },
}


def lookup(number: int) -> Any:
    return SCHEMAS[number]


def one(number: int) -> dict[str, Any]:
    return {"id": f"meter-{number % SERIES}", "ts": START_MS + number, "values": {"power": number / 8, "phase": 1}}


def many(number: int) -> dict[str, Any]:
    rows = [{"ts": START_MS + 16 * number + i, "value": i / 8} for i in range(16)]
    return {"id": f"meter-{number % SERIES}", "readings": rows}


def wire(schema: int, record: dict[str, Any]) -> bytes:
    stream = io.BytesIO(b"\0" + struct.pack(">I", schema))
    stream.seek(5)
    fastavro.schemaless_writer(stream, SCHEMAS[schema], record)
    return stream.getvalue()


def edgex(number: int) -> dict[str, Any]:
    reading = {
        "resourceName": "power",
        "valueType": "Float64",
        "value": str(number / 8),
        "origin": (START_MS + number) * 10**6,
    }
    return {"deviceName": f"meter-{number % SERIES}", "origin": START_MS * 10**6, "readings": [reading]}


def telegram(number: int) -> bytes:
    text = (
        f"/EXA5\r\n\r\n0-0:1.0.0(260105{number % 24:02}{number % 60:02}00W)\r\n"
        f"0-0:96.1.1({number % SERIES:08x})\r\n1-0:1.7.0({number % 99:02}.193*kW)\r\n!\r\n"
    )
    return text.encode()


@dataclass(frozen=True)
class Case:
    """A convention, and how its messages are made."""

    name: str
    mapping: dict[str, Any]
    payload: Callable[[int], bytes]
    topic: Callable[[int], str] = lambda _: "meters"
    options: dict[str, Any] | None = None


def dumped(body: Callable[[int], Any]) -> Callable[[int], bytes]:
    return lambda number: json.dumps(body(number)).encode()


def senml(number: int) -> list[dict[str, Any]]:
    return [{"bn": f"meter-{number % SERIES}:", "bt": START_MS / 1_000 + number, "n": "power", "v": number / 8}]


CASES = [
    Case("JSON, 1 reading", ONE, dumped(one)),
    Case("JSON, 16 readings", MANY, dumped(many)),
    Case(
        "JSON, 1 reading, series from the topic",
        ONE | {"series": {"topic": 2}},
        dumped(one),
        lambda i: f"a/m{i % SERIES}",
    ),
    Case("Avro, 1 reading", ONE | {"payload": "avro"}, lambda i: wire(1, one(i)), options={"schemas": lookup}),
    Case("Avro, 16 readings", MANY | {"payload": "avro"}, lambda i: wire(2, many(i)), options={"schemas": lookup}),
    Case("CBOR, 1 reading", ONE | {"payload": "cbor"}, lambda i: cbor2.dumps(one(i))),
    Case(
        "JSON, a counter",
        ONE | {"value": {"register": {"path": "values.power"}}},
        dumped(one),
        options={"grid": SlotGrid(1_000_000)},
    ),
    Case(
        "ThingsBoard",
        {"preset": "thingsboard", "value": "power"},
        dumped(lambda i: {f"meter-{i % SERIES}": [{"ts": START_MS + i, "values": {"power": i / 8}}]}),
    ),
    Case("EdgeX", {"preset": "edgex", "value": "power"}, dumped(edgex)),
    Case(
        "EdgeX in an envelope",
        {"preset": "edgex", "value": "power"},
        dumped(lambda i: {"payload": base64.b64encode(json.dumps(edgex(i)).encode()).decode()}),
    ),
    Case("SenML", {"preset": "senml", "value": "power"}, dumped(senml)),
    Case(
        "NGSI-LD",
        {"preset": "ngsi-ld", "value": "power"},
        dumped(
            lambda i: {
                "notifiedAt": "2026-01-05T12:00:00Z",
                "data": [
                    {"id": f"meter-{i % SERIES}", "power": {"value": i / 8, "observedAt": "2026-01-05T12:00:00Z"}}
                ],
            }
        ),
    ),
    Case("DSMR", {"preset": "dsmr", "value": "1-0:1.7.0"}, telegram),
]


def batches(case: Case) -> list[Messages]:
    found: list[Messages] = []
    for first in range(0, MESSAGES, BATCH):
        numbers = range(first, first + BATCH)
        found.append(
            Messages(
                payloads=[case.payload(i) for i in numbers],
                topics=[case.topic(i) for i in numbers],
                keys=[None] * BATCH,
                headers=[()] * BATCH,
                stamps_us=np.full(BATCH, START_MS * 1_000),
                positions=np.arange(first, first + BATCH),
            )
        )
    return found


def main() -> None:
    print(f"{'messages':<42}{'bytes':>7}{'messages/s':>14}{'readings/s':>14}")
    for case in CASES:
        decoder = PayloadDecoder(Readings.model_validate(case.mapping), **(case.options or {}))
        given = batches(case)
        best, rows = float("inf"), 0
        for _ in range(RUNS):
            started = time.perf_counter()
            parts = [part for batch in given for part in decoder.decode(batch)]
            best = min(best, time.perf_counter() - started)
            assert not any(part.rejects for part in parts)
            rows = max(rows, sum(part.readings.num_rows for part in parts if part.readings is not None))
        size = len(given[0].payloads[0] or b"")
        print(f"{case.name:<42}{size:>7,}{MESSAGES / best:>14,.0f}{rows / best:>14,.0f}")


if __name__ == "__main__":
    main()
