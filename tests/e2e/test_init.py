"""``quiltstream init`` at real brokers: nothing is left there, and a job runs by what it wrote."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from quiltstream.schemas.settings.job import read_settings

from ..pipelines.jobs import call
from .gateway_job import GatewayProcess
from .kafka import KafkaBroker
from .mosquitto import MosquittoBroker
from .test_check_messages import groups_of

pytestmark = pytest.mark.e2e

START = 1_772_323_200


def test_init_writes_settings_from_a_topic_and_commits_no_offsets(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.topic(2)
    bodies = [{"meterId": f"m{at % 4}", "time": START + at // 4 * 900, "power": at} for at in range(80)]
    kafka.send(topic, [(at % 2, json.dumps(one).encode()) for at, one in enumerate(bodies)])
    groups, settings = groups_of(kafka), tmp_path / "settings.yaml"
    done = call("init", "--from-topic", topic, "--servers", kafka.servers, "-o", settings, "--messages", "60")
    assert done.code == 0, done.err
    assert groups_of(kafka) == groups
    read = read_settings(settings)
    assert read.readings is not None
    assert read.readings.model_dump(mode="json", exclude_defaults=True) == {
        "each": "payload",
        "series": "meterId",
        "time": "time",
        "value": "power",
    }
    assert read.slots.interval == "15min"
    tried = json.loads(call("check", "--json", settings, "--from-topic", "20").out)
    assert [len(one["readings"]) for one in tried] == [1] * 20
    assert groups_of(kafka) == groups


@contextlib.contextmanager
def plugs(port: int, message: Callable[[int], bytes]) -> Generator[None]:
    """Two plugs that publish until the test goes on, ten messages a second."""
    over = threading.Event()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()

    def publish() -> None:
        at = 0
        while not over.is_set():
            client.publish(f"tele/plug{at % 2}/SENSOR", message(at), qos=1)
            client.publish(f"tele/plug{at % 2}/LWT", b"Online", qos=1, retain=True)
            at += 1
            time.sleep(0.1)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        client.disconnect()
        client.loop_stop()


def tasmota(at: int) -> bytes:
    stamp = dt.datetime.fromtimestamp(START + at // 2 * 10, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return json.dumps({"Time": stamp, "ENERGY": {"Total": 41.2, "Power": at % 7 * 100}}).encode()


def test_init_from_mqtt_messages_writes_a_gateway_and_a_job_that_run(
    mosquitto: MosquittoBroker, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    with plugs(mosquitto.port, tasmota):
        words = ("--broker", f"127.0.0.1:{mosquitto.port}", "--messages", "60", "--seconds", "30", "-o", settings)
        done = call("init", "--from-mqtt", "tele/#", *words)
        assert done.code == 0, done.err
        assert done.said("recipe tasmota")
        gateway = GatewayProcess(yaml.safe_load((tmp_path / "gateway.yaml").read_text(encoding="utf-8")))
        try:
            gateway.start("subscribed to")
            time.sleep(8)
            assert gateway.stop() == 0
            (gateway.folder / "spool").rename(tmp_path / "spool")
        finally:
            gateway.close()
    read = read_settings(settings)
    assert (read.slots.interval, read.windows.start) == ("10s", "2026-03-01")
    assert call("check", settings).said("readings")
    text = settings.read_text(encoding="utf-8").replace("size: 1d", "size: 1h, stop: 2026-03-02")
    settings.write_text(text.replace("{jsonl: releases}", "{jsonl: releases.jsonl}"), encoding="utf-8")
    ran = call("run", "--accept-stand-in", "--accept-noise", settings)
    assert ran.code == 0, ran.err
    rows = [json.loads(line) for line in (tmp_path / "releases.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {one["key"] for one in rows} == {"plug0", "plug1"}
