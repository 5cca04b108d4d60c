"""``quiltstream pseudonyms``: the roster of a job behind the gateway's pseudonyms, and that it tells nobody's name."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.pipelines.gateway.delivery import FolderDelivery, Message
from quiltstream.pipelines.gateway.pseudonyms import TopicNames
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.settings.secrets import PseudonymKey

from ..jobs import HOMES, Done, call, job, readings

SECRET = "correct horse battery staple"  # noqa: S105 - of this test
KEY = PseudonymKey(SECRET.encode())
NAMES = TopicNames(KEY, [2])


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METER_KEY", SECRET)


def gateway(folder: Path, **pseudonyms: Any) -> Path:
    given = pseudonyms or {"env": "METER_KEY", "level": 2}
    forward = {"topics": ["meters/#"], "to": {"folder": {"path": "spool"}}, "pseudonyms": given}
    document = {"mqtt": {"host": "localhost", "client_id": "g1"}, "forward": forward}
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def written(folder: Path, text: str, *options: str, settings: Path | None = None) -> Done:
    (folder / "roster.csv").write_text(text, encoding="utf-8")
    made = gateway(folder) if settings is None else settings
    return call("pseudonyms", made, folder / "roster.csv", "-o", folder / "out.csv", *options)


def rows(folder: Path) -> list[list[str]]:
    with (folder / "out.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


# The whole way


@pytest.mark.night
def test_a_job_with_the_written_roster_publishes_equal_rows_under_pseudonyms(tmp_path: Path) -> None:
    """Gateway, files, roster, job: each series of the roster is found in the messages, and the roster in the rows."""
    plain = job(tmp_path / "plain", group_by=None, windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-03"})
    first = call("run", plain.settings, "--json").ended(0)
    behind = job(
        tmp_path / "behind",
        source={"avro": "spool/*.avro"},
        readings={
            "each": "payload",
            "series": "topic[1]",
            "time": "ts",
            "value": "kwh",
            "unit": "kWh",
            "scale": 2000,
            "payload": "json",
        },
        roster="out.csv",
        group_by=None,
        windows={"size": "1d", "start": "2024-03-01", "stop": "2024-03-03"},
        rejects=None,
    )
    target = FolderDelivery(behind.folder / "spool", size=1 << 24, age=60.0)
    for number, (meter, ts, kwh) in enumerate(readings()):
        # the function that the gateway has for each message
        topic = NAMES.of(f"meters/{meter}/kwh")
        assert target.offer(number, Message(topic, json.dumps({"ts": ts, "kwh": kwh}).encode(), 1_700_000_000_000_000))
    target.close(20.0)
    call("pseudonyms", gateway(tmp_path), behind.folder / "roster.csv", "-o", behind.folder / "out.csv").ended(0)
    ran = call("run", behind.settings, "--json").ended(0)
    assert {row.key for row in behind.rows()} == {KEY.name(one) for one in HOMES}
    assert len(behind.rows()) == len(plain.rows())
    counts = json.loads(ran.out)["operator_only"]
    assert counts == json.loads(first.out)["operator_only"]
    assert counts["readings"] == len(HOMES) * 48 * 2
    assert counts["rejected"] == {}


def test_the_roster_contains_the_pseudonyms_that_the_gateway_forwards(tmp_path: Path) -> None:
    odd = ["m1", "Zähler 7", " m1", "m.1", 'a"b', "a,b", "M1", "0", "\u00e9", "e\u0301"]
    with (tmp_path / "given.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["series"], *([one] for one in odd)])
    call("pseudonyms", gateway(tmp_path), tmp_path / "given.csv", "-o", tmp_path / "out.csv").ended(0)
    passed_on = {NAMES.of(f"meters/{one}/kwh").split("/")[1] for one in odd}
    assert set(Roster.read(tmp_path / "out.csv").series) == passed_on
    assert len(passed_on) == len(odd)


def test_a_name_of_several_levels_has_a_pseudonym_for_each_that_is_named(tmp_path: Path) -> None:
    settings = gateway(tmp_path, env="METER_KEY", level=[2, 4, 5])
    text = "series,group\nplant/n1/d1,a\nplant/n1,b\n"
    assert written(tmp_path, text, "--part", "1", "--part", "2", "--part", "3", settings=settings).code == 0
    levels = TopicNames(KEY, [2, 4, 5]).of("spBv1.0/plant/DDATA/n1/d1").split("/")
    device = "/".join([levels[1], levels[3], levels[4]])
    assert {tuple(row) for row in rows(tmp_path)[1:]} == {(device, "a"), (device.rpartition("/")[0], "b")}
    assert written(tmp_path, text, "--part", "2", settings=settings).code == 0
    assert {row[0].split("/")[0] for row in rows(tmp_path)[1:]} == {"plant"}


# What stays and what does not


def test_other_columns_stay_with_their_series_and_those_to_drop_do_not(tmp_path: Path) -> None:
    text = (
        "\ufeffgroup,meter,joins,address\nnorth,m1,2024-01-01,1 High St\nsouth,m1,,1 High St\n\nnorth,m2,x,2 Low St\n"
    )
    done = written(tmp_path, text, "--series", "meter", "--drop", "address").ended(0)
    found = rows(tmp_path)
    assert found[0] == ["group", "meter", "joins"]
    wanted = [["north", KEY.name("m1"), "2024-01-01"], ["south", KEY.name("m1"), ""], ["north", KEY.name("m2"), "x"]]
    assert sorted(found[1:]) == sorted(wanted)
    assert done.said("2 pseudonyms in column 'meter'")
    assert done.said("'group', 'joins'")


def test_the_order_of_roster_rows_is_independent_of_the_order_of_names(tmp_path: Path) -> None:
    names = [f"m{number:03}" for number in range(200)]
    for ordered in (names, names[::-1]):
        assert written(tmp_path, "\n".join(["series", *ordered, ""])).code == 0
        assert rows(tmp_path)[1:] == sorted([KEY.name(one)] for one in names)


def test_neither_a_name_nor_the_key_is_printed_or_written(tmp_path: Path) -> None:
    done = written(tmp_path, "series,group\nsecret-7,north\nsecret-8,south\n").ended(0)
    for text in (done.out, done.err, (tmp_path / "out.csv").read_text(encoding="utf-8")):
        assert "secret-" not in text
        assert SECRET not in text
    assert KEY.name("secret-7") not in done.out + done.err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["gateway.yaml", "out.csv", "roster.csv"]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("series\nsecret-7\nsecret/8\n", (), "line 3: its series can be no level of a topic"),
        ("series\nsecret-7\n+\n", (), "line 3: its series can be no level of a topic"),
        ("series,group\nsecret-7,a\n ,b\n", (), "line 3: its series can be no level of a topic"),
        ("series\nsecret-7\n", ("--part", "2"), "line 2: its series is not put together from levels"),
        ("series\nsecret-7//8\n", ("--part", "1"), "line 2: its series is not put together from levels"),
        ("series,group\nsecret-7,secret-7\n", (), "line 2 has the name of a series in column 'group'"),
        ("series,group\nsecret-7,secret-8\nsecret-8,a\n", (), "line 2 has the name of a series in column 'group'"),
        ("series,group\nsecret-7\n", (), "line 2 has 1 cells and the header 2"),
        ("series,series\nsecret-7,a\n", (), "its header has two columns of one name"),
        ("secret-7\nsecret-8\n", (), "it has 1 columns, none of them 'series'"),
        ("series\nsecret-7\n", ("--drop", "group"), "none of them 'group'"),
        ("series\nsecret-7\n", ("--drop", "series"), "--drop names 'series', which is the column of the series"),
        ("series\n", (), "it lists no series"),
        ("", (), "it has 0 columns"),
    ],
)
def test_an_invalid_roster_is_refused_without_showing_a_name(
    tmp_path: Path, text: str, options: tuple[str, ...], words: str
) -> None:
    (tmp_path / "out.csv").write_text("before", encoding="utf-8")
    written(tmp_path, text, *options).ended(2, words).hid("secret")
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == "before"


def test_files_that_are_read_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET, encoding="utf-8")
    settings = gateway(tmp_path, file=str(tmp_path / "key"), level=2)
    (tmp_path / "roster.csv").write_text("series\nm1\n", encoding="utf-8")
    (tmp_path / "link.csv").symlink_to(tmp_path / "roster.csv")
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    for name in ("roster.csv", "link.csv", "gateway.yaml", "key"):
        call("pseudonyms", settings, tmp_path / "roster.csv", "-o", tmp_path / name).ended(
            2, "this file is read here, and would be replaced"
        )
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_no_roster_is_written_without_pseudonym_settings_or_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = gateway(tmp_path)
    monkeypatch.delenv("METER_KEY")
    written(tmp_path, "series\nm1\n", settings=settings).ended(
        2, "forward.pseudonyms: the variable METER_KEY is not set on this machine"
    )
    document = yaml.safe_load(settings.read_text(encoding="utf-8"))
    del document["forward"]["pseudonyms"]
    settings.write_text(yaml.safe_dump(document), encoding="utf-8")
    written(tmp_path, "series\nm1\n", settings=settings).ended(
        2, "it has no forward.pseudonyms, so the gateway passes names on as they are"
    )
    assert not (tmp_path / "out.csv").exists()
