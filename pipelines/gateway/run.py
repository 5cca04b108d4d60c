"""The command ``quiltstream gateway``: its parts from the settings, its log and its counts."""

from __future__ import annotations

import importlib
import logging
import signal
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from ...schemas.settings.gateway import GatewaySettings, KafkaTarget
from ...schemas.settings.secrets import located, resolved
from ..commands import code_of, settled, stop_signals
from ..console import facts, results
from ..errors import CommandError
from ..metrics_page import serve_metrics
from .targets import LOG, Folder, Kafka

_COUNTERS = ("received", "acknowledged", "duplicates", "reconnects", "sessions_lost")
_PREFIX = "quiltstream_gateway_"
_GAUGES, _DROPPED, _EVERY_S = ("in_flight", "refused"), ("too-large", "other-topic"), 30.0


class Counts(Counter[str]):
    """Counts since the start, by their names."""

    def collect(self) -> Iterator[Any]:
        """The metrics of Prometheus; docs/gateway.md says what each counts."""
        from prometheus_client import core  # noqa: PLC0415 - of an extra

        kinds = {core.CounterMetricFamily: _COUNTERS, core.GaugeMetricFamily: _GAUGES}
        yield from (kind(_PREFIX + one, one, self[one]) for kind, names in kinds.items() for one in names)
        dropped = core.CounterMetricFamily(f"{_PREFIX}dropped", "dropped", labels=["reason"])
        for why in _DROPPED:
            dropped.add_metric([why], self[f"dropped {why}"])
        yield dropped

    def line(self) -> str:
        """Those that are not zero."""
        names = ["received", *(name for name in self if self[name] and name != "received")]
        return ", ".join(f"{name.replace('_', ' ')} {self[name]:,}" for name in names)


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        text = f"the gateway needs {name.partition('.')[0]}, which is not installed: pip install 'quiltstream[{extra}]'"
        raise CommandError(text) from None


def _login(settings: GatewaySettings, client: Any) -> None:
    """Give a client of the library user, password and certificates, as they are now."""
    given, tls = settings.mqtt, settings.mqtt.tls
    password = None if given.password is None else given.password.located(settings.path).read()
    try:
        if given.user is not None:
            client.username_pw_set(given.user, password)
        if tls is not None:
            ca, cert, key = (None if one is None else settings.path(one) for one in (tls.ca, tls.cert, tls.key))
            context = ssl.create_default_context(cafile=ca)
            if cert is not None or key is not None:
                context.load_cert_chain(cert or str(key), key, password=lambda: b"")  # else it asks at the terminal
            client.tls_set_context(context)
    except (OSError, ValueError):
        text = "mqtt.tls names files in PEM form, a certificate and its key without a password; a password is UTF-8"
        raise CommandError(f"the login cannot be used: {text}") from None


def _parts(settings: GatewaySettings) -> dict[str, Any]:
    """Options of Kafka with their secrets; library, login and the key of the pseudonyms are there as well."""
    mqtt, kafka, names = _library("paho.mqtt.client", "mqtt"), settings.forward.to.kafka, settings.forward.pseudonyms
    if names is not None:
        names.key("forward.pseudonyms")
    _login(settings, mqtt.Client(mqtt.CallbackAPIVersion.VERSION2))
    return {} if kafka is None else dict(resolved(located(kafka.options, settings.path)))


def check(path: Path) -> None:
    """Check a settings file and say what a gateway with it will do; nothing is connected or written.

    Raises:
        QuiltstreamError: a setting is wrong, or a secret, certificate or library is missing.
    """
    settings = GatewaySettings.read(path)
    _parts(settings)
    given, forward, to = settings.mqtt, settings.forward, settings.forward.to.chosen
    tls = "with TLS" if given.tls is not None else "without TLS"
    levels = "" if forward.pseudonyms is None else f", level {forward.pseudonyms.level} as a pseudonym"
    if isinstance(to, KafkaTarget):
        where = f"Kafka topic {to.topic!r} at {to.servers}"
    else:
        where = f"files in {settings.path(to.path)}"
    broker = f"{given.host}:{given.port_in_use}, as {given.user or 'nobody'}, {tls}"
    broker += (
        "; the password goes over the network unencrypted" if given.password is not None and given.tls is None else ""
    )
    named = [("broker", broker), ("session", f"{given.client_id!r}, for {given.session}"), ("to", where)]
    facts(results(), [*named, ("topics", f"{', '.join(forward.topics)}{levels}; payloads as they are")])


def run_gateway(path: Path) -> int:
    """Run a gateway until SIGTERM, SIGINT or SIGHUP.

    Returns:
        The exit code of the signal.

    Raises:
        QuiltstreamError: what an operator has to mend (code 2), or what may be away for a while (code 75).
    """
    settings, counts, stops = GatewaySettings.read(path), Counts(), list[int]()
    options, to, port = _parts(settings), settings.forward.to.chosen, settings.metrics.port
    from .bridge import Bridge  # noqa: PLC0415 - of an extra

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    if isinstance(to, KafkaTarget):
        target = Kafka(to, options, _library("confluent_kafka", "kafka"))
    else:
        target = Folder(settings.path(to.path), to)
    bridge = Bridge(settings, target, partial(_login, settings), counts)
    for number in stop_signals():
        signal.signal(number, lambda number, _: stops.append(number))
    settled()
    due = time.monotonic() + _EVERY_S
    with nullcontext() if port is None else serve_metrics(port, counts.collect, "metrics.port") as served:
        LOG.info("counts are at %s", "no port" if served is None else f"127.0.0.1:{served}/metrics")
        while not stops:
            bridge.turn()
            if time.monotonic() >= due:
                LOG.info("%s", counts.line())
                due += _EVERY_S
        LOG.info("%s: stopping", signal.Signals(stops[0]).name)
        bridge.finish()
    LOG.info("stopped: %s", counts.line())
    return code_of(stops)
