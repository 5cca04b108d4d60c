"""``init`` on layouts that meters really send: read right, or a question; what is open is refused by name."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ..jobs import START, call

CASES = Path(__file__).parents[2] / "readings" / "cases"

#: The words of `init` for a case, and the key that it leaves open; none where it is read right by `init` alone.
OF_CASES = {
    "blank_column_is_no_meter": ("consumption.csv --timezone Europe/London", None),
    "changes_only": ("history.csv", "readings.hold"),
    "dataid_is_no_value": ("15minute.csv --timezone America/Chicago --value grid", "readings.scale"),
    "end_column_is_no_meter": ("conso.csv --timezone Europe/Paris", None),
    "epochs_of_two_units": ("data.csv", None),
    "estimates_then_actuals": ("data.csv", "readings.select"),
    "excel_sep_line": ("data.csv", None),
    "flag_column_is_no_meter": ("data.csv", None),
    "green_button_mixed_durations": ("mixeddur.xml", "slots.of"),
    "hh1_to_hh48": ("hh.csv --timezone Europe/London", None),
    "home_assistant_wide_instants": ("energy.csv", None),
    "hours_1_to_24": ("datadis.csv", None),
    "hours_1_to_25": ("data.csv --timezone Europe/London", None),
    "intervals_differ_by_meter": ("data.csv", "readings.scale"),
    "ld2011_ends": ("LD2012.txt", "readings.stamps"),
    "line_of_units": ("log.csv", None),
    "nem12": ("nem12.csv", None),
    "net_register": ("data.csv", "readings.register"),
    "one_file_a_meter": ("in", None),
    "register_steps_back_by_one": ("data.csv", "readings.register"),
    "sentinels": ("data.csv", "readings.select"),
    "settlement_periods_long": ("sp.csv --timezone Europe/London", None),
    "stamps_3_ms_early": ("data.csv", None),
    "steps_over_intervals": ("steps.csv", "slots.of"),
    "ukdale_channel": ("channel_1.dat", "source.names"),
    "unit_changes_between_files": ("in", "readings.select"),
    "zone_letters": ("data.csv", None),
}


@pytest.mark.parametrize(("name", "given", "key"), [(name, *one) for name, one in OF_CASES.items()])
def test_a_layout_is_read_right_or_ends_in_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: str, key: str | None
) -> None:
    folder = shutil.copytree(CASES / name, tmp_path / "case")
    right = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    (folder / "settings.yaml").unlink()
    monkeypatch.chdir(folder)
    call("init", *given.split()).ended(0)
    text = (folder / "settings.yaml").read_text(encoding="utf-8")
    if key is not None:
        for command in ("check", "fit", "run"):
            call(command, "settings.yaml").ended(2, f"{key} is ???, an open question")
        return
    assert "???" not in text
    settings = yaml.safe_load(text) | {"states": {"edges": right["edges"], "unit": "W"}}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    found = json.loads(call("check", "settings.yaml", "--json").ended(0).out)
    bins = [round(share * found["readings"]) for share in found["bins"].values()]
    assert (found["series"], found["readings"], found["first"][:20], bins) == (
        right["series"],
        right["cells"],
        right["first"],
        right["bins"],
    )


HALF_HOURS = [START + slot * dt.timedelta(minutes=30) for slot in range(96)]


DAYS = [f"{at:%Y-%m-%dT%H:%M},{n % 5 / 4 + 0.25}" for n, at in enumerate(HALF_HOURS)]


@pytest.mark.night
def test_labels_are_printed_and_never_written(tmp_path: Path) -> None:
    rows = [f"p1,{row[:16]},{('sleep', 'sit')[n % 2]}" for n, row in enumerate(DAYS)]
    (tmp_path / "x.csv").write_text("\n".join(["person,time,stage", *rows]), encoding="utf-8")
    call("init", tmp_path / "x.csv", "--value", "stage", "-o", tmp_path / "settings.yaml").ended(0, "2: sit, sleep")
    text = (tmp_path / "settings.yaml").read_text(encoding="utf-8")
    assert "sleep" not in text
    (tmp_path / "settings.yaml").write_text(text.replace("???", "[sleep, sit]"), encoding="utf-8")
    bins = json.loads(call("check", "--json", tmp_path / "settings.yaml").ended(0).out)["bins"]
    assert bins == {"sleep": 0.5, "sit": 0.5}


def test_values_below_zero_have_an_edge_at_zero(tmp_path: Path) -> None:
    rows = [f"{row.split(',')[0]},{(n % 3 - 1) / 2}" for n, row in enumerate(DAYS)]
    (tmp_path / "x.csv").write_text("\n".join(["time,net_kw", *rows]), encoding="utf-8")
    call("init", tmp_path / "x.csv", "-o", tmp_path / "settings.yaml").ended(0, "33.3% of the values are below 0")
    assert yaml.safe_load((tmp_path / "settings.yaml").read_text(encoding="utf-8"))["states"]["edges"][0] == 0


def test_a_table_of_thousands_of_columns_is_looked_at_soon(tmp_path: Path) -> None:
    names, values = ",".join(f"home_{at}" for at in range(2000)), ",".join(["0.5"] * 2000)
    lines = [f"{at:%Y-%m-%dT%H:%M},{values}" for at in HALF_HOURS]
    (tmp_path / "kwh.csv").write_text("\n".join([f"time,{names}", *lines]), encoding="utf-8")
    begun = time.process_time()
    call("init", tmp_path / "kwh.csv", "-o", tmp_path / "settings.yaml").ended(0, "2,000 columns from home_0 on")
    assert time.process_time() - begun < 60, "by the square of the columns it would be minutes"


@pytest.mark.night
def test_without_duckdb_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("\n".join(["time,kwh", *DAYS]), encoding="utf-8")
    program = (
        "import sys; sys.modules['duckdb'] = None\nfrom quiltstream.pipelines.cli import main; main(['init', 'x.csv'])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "install quiltstream[sql]" in done.stderr) == (2, True)
