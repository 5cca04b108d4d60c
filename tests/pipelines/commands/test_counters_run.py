"""``quiltstream run`` over files of counters publishes what it publishes over their differences."""

from __future__ import annotations

import datetime as dt
from itertools import groupby
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from quiltstream.pipelines.commands.fit import transitions_in
from quiltstream.pipelines.commands.run import publish
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms import PrivateHistograms

from ...present import present
from ..jobs import HOMES, Job, Row, job, readings

HALF_HOUR = dt.timedelta(minutes=30)
COLUMNS = {"series": "meter", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000}


def counters(rows: list[Row]) -> list[Row]:
    """The same load as counters that are read at the end of each slot and go over their end at 100."""
    found: list[Row] = []
    for home, mine in groupby(rows, key=lambda row: row[0]):
        total = 95.0
        for number, (_, stamp, value) in enumerate(mine):
            if not number:
                found.append((home, stamp, total))
            # eighths are exact, so that neither way falls on the other side of an edge
            total = (total + round(value * 8) / 8) % 100
            found.append((home, (dt.datetime.fromisoformat(stamp) + HALF_HOUR).isoformat(), total))
    return found


def jobs(folder: Path) -> tuple[Job, Job]:
    loads = [(home, stamp, round(value * 8) / 8) for home, stamp, value in readings()]
    given = COLUMNS | {"register": {"over_end": 100}}
    return (
        job(folder / "loads", loads, missing="state"),
        job(folder / "counters", counters(loads)[::-1], readings=given, missing="state"),
    )


@pytest.mark.night
def test_counters_are_published_as_their_differences_are(tmp_path: Path) -> None:
    published: list[list[tuple[int, str, list[int]]]] = []
    for made in jobs(tmp_path):
        settings = read_settings(made.settings)
        summary = publish(settings, PrivateHistograms(settings, noise="none"))
        assert present(summary["operator_only"])["rejected"] == {}
        published.append([(row.window_start, row.key, list(row.counts)) for row in made.rows()])
    loads, rises = published
    assert len(loads) == 14
    # a counter knows nothing of the load before its first reading, and has one there; so nothing differs
    assert rises == loads


@pytest.mark.night
def test_counters_in_local_time_count_in_both_hours_of_a_clock_set_back(tmp_path: Path) -> None:
    zone, begin = ZoneInfo("Europe/Berlin"), dt.datetime(2024, 10, 25, 22, tzinfo=dt.UTC)
    stamps = [begin + slot * HALF_HOUR for slot in range(2 * 48 + 3)]
    rows = [
        (home, f"{at.astimezone(zone):%Y-%m-%d %H:%M}", slot / 4) for home in HOMES for slot, at in enumerate(stamps)
    ]
    given = COLUMNS | {"register": {}, "ambiguous": "in-order"}
    slots = {"interval": "30min", "origin": "2024-10-26", "timezone": "Europe/Berlin"}
    windows = {"size": "day", "start": "2024-10-26", "stop": "2024-10-28"}
    made = job(tmp_path, rows, readings=given, slots=slots, windows=windows, missing="state")
    settings = read_settings(made.settings)
    summary = publish(settings, PrivateHistograms(settings, noise="none"))
    assert present(summary["operator_only"])["rejected"] == {}
    published = [(row.key, row.slots, list(row.counts)) for row in made.rows()]
    homes = {key: sum((home < "m4") == (key == "north") for home in HOMES) for key, _, _ in published}
    assert published == [
        (key, slots, [0, 0, slots * homes[key], 0, 0, 0]) for slots in (48, 50) for key in ("north", "south")
    ]


@pytest.mark.night
def test_a_model_is_fitted_to_the_differences(tmp_path: Path) -> None:
    loads, rises = (transitions_in(read_settings(made.settings), None, None) for made in jobs(tmp_path))
    assert rises.series == loads.series
    assert loads.counts.sum() > 2_000
    assert rises.counts.tolist() == loads.counts.tolist()
    assert rises.visits.tolist() == loads.visits.tolist()
