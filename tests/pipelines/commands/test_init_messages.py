"""``quiltstream init`` from messages: what it makes of real ones, that it keeps none of them, and what it says else."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml

from quiltstream.pipelines.commands.check_messages import Trial
from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.init.brokers import guess_messages
from quiltstream.pipelines.init.messages import MessageLook, look_at_messages
from quiltstream.schemas.settings.job import load_settings, read_settings
from quiltstream.schemas.settings.recipes import RECIPES
from quiltstream.transforms.kafka.client import KafkaUnavailableError
from quiltstream.transforms.payloads.messages import Messages

from ...present import present
from ...transforms.kafka.fake import FakeBroker
from ...transforms.payloads.payloads import NOON_MS, NOON_S, NOON_US, messages
from ...transforms.payloads.test_recipes import case
from ..jobs import Done, call, job

KAFKA = {"kafka": {"servers": "localhost:1", "topic": "meters"}}


def sent(*bodies: Any, topics: Sequence[str] = (), keys: Sequence[str] = ()) -> Messages:
    """Messages a second apart."""
    made = messages(
        *[one if isinstance(one, (bytes, str)) else json.dumps(one) for one in bodies],
        topics=list(topics) or ["meters"] * len(bodies),
        stamps_us=[NOON_US + at * 1_000_000 for at in range(len(bodies))],
    )
    return replace(made, keys=[one.encode() for one in keys]) if keys else made


def looked(given: Messages, **options: Any) -> MessageLook:
    words: dict[str, Any] = {"only": "meters", **options}
    return look_at_messages(given, "here", **words)


def written(look: MessageLook, given: Messages) -> dict[str, Any]:
    """What is written, by whose first answers ``check`` reads as many messages as the look did."""
    guessed = guess_messages(look, "meters", KAFKA, "a look")
    tried = list(Trial(load_settings(guessed.answered)).of(given))
    assert sum(bool(one.readings) for one in tried) >= 1
    assert sum(one.rejected is not None for one in tried) == look.rejected
    said = yaml.safe_load(guessed.text)["readings"]
    return {name: value for name, value in said.items() if name != "scale" and value != ""}


@pytest.mark.night
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_recognised_by_messages_of_its_platform(name: str) -> None:
    one = case(name)
    given = one.given
    if name.startswith("telegraf"):
        given = replace(given, topics=["telegraf" if name.endswith("batch") else "telegraf/h/m"] * len(given))
    readings = written(looked(given), given)
    assert readings["recipe"] == name
    assert readings.keys() <= {"recipe", "unit", *RECIPES[name].missing}


BY_MINUTE: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "fields": (
        [{"meter": f"m{at % 3}", "ts": NOON_MS + at // 3 * 60_000, "power": at, "phase": 3} for at in range(12)],
        {"each": "payload", "value": "power", "time": "ts", "time_unit": "ms", "series": "meter"},
    ),
    "the fields of a recipe, with texts for its times": (
        [{"device_id": f"m{at % 2}", "timestamp": f"2026-01-05T12:{at}0:00Z", "power": at} for at in range(6)],
        {"each": "payload", "value": "power", "time": "timestamp", "series": "device_id"},
    ),
    "arrays with units": (
        [
            {"id": f"m{at}", "data": [{"ts": NOON_S + 900 * n, "value": n % 2, "unit": "kWh"} for n in range(4)]}
            for at in range(4)
        ],
        {
            "each": "payload.data[]",
            "value": "value",
            "units": "unit",
            "time": "ts",
            "series": "payload.id",
            "unit": "kWh",
        },
    ),
    "names as fields": (
        [{"time": NOON_S + 60 * at, "all": {"ann": {"w": 1, "v": 230}, "bob": {"w": at, "v": 9}}} for at in range(4)],
        {"each": "fields(payload.all)", "value": "value.w", "time": "payload.time", "series": "name", "unit": "W"},
    ),
    "a counter": (
        [{"id": f"m{at % 2}", "ts": NOON_S + at * 60, "total_kwh": 100 + at / 10} for at in range(30)],
        {"each": "payload", "value": "total_kwh", "time": "ts", "series": "id", "unit": "kWh"}
        | {"register": {"gap": "2h"}},
    ),
    "CSV with semicolons": (
        [f"ts;meter;watt\n{NOON_S + 60 * at};m{at % 2};{at % 3}.5\n" for at in range(8)],
        {
            "payload": "csv",
            "delimiter": ";",
            "each": "payload",
            "value": "watt",
            "time": "ts",
            "series": "meter",
            "unit": "W",
        },
    ),
    "packed": (
        [gzip.compress(json.dumps({"id": at % 3, "ts": NOON_S + at, "w": at}).encode()) for at in range(5)],
        {"compression": "gzip", "each": "payload", "value": "w", "time": "ts", "series": "id", "unit": "W"},
    ),
    "a gateway of ThingsBoard": (
        [
            {f"Home {n}": [{"ts": NOON_MS + at, "values": {"power": at, "rssi": 1}}] for n in range(2)}
            for at in range(4)
        ],
        {"recipe": "thingsboard", "value": "values.power || false"},
    ),
    "EdgeX": (
        [
            {
                "event": {
                    "deviceName": "m1",
                    "origin": (NOON_S + at) * 10**9,
                    "readings": [{"resourceName": "Power", "valueType": "Float64", "value": "1.5"}],
                }
            }
            for at in range(4)
        ],
        {"recipe": "edgex", "where": "resourceName == 'Power'"},
    ),
    "a recipe with two values that are as likely": (
        [{"device_id": f"m{at % 2}", "timestamp": NOON_MS + at, "power_a": at, "power_b": 3} for at in range(6)],
        {"recipe": "aws-iot", "value": "???"},
    ),
    "phases": (
        [{"id": f"m{at % 2}", "ts": NOON_S + at, "em": {f"L{n}": {"power": at} for n in (1, 2)}} for at in range(6)],
        {"each": "payload", "value": "???", "time": "ts", "series": "id"},
    ),
    "two powers": (
        [{"meter": f"m{at % 2}", "ts": NOON_S + at, "power_1": at, "power_2": 3} for at in range(6)],
        {"each": "payload", "value": "???", "time": "ts", "series": "meter"},
    ),
}


@pytest.mark.parametrize("name", BY_MINUTE)
def test_expressions_are_made_of_the_fields_that_messages_have(name: str) -> None:
    bodies, expected = BY_MINUTE[name]
    given = sent(*bodies)
    assert written(looked(given), given) == expected


def test_levels_of_topics_name_series_and_what_is_measured() -> None:
    names = [f"home/m{at % 2}/{'power' if at % 4 < 2 else 'voltage'}" for at in range(8)]
    given = sent(*map(str, range(8)), topics=names)
    assert written(looked(given), given) == {
        "each": "@",
        "time": "stamp",
        "value": "text",
        "where": "topic[2] == 'power'",
        "series": "topic[1]",
    }
    given = sent({"ts": NOON_S, "power": 1}, topics=["site/m1/up"])
    assert looked(given).readings["series"] == {"constant": "meters"}
    assert (
        looked(sent({"ts": NOON_S, "power": 1}, {"ts": NOON_S, "power": 1}, keys=["a", "b"])).readings["series"]
        == "key"
    )


@pytest.mark.parametrize(
    ("words", "level", "where"),
    [
        (["alice_energy", "bob_energy"], 2, None),
        (["adams", "powers", "smith"], 2, None),
        (["adams", "power", "smith"], 2, None),
        (["ActivePower", "Voltage", "status"], 3, "ActivePower"),
        (["alice_power", "voltage"], 3, None),
    ],
)
def test_a_topic_level_is_written_only_if_all_of_it_names_a_quantity(
    words: list[str], level: int, where: str | None
) -> None:
    names = [f"home/{one}/value" if level == 2 else f"home/m{at}/{one}" for one in words for at in range(2)]
    given = sent(*(str(at) for at in range(len(names))), topics=names)
    look = looked(given)
    readings = written(look, given)
    assert readings.get("where") == (None if where is None else f"topic[2] == '{where}'")
    assert look.read == (len(names) if where is None else 2)
    assert not [one for one in ("alice", "bob", "adams", "smith", "powers") if one in str(look)]


def test_messages_of_several_kinds_are_read_by_a_value_that_is_named() -> None:
    given = sent(*({"ts": NOON_S + at, "power": at} if at % 3 == 0 else f"{at} V" for at in range(9)))
    look = looked(given, value="power")
    assert (look.read, look.rejected, look.passed) == (3, 6, 0)
    assert any("other devices have a look" in text for _, text in guess_messages(look, "meters", KAFKA, "a look").said)


def test_windows_wait_as_long_as_readings_of_the_look_came_late() -> None:
    late = sent(*({"id": f"m{at % 2}", "ts": NOON_S + 900 * at - at % 2 * 7_200, "kw": at} for at in range(8)))
    look = looked(late)
    assert look.late_us == (7_200 - 900) * 1_000_000
    guessed = guess_messages(look, "meters", KAFKA, "a look")
    assert load_settings(guessed.text).windows.lateness == "3h"
    assert ("lateness", "3h: readings come up to 1 h 45 min after later ones") in guessed.said


def test_several_values_of_a_series_at_a_time_are_reported() -> None:
    pairs = [[{"value": at}, {"value": 2 * at}] for at in range(4)]
    bodies = [{"meter": "m1", "ts": NOON_S + 900 * at, "channels": one} for at, one in enumerate(pairs)]
    look = looked(sent(*bodies))
    assert look.again == 0.5
    assert "at once" in dict(guess_messages(look, "meters", KAFKA, "a look").said)
    for channels in pairs:
        channels.pop()
    assert looked(sent(*bodies)).again == 0


def test_existing_settings_are_reported_before_the_broker_is_contacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise KafkaUnavailableError("it does not answer")

    monkeypatch.setattr("quiltstream.transforms.kafka.client.Cluster", away)
    begun(tmp_path).ended(5, "it does not answer")
    (tmp_path / "settings.yaml").touch()
    begun(tmp_path).ended(2, str(tmp_path / "settings.yaml"), "already; give another folder with -o, or --force")
    begun(tmp_path, "--force").ended(5)


def test_the_prefix_of_a_plug_may_have_several_levels() -> None:
    status = {"id": 0, "output": True, "apower": 17.4}
    look = looked(sent(status, status, topics=[f"shellies/plug{at}/status/switch:0" for at in (1, 2)]))
    assert look.readings == {"recipe": "shelly-gen2"}
    assert (look.read, look.names, look.whole.unit) == (2, 2, "W")
    # what is read by its place from the begin has no levels before
    assert "recipe" not in looked(sent({"value": 541.0}, topics=["home/N/c0619ab1/grid/30/Ac/Power"])).readings


def test_the_value_may_be_named_and_must_be_a_number() -> None:
    given = sent(*[{"id": f"m{at % 2}", "ts": NOON_S + at, "power": at, "heat": {"kwh": 3}} for at in range(6)])
    assert looked(given, value="heat.kwh").readings["value"] == "heat.kwh"
    with pytest.raises(CommandError, match="read 6 messages with --value 'secret'"):
        looked(given, value="secret")


def test_what_several_fields_may_be_is_a_question_that_value_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_of(monkeypatch, BY_MINUTE["two powers"][0])
    begun(tmp_path).ended(0, "answer 1 question, the keys whose value is ???")
    text = (tmp_path / "settings.yaml").read_text(encoding="utf-8")
    assert "  value: ???\n  # value: power_1\n  # value: power_2\n" in text
    call("run", "--dry-run", "--live", tmp_path / "settings.yaml").ended(2, "readings.value is ???, an open question")
    begun(tmp_path, "--value", "power_2", "--force").ended(0)


def test_nothing_but_names_of_fields_is_written_or_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [{"ts": NOON_MS + 60_000 * at, "meter": f"ann{at % 3}", "kwh": 74.25} for at in range(9)]
    broker = topic_of(monkeypatch, bodies)
    done = begun(tmp_path).ended(0)
    kept = "".join(one.read_text(encoding="utf-8") for one in tmp_path.iterdir()) + done.out + done.err
    kept = kept.replace(str(tmp_path), "FOLDER")  # its name ends in a number
    assert not [secret for secret in ("ann", "74.25", "74", str(NOON_MS)) if secret in kept]
    assert {one.name for one in tmp_path.iterdir()} == {"settings.yaml", "settings.schema.json"}
    assert broker.groups == {}


def topic_of(monkeypatch: pytest.MonkeyPatch, bodies: Sequence[Any]) -> FakeBroker:
    """A broker with a topic of messages, in the place of all brokers."""
    broker = FakeBroker()
    broker.topic(partitions=1, name="meters")
    broker.send("meters", [(0, json.dumps(one).encode()) for one in bodies])
    monkeypatch.setattr("quiltstream.transforms.kafka.client.Cluster", lambda *_: broker.cluster)
    return broker


def begun(folder: Path, *words: str, topic: str = "meters") -> Done:
    return call("init", "--from-topic", topic, "--servers", "fake:1", "-o", folder / "settings.yaml", *words)


def test_a_topic_becomes_settings_that_check_and_a_dry_run_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_of(monkeypatch, [{"ts": NOON_MS + 60_000 * (at // 2), "id": f"m{at % 2}", "kw": at % 3} for at in range(40)])
    begun(tmp_path, "--timezone", "Europe/Berlin", "--option", "sasl.password={env: KAFKA_PASSWORD}").ended(
        0, "40: 40 with readings, 0 passed over, 0 rejected"
    )
    settings = read_settings(tmp_path / "settings.yaml")
    assert (settings.slots.interval, settings.slots.timezone) == ("1min", "Europe/Berlin")
    assert (settings.windows.size, str(settings.windows.start)) == ("day", "2026-01-05")
    assert "KAFKA_PASSWORD" in str(present(settings.source).kafka)
    tried = call("check", "--json", tmp_path / "settings.yaml", "--from-topic", "4")
    assert [len(one["readings"]) for one in json.loads(tried.out)] == [1] * 4
    assert json.loads(tried.out)[0]["readings"][0][2] == 0.0
    assert call("run", "--dry-run", "--live", tmp_path / "settings.yaml").said("STAND-IN")
    assert begun(tmp_path).said("it exists already")


TOPIC = ("--from-topic", "t", "--servers", "h:1")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "give one of DATA and --from-topic TOPIC"),
        (("x.csv", "--from-topic", "t"), 2, "give one of DATA"),
        (("--from-topic", "t"), 2, "--servers HOST:PORT is missing"),
        (("--from-topic", "a/b", "--servers", "h:1"), 2, "'a/b' is no topic"),
        (("--from-topic", "t", "--servers", "u:pw@h:1"), 2, "users and passwords belong into options"),
        (("--from-topic", "t", "--servers", "h:1", "--option", "sasl.password=hunter2"), 2, "sasl.password: a secret"),
        (("--from-topic", "t", "--servers", "h:1", "--option", "hunter2"), 2, "write NAME=VALUE"),
        ((*TOPIC, "--option", "https.proxy=http://u:hunter2@h"), 2, "https.proxy is an address with a user or a query"),
        ((*TOPIC, "--option", "https.proxy=u:hunter2@h"), 2, "https.proxy is an address with a user or a query"),
        ((*TOPIC, "--option", "client.rack=http://h/?q=hunter2"), 2, "write {env: VARIABLE} or {file: PATH}"),
        ((*TOPIC, "--registry", "https://h/?token=hunter2"), 2, "registry.url holds a query"),
        ((*TOPIC, "--registry", "https://u:hunter2/@h"), 2, "registry.url holds a user"),
    ],
)
def test_wrong_arguments_of_init_are_refused_with_the_expected_ones(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = call("init", *words, "-o", tmp_path / "settings.yaml").ended(code, said)
    assert "hunter2" not in done.err.replace("--option hunter2", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ([], "no message with a payload came: let a device send some"),
        ([{"a": "secret"}] * 3, "read 3 messages; give --value PATH"),
        (["secret"] * 3, "read 3 messages; give --value PATH"),
        (["1;secret;2", "3;secret;4"], "read 2 messages; give --value PATH"),
    ],
)
def test_a_topic_without_readings_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bodies: list[Any], said: str
) -> None:
    topic_of(monkeypatch, bodies)
    begun(tmp_path).ended(5, said).hid("secret")
    assert not list(tmp_path.iterdir())


def test_init_and_check_report_an_unavailable_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = topic_of(monkeypatch, [])
    broker.send("meters", [(0, b"\0\0\0\0\7abc")] * 3)
    begun(tmp_path, "--registry", "http://127.0.0.1:9").ended(
        5, "--registry: the schema registry http://127.0.0.1:9: it does not answer"
    )
    kafka = {"servers": "fake:1", "topic": "meters", "registry": {"url": "http://127.0.0.1:9"}}
    flat = {"payload": "avro", "each": "payload", "series": "id", "time": "ts", "value": "v"}
    settings = job(tmp_path, [], source={"kafka": kafka}, readings=flat, rejects=None, sink=None)
    call("check", settings.settings, "--from-topic", "3").ended(5, "source.kafka.registry: the schema registry")


def test_messages_of_a_registry_are_read_by_their_schemas() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in AVRO.items()]}

    def body(at: int) -> bytes:
        file = io.BytesIO()
        row = {"meter": f"m{at % 2}", "ts": NOON_MS + 60_000 * at, "power": float(at)}
        fastavro.schemaless_writer(file, fastavro.parse_schema(schema), row)
        return b"\0\0\0\0\7" + file.getvalue()

    look = looked(sent(*map(body, range(8))), schemas=lambda number: schema if number == 7 else None)
    assert look.readings == {"payload": "avro", "each": "payload", "value": "power", "time": "ts", "series": "meter"}


AVRO: dict[str, Any] = {"meter": "string", "ts": {"type": "long", "logicalType": "timestamp-millis"}, "power": "double"}


STRANGE: list[Any] = [{"": 1}, {'a"b': 1}, [[[[[[[[[1]]]]]]]]], {"ts": 10**400, "v": 1}, [], 7, None, "\x00", b"\xff"]


@pytest.mark.parametrize("body", STRANGE, ids=range(len(STRANGE)))
def test_any_messages_give_a_mapping_or_an_expected_error(body: Any) -> None:
    for count in (1, 3):
        with contextlib.suppress(CommandError):
            assert looked(sent(*[body] * count)).read
