"""The noise beside the counts: how it is computed, what is offered, and where a job stops for it."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Accepted, Settings
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.calibrating import stand_in
from quiltstream.transforms.checks import (
    HopelessNoise,
    check_belief,
    check_error,
    error_shares,
    remedies,
)
from quiltstream.transforms.plan import make_plan
from quiltstream.transforms.registration import register

from .sources.feed import feed
from .test_histograms import EMPTY, batches, settings

HOMES = [f"m{number:02}" for number in range(1, 13)]


def roster(folder: Path, groups: dict[str, str]) -> str:
    path = folder / f"roster-{len(set(groups.values()))}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("series", "street"), *groups.items()])
    return str(path)


def hopeless(folder: Path, **changes: Any) -> Settings:
    """A job of twelve homes on three streets, one of which has two."""
    streets = {home: "abc"[0 if at < 2 else 1 + at % 2] for at, home in enumerate(HOMES)}
    given: dict[str, Any] = {
        "windows": {"size": "1d", "start": "2013-01-01", "stop": "2013-12-31"},
        "roster": roster(folder, streets),
        "group_by": "street",
        "most_error": 0.5,
    }
    return settings(folder, **given | changes)


def worst(job: Settings) -> float:
    return float(error_shares(make_plan(job)).max())


def test_a_share_is_the_mean_error_over_the_cells_of_a_bin(tmp_path: Path) -> None:
    plan = make_plan(hopeless(tmp_path))
    noise = plan.noisy.mean_abs
    assert error_shares(plan) == pytest.approx(noise / (48 * np.array([2, 5, 5]) / 5))


def test_without_a_roster_a_histogram_has_the_slots_of_one_series(tmp_path: Path) -> None:
    plan = make_plan(hopeless(tmp_path, roster=None, group_by=None))
    assert error_shares(plan) == pytest.approx([plan.noisy.mean_abs / (48 / 5)])


def test_every_offer_has_the_error_of_the_settings_that_it_names(tmp_path: Path) -> None:
    """The oracle is the same computation for settings that were changed by hand as the offer says."""
    found = {one.text: one.share for one in remedies(make_plan(hopeless(tmp_path)))}
    one_group = roster(tmp_path, dict.fromkeys(HOMES, "all"))
    assert found.pop("a roster with all 12 series in one group") == pytest.approx(
        worst(hopeless(tmp_path, roster=one_group))
    )
    longer = next(text for text in found if text.startswith("windows.size: "))
    windows = {"size": longer.removeprefix("windows.size: "), "start": "2013-01-01", "stop": "2013-12-31"}
    share = found.pop(longer)
    assert share == pytest.approx(worst(hopeless(tmp_path, windows=windows)))
    assert share <= 0.5
    coarse = found.pop("bins: [1000], 2 counts instead of 5")
    assert coarse == pytest.approx(worst(hopeless(tmp_path, bins=[1000])))
    mechanism = {"epsilon": 1.0, "mechanism": "forward-backward"}
    assert found.pop("privacy.mechanism: forward-backward") == pytest.approx(
        worst(hopeless(tmp_path, privacy=mechanism))
    )
    london = {"model": "london", "privacy": mechanism}
    offered = {text.rpartition(" and ")[2] if " and " in text else "": share for text, share in found.items()}
    assert offered.pop("") == pytest.approx(worst(hopeless(tmp_path, **london)))
    assert offered.pop("bins: [1000], 2 counts instead of 5") == pytest.approx(
        worst(hopeless(tmp_path, bins=[1000], **london))
    )
    for text, share in offered.items():
        size = {**windows, "size": text.removeprefix("windows.size: ")}
        assert share == pytest.approx(worst(hopeless(tmp_path, windows=size, **london)))


@pytest.mark.parametrize("weeks", [45, 46, 47])
def test_longer_windows_leave_none_of_the_schedule_out(tmp_path: Path, weeks: int) -> None:
    windows = {"size": "1w", "start": "2013-01-01", "stop": str(dt.date(2013, 1, 1) + dt.timedelta(weeks=weeks))}
    found = [one.text for one in remedies(make_plan(hopeless(tmp_path, windows=windows, roster=None, group_by=None)))]
    (longer,) = (text for text in found if text.startswith("windows.size: "))
    assert weeks % int(longer.removeprefix("windows.size: ").removesuffix("w")) == 0


def test_a_belief_of_the_package_says_the_error_of_its_own_slots(tmp_path: Path) -> None:
    """The oracle is the plan of the settings that `init --model london` writes: half-hours of a home of minutes."""
    windows = {"size": "14d", "start": "2013-01-01", "stop": "2013-01-15"}
    single: dict[str, Any] = {"roster": None, "group_by": None, "windows": windows}
    slots = {"interval": "1min", "origin": "2013-01-01"}
    minutes = make_plan(hopeless(tmp_path, slots=slots, model="stand-in", **single))
    found = {one.text: one.share for one in remedies(minutes)}
    init = "`quiltstream init DATA --model london --force`"
    text = next(text for text in found if text.startswith(f"{init}, if"))
    assert "if the series forgets as fast as 55 of its 60 do" in text
    mechanism = {"epsilon": 1.0, "mechanism": "forward-backward"}
    own = hopeless(tmp_path, model="london", privacy=mechanism, **single)
    assert found[text] == pytest.approx(worst(own))
    assert make_plan(own).model.provenance.odds == pytest.approx(55 / 61)


def test_a_job_stops_when_it_begins_and_makes_no_ledger(tmp_path: Path) -> None:
    """The graph is built without a look at what is on record."""
    job = hopeless(tmp_path)
    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | feed(tmp_path, batches(EMPTY, 1)) | PrivateHistograms(job)
    with pytest.raises(HopelessNoise, match=r"most_error is 0\.5"):
        pipeline.run()
    assert not (tmp_path / "ledger.db").exists()


def test_a_registered_query_above_the_error_limit_continues_and_a_new_one_fails(tmp_path: Path) -> None:
    register(make_plan(hopeless(tmp_path, most_error=1e6)))
    check_error(make_plan(hopeless(tmp_path)))
    with pytest.raises(HopelessNoise):
        check_error(make_plan(hopeless(tmp_path, query="another")))
    check_error(make_plan(hopeless(tmp_path, query="another").accepting(Accepted(noise=True))))


def test_a_stand_in_belief_is_refused_until_accepted(tmp_path: Path) -> None:
    plan = make_plan(settings(tmp_path, model="stand-in"))
    with pytest.raises(SettingsError, match="model is stand-in: its bounds are made of"):
        check_belief(plan)
    assert plan.model.provenance.text == "stand-in: not fitted to any data"
    check_belief(make_plan(settings(tmp_path, model="stand-in").accepting(Accepted(stand_in=True))))
    check_belief(PrivateHistograms(settings(tmp_path, model="stand-in"), accept_stand_in=True).plan)


def test_a_stand_in_belief_mixes_less_between_closer_slots() -> None:
    """Thirty slots of a minute forget what one of half an hour does: P^30, and its eigenvalues to the 30th."""
    half_hour, minute = stand_in(1_800_000_000, 5).gap, stand_in(60_000_000, 5).gap
    assert (1 - minute) ** 30 == pytest.approx(1 - half_hour)
    assert stand_in(86_400_000_000, 5).gap == half_hour
    assert stand_in(60_000_000, 1000).pi_min < 1 / 1000
