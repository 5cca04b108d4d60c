"""Credentials and optional libraries of the gateway; messages name the setting and never its content."""

from __future__ import annotations

import importlib
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...schemas.settings.gateway import Tls
from ...schemas.settings.secrets import FromEnvironment, FromFile, SecretError, filled
from ..errors import CommandError

__all__ = ["PathOf", "kafka", "kafka_log", "options_of", "paho", "properties", "secret_of", "tls_context"]


PathOf = Callable[[str], Path]
"""A path of the settings as seen from here."""


def secret_of(name: str, secret: FromEnvironment | FromFile, path_of: PathOf) -> str:
    """A secret from the environment or a file.

    Args:
        name: the setting, for messages.
        secret: the place.
        path_of: finds files.

    Raises:
        CommandError: there is none.
    """
    try:
        found = secret.located(lambda text: str(path_of(text))).read()
    except SecretError as error:
        raise CommandError(f"{name}: {error}") from None
    if not found:
        raise CommandError(f"{name}: the secret is empty; write it where the settings say")
    return found


def options_of(name: str, options: Mapping[str, Any], path_of: PathOf) -> dict[str, Any]:
    """Options of a library with their secrets filled in."""
    return filled(options, lambda key, secret: secret_of(f"{name}.{key}", secret, path_of))


def tls_context(tls: Tls, path_of: PathOf) -> ssl.SSLContext:
    """The context of a connection that checks the broker's certificate and name.

    Raises:
        CommandError: a file cannot be read, or is no certificate or key.
    """
    ca = None if tls.ca is None else _file("mqtt.tls.ca", tls.ca, path_of)
    cert = None if tls.cert is None else _file("mqtt.tls.cert", tls.cert, path_of)
    key = None if tls.key is None else _file("mqtt.tls.key", tls.key, path_of)
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise CommandError(f"mqtt.tls.ca: {tls.ca} holds no certificate in PEM form") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        try:
            # an encrypted key would make OpenSSL ask at the terminal, for ever
            context.load_cert_chain(cert, key, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError):
            raise CommandError(
                f"mqtt.tls: {tls.cert} and {tls.key or 'the key in it'} are no certificate with its unencrypted key in "
                "PEM form"
            ) from None
    return context


def _file(name: str, text: str, path_of: PathOf) -> Path:
    path = path_of(text)
    if not os.access(path, os.R_OK) or not path.is_file():
        raise CommandError(f"{name}: the file {text} cannot be read")
    return path


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
