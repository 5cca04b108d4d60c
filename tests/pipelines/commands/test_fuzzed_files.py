"""Settings and model files of any content end a command with a message, never with an unexpected failure."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.schemas.digests import digest
from quiltstream.schemas.settings.gateway import EXAMPLE as GATEWAY

from ..jobs import Done, call, job

NUMBERS = (0, -1, 1, 2, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), 0.0, -0.0, 1e308, -1e308, 5e-324, 0.5, float("nan"))
TEXTS = ("", "x", "a" * 3_000, "é" * 300, "\x7f", "\u2028", "\U0001f600", "%", "%Y%%%", "*", "[", "{}", "~", "${X}")
TIMES = (
    *("1d", "30min", "1us", "999999d", "0001-01-01", "9999-12-31", "9999-12-31T23:59:59.999999Z"),
    *("0001-01-01T00:00:00+14:00", "2024-02-30", "2024-03-01T00:00+23:59", "2024-03-01 00:00", "Europe/London"),
)
PLACES = (
    *("/", "/dev/zero", "/proc/self/mem", "../x", "sqlite:///", "postgresql://u:hunter2@h/d", "mqtt://u:hunter2@h"),
    *("http://[::1", "a://b", "gs://x/y", "file:///x", "roster.csv", "readings.csv", "model.json"),
)
HOLDERS = (
    *([], {}, [[]], [None], [1, 2, 3], [3, 2, 1], ["a"], [1e308, -1e308], list(range(1_000)), {"a": 1}),
    *({"file": "x"}, {"env": "X"}, {"constant": "x"}, "a[*].b", "a[", {"csv": "x"}),
    *({"column": "meter"}, {"pi_min": 0.1, "gap": 0.1}, {"pi_min": 1e-300, "gap": 1e-300}, {"estimate": {}}),
)
VALUES: tuple[Any, ...] = (None, True, *NUMBERS, *TEXTS, *TIMES, *PLACES, *HOLDERS)

KEYS = {
    "": ("recipe", "live", "rejects", "roster", "group_by", "shards", "most_series", "missing", "model"),
    "windows": ("every", "lateness", "stop"),
    "readings": (
        "time_format",
        "time_unit",
        "pseudonyms",
        "attributes",
        "avro_schemas",
        "recipe",
        "payload",
        "each",
        "where",
    ),
    "states": ("labels", "unit"),
    "privacy": ("mechanism", "guarantee", "budget"),
    "source": ("delimiter", "kafka", "pubsub", "stdin"),
    "sink": ("kafka", "pubsub"),
}

Place = tuple[str | int, ...]


def places(document: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in plain data."""
    yield at
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*at, key))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from places(value, (*at, number))


def changed(document: dict[str, Any], draw: random.Random, keys: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """A document with one to three values exchanged or added."""
    made: Any = copy.deepcopy(document)
    for _ in range(draw.choice([1, 1, 2, 3])):
        value = copy.deepcopy(draw.choice(VALUES))
        section = draw.choice(list(keys)) if keys and draw.random() < 0.3 else None
        inside = made if section == "" else made.get(section)
        if section is not None and isinstance(inside, dict):
            inside[draw.choice(keys[section])] = value
            continue
        at = draw.choice([place for place in places(made) if place])
        inside = made
        for step in at[:-1]:
            inside = inside[step]
        inside[at[-1]] = value
    return made


def check(done: Done, document: Any) -> None:
    shown = f"{json.dumps(document, default=str)[:2_000]}\n{done.err}"
    assert done.code in (0, 2, 3, 4, 5, 6), shown
    assert "Traceback" not in done.err, shown
    assert "hunter2" not in done.err + done.out, shown


@pytest.mark.night
@pytest.mark.parametrize("seed", range(3))
def test_no_settings_of_a_job_are_an_unexpected_failure(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    made = job(tmp_path)
    assert call("fit", made.settings, "--belief", "pooled", "-o", tmp_path / "model.json").code == 0
    base: dict[str, Any] = yaml.safe_load(made.settings.read_text(encoding="utf-8"))
    broker = {"kafka": {"servers": "h:1", "topic": "t", "registry": {"url": "http://h"}}}
    mapped = {"each": "payload", "series": "a", "time": "t", "value": "v"}
    bases = [base, {**base, "model": "model.json"}, {**base, "source": broker, "readings": mapped}]
    for _ in range(60):
        document = changed(draw.choice(bases), draw, KEYS)
        made.settings.write_text(yaml.safe_dump(document), encoding="utf-8")
        check(call("run", "--dry-run", made.settings), document)


@pytest.mark.night
@pytest.mark.parametrize("seed", [11])
def test_no_settings_of_a_gateway_are_an_unexpected_failure(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    base = yaml.safe_load(GATEWAY)
    for _ in range(150):
        document = changed(
            base, draw, {"mqtt": ("tls", "user", "port"), "forward": ("pseudonyms", "rejects", "limits")}
        )
        (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        check(call("gateway", "--check", tmp_path / "gateway.yaml"), document)


def signed(form: dict[str, Any]) -> str:
    """A model file whose digests are right: whoever can write it can make them."""
    parts: dict[str, Any] = {name: form.get(name) for name in ("belief", "states")}
    try:
        states = (
            None if parts["states"] is None else {n: parts["states"][n] for n in ("edges", "unit", "missing_state")}
        )
        form["model_id"] = digest({"belief": parts["belief"], "states": states, "interval_us": 1_800_000_000})
        form["digest"] = digest({name: value for name, value in form.items() if name != "digest"})
    except (ValueError, KeyError, TypeError):
        pass  # what has no digest is refused for that
    return json.dumps(form)


@pytest.mark.night
@pytest.mark.parametrize("seed", range(2))
def test_no_model_file_is_an_unexpected_failure(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    made = job(tmp_path, model="model.json", privacy={"epsilon": 1.0, "budget": 1.0, "mechanism": "mqm-exact"})
    path = tmp_path / "model.json"
    assert call("fit", made.settings, "--belief", "pooled", "-o", path).code == 0
    base = json.loads(path.read_text(encoding="utf-8"))
    assert json.loads(signed(copy.deepcopy(base)))["digest"] == base["digest"]
    beliefs = [
        base["belief"],
        {"kind": "mixing-bounds", "pi_min": 0.1, "gap": 0.3},
        {"kind": "interval-chain", "lower": [[0.1, 0.1], [0.1, 0.1]], "upper": [[0.9, 0.9], [0.9, 0.9]]},
    ]
    for _ in range(60):
        form = changed(base | {"belief": changed({"b": draw.choice(beliefs)}, draw, {}).get("b")}, draw, {})
        path.write_text(signed(form), encoding="utf-8")
        check(call("run", "--dry-run", made.settings), form)
