"""The gateway's settings: what they take, and what they say about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.gateway import EXAMPLE, GatewaySettings
from quiltstream.schemas.settings.secrets import FromFile

FOLDER = {"folder": {"path": "spool"}}
KAFKA = {"servers": "h:1", "topic": "t"}
NAMES = {"env": "METER_KEY"}


def document(**sections: Any) -> dict[str, Any]:
    return {
        "mqtt": {"host": "localhost", "client_id": "g1"} | sections.pop("mqtt", {}),
        "forward": {"topics": ["meters/+/kwh"], "to": FOLDER} | sections.pop("forward", {}),
        **sections,
    }


def test_the_example_gateway_settings_are_valid() -> None:
    settings = GatewaySettings.parse(yaml.safe_load(EXAMPLE))
    assert settings.mqtt.password == FromFile(file="mqtt-password")
    assert settings.mqtt.port_in_use == 8883
    assert GatewaySettings.parse(document()).mqtt.port_in_use == 1883
    assert GatewaySettings.parse(document(mqtt={"tls": {}, "port": 1})).mqtt.port_in_use == 1


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"mqtt": {"colour": 1}},
            "mqtt.colour is not a setting; remove it or check its spelling against `quiltstream schema --gateway`",
        ),
        ({"mqtt": {"client_id": ""}}, "mqtt.client_id"),
        ({"mqtt": {"host": "mqtt://h"}}, "mqtt.host is an address; write the name alone"),
        ({"mqtt": {"password": {"env": "X"}}}, "mqtt.password is given without mqtt.user"),
        ({"mqtt": {"packet": 1 << 28}}, "mqtt.packet is 268435456: input should be less than or equal to"),
        ({"forward": {"topics": []}}, "forward.topics"),
        ({"forward": {"to": {}}}, "name exactly one of kafka, folder"),
        ({"forward": {"to": FOLDER | {"kafka": KAFKA}}}, "name exactly one of kafka, folder"),
        ({"forward": {"to": {"folder": {"path": "s", "free": 1}}}}, "forward.to.folder.free is 1"),
        ({"forward": {"to": {"kafka": KAFKA | {"key": {"level": 2}}}}}, "forward.to.kafka.key is gone: "),
        ({"forward": {"to": {"kafka": KAFKA | {"options": {"acks": "1"}}}}}, "it is always all"),
        ({"stop": "10s"}, "stop is gone: a gateway that is stopped takes 5 s at most"),
        (
            {"forward": {"pseudonyms": NAMES | {"level": 4}}},
            "pseudonyms.level is 4, and topics of 'meters/+/kwh' have 3: they would go on under their own names",
        ),
        (
            {"forward": {"pseudonyms": NAMES | {"level": 3}, "topics": ["a/b/+", "$share/g/a/+"]}},
            "topics of 'a/+' have",
        ),
        ({"forward": {"pseudonyms": NAMES | {"level": 0}}}, "is 0: input should be greater than or equal to 1"),
        ({"forward": {"pseudonyms": NAMES | {"level": []}}}, "forward.pseudonyms.level"),
        ({"forward": {"pseudonyms": NAMES | {"level": True}}}, "forward.pseudonyms.level"),
    ],
)
def test_a_mistake_is_named_with_its_setting(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        GatewaySettings.parse(document(**sections))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("level", "topics"), [(9, ["meters/#"]), (2, ["a/+", "meters/+/kwh"]), ([2, 3], ["a/+", "b/c/+"]), (1, ["#"])]
)
def test_a_pseudonym_level_possible_in_every_filter_is_accepted(level: Any, topics: list[str]) -> None:
    given = document(forward={"topics": topics, "pseudonyms": NAMES | {"level": level}})
    assert GatewaySettings.parse(given).forward.topics == topics


def test_missing_settings_point_to_the_gateways_page_and_not_to_a_jobs() -> None:
    with pytest.raises(SettingsError, match=r"mqtt.client_id is missing; add it \(see `quiltstream schema --gateway`"):
        GatewaySettings.load("mqtt: {host: h}")
    with pytest.raises(SettingsError, match=r"a mapping of settings is expected \(see `quiltstream schema --gateway`"):
        GatewaySettings.load("[]")


@pytest.mark.parametrize(
    "sections",
    [
        {"mqtt": {"user": "u", "password": "hunter2"}},
        {"mqtt": {"user": "u", "password": {"env": "X", "value": "hunter2"}}},
        {"forward": {"to": {"kafka": KAFKA | {"options": {"sasl.password": "hunter2"}}}}},
    ],
)
def test_a_plain_text_secret_is_refused_and_not_quoted(sections: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="a secret does not belong into settings") as caught:
        GatewaySettings.parse(document(**sections))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("good", ["a", "#", "+", "a/+/b", "a//b", "/a", "$share/g/a/+", "$share/g/#", "$SYS/#", "ä/+"])
def test_a_valid_topic_filter_is_accepted(good: str) -> None:
    assert GatewaySettings.parse(document(forward={"topics": [good]})).forward.topics == [good]


@pytest.mark.parametrize("bad", ["", "a+", "a/b#", "#/a", "$share/g", "$share//a", "$share/+/a", "a\0", "x" * 65_536])
def test_a_wrong_filter_is_refused(bad: str) -> None:
    with pytest.raises(SettingsError, match="is no topic filter"):
        GatewaySettings.parse(document(forward={"topics": [bad]}))


def test_paths_start_at_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(yaml.safe_dump(document()), encoding="utf-8")
    settings = GatewaySettings.read(tmp_path / "g.yaml")
    assert settings.path("spool") == str(tmp_path / "spool")
    assert settings.path("/elsewhere") == "/elsewhere"
