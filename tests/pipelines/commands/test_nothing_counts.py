"""A run in which no reading counts: it stops before anything is charged or put on record, and says what it read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.settings.job import read_settings
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.registration import register

from ...present import present
from ..jobs import Job, call, change, job, readings, write_csv
from ..live_jobs import drafts

FEW = ("m1", "m2")
TEN_YEARS_ON = [(m, t.replace("2024", "2034"), v) for m, t, v in readings(2, FEW)]
NOT_ROSTERED = [(f"x{m}", t, v) for m, t, v in readings(2, FEW)]
NO_NUMBERS = [(m, t, "abc") for m, t, _ in readings(2, FEW)]
ONE = {"series": {"constant": "m1"}, "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000}


def domains(made: Job) -> tuple[str, ...]:
    with Store(f"sqlite:///{made.ledger}", create=True) as store:
        return store.domains()


@pytest.mark.night
@pytest.mark.parametrize(
    ("rows", "changes", "said"),
    [
        (TEN_YEARS_ON, {}, "of 192 that were read: 192 before or after the windows"),
        (NOT_ROSTERED, {}, "of 192 that were read: 192 rejected: the series is not in the roster"),
        (NO_NUMBERS, {}, "no row is a reading"),
        ([], {}, "no row is a reading"),
        (NO_NUMBERS, {"roster": None, "group_by": None, "readings": ONE}, "no row is a reading"),
        (TEN_YEARS_ON, {"roster": None, "group_by": None}, "of 192 that were read: 192 before or after the windows"),
    ],
    ids=["ten years off", "not in the roster", "no numbers", "no rows", "constant", "roster of the data"],
)
def test_a_run_without_counted_readings_records_nothing_and_can_be_repeated(
    tmp_path: Path, rows: list[Any], changes: dict[str, Any], said: str
) -> None:
    made = job(tmp_path, rows, **changes)
    call("run", made.settings).ended(
        5,
        "no reading counts in any window of any series",
        "no window was charged or published",
        said,
        "run with --even-if-empty",
    )
    assert not made.sink.exists()
    assert domains(made) == ()
    # what was wrong can be mended: nothing of it was frozen
    write_csv(made.folder / "readings.csv", readings(2))
    change(
        made, states={"edges": [300], "unit": "W"}, windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-03"}
    )
    assert call("run", made.settings).code == 0


@pytest.mark.night
def test_a_delimiter_that_joins_all_columns_to_one_charges_nothing(tmp_path: Path) -> None:
    made = job(tmp_path, source={"csv": "readings.csv", "delimiter": ";"})
    assert call("run", made.settings).code in {2, 5}
    assert not made.ledger.exists() or domains(made) == ()
    made = job(tmp_path, source={"csv": "readings.csv", "delimiter": ";"})
    # a header that fits, and rows that do not
    write_csv(made.folder / "readings.csv", readings(2), header="meter;ts;kwh")
    call("run", made.settings).ended(5, "no row is a reading")
    assert domains(made) == ()


@pytest.mark.night
def test_a_run_with_one_counted_reading_publishes(tmp_path: Path) -> None:
    made = job(tmp_path, [*TEN_YEARS_ON, readings(1, FEW)[0]])
    assert call("run", made.settings).code == 0
    assert sum(row.total or 0 for row in made.rows()) == 1


@pytest.mark.night
def test_recorded_rows_are_published_from_an_emptied_source(copy: Job) -> None:
    first = copy.sink.read_bytes()
    write_csv(copy.folder / "readings.csv", [])
    call("run", copy.settings).ended(0)
    assert copy.sink.read_bytes() == first
    # a later end would be charged
    change(copy, windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-10"})
    call("run", copy.settings).ended(5)
    with Store(f"sqlite:///{copy.ledger}", create=True) as store:
        assert len(present(store.registered("streets", "daily")).query.schedule) == 7
        assert store.summary("streets").events == ()


@pytest.mark.night
def test_windows_charged_but_not_published_are_not_drawn_without_readings(tmp_path: Path) -> None:
    made = job(tmp_path, [])
    histograms = PrivateHistograms(read_settings(made.settings))
    registration = register(histograms.plan)
    begun = drafts(histograms, registration)
    with Store(histograms.plan.address, create=True) as store:
        store.publish(registration, begun[:1])
        before = len(store.entries())
        assert call("run", made.settings).code == 5
        assert len(store.entries()) == before
        assert len(list(store.records("streets", "daily"))) == 1
