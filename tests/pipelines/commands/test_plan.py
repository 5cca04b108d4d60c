"""``quiltstream plan``: its numbers are those of the job, its settings are accepted, and nothing is read or charged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quiltstream.privacy import DobrushinBounds, MarkovChain
from quiltstream.privacy.accounting.habits import least_mixture_loss, mixture_loss
from quiltstream.privacy.models.belief import Belief
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.settings.job import read_settings
from quiltstream.schemas.states import StateSpace
from quiltstream.transforms.plan import make_plan

from ..jobs import Job, call, job

CHAIN = MarkovChain([[0.9, 0.08, 0.02], [0.3, 0.6, 0.1], [0.1, 0.3, 0.6]])
CLASS = DobrushinBounds.of(CHAIN)


def model(folder: Path, *, bare: bool = False, belief: Belief = CLASS) -> Path:
    """A model file; a bare one is about no states and no interval."""
    made = Model(
        belief=belief.to_dict(),
        states=None if bare else StateSpace((250.0, 1000.0), "W"),
        interval_us=None if bare else 1_800_000_000,
        provenance=Provenance(method="given"),
    )
    made.save(path := folder / ("bare.json" if bare else "model.json"))
    return path


def planned(*words: Any) -> dict[str, Any]:
    done = call("plan", *words, "--format", "json").ended(0)
    return json.loads(done.out)


def untouched(made: Job) -> None:
    assert not made.ledger.exists()
    assert not made.sink.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"windows": {"size": "2d", "every": "1d", "start": "2024-03-01"}},
        {"by": "hour"},
        {"bins": [500]},
        {"privacy": {"epsilon": 2.0, "guarantee": "window", "mechanism": "mqm-approx"}},
        {"missing": "state", "states": {"edges": [500], "unit": "W"}},
    ],
    ids=["plain", "sliding", "by hour", "coarser bins", "each window alone", "missing as a state"],
)
def test_a_plan_has_the_noise_of_the_job_and_reads_no_data(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = job(tmp_path, **changes)
    (tmp_path / "readings.csv").unlink()
    expected = make_plan(read_settings(made.settings))
    said = planned(made.settings, "--mechanism", "mqm-approx")
    chosen = said["chosen"]
    assert chosen["sigma"] == pytest.approx(expected.calibration.sigma * expected.share, rel=1e-12)
    assert chosen["bin_error"] == pytest.approx(expected.noisy.mean_abs, rel=1e-12)
    dry = json.loads(call("run", "--dry-run", "--json", made.settings).out)
    assert chosen["error"] == pytest.approx(dry["relative_error"], rel=1e-9)
    assert chosen["half_width_95"] == dry["half_width_95"]
    assert said["purpose"]["group"] == 3
    untouched(made)


@pytest.mark.night
def test_a_character_that_the_terminal_lacks_ends_no_command(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "quiltstream.pipelines.cli", "plan", str(job(tmp_path, domain="straße").settings)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "stra?e" in done.stdout


def test_a_plan_is_for_the_least_noise_and_raises_no_budget(tmp_path: Path) -> None:
    made = job(tmp_path, privacy={"epsilon": 1.0, "budget": 2.0, "mechanism": "mqm-approx"})
    call("plan", made.settings, "--epsilon", "5").ended(2, "--epsilon is 5, above privacy.budget 2")
    said = planned(made.settings, "--mechanism", "entry-dp")
    assert said["loss"] > 1.5
    sliding = job(tmp_path, windows={"size": "2d", "every": "1d", "start": "2024-03-01"})
    call("plan", sliding.settings, "--window", "30min").ended(
        2, "--window is 30min, but 2 windows of the settings share a slot: give a multiple of 1h"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "either a settings file or --model"),
        (("settings.yaml", "--error", "5"), "'--error': 5 would be 500%"),
        (("settings.yaml", "--window", "45min"), "--window is 45min"),
        (("settings.yaml", "--groups", "1,x"), "'--groups': 'x' is no whole number"),
        (("settings.yaml", "--epsilon", "nan"), "epsilon is nan"),
        (("settings.yaml", "--mechanism", "magic"), "--mechanism is 'magic'"),
        (("--model", "model.json", "--mechanism", "group-dp"), "group-dp"),
        (("--model", "bare.json"), "the model has no states or no interval"),
        (("none.yaml",), "none.yaml"),
    ],
)
def test_an_impossible_plan_is_refused_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    job(tmp_path)
    model(tmp_path, bare=True)
    model(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = call("plan", *words).ended(2)
    assert message in " ".join(done.err.split()), done.err


def test_a_lifetime_takes_noise_against_someone_who_knows_only_the_chains_of_the_history(tmp_path: Path) -> None:
    chains = [
        [[0.9, 0.08, 0.02], [0.3, 0.6, 0.1], [0.1, 0.3, 0.6]],
        [[0.5, 0.4, 0.1], [0.1, 0.6, 0.3], [0.1, 0.2, 0.7]],
    ]
    path = model(tmp_path)
    fitted = Model.load(path)
    Model(fitted.belief, fitted.states, fitted.interval_us, fitted.provenance, {"cover": {"chains": chains}}).save(path)
    words = "--model", path, "--window", "1d"
    day, two = (planned(*words, "--lifetime", life)["lifetime"] for life in ("1d", "2d"))
    members = [MarkovChain(one) for one in chains]
    for said in (day, two):
        assert said["least"] <= said["proved"] <= said["slots"]
        assert mixture_loss(members, 1 / said["proved"], said["slots"]) <= 1 + 1e-9
        assert least_mixture_loss(members, 1 / said["least"], said["slots"]) >= 0.999
    assert (day["slots"], two["slots"]) == (48, 96)
    assert day["proved"] < two["proved"]
    call("plan", *words, "--lifetime", "1d").ended(0, "is proved against someone who knows the history's chains")
    call("plan", *words, "--lifetime", "12h").ended(2, "--lifetime is 12h, shorter than a window of 1d")
    call("plan", "--model", model(tmp_path), "--lifetime", "7d").ended(2, "this model keeps none")
