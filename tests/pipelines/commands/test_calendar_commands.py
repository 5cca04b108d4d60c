"""What the commands that read no data say of windows by the calendar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiltstream.pipelines.commands.dry_run import cautions, forecast
from quiltstream.pipelines.commands.plan import Options, of_settings
from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.privacy.models.serialisation import belief_from_dict
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.transforms.plan import make_plan

from ..jobs import call, job

ZONE = {"interval": "30min", "origin": "2024-03-01T00:00Z", "timezone": "America/New_York"}


def made(folder: Path, **windows: Any) -> Settings:
    given = {"size": "day", "start": "2024-03-01", "stop": "2024-04-01"} | windows
    return read_settings(job(folder, [], slots=ZONE, windows=given).settings)


def test_the_dry_run_prints_calendar_days_and_their_start(tmp_path: Path) -> None:
    settings = made(tmp_path)
    plan = make_plan(settings)
    said = forecast(settings, plan).schedule
    assert (said.windows, said.size, said.every, said.slots) == (31, "day", "day", 50)
    assert (said.first, said.last) == ("2024-03-01T05:00:00Z", "2024-04-01T04:00:00Z")
    assert cautions(settings, plan, endless=True) == ()
    longer = made(tmp_path, stop="2024-04-01T03:00")
    (rest,) = cautions(longer, make_plan(longer), endless=True)
    assert "the last 3h before it make no whole window" in rest
    assert "always has" not in rest


def test_days_lose_as_much_as_the_month_that_they_fill(tmp_path: Path) -> None:
    days = forecast(made(tmp_path), make_plan(made(tmp_path)))
    month = forecast(made(tmp_path, size="month"), make_plan(made(tmp_path, size="month")))
    assert (days.schedule.windows, month.schedule.windows) == (31, 1)
    assert days.cost.loss == month.cost.loss > 0


def test_months_with_noise_by_length_are_listed_one_by_one(tmp_path: Path) -> None:
    window = {"epsilon": 1.0, "guarantee": "window", "mechanism": "group-dp", "budget": 40.0}
    months = {"size": "month", "start": "2023-01-01", "stop": "2024-01-01"}
    path = job(tmp_path, [], slots=ZONE, windows=months, privacy=window).settings
    settings = read_settings(path)
    said = forecast(settings, plan := make_plan(settings))
    assert [one.slots for one in said.noise.by_length] == [28 * 48, 30 * 48, 30 * 48 + 2, 31 * 48 - 2, 31 * 48]
    assert [one.sigma for one in said.noise.by_length] == [one.slots for one in said.noise.by_length]
    assert (said.noise.sigma, said.noise.scale) == (said.noise.by_length[-1].sigma, said.noise.by_length[-1].scale)
    assert [one.half_width_95 for one in said.noise.by_length] == [
        plan.of_length(one.slots).noisy.half_width(0.95) for one in said.noise.by_length
    ]
    ledger = Ledger(belief_from_dict(plan.domain.belief))
    spans = [(one.start, one.stop, plan.of_length(len(one)).noisy.epsilon_dp) for one in settings.schedule.windows()]
    assert said.cost.loss == pytest.approx(ledger.loss_of(spans), rel=1e-12)
    printed = call("run", "--dry-run", path)
    assert printed.said("by length")
    assert printed.said("1,344 slots (4w): scale ")
    notes = of_settings(path, Options()).notes
    assert any("by length sigma is 1344 to 1488" in note for note in notes)


def test_a_plan_of_days_keeps_them_and_is_for_the_longest(tmp_path: Path) -> None:
    made(tmp_path)
    subject = of_settings(tmp_path / "settings.yaml", Options())
    assert subject.purpose.window == 50
    assert any("a day has no one length: planned for the longest, 25h" in note for note in subject.notes)
