"""What a message may cost: time and memory in proportion to its bytes, and a reject where it would take more."""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import fastavro
import msgpack
import pytest

from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.payloads import PayloadDecoder

from ...readings.test_meters import DELTA, SMALL
from ..formats.decoding import avro_record
from .payloads import NOON_S, NOON_US, decode, dumped, messages

BESIDE = {"each": "payload", "series": "id", "time": "ts", "value": "v"}
WHOLE = {"series": "payload.id", "time": "payload.ts", "value": "v"}
IN_R = WHOLE | {"each": "payload.r"}
OF = {"each": "payload", "of": "r", "series": "each.id", "time": "each.ts", "value": "it"}
CIM = {"payload": "cim", "each": f"payload[?code == '{DELTA}']", "series": "meter", "time": "time", "value": "value"}
HEAD, MIDDLE, TAIL = SMALL.partition(f"<IntervalReadings>{SMALL.split('<IntervalReadings>')[1]}")


def readings(said: dict[str, Any], **more: Any) -> Readings:
    return Readings.model_validate(said | more)


def flat(**more: Any) -> str:
    return json.dumps({"id": "m1", "ts": NOON_S, "v": 1.5} | more)


class Steps:
    """Counts the lines of Python that run, which do not depend on the machine."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.count = 0
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            run()
        finally:
            sys.settrace(before)

    def _call(self, _frame: Any, _event: str, _given: Any) -> Any:
        self.count += 1
        return self._call


def array(made: Callable[[int], Any]) -> Callable[[int], Any]:
    return lambda count: flat(r=made(count))


#: Settings, and a message of so many readings.
LINEAR: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "where": (
        IN_R | {"where": "k == `1`"},
        array(lambda n: [{"v": 1, "k": at % 2} for at in range(n)]),
    ),
    "fields": (
        WHOLE | {"each": "fields(payload.r)", "value": "value"},
        array(lambda n: {f"m{at}": 1 for at in range(n)}),
    ),
    "units": (
        IN_R | {"units": "u", "unit": "kWh"},
        array(lambda n: [{"v": "1.5", "u": "Wh"}] * n),
    ),
    "names": (
        IN_R | {"series": "name([payload.id, k])"},
        array(lambda n: [{"k": at, "v": 1} for at in range(n)]),
    ),
    "of": (IN_R | {"of": "s"}, array(lambda n: [{"s": [{"v": 1}] * 16}] * (n // 16))),
    "ndjson": (BESIDE | {"payload": "ndjson"}, lambda n: "\n".join(flat(id=f"m{at}") for at in range(n))),
    "csv": (BESIDE | {"payload": "csv"}, lambda n: "id,ts,v\n" + f'"m1",{NOON_S},1.5\n' * n),
    "msgpack": (OF | {"payload": "msgpack"}, lambda n: msgpack.packb({"id": "m1", "ts": NOON_S, "r": [1.5] * n})),
    "cim": (CIM, lambda n: HEAD + MIDDLE * n + TAIL),
}


@pytest.mark.parametrize("case", LINEAR)
def test_messages_are_decoded_in_linear_time(case: str) -> None:
    said, made = LINEAR[case]
    decoder = PayloadDecoder(readings(said))
    small, large = messages(made(64)), messages(made(16 * 64))
    decoder.decode(small)
    assert Steps(lambda: decoder.decode(large)).count <= 16 * Steps(lambda: decoder.decode(small)).count


def test_nested_readings_are_read_once_in_linear_time() -> None:
    """Levels of readings around one another, each with all that is inside, would be read once for each level."""
    deep = SMALL.replace("<MeterReading>", "<MeterReading>" * 20_000)
    deep = deep.replace("</MeterReading>", "</MeterReading>" * 20_000)
    before = time.process_time()
    assert len(decode(readings(CIM), messages(deep))[0]) == 2
    assert time.process_time() - before < 10


TEXT = avro_record("R", note="string", id="string", ts="long", v="double")
LINE = flat().encode()
#: Settings, messages, rows and reasons, bytes at most.
MEMORY: dict[str, tuple[dict[str, Any], list[Any], int, list[str], int]] = {
    "Avro texts as long as all messages": (
        BESIDE | {"payload": "avro"}, [b"\0\0\0\0\7\xc0\xa9\x07" + bytes(200)] * 1_000,
        0, ["malformed-row"] * 1_000, 10**7),
    "MessagePack arrays of false sizes": (
        BESIDE | {"payload": "msgpack"}, [b"\xdd" + struct.pack(">I", 65_000) + b"\xdd\x00\x00\xff\xff" * 190_000],
        0, ["malformed-row"], 1 << 30),
    "a bomb under gzip": (
        BESIDE | {"compression": "gzip"}, [gzip.compress(LINE), gzip.compress(b" " * 50_000_000)],
        1, ["too-large"], 10**7),
    "many large messages": (BESIDE, [flat(pad=[[]] * 100_000)] * 12, 12, [], 5 * 10**7),
    "a name of a flooding device": (
        IN_R | {"value": "it"},
        [flat(id="m" * 1_000, r=[1] * 30_000)], 30_000, [], 2 * 10**7),
    "a long namespace that elements would repeat": (
        CIM, [SMALL.replace("</MeterReadings>", f'<r xmlns:a="{"u" * 60_000}">{"<a:b/>" * 4_000}</r></MeterReadings>')],
        0, ["malformed-row"], 2 * 10**7),
    "a namespace that is long enough": (
        CIM, [SMALL.replace("</MeterReadings>", f'<r xmlns:a="{"u" * 200}">{"<a:b/>" * 4_000}</r></MeterReadings>')],
        2, [], 2 * 10**7),
}  # fmt: skip


@pytest.mark.parametrize("case", MEMORY)
def test_a_message_takes_memory_in_proportion(case: str) -> None:
    said, sent, count, reasons, most = MEMORY[case]
    decoder = PayloadDecoder(readings(said), schemas=lambda _: TEXT)
    given = messages(*sent)
    tracemalloc.start()
    try:
        parts = decoder.decode(given)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert sum(part.readings.num_rows for part in parts if part.readings is not None) == count
    assert [one.reason.value for part in parts for one in part.rejects for _ in one.positions] == reasons


def test_a_message_above_the_limit_is_a_reject_and_a_tombstone_is_skipped() -> None:
    given = messages(flat(text="x" * 1_000_000), None, flat())
    assert decode(readings(BESIDE), given) == ([("m1", NOON_US, 1.5)], [(0, "too-large")])
    assert decode(readings(BESIDE, max_bytes=10), messages(flat(), None)) == ([], [(0, "too-large")])


def test_gzip_is_unpacked_member_by_member_up_to_a_hundred() -> None:
    """Each member copies what is behind it: the time would be quadratic in the payload."""
    packed = gzip.compress(LINE)
    two, some, many = (gzip.compress(b"") * count + packed for count in (1, 99, 100))
    given = messages(packed, two, some, many, LINE, packed[:-9], packed + b"x", b"", None)
    rows, rejects = decode(readings(BESIDE, compression="gzip"), given)
    assert rows == [("m1", NOON_US, 1.5)] * 3
    assert rejects == [(at, "malformed-row") for at in (3, 4, 5, 6, 7)]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" * 50_000 + "]" * 50_000,
        '{"v":' * 100_000 + "1e99",
        '{"v": 1, "x": ' + "[" * 100_000 + "1e99",
        flat(v=0).replace("0}", "[" * 2_000 + "]" * 2_000 + "}"),
    ],
    ids=range(6),
)
def test_a_deep_text_costs_its_message_alone(text: str) -> None:
    """As a message, and as a text within one."""
    for said, around in ((BESIDE, str), (WHOLE | {"each": "json(payload.body)"}, lambda one: flat(body=one))):
        given = messages(around(flat(v=1e99)), around(text), around(flat(v=1e99)))
        rows, rejects = decode(readings(said), given)
        assert (rows, [number for number, _ in rejects]) == ([("m1", NOON_US, 1e99)] * 2, [1])


@pytest.mark.parametrize(
    "said",
    [
        {"value": "length(payload.r[?ts == 'x'])"},
        {"series": "to_string(payload.r)"},
        {"where": "contains(payload.r, it)"},
        {"each": "payload.r" + " | [@, @][]" * 15},
        {"each": "payload.r", "of": "payload.r"},
    ],
)
def test_an_expression_that_would_take_more_than_in_proportion_is_a_reject(said: dict[str, str]) -> None:
    """Every reading looks at all of its message, or an array doubles itself."""
    body = {"id": "m1", "r": [{"ts": NOON_S, "v": 1}] * 1_500}
    own = readings({"each": "payload.r", "series": "payload.id", "time": "ts", "value": "v"}, **said)
    assert decode(own, dumped(body)) == ([], [(0, "malformed-row")])


@pytest.mark.night
@pytest.mark.parametrize("kind", ["bytes", "fixed"])
def test_decimals_of_very_many_digits_are_rejects_even_where_unused(kind: str) -> None:
    """The library reads one in the square of its size: a message of 990 kB stalled its worker for six minutes."""
    fields = {"id": "string", "ts": "long", "v": "double"}
    for size, reasons in ((2_048, []), (2_049, [(0, "malformed-row"), (1, "malformed-row")])):
        price: Any = {"type": "bytes"} if kind == "bytes" else {"type": "fixed", "name": "D", "size": size}
        decimal = price | {"logicalType": "decimal", "precision": 10, "scale": 2}
        given = messages(
            *[_avro(avro_record("R", **fields, price=price), id="m1", ts=NOON_S, v=1.5, price=b"\x7f" * size)] * 2
        )
        found = decode(
            readings(BESIDE, payload="avro"),
            given,
            schemas=lambda _, one=decimal: avro_record("R", **fields, price=one),
        )
        assert (len(found[0]), found[1]) == (2 - len(reasons), reasons)


def _avro(schema: Any, **record: Any) -> bytes:
    stream = io.BytesIO(b"\0\0\0\0\7")
    stream.seek(5)
    fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()
