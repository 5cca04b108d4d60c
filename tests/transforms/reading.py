"""Small sources of readings for the tests of the feeds."""

from __future__ import annotations

import json
from typing import Any

from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.sources.contract import SourceBatch
from quiltstream.transforms.sources.files import FileDecoder

ORIGIN = 1_356_998_400_000_000


def decoder(form: Any) -> FileDecoder:
    return FileDecoder(form, ",", Readings(series="series", time="time", value="value", time_unit="us"))


def line(number: int, series: str = "a") -> str:
    return json.dumps({"series": series, "time": ORIGIN + number, "value": float(number)}) + "\n"


def values(piece: SourceBatch | None) -> list[float]:
    assert piece is not None
    return [value for batch in piece.batches for value in batch.column("value").to_pylist()]
