"""The libraries of the gateway, which come with extras of the package and are imported when they are needed."""

from __future__ import annotations

import importlib
import logging
from types import SimpleNamespace
from typing import Any

from ..failures import CommandError


def paho() -> Any:
    """What is used of the MQTT library, by the names that it has there.

    Raises:
        CommandError: it is not installed.
    """
    client = _library("paho.mqtt.client", "mqtt")
    return SimpleNamespace(
        Client=client.Client,
        MQTTv5=client.MQTTv5,
        CallbackAPIVersion=_library("paho.mqtt.enums", "mqtt").CallbackAPIVersion,
        MQTTErrorCode=_library("paho.mqtt.enums", "mqtt").MQTTErrorCode,
        PacketTypes=_library("paho.mqtt.packettypes", "mqtt").PacketTypes,
        Properties=_library("paho.mqtt.properties", "mqtt").Properties,
        SubscribeOptions=_library("paho.mqtt.subscribeoptions", "mqtt").SubscribeOptions,
    )


def kafka() -> Any:
    """The Kafka client.

    Raises:
        CommandError: it is not installed.
    """
    return _library("confluent_kafka", "kafka")


def properties(release_id: str) -> Any:
    """MQTT properties of a released row: that it is JSON, and its id, by which subscribers drop repetitions."""
    mqtt = paho()
    given = mqtt.Properties(mqtt.PacketTypes.PUBLISH)
    given.ContentType = "application/json"
    given.UserProperty = ("release_id", release_id)
    return given


def kafka_log() -> logging.Logger:
    """Where librdkafka's own log goes: nowhere, unless ``--debug`` shows the logs of libraries."""
    log = logging.getLogger("quiltstream.gateway.librdkafka")
    if not logging.getLogger().isEnabledFor(logging.INFO):
        log.setLevel(logging.CRITICAL + 1)
    return log


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CommandError(
            f"the gateway needs {name.partition('.')[0]}, which is not installed: pip install 'quiltstream[{extra}]'"
        ) from None


__all__ = ["kafka", "kafka_log", "paho", "properties"]
