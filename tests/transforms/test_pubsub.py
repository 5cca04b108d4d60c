"""Messages of Pub/Sub as readings, and rows as messages; what Beam does with them is Beam's."""

from __future__ import annotations

import json
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import TimestampedValue

from quiltstream.schemas.readings import REJECT_SCHEMA
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.completeness import Steps
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.pubsub import RELEASE_ID, ReadSubscription, with_attributes
from quiltstream.transforms.sinks import QUERY, reject_messages, release_messages

from .kafka.test_sink import BATCH

REJECT_BATCH = pa.RecordBatch.from_pylist(
    [{"reason": "not-a-number", "source": "s", "position": 7, "size": 12}], schema=REJECT_SCHEMA
)

NAME = "projects/grid/subscriptions/meters"
DAY_US = 86_400_000_000
FAR_US = 4 * 10**15  # the year 2096


def message(body: Any, at_us: int = 10**15, **attributes: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return TimestampedValue(PubsubMessage(data, attributes, ordering_key="line-7"), at_us / 1e6)


def rows(batch: Any) -> list[tuple[str, int, float]]:
    return [(one["series"], round(one["time"].timestamp() * 1e6), one["value"]) for one in batch.to_pylist()]


def check(messages: list[Any], readings: dict[str, Any], found: list[Any], rejects: list[Any]) -> None:
    decoder = PayloadDecoder(Readings.model_validate({"each": "payload", "value": "kwh"} | readings))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        source = ReadSubscription(NAME, decoder, Steps(0, DAY_US), messages=beam.Create(messages, reshuffle=False))
        decoded: Any = pipeline | source
        assert_that(decoded.readings | "Rows" >> beam.FlatMap(rows), equal_to(found), "found")
        refused = decoded.rejected | "Reasons" >> beam.FlatMap(lambda one: one.column("reason").to_pylist())
        assert_that(refused, equal_to(rejects), "rejected")


def test_messages_are_readings_or_rejects_and_a_heartbeat_is_neither() -> None:
    bodies = [
        {"m": "a", "ts": 10**12, "kwh": 1.5},
        {"m": "b", "ts": 10**12, "kwh": None},
        {"m": "c", "ts": FAR_US // 1000, "kwh": 2},
    ]
    given = [*map(message, bodies), message(b"{"), message(b"", heartbeat="1")]
    readings = {"series": "m", "time": "ts", "time_unit": "ms"}
    check(given, readings, [("a", 10**15, 1.5)], ["missing-value", "malformed-row", "ahead"])


@pytest.mark.parametrize(("series", "name"), [("header.device", "d-1"), ("key", "line-7")])
def test_attributes_are_headers_and_ordering_keys_keys_and_a_stamp_is_beams_timestamp(series: str, name: str) -> None:
    given = [message({"kwh": 2}, 10**15 + 5, device="d-1")]
    check(given, {"series": series, "time": "stamp"}, [(name, 10**15 + 5, 2.0)], [])


def test_a_row_is_a_message_under_its_release_id_and_a_reject_has_no_name() -> None:
    sent = list(with_attributes(release_messages(BATCH, "json")))
    assert sorted(named[RELEASE_ID] for _, named in sent) == sorted(BATCH.column("release_id").to_pylist())
    for body, named in sent:
        row = json.loads(body)
        assert (row["release_id"], row["query"]) == (named[RELEASE_ID], named[QUERY])
        assert named["content-type"] == "application/json"
    ((body, named),) = with_attributes(reject_messages(REJECT_BATCH, "json"))
    assert "release_id" not in named
    assert set(json.loads(body)) == {"reason", "source", "position", "size"}
