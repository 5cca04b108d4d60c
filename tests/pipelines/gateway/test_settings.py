"""The gateway's settings: what they take, and what they say about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.gateway import EXAMPLE, GatewaySettings, topic_filter
from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.settings.secrets import FromEnvironment

FOLDER = {"folder": {"path": "spool"}}


def document(**sections: Any) -> dict[str, Any]:
    return {
        "mqtt": {"host": "localhost", "client_id": "g1"} | sections.pop("mqtt", {}),
        "forward": {"topics": ["meters/#"], "to": FOLDER} | sections.pop("forward", {}),
        **sections,
    }


def problem(**sections: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        GatewaySettings.parse(document(**sections))
    return str(caught.value)


def test_the_example_gateway_settings_are_valid() -> None:
    settings = GatewaySettings.parse(yaml.safe_load(EXAMPLE))
    assert settings.forward.limits.messages == 1_000
    assert settings.mqtt.password == FromEnvironment(env="MQTT_PASSWORD")


def test_the_port_follows_from_tls_where_it_is_left_out() -> None:
    assert GatewaySettings.parse(document()).mqtt.port_in_use == 1883
    assert GatewaySettings.parse(document(mqtt={"tls": {}})).mqtt.port_in_use == 8883
    assert GatewaySettings.parse(document(mqtt={"tls": {}, "port": 1})).mqtt.port_in_use == 1


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"mqtt": {"colour": 1}},
            "mqtt.colour is not a setting; remove it or check its spelling against `quiltstream schema --gateway`",
        ),
        ({"mqtt": {"host": "mqtt://u:p@h"}}, "mqtt.host is an address; write the name alone"),
        ({"mqtt": {"password": {"env": "X"}}}, "mqtt.password is given without mqtt.user"),
        ({"mqtt": {"keepalive": "100ms"}}, "mqtt.keepalive is 100ms; it is 1s to 18h"),
        ({"mqtt": {"tls": {"key": "k"}}}, "mqtt.tls.key is given without mqtt.tls.cert"),
        ({"forward": {"topics": []}}, "forward.topics"),
        ({"forward": {"topics": ["a/#/b"]}}, "'a/#/b' is no topic filter"),
        ({"forward": {"to": {}}}, "forward.to names exactly one of kafka, folder"),
        ({"forward": {"to": FOLDER | {"kafka": {"servers": "h:1", "topic": "t"}}}}, "forward.to names exactly one"),
        ({"forward": {"limits": {"bytes": "1MB", "message": "2MB"}}}, "above limits.bytes (1,000,000)"),
        ({"forward": {"limits": {"bytes": "much"}}}, "'much' is no size; write a whole number with one of B, kB"),
        ({"forward": {"limits": {"messages": 5}}}, "forward.limits.messages is 5"),
        (
            {"forward": {"limits": {"packet": "256MiB"}}},
            "forward.limits.packet is 268435456: input should be less than or equal to",
        ),
        ({"mqtt": {"host": "broker..example"}}, "mqtt.host is 'broker..example', which is no host's name"),
        ({"mqtt": {"host": "x" * 64}}, "each part between dots has 1 to 63 characters; correct it"),
        ({"stop": "2h"}, "stop is 2h; it is at most 1h"),
        (
            {"forward": {"to": {"kafka": {"servers": "h:1", "topic": "t", "options": {"acks": "1"}}}}},
            "it is always all",
        ),
    ],
)
def test_a_mistake_is_named_with_its_setting(sections: dict[str, Any], words: str) -> None:
    assert words in problem(**sections)


@pytest.mark.parametrize("host", ["broker.example.", "::1", "münchen.example", "x" * 63])
def test_a_host_of_any_kind_of_name_is_accepted(host: str) -> None:
    limits = {"packet": 268_435_455}
    settings = GatewaySettings.parse(document(mqtt={"host": host}, forward={"limits": limits}))
    assert (settings.mqtt.host, settings.forward.limits.packet) == (host, 268_435_455)


def test_missing_settings_point_to_the_gateways_page_and_not_to_a_jobs() -> None:
    with pytest.raises(SettingsError) as caught:
        GatewaySettings.load("mqtt: {host: h}")
    said = str(caught.value)
    assert "mqtt.client_id is missing; add it (see `quiltstream schema --gateway`)" in said
    with pytest.raises(SettingsError, match="a mapping of settings is expected \\(see `quiltstream schema --gateway`"):
        GatewaySettings.load("[]")
    with pytest.raises(SettingsError, match="quiltstream init"):
        Settings.load("[]")


def test_a_gateway_that_forwards_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="forward is missing"):
        GatewaySettings.parse({"mqtt": {"host": "h", "client_id": "c"}})


@pytest.mark.parametrize(
    "sections",
    [
        {"mqtt": {"user": "u", "password": "hunter2"}},
        {"mqtt": {"user": "u", "password": {"env": "X", "value": "hunter2"}}},
        {"forward": {"to": {"kafka": {"servers": "h:1", "topic": "t", "options": {"sasl.password": "hunter2"}}}}},
    ],
)
def test_a_plain_text_secret_is_refused_and_not_quoted(sections: dict[str, Any]) -> None:
    said = problem(**sections)
    assert "a secret does not belong into settings; write {env: VARIABLE} or {file: PATH}" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("good", ["a", "#", "+", "a/+/b", "a//b", "/a", "$share/g/a/+", "$share/g/#", "$SYS/#", "ä/+"])
def test_a_valid_topic_filter_is_accepted(good: str) -> None:
    assert topic_filter(good) == good


@pytest.mark.parametrize("bad", ["", "a+", "a/b#", "#/a", "$share/g", "$share//a", "$share/+/a", "a\0", "x" * 65_536])
def test_a_wrong_filter_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="is no "):
        topic_filter(bad)


def test_paths_start_at_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(yaml.safe_dump(document()), encoding="utf-8")
    settings = GatewaySettings.read(tmp_path / "g.yaml")
    assert settings.path("spool") == tmp_path / "spool"
    assert settings.path("/elsewhere") == Path("/elsewhere")


def test_the_shipped_gateway_example_settings_are_valid(repository: Path) -> None:
    settings = GatewaySettings.read(repository / "deploy" / "mqtt" / "gateway.yaml")
    assert settings.mqtt.tls is not None
