"""``quiltstream init``: what it guesses, and that what it writes runs."""

from __future__ import annotations

import datetime as dt
import json
import shlex
import shutil
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from quiltstream.pipelines import data
from quiltstream.schemas.settings.job import read_settings

from ...present import present
from ..jobs import START, Row, call, fork, readings, write_as, write_csv

#: What a run of settings as `init` writes them must be told: one histogram a series, and no fitted belief.
ACCEPTED = "--accept-stand-in", "--accept-noise"


@pytest.mark.night
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "avro"])
def test_settings_from_a_file_of_each_format_run(tmp_path: Path, form: str) -> None:
    path = write_as(form, tmp_path / f"load.{form}", readings(days=3, homes=["m1", "m2"]))
    call("init", path, "-o", tmp_path / "settings.yaml").ended(0)
    settings = read_settings(tmp_path / "settings.yaml")
    assert settings.readings is not None
    assert (settings.readings.series, settings.readings.time, settings.readings.value) == ("meter", "ts", "kwh")
    assert (settings.slots.interval, settings.readings.scale) == ("30min", 2000)
    assert len(settings.schedule) == 3
    assert settings.privacy.mechanism == "forward-backward"
    dry = call("run", "--dry-run", "--all", tmp_path / "settings.yaml")
    assert dry.said("THE BELIEF IS A STAND-IN")
    call("run", *ACCEPTED, tmp_path / "settings.yaml").ended(
        0, "3 newly on record, 0 on record before, of 3", "288 in the schedule"
    )


@pytest.mark.parametrize(
    ("name", "model", "said"),
    [
        ("house_power_1min_2weeks.csv", "london", ""),
        ("house_hourly_dst.csv", "london", "its slots are 30min, and the readings are 1h apart"),
        ("house_power_1min_2weeks.csv", "nhanes", "its states are in counts, and the values are W"),
    ],
)
def test_one_meter_has_a_model_of_others_that_a_run_takes(tmp_path: Path, name: str, model: str, said: str) -> None:
    settings = tmp_path / "settings.yaml"
    call("init", data.path(name), "--model", model, "-o", settings).ended(2 if said else 0, said)
    if not said:
        forecast = json.loads(call("run", "--dry-run", "--json", settings).ended(0).out)
        assert forecast["median_share"] < 0.2  # in two bins
        assert not forecast["stand_in"]


def test_a_wearer_s_belief_says_that_it_is_weak(tmp_path: Path) -> None:
    begin, settings = dt.datetime(2024, 3, 1, tzinfo=dt.UTC), tmp_path / "settings.yaml"
    lines = (f"{begin + dt.timedelta(minutes=at):%Y-%m-%dT%H:%MZ},{at * at % 301}" for at in range(3 * 1440))
    (tmp_path / "wrist.csv").write_text("\n".join(["time,counts", *lines]), encoding="utf-8")
    for words in ((), ("--model", "nhanes")):
        call("init", tmp_path / "wrist.csv", *words, "-o", settings, "--force").ended(0)
        assert "2 of its 25 series lose at most epsilon 1" in settings.read_text(encoding="utf-8")


def test_a_belief_of_the_package_is_advised_where_it_fits_by_a_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(data.path("house_power_1min_2weeks.csv"), "house.csv")
    call("init", "house.csv").ended(0)
    text, again = Path("settings.yaml").read_text(encoding="utf-8"), "quiltstream init DATA --model london --force"
    assert f"#   {again.replace('DATA', 'house.csv')}\n" in text
    for words in (("run", "--dry-run"), ("run",)):
        call(*words, "settings.yaml").ended(2, "london").hid("--hold-out", "--exclude")
    call("run", "--dry-run", "settings.yaml").ended(2, f"`{again}`")
    bounds = text.replace("model: stand-in", "model: {pi_min: 0.02, gap: 0.3}")
    Path("bounds.yaml").write_text(bounds, encoding="utf-8")
    call("run", "--dry-run", "--accept-noise", "bounds.yaml").ended(0)
    Path("settings.yaml").write_text(text.replace("model: stand-in", "model: london"), encoding="utf-8")
    call("run", "settings.yaml").ended(2, "slots.interval is 1min", f"`{again}`")
    call(*again.replace("DATA", "house.csv").split()[1:]).ended(0)
    call("run", "--dry-run", "settings.yaml").ended(0)


def test_no_belief_is_advised_where_none_of_the_package_fits(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    call("init", data.path("house_hourly_dst.csv"), "-o", settings).ended(0)
    run = call("run", settings).ended(2, "for this unit and interval no belief comes with the package")
    dry = call("run", "--dry-run", settings).ended(2, "none of these is enough: publish a group of series")
    assert len(dry.out.splitlines()) <= 20
    for text in (run.err, dry.out, settings.read_text(encoding="utf-8")):
        assert "--model" not in text


def test_few_homes_are_told_of_a_belief_of_others_and_a_fit_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("load.csv"), readings(days=14, homes=["m1", "m2", "m3", "m4"]))
    call("init", "load.csv").ended(0, "then take a belief of others: quiltstream init load.csv --model london --force")
    call("fit", "settings.yaml", "--cover", "0.5").ended(
        0, "settings.yaml names model: stand-in; write `model: model.json`"
    )


def test_a_history_is_held_out_of_the_roster_and_check_sounds_no_alarm_for_it(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "load.csv", readings(days=3, homes=["m1", "m2", "m3", "m4"]))
    settings, roster = tmp_path / "settings.yaml", tmp_path / "roster.csv"
    call("init", path, "-o", settings).ended(0)
    call("fit", settings, "--exclude", roster, "-o", tmp_path / "m.json").ended(2, "--hold-out 0.5")
    call("init", path, "--hold-out", "0.5", "-o", settings, "--force").ended(0, "2 series, the history of the model")
    assert roster.read_text(encoding="utf-8").split() == ["series,group", "m1,all", "m3,all"]
    assert json.loads(call("check", settings, "--json").ended(0).out)["not_in_roster"] == 2 * 3 * 48
    assert not call("check", settings).said("of series that the roster does not have")


@pytest.mark.night
@pytest.mark.parametrize(
    ("name", "series", "time", "value", "interval", "scale"),
    [
        ("households_halfhourly_3weeks.csv", "household", "ts", "kwh", "30min", 2000),
        ("house_power_1min_2weeks.csv", None, "ts", "power_w", "1min", 1),
        ("house_hourly_dst.csv", None, ["date", "hour"], "energy_kWh", "1h", 1000),
        ("lcl2013_halfhourly_60hh.parquet", "household", "ts", "kwh", "30min", 2000),
    ],
)
def test_columns_interval_and_unit_of_the_shipped_data_are_guessed(
    tmp_path: Path, name: str, series: str | None, time: str | list[str], value: str, interval: str, scale: float
) -> None:
    call("init", data.path(name), "-o", tmp_path / "settings.yaml").ended(0)
    settings = read_settings(tmp_path / "settings.yaml")
    readings_ = present(settings.readings)
    named = readings_.series if isinstance(readings_.series, str) else None
    assert (named, readings_.time, readings_.value) == (series, time, value)
    assert (settings.slots.interval, readings_.scale) == (interval, scale)


def test_classes_of_slots_and_coarser_bins_are_offered_and_hold(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    assert call("init", data.path("households_halfhourly_3weeks.csv"), "-o", path).code == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("# by: hour", "by: hour").replace("# bins:", "bins:"), encoding="utf-8")
    settings = read_settings(path)
    assert settings.by == "hour"
    assert settings.bins == [1000]


SWAPPED = [*range(9_000, 9_060), *range(36)]  # a new meter after sixty half-hours
IDLE = [100 + slot // 8 for slot in range(96)]  # it rises eleven times
WAVE = [slot % 7 for slot in range(96)]
STAGES = [slot // 33 for slot in range(96)]
FALLEN = [*(20 + slot for slot in range(95)), 0]


@pytest.mark.parametrize(
    ("series", "is_counter"),
    [
        ([SWAPPED, SWAPPED], True),
        ([IDLE] * 3, True),
        ([*[SWAPPED] * 9, WAVE], True),
        ([*[SWAPPED] * 8, WAVE], False),
        ([IDLE, IDLE, [7] * 96], False),
        ([STAGES] * 20, False),
        ([[1, *WAVE]], False),
        ([[*range(1000, 904, -1)]], False),
        ([[*FALLEN[:-1], 50]], False),
    ],
)
def test_counters_are_judged_by_each_series(tmp_path: Path, series: list[list[int]], is_counter: bool) -> None:
    stamps = [(START + slot * dt.timedelta(minutes=30)).isoformat() for slot in range(97)]
    rows: list[Row] = [(f"m{at}", stamps[slot], value) for at, of in enumerate(series) for slot, value in enumerate(of)]
    path = write_csv(tmp_path / "x.csv", rows, header="meter,time,level")
    assert call("init", path, "-o", tmp_path / "s.yaml").ended(0).said("read as a meter's counter") == is_counter


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("x.xls", b"", 2, "name it with one of the endings"),
        ("x.csv", b"", 5, "x.csv: it is empty"),
        ("x.csv", b"\n\n", 5, "x.csv: it is empty"),
        ("x.csv", b"\x91\x00secret,\xff\n1\n2,3,4\n", 5, "its first line is not a line of text"),
        ("x.csv", b"a,b\n", 5, "no rows to look at"),
        ("x.csv", b"# secret\nmeter,time,kwh\nm,2024-01-01,1\n", 2, "two readings at different times"),
        ("x.csv", b"secret, 1\nm;t;kwh\nm;2024-01-01;1.5\n", 2, "two readings at different times"),
        ("x.csv", b"a,b\n1,2,secret\n", 5, "no rows to look at"),
        ("x.csv", b'a,b\n"1,2\n3,"4\n', 5, "no rows to look at"),
        ("x.parquet", b"PAR1 not really", 5, "is not a whole Parquet file"),
        ("x.avro", b"Obj", 5, "is not a whole Avro file"),
        ("x.jsonl", b"{", 5, "it has no rows to look at"),
        ("x.csv", b"a,b\n1,2\n", 2, "looks like a time, and without one a row is in no window: where rows follow"),
        ("x.csv", b"time,b\n2024-01-01,secret\n2024-01-02,secret\n", 2, "holds numbers to measure"),
        ("x.csv", b"time,b\n2024-01-01,1\n", 2, "two readings at different times"),
        *((f"x.{one}", None, 5, "there is no such file") for one in ("csv", "parquet", "jsonl", "avro")),
    ],
)
def test_an_unreadable_file_is_reported_without_its_data(
    tmp_path: Path, name: str, content: bytes | None, code: int, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    call("init", tmp_path / name, "-o", tmp_path / "settings.yaml").ended(code, message).hid("secret")
    assert not (tmp_path / "settings.yaml").exists()


def test_a_line_that_is_not_text_is_never_printed(tmp_path: Path) -> None:
    rows = readings(days=2, homes=["m1"])
    lines = [b"meter,ts,kwh", *(f"{m},{t},{v}".encode() for m, t, v in rows)]
    lines[5:5] = [b"secret\x91\xff,too,many,columns", b"m\x91,2024-03-01T01:00:00+00:00,0.5"]
    (tmp_path / "x.csv").write_bytes(b"\n".join(lines))
    done = fork("init", "x.csv", "-o", "settings.yaml", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.said("column meter, 1 seen")


def test_a_guess_of_day_and_month_is_told(tmp_path: Path) -> None:
    lines = [f"m,{day:02}/02/2024 {hour:02}:00,1.5" for day in range(1, 12) for hour in range(24)]
    (tmp_path / "x.csv").write_text("\n".join(["meter,time,kwh", *lines]), encoding="utf-8")
    call("init", tmp_path / "x.csv", "-o", tmp_path / "s.yaml").ended(0, "%m/%d/%Y %H:%M reads the times too")
    assert "# A GUESS: %m/%d/%Y %H:%M" in (tmp_path / "s.yaml").read_text(encoding="utf-8")


@pytest.mark.night
@pytest.mark.parametrize(("homes", "cover"), [(3, "0.5"), (5, "0.66"), (16, "0.88"), (22, "0.9")])
def test_the_printed_cover_is_the_largest_that_a_short_history_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, homes: int, cover: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("load.csv"), readings(days=14, homes=[f"m{number}" for number in range(homes)]))
    done = call("init", "load.csv", "--hold-out", "0.5").ended(0)
    command = f"quiltstream fit settings.yaml --cover {cover} --exclude roster.csv"
    assert done.said(f"Read it, then: quiltstream check settings.yaml and then: {command}")
    assert Path("settings.yaml").read_text(encoding="utf-8").count(f"#   {command}") == 2
    assert done.said(f"{homes // 2}/{homes // 2 + 1} at most") == (cover != "0.9")
    call(*shlex.split(command)[1:]).ended(0)
    call("run", "--dry-run", "--accept-cover", "--accept-noise", "settings.yaml").ended(0)
    more = call("fit", "settings.yaml", "--exclude", "roster.csv", "--cover", f"{float(cover) + 0.01:g}")
    assert (more.code == 2) == (cover != "0.9")
    assert more.said(f"the largest for this history is --cover {cover};") == (cover != "0.9")


@pytest.mark.night
def test_without_a_history_the_command_that_holds_one_out_is_named_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("my load.csv"), readings(days=14, homes=[f"m{number}" for number in range(8)]))
    done = call("init", "my load.csv", "-o", "own/other.yaml", "--timezone", "Europe/Berlin")
    more = "--hold-out 0.5 --force -o {}other.yaml --timezone Europe/Berlin"
    command = f"quiltstream init 'my load.csv' {more.format('own/')}"
    assert done.said("Read it, then: quiltstream check own/other.yaml")
    assert done.said(f"and then hold a history for its model out: {command}")
    text = Path("own/other.yaml").read_text(encoding="utf-8")
    inside = f"#   quiltstream init '../my load.csv' {more.format('')}"
    assert text.count(inside) == 2
    assert "quiltstream fit" not in text
    assert call(*shlex.split(command)[1:]).said(
        "quiltstream fit own/other.yaml --cover 0.8 --exclude own/other-roster.csv"
    )
    monkeypatch.chdir("own")
    assert call(*shlex.split(inside)[2:]).code == 0


def test_files_that_are_not_looked_into_and_columns_of_a_wide_table_are_said(tmp_path: Path) -> None:
    (tmp_path / "homes").mkdir()
    for at in range(42):
        rows = [f"{stamp},{value}\n" for _, stamp, value in readings(days=1, homes=["x"])]
        (tmp_path / "homes" / f"h{at:02}.csv").write_text("ts,kwh\n" + "".join(rows), encoding="utf-8")
    clocks = [f"{at // 2:02}:{at % 2 * 30:02}" for at in range(48)]
    wide = [",".join(["meter", "date", *clocks])]
    wide += [",".join([f"m{m}", f"2024-03-{d:02}", *(f"{(at * m) % 7 / 10}" for at in range(48))])
             for m in (1, 2, 3) for d in range(1, 15)]  # fmt: skip
    (tmp_path / "wide.csv").write_text("\n".join(wide) + "\n", encoding="utf-8")
    call("init", tmp_path / "homes", "-o", tmp_path / "a" / "settings.yaml").ended(0, "42 files, 40 looked into")
    done = call("init", tmp_path / "wide.csv", "-o", tmp_path / "b" / "settings.yaml").ended(0)
    assert done.said("of which unit are the 48 columns from 00:00 on?")


@pytest.mark.night
@pytest.mark.parametrize("stem", ["2024-01-15", "2024", "0x10", "1e3", "1_000", "no", "null"])
def test_a_file_named_as_a_day_a_number_or_a_word_of_yaml_is_described(tmp_path: Path, stem: str) -> None:
    path = write_csv(tmp_path / f"{stem}.csv", readings(days=2, homes=["m1"]))
    call("init", path, "-o", tmp_path / "settings.yaml").ended(0)
    settings, name = read_settings(tmp_path / "settings.yaml"), stem.replace("_", "-")
    assert (settings.domain, settings.query) == (name, f"{name}-histogram")
    assert present(settings.sink).parquet == f"{name}-releases.parquet"


@pytest.mark.parametrize(
    ("homes", "share", "said"),
    [
        (["m1", "m2"], "0.1", "of 2 series that leaves 0 for the history and 2 to publish"),
        (["m1"], "0.5", "the data are one series"),
        (["m1", "m2"], "1", "is not in the range 0<=x<1"),
    ],
)
def test_a_share_to_hold_out_that_leaves_nothing_of_one_kind_is_refused(
    tmp_path: Path, homes: list[str], share: str, said: str
) -> None:
    path = write_csv(tmp_path / "load.csv", readings(days=3, homes=homes))
    done = call("init", path, "--hold-out", share, "-o", tmp_path / "settings.yaml").ended(2)
    assert said in " ".join(done.err.split())
    assert not (tmp_path / "settings.yaml").exists()


def stages(path: Path, *, offset: str = "") -> Path:
    """A fortnight of stages of sleep of two people, in half-hours, over a change of clocks; and a pulse."""
    zone, lines = ZoneInfo("Europe/Berlin"), ["Proband;Beginn;Ende;Stadium;Puls"]
    begin = dt.datetime(2024, 3, 24, tzinfo=zone).astimezone(dt.UTC)
    slots = (14 * 24 - 1) * 2  # one of the days has 23 hours
    for person in ("P1", "P2"):
        for slot in range(slots):
            start = begin + slot * dt.timedelta(minutes=30)
            texts = [
                f"{time:%Y-%m-%dT%H:%M}{offset}" if offset else f"{time.astimezone(zone):%d.%m.%Y %H:%M}"
                for time in (start, start + dt.timedelta(minutes=30))
            ]
            lines.append(";".join([person, *texts, ("Wach", "Leicht", "Tief")[slot // 5 % 3], f"{55 + slot % 9},5"]))
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")
    return path


@pytest.mark.night
@pytest.mark.parametrize("offset", ["", "Z"])
def test_a_zone_makes_the_windows_days_of_its_calendar(tmp_path: Path, offset: str) -> None:
    path = stages(tmp_path / "schlaf.csv", offset=offset)
    done = call("init", path, "-o", tmp_path / "settings.yaml", "--timezone", "Europe/Berlin").ended(
        0, "windows 14 days"
    )
    assert done.said("days are of Europe/Berlin") or done.said("and days, are of Europe/Berlin")
    text = (tmp_path / "settings.yaml").read_text(encoding="utf-8").replace("edges: ???", "edges: [60]")
    (tmp_path / "settings.yaml").write_text(text, encoding="utf-8")
    settings = read_settings(tmp_path / "settings.yaml")
    assert (settings.slots.timezone, settings.windows.size, len(settings.schedule)) == ("Europe/Berlin", "day", 14)
    dry = call("run", "--dry-run", tmp_path / "settings.yaml")
    assert dry.said("14 days of Europe/Berlin (46 to 48 slots)")
    assert dry.said("2024-03-24 to 2024-04-07")
    assert not dry.said("fill no window")


def local_night(path: Path, *clocks: str, wide: bool = False) -> Path:
    """Three days of two meters by a clock that is set back on the second, on which it shows ``clocks``."""
    nights = [("2024-10-26", "00 01 02 03 04"), ("2024-10-27", " ".join(clocks)), ("2024-10-28", "00 01 02 03 04")]
    stamps = [f"{day} {clock}{'' if ':' in clock else ':00'}" for day, shown in nights for clock in shown.split()]
    if wide:
        lines = ["time,m1,m2,m3", *(f"{stamp},0.1,0.2,0.{at % 9}" for at, stamp in enumerate(stamps))]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path
    return write_csv(path, [(m, stamp, 0.1 * (at * 4 % 9)) for m in ("m1", "m2") for at, stamp in enumerate(stamps)])


@pytest.mark.night
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("clocks", "in_order"),
    [
        ("00 01 02 02 03 04", True),
        ("00 00:30 01 01:30 02 02:30 02 02:30 03 03:30 04", True),
        ("00 00:30 01 01:30 02 02:30 02:30 03 03:30 04", False),  # a row that stands twice
        ("00 01 02 03 03 04", False),  # not the hour of this zone
        ("00 01 02 02 01 03 04", False),  # not in order
        ("00 01 02 03 04", False),
    ],
)
def test_the_order_of_rows_tells_a_doubled_hour_apart(tmp_path: Path, clocks: str, in_order: bool, wide: bool) -> None:
    path = local_night(tmp_path / "x_kwh.csv", clocks, wide=wide)
    done = call("init", path, "-o", tmp_path / "settings.yaml", "--timezone", "Europe/Berlin").ended(0)
    written = tmp_path / "settings.yaml"
    text = written.read_text(encoding="utf-8").replace("hold: ???", "hold: null").replace("of: ???", "of: last")
    written.write_text(text, encoding="utf-8")
    made = present(read_settings(written).readings)
    assert (made.ambiguous == "in-order") == in_order == done.said("told apart by the order of rows")
    found = json.loads(call("check", "--json", tmp_path / "settings.yaml").out)
    assert not in_order or found["contradicting"] == 0


@pytest.mark.night
def test_local_times_are_noticed_without_a_zone_and_read_as_utc(tmp_path: Path) -> None:
    path = local_night(tmp_path / "x_kwh.csv", "00 01 02 02 03 04")
    done = call("init", path, "-o", tmp_path / "settings.yaml")
    said = (
        "the hour from 2024-10-27T02:00:00Z of a Sunday has times twice, as where a clock is set back, in 2 of 2 series"
    )
    hint = "if the data have local times, set {} to their zone, such as Europe/Berlin"
    assert done.said("times without an offset are read as UTC")
    assert present(read_settings(tmp_path / "settings.yaml").readings).ambiguous == "earliest"
    assert call("check", tmp_path / "settings.yaml").said(f"{said}: {hint.format('slots.timezone')}, not UTC")


def test_weeks_of_a_zone_begin_on_mondays(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "load.csv", readings(days=24, homes=["m1"]))  # from 2024-03-01, a Friday
    call("init", path, "-o", tmp_path / "settings.yaml", "--timezone", "Europe/London").ended(0)
    settings = read_settings(tmp_path / "settings.yaml")
    assert (settings.windows.size, str(settings.windows.start), len(settings.schedule)) == ("week", "2024-03-04", 3)


def test_an_unknown_time_zone_is_refused_with_its_name(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "load.csv", readings(days=2, homes=["m1"]))
    call("init", path, "-o", tmp_path / "settings.yaml", "--timezone", "Europe/Atlantis").ended(
        2, "--timezone: timezone 'Europe/Atlantis' is unknown"
    )
    assert not (tmp_path / "settings.yaml").exists()
