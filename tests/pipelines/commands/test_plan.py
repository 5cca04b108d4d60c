"""``quiltstream plan``: its numbers are those of the job, its settings are accepted, and nothing is read or charged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from quiltstream.privacy import DobrushinBounds, MarkovChain, MixingBounds
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


def test_a_character_that_the_terminal_lacks_ends_no_command(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "quiltstream.pipelines.cli", "plan", str(job(tmp_path, domain="straße").settings)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "stra?e" in done.stdout


def test_a_plan_answers_every_option(tmp_path: Path) -> None:
    path = model(tmp_path, belief=CHAIN)
    done = call("plan", "--model", path, "--group", "30", "--epsilon", "1").ended(0)
    for text in (
        "forward-backward",
        "mqm-exact",
        "pairwise",
        "entry-dp *",
        "group-dp: does not apply",
        "not protected: correlated slots",
        "a guess of 50% becomes at most 73.2%",
        "30 series",
        "epsilon 0.5",
        "takes epsilon",
        "differential privacy of each window: claims 1; on this belief at least",
        "planned for windows of a week",
    ):
        assert done.said(text), text
    assert not done.said("planned for windows of a week and histograms")


def test_inapplicable_mechanisms_name_alternatives_as_spelt_in_settings(tmp_path: Path) -> None:
    done = call("plan", "--model", model(tmp_path, belief=CLASS)).ended(
        0, "DobrushinBounds names none: use forward-backward, or a belief of chains"
    )
    assert not done.said("use mqm-approx")  # it does not apply either
    done = call("plan", "--model", model(tmp_path, belief=MixingBounds(0.2, 0.5))).ended(
        0, "MixingBounds names none: use mqm-approx or forward-backward"
    )
    assert not done.said("use mqm_approx")


def test_a_plan_is_for_the_least_noise_and_raises_no_budget(tmp_path: Path) -> None:
    made = job(tmp_path, privacy={"epsilon": 1.0, "budget": 2.0, "mechanism": "mqm-approx"})
    assert call("plan", made.settings).said("the settings name mqm-approx; what follows is for forward-backward")
    call("plan", made.settings, "--epsilon", "5").ended(2, "--epsilon is 5, above privacy.budget 2")
    said = planned(made.settings, "--mechanism", "entry-dp")
    assert said["odds"][0]["epsilon"] == said["loss"] > 1.5
    sliding = job(tmp_path, windows={"size": "2d", "every": "1d", "start": "2024-03-01"})
    call("plan", sliding.settings, "--window", "30min").ended(
        2, "--window is 30min, but 2 windows of the settings share a slot: give a multiple of 1h"
    )


@pytest.mark.parametrize("form", ["svg", "png"])
def test_the_picture_is_the_table_of_errors(tmp_path: Path, form: str) -> None:
    pytest.importorskip("matplotlib")
    path, picture = model(tmp_path), tmp_path / f"errors.{form}"
    words = ("plan", "--model", path, "--groups", "1,30", "--windows", "1d,28d", "--picture", picture)
    assert call(*words).code == 0
    content = picture.read_bytes()
    assert call(*words).code == 0
    assert picture.read_bytes() == content
    if form == "png":
        assert content.startswith(b"\x89PNG")
        return
    text = "".join(ET.fromstring(content.decode()).itertext())  # noqa: S314 - written by this test
    for label in ("groups of 1 series", "groups of 30 series", "epsilon 0.5", "epsilon 2", "1d", "1w", "4w"):
        assert label in text


def test_a_loss_without_a_bound_is_reported_as_unbounded(tmp_path: Path) -> None:
    words = ("--model", model(tmp_path), "--mechanism", "entry-dp", "--epsilon", "3", "--epsilons", "1")
    call("plan", *words).ended(0, "nothing bounds what all windows of an endless schedule tell together")
    assert planned(*words)["loss"] is None


def test_a_stand_in_belief_is_reported_prominently(tmp_path: Path) -> None:
    made = job(tmp_path, model="stand-in")
    call("plan", made.settings).ended(0, "THE BELIEF IS A STAND-IN")
    assert planned(made.settings)["stand_in"] is True


def test_a_plan_without_a_roster_is_for_one_series_and_states_it(tmp_path: Path) -> None:
    made = job(tmp_path, roster=None, group_by=None)
    assert call("plan", made.settings).said("no roster file says how many series a group has")
    assert planned(made.settings, "--group", "5")["notes"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "either a settings file or --model"),
        (("settings.yaml", "--model", "model.json"), "either a settings file or --model"),
        (("settings.yaml", "--error", "0"), "--error is '0', but must be a share above 0"),
        (("settings.yaml", "--error", "much"), "--error is 'much'"),
        (("settings.yaml", "--error", "5"), "--error is 5, which would be 500%: write 5%, or 500%"),
        (("settings.yaml", "--window", "7"), "--window: duration '7'"),
        (("settings.yaml", "--window", "45min"), "--window is 45min, which is no whole number of slots of 30min"),
        (("settings.yaml", "--windows", "1d,,2d"), "--windows: duration ''"),
        (("settings.yaml", "--groups", "1,x"), "--groups has 'x'"),
        (("settings.yaml", "--epsilons", "1,x"), "--epsilons has 'x'"),
        (("settings.yaml", "--epsilons", "-1"), "epsilons is -1"),
        (("settings.yaml", "--epsilon", "0"), "epsilon is 0"),
        (("settings.yaml", "--epsilon", "nan"), "epsilon is nan"),
        (("settings.yaml", "--mechanism", "magic"), "--mechanism is 'magic', but must be one of mqm-approx"),
        (("--model", "model.json", "--mechanism", "group-dp"), "group-dp, which has no bound for an endless stream"),
        (("settings.yaml", "--mechanism", "gk16"), "settings that say privacy.guarantee: window"),
        (("settings.yaml", "--picture", "plan.jpg"), "--picture is plan.jpg, but must end with .svg or .png"),
        (("--model", "bare.json"), "the model has no states or no interval"),
        (("--model", "none.json"), "none.json"),
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


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = model(tmp_path)
    (tmp_path / "taken.svg").mkdir()
    done = call("plan", "--model", path, "--picture", tmp_path / "taken.svg").ended(2)
    assert "taken.svg: cannot be written" in done.err
