"""Readings of messages by JMESPath: what expressions mean, and that a ledger freezes what they mean."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml

from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.settings.recipes import RECIPES
from quiltstream.transforms.payloads import expressions

from ..pipelines.jobs import HOMES, call, job, readings
from ..transforms.formats.decoding import avro_record


@pytest.mark.parametrize("case", expressions.cases(), ids=lambda case: f"{case['expression']} of {case['given']}")
def test_the_language_is_that_of_its_cases(case: dict[str, Any]) -> None:
    found = expressions.outcome_of(case["expression"], case["given"])
    assert (found, type(found)) == (case["made"], type(case["made"]))


def test_a_ledger_refuses_a_text_that_reads_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = avro_record("M", topic="string", payload="bytes", received="long")
    stands = Counter[str]()
    records = list[dict[str, Any]]()
    for one, stamp, value in readings():
        stands[one] += round(100 * value)
        body = {"id": one, "ts": stamp, "v": stands[one] / 100}
        records.append({"topic": "t", "payload": json.dumps(body).encode(), "received": 0})
    with (tmp_path / "m.avro").open("wb") as stream:
        fastavro.writer(stream, schema, records)
    mapping = {"each": "payload", "series": "id", "time": "ts", "value": "v", "unit": "kWh", "scale": 2000}
    made = job(tmp_path, [], source={"avro": "m.avro"}, readings=mapping | {"register": {}}, missing="state")
    call("run", made.settings).ended(0)
    assert {row.members for row in made.rows()} == {len(HOMES) // 2}
    other = tmp_path / "cases.yaml"
    other.write_text(yaml.safe_dump([*expressions.cases(), {"expression": "a", "given": {}}]), encoding="utf-8")
    call("run", made.settings).ended(0)
    monkeypatch.setattr(expressions, "CASES", other)
    call("run", made.settings).ended(4, "domain 'streets'")


@pytest.mark.parametrize("name", RECIPES)
def test_another_outcome_of_a_recipes_samples_has_another_digest(name: str) -> None:
    said = yaml.safe_load((Path(__file__).parent / "messages" / f"{name}.yaml").read_text(encoding="utf-8"))
    one = Readings.model_validate({"recipe": name, **said.get("settings", {})})
    other = one.model_copy(update={"series": "'other'"})
    assert expressions.digest(one) == expressions.digest(one.model_copy()) != expressions.digest(other)
