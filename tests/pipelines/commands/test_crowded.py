"""A slot with several readings is a question where the settings do not say what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ..jobs import call

MINUTES = [f"h,2024-01-01T{at // 60:02}:{at % 60:02}:00Z,{at % 7}\n" for at in range(600)]
HALF_HOURS = [line for at, line in enumerate(MINUTES) if at % 30 == 0]


def job(folder: Path, rows: list[str], slots: dict[str, Any], **more: Any) -> Path:
    (folder / "x.csv").write_text("home,ts,w\n" + "".join(rows), encoding="utf-8")
    whole = {
        "source": {"csv": "x.csv"},
        "readings": {"series": "home", "time": "ts", "value": "w"} | more,
        "slots": {"interval": "30min"} | slots,
        "states": {"edges": [2, 4]},
        "model": {"pi_min": 0.1, "gap": 0.5},
        "windows": {"size": "5h"},
        "privacy": {"epsilon": 2, "mechanism": "forward-backward"},
        "ledger": "sqlite:///ledger.db",
        "sink": {"jsonl": "out.jsonl"},
        "query": "q",
        "domain": "d",
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    return folder / "settings.yaml"


@pytest.mark.parametrize("command", [("check",), ("run", "--accept-noise")])
def test_minutes_under_half_hours_stop_before_anything_is_charged(tmp_path: Path, command: tuple[str, ...]) -> None:
    call(*command, job(tmp_path, MINUTES, {})).ended(2, "slots.of")
    assert not (tmp_path / "ledger.db").exists()
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("rows", "slots", "more"),
    [
        (MINUTES, {"of": "last"}, {}),
        (MINUTES, {"of": "mean"}, {"length": "1min"}),
        (MINUTES, {"interval": "1min"}, {}),
        (HALF_HOURS, {}, {}),
        (HALF_HOURS * 2, {}, {}),  # the same stamps again: no other reading
        (HALF_HOURS + MINUTES[1:3], {}, {}),
    ],
)
def test_readings_that_the_settings_account_for_are_looked_at(
    tmp_path: Path, rows: list[str], slots: dict[str, Any], more: dict[str, Any]
) -> None:
    call("check", job(tmp_path, rows, slots, **more)).ended(0)


def test_the_stop_does_not_depend_on_values(tmp_path: Path) -> None:
    other = [line.rsplit(",", 1)[0] + ",9\n" for line in MINUTES]
    said = []
    for name, rows in (("a", MINUTES), ("b", other)):
        (tmp_path / name).mkdir()
        done = call("check", job(tmp_path / name, rows, {})).ended(2)
        said.append(done.err)
    assert said[0] == said[1]
