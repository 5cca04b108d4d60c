"""Categories as states: what is released of labels, and that no other label of the data gets out."""

from __future__ import annotations

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.pipelines.commands.run import publish
from quiltstream.schemas import read_releases
from quiltstream.schemas.settings.job import load_settings, read_settings
from quiltstream.transforms import PrivateHistograms

from ..jobs import START, Job, Row, call, fork, job

LABELS = ("sleep", "sit", "walk")
STRANGE = "secret-swim"
PEOPLE = ("m1", "m2", "m3", "m4", "m5", "m6")


def diary(days: int = 8, *, strange: float = 0.0) -> list[Row]:
    draw = random.Random(11)
    rows: list[Row] = []
    for person in PEOPLE:
        label = "sleep"
        for slot in range(48 * days):
            if draw.random() < 0.3:
                label = draw.choice(LABELS)
            stamp = (START + slot * dt.timedelta(minutes=30)).isoformat()
            rows.append((person, stamp, STRANGE if draw.random() < strange else label))
    return rows


def labelled(folder: Path, rows: list[Row], **changes: Any) -> Job:
    given: dict[str, Any] = {
        "readings": {"series": "meter", "time": "ts", "value": "kwh"},
        "states": {"categories": list(LABELS)},
        "model": {"pi_min": 0.05, "gap": 0.3},
    }
    return job(folder, rows, **given | changes)


@pytest.mark.night
def test_released_counts_are_those_of_the_labels(tmp_path: Path) -> None:
    rows = diary()
    made = labelled(tmp_path, rows)
    settings = read_settings(made.settings)
    publish(settings, PrivateHistograms(settings, noise="none"))
    found = {(row.window_start, row.key): row for row in made.rows()}
    assert len(found) == 14
    for (start, key), row in found.items():
        members = PEOPLE[:3] if key == "north" else PEOPLE[3:]
        day = dt.datetime.fromtimestamp(start / 1e6, dt.UTC).date().isoformat()
        own = [label for person, stamp, label in rows if person in members and stamp.startswith(day)]
        assert row.counts == tuple(own.count(label) for label in LABELS)
        assert (row.labels, row.edges) == (LABELS, None)
    table = read_releases(made.sink)
    assert table.column("bin").to_pylist()[:3] == list(LABELS)
    shown = call("show", made.sink, "--json")
    assert (json.loads(shown.out)["bins"], json.loads(shown.out)["edges"]) == (list(LABELS), None)
    assert call("show", made.sink, "--duration").said("--duration: the counts are of labels")


def everything(folder: Path, *but: str) -> str:
    """All that a run wrote, in whatever form, as text."""
    return "\n".join(
        path.read_bytes().decode("latin-1")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in but
    )


@pytest.mark.night
@pytest.mark.parametrize(("other", "missing"), [(None, "public"), ("other", "state")])
def test_a_label_outside_the_categories_is_shown_nowhere(tmp_path: Path, other: str | None, missing: str) -> None:
    states = {"categories": list(LABELS), "other": other}
    made = labelled(tmp_path, diary(strange=0.05), states=states, missing=missing)
    done = fork("run", "settings.yaml", "--debug", cwd=tmp_path).ended(0)
    assert STRANGE not in done.out + done.err + everything(tmp_path, "readings.csv")
    kinds = [*LABELS, *([other] if other else []), *(["missing"] if missing == "state" else [])]
    assert all(row.labels == tuple(kinds) for row in made.rows())
    rejected = (tmp_path / "rejects.csv").read_text(encoding="utf-8")
    assert ("unknown-label,readings.csv" in rejected.replace(str(tmp_path) + "/", "")) == (other is None)
    for command in ("check", "run"):
        words = ("check", "--json") if command == "check" else ("run", "--dry-run", "--all")
        asked = call(*words, made.settings)
        assert STRANGE not in asked.out + asked.err
        if command == "run":
            assert asked.said("which cells have such a label is taken as public too") == (
                other is None and missing == "public"
            )


@pytest.mark.night
def test_other_categories_in_one_domain_are_refused(tmp_path: Path) -> None:
    made = labelled(tmp_path, diary())
    assert call("run", made.settings).code == 0
    document = yaml.safe_load(made.settings.read_text(encoding="utf-8"))
    for states in ({"categories": ["sit", "sleep", "walk"]}, {"categories": list(LABELS), "other": "walk"},
                   {"edges": [0.5, 1.5]}):  # fmt: skip
        made.settings.write_text(
            yaml.safe_dump(document | {"states": states, "query": "second", "sink": {"parquet": "second.parquet"}}),
            encoding="utf-8",
        )
        call("run", made.settings).ended(4, "domain 'streets': states.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"readings": {"series": "meter", "time": "ts", "value": "kwh", "scale": 2}}, "readings.scale is of numbers"),
        ({"readings": {"series": "meter", "time": "ts", "value": "kwh", "register": "net"}, "missing": "state"},
         "slots.of, readings.register and absent are of numbers"),
        ({"states": {"categories": ["sleep"]}}, "states.categories is one label"),
    ],
)  # fmt: skip
def test_settings_that_contradict_categories_are_refused_at_load(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    made = labelled(tmp_path, [], **changes)
    with pytest.raises(ValueError, match=said):
        load_settings(made.settings.read_text(encoding="utf-8"))
