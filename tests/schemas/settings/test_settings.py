from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path

import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import EXAMPLE, Accepted, Settings, load_settings, read_settings

from ...present import present


def test_the_example_is_read():
    settings = load_settings(EXAMPLE)
    assert settings.grid.interval_us == 1_800_000_000
    assert settings.space.size == 5
    assert len(settings.schedule) == 52
    assert settings.budget == 2.0
    assert (present(settings.source).format, present(settings.source).patterns) == ("parquet", ("data/feeder.parquet",))
    assert present(settings.roster_file).group == "feeder"


def change(old: str, new: str) -> str:
    assert old in EXAMPLE
    return EXAMPLE.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML at line 1, column 5"),
        ("- 1", "a mapping of settings is expected"),
        (change("epsilon: 1.0", "epsilon: 0"), "privacy.epsilon is 0: input should be greater than 0; write what"),
        (change("2013-12-31", "2012-12-31"), "windows.stop 2012-12-31 is not after windows.start 2013-01-01"),
        (change("model.json", "{pi_min: 0, gap: 1}"), "model.pi_min is 0: input should be greater than 0"),
        (change("size: 7d", "size: 100min"), "windows.size 100min is not a whole number of slots of 30min"),
        (change("30min", "30"), "slots.interval: duration 30 has no unit"),
        (change("timezone: UTC", "timezone: Mars"), "slots.timezone: timezone 'Mars' is unknown"),
        (change("250, 500", "500, 250"), "states.edges[1] is 250, not above"),
        (
            change("weekly-load", "${Q}"),
            "query holds ${Q}, and ledger alone is filled in from the environment; write the value itself",
        ),
        (change("forward-backward", "group-dp"), "has no limit for an endless stream; set privacy.guarantee to window"),
        (EXAMPLE + "live: {metrics_port: 65536}\n", "live.metrics_port is 65536"),
        (change("size: 7d", "size: 7d, every: 5h"), "must divide windows.size"),
        (change("missing:  public", "missing: {break: 2x}"), "missing.break: duration '2x'"),
        (
            change("{parquet: data/feeder.parquet}", "{parquet: a, csv: b}"),
            "exactly one of parquet, csv, jsonl, avro, json, nem12, greenbutton, cim, dsmr, stdin, kafka, pubsub; 2",
        ),
        (change("scale: 2000", "scale: 0"), "readings.scale: 0.0 must be finite and not 0; write how much"),
        (change("2013-12-31", "2013-01-02"), "windows.stop 2013-01-02: no whole window of 336 slots fits"),
        (EXAMPLE + "query: again\n", "settings: a setting stands twice at line 15"),
        (change("ledger:   sqlite:///out/ledger.db", "ledger: ['postgresql://u:hidden@h/db']"), "ledger is set: "),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_limit(text, message):
    with pytest.raises(SettingsError) as caught:
        load_settings(text)
    assert message in str(caught.value)
    assert "hidden" not in str(caught.value)
    assert "instance of" not in str(caught.value)
    assert not str(caught.value).startswith("settings: windows.")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_settings_in_another_encoding_are_to_be_saved_as_utf_8(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(EXAMPLE.replace("weekly-load", "Stra\u00dfe"), encoding=encoding)
    with pytest.raises(SettingsError, match=r"settings\.yaml: not UTF-8 from byte \d+ on; save it as UTF-8"):
        read_settings(path)


@pytest.mark.parametrize(("size", "slots"), [("7d", "604,800,000,000 slots"), ("day", "82,800,000,000 slots or more")])
def test_a_window_of_too_many_slots_is_refused_before_any_work(size: str, slots: str):
    text = change("size: 7d", f"size: {size}").replace("30min", "1us")
    with pytest.raises(SettingsError, match=f"windows.size is {size}, {slots} of 1us, and 32,000,000 are the limit"):
        load_settings(text)
    assert load_settings(change("size: 7d", "size: 366d").replace("30min", "1s").replace("2013-12-31", "2014-12-31"))


def test_every_mistake_is_reported_at_once():
    with pytest.raises(SettingsError) as caught:
        load_settings(change("epsilon: 1.0", "epsilon: -1").replace("timezone: UTC", "timezone: Mars"))
    assert len(caught.value.problems) == 2


def test_relative_paths_start_at_the_settings_file(tmp_path: Path):
    path = tmp_path / "job" / "settings.yaml"
    path.parent.mkdir()
    path.write_text(EXAMPLE, encoding="utf-8")
    settings = read_settings(path)
    assert settings.path("a.csv") == str(path.parent / "a.csv")
    assert settings.path("/abs/a.csv") == "/abs/a.csv"
    assert settings.path("gs://bucket/a.csv") == "gs://bucket/a.csv"
    assert settings.ledger_url == f"sqlite:///{path.parent / 'out/ledger.db'}"
    moved = settings.model_copy(update={"ledger": "postgresql+psycopg://host/db"})
    assert moved.ledger_url == "postgresql+psycopg://host/db"
    with pytest.raises(SettingsError, match="cannot be read"):
        read_settings(tmp_path / "absent.yaml")


def test_settings_are_pickled_with_their_folder(tmp_path: Path):
    settings = Settings.parse({**load_settings(EXAMPLE).model_dump(by_alias=True)}, tmp_path)
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.path("x") == str(tmp_path / "x")


def test_naive_stamps_of_the_settings_are_read_in_the_zone():
    text = change("timezone: UTC", "timezone: Europe/Paris").replace("start: 2013-01-01", "start: 2013-07-01")
    settings = load_settings(text)
    # origin is 2012-12-31T23:00Z and the start 2013-06-30T22:00Z: summer time takes two half-hour slots away
    assert settings.schedule.start == 181 * 48 - 2


def test_a_password_is_not_shown():
    settings = load_settings(change("sqlite:///out/ledger.db", "postgresql://u:hidden@h/db"))
    assert "hidden" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite+pysqlite:///out/l.db", "sqlite+pysqlite:///FOLDER/out/l.db"),
        ("sqlite:////abs/l.db", "sqlite:////abs/l.db"),
        ("sqlite:///${HOME}/l.db", "sqlite:///${HOME}/l.db"),
    ],
)
def test_a_relative_ledger_lies_beside_the_settings(tmp_path, url, expected):
    settings = load_settings(change("sqlite:///out/ledger.db", url), folder=tmp_path)
    assert settings.ledger_url == expected.replace("FOLDER", str(tmp_path))


def test_a_mapping_file_is_the_roster():
    text = change("group_by: feeder", "group_by: {file: groups.csv, series: home}").replace(
        "roster:   roster.csv\n", ""
    )
    roster = present(load_settings(text).roster_file)
    assert (roster.file, roster.series, roster.group) == ("groups.csv", "home", "group")
    column = change("roster:   roster.csv", "roster: {column: household}")
    assert load_settings(column).roster_file is None


def test_a_duration_from_python_may_be_a_timedelta(tmp_path: Path) -> None:
    given = {
        "slots": {"interval": dt.timedelta(minutes=30)},
        "states": {"edges": [1.0]},
        "model": {"pi_min": 0.2, "gap": 0.5},
        "windows": {"size": dt.timedelta(days=7), "every": dt.timedelta(days=1), "start": dt.date(2024, 3, 1)},
        "missing": {"break": dt.timedelta(seconds=90)},
        "privacy": {"epsilon": 1.0},
        "query": "q",
        "domain": "d",
        "ledger": f"sqlite:///{tmp_path / 'ledger.db'}",
    }
    found = Settings.parse(given)
    assert (found.slots.interval, found.windows.size, found.windows.every) == ("30min", "1w", "1d")
    assert found.missing_rule == "break 90s"
    for wrong in (dt.timedelta(0), dt.timedelta(days=-1)):
        with pytest.raises(SettingsError, match=r"windows\.size: duration '.*' is not a positive whole number"):
            Settings.parse({**given, "windows": {"size": wrong}})


def test_a_copy_with_other_values_is_checked_as_a_document_is() -> None:
    settings = load_settings(EXAMPLE).accepting(Accepted(noise=True))
    copy = settings.model_copy(update={"privacy": {"epsilon": 2}, "states": {"edges": [500], "unit": "W"}})
    assert (copy.privacy.epsilon, copy.space.size, copy.accepted) == (2.0, 2, Accepted(noise=True))
    assert settings.model_copy(update={"query": settings.query}) == settings
    for update, said in (
        ({"query": "bad name\n"}, "query"),
        ({"privacy": settings.privacy.model_copy(update={"epsilon": -1.0})}, r"privacy\.epsilon"),
        ({"epsilom": 1.0}, "epsilom"),
    ):
        with pytest.raises(SettingsError, match=said):
            settings.model_copy(update=update)
