"""Every mechanism of the settings from the file to the rows: its noise, what it is charged, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quiltstream.privacy import Ledger, belief_from_dict, forward_backward, mqm_approx, mqm_exact, pairwise
from quiltstream.privacy.analysis.methods import METHODS
from quiltstream.privacy.models.classes import mixing_bounds
from quiltstream.schemas.model_file import Model

from ..jobs import Job, call, job, readings

NAMES = {name: name for name in ("mqm-approx", "mqm-exact", "pairwise", "forward-backward", "group-dp")} | {
    "entry-dp": METHODS["entry-dp"].label
}
SLOTS = 48
ON_A_PUSH = (("forward-backward", "stream"), ("mqm-approx", "window"), ("entry-dp", "stream"))


def fitted(folder: Path, privacy: dict[str, Any], **changes: Any) -> tuple[Job, Model]:
    """A job over a model with a chain, fitted on series that it does not publish."""
    other = job(folder / "history", readings(days=30, homes=["x1", "x2"], seed=3), model="model.json")
    assert call("fit", other.settings, "--belief", "pooled").code == 0
    made = job(folder / "job", model="../history/model.json", privacy=privacy, **changes)
    return made, Model.load(folder / "history" / "model.json")


def sigma_of(mechanism: str, model: Model, guarantee: str) -> float:
    belief = belief_from_dict(model.belief)
    length = None if guarantee == "stream" else SLOTS
    if mechanism in ("group-dp", "entry-dp"):
        return float(SLOTS if mechanism == "group-dp" else 1)
    if mechanism == "forward-backward":
        return forward_backward(belief, 1.0, length).sigma
    method = {"mqm-approx": mqm_approx, "mqm-exact": mqm_exact, "pairwise": pairwise}[mechanism]
    return method(belief, 1.0, length).sigma


@pytest.mark.parametrize(
    ("mechanism", "guarantee"),
    [
        pytest.param(name, guarantee, marks=() if (name, guarantee) in ON_A_PUSH else pytest.mark.night)
        for name in NAMES
        for guarantee in ("stream", "window")
        if (name, guarantee) != ("group-dp", "stream")
    ],
)
def test_each_mechanism_is_charged_its_loss_and_republishes_equal_rows(
    tmp_path: Path, mechanism: str, guarantee: str
) -> None:
    within = mechanism != "entry-dp" and guarantee == "stream"
    privacy = {"epsilon": 1.0, "mechanism": mechanism, "guarantee": guarantee, "budget": 1.0 if within else 500.0}
    made, model = fitted(tmp_path, privacy)
    said = json.loads(call("run", "--dry-run", "--json", made.settings).out)
    assert (said["mechanism"], said["sigma"]) == (NAMES[mechanism], sigma_of(mechanism, model, guarantee))
    assert said["scale"] == pytest.approx(2 * said["sigma"], rel=1e-6)
    assert said["admitted"] is None

    call("run", made.settings).ended(0)
    rows = made.rows()
    assert len(rows) == 14
    assert {(row.mechanism, row.guarantee, row.scale) for row in rows} == {(NAMES[mechanism], guarantee, said["scale"])}
    assert rows[-1].loss_after == pytest.approx(said["schedule_loss"], rel=1e-12)
    if within and mechanism != "forward-backward":
        assert 0.2 < rows[-1].loss_after < 0.5
    elif within:
        assert 0.99 < rows[-1].loss_after <= 1
    first = made.sink.read_bytes()
    assert call("run", made.settings).said("Nothing was charged")
    assert made.sink.read_bytes() == first


@pytest.mark.night
@pytest.mark.parametrize("mechanism", NAMES)
def test_the_first_window_costs_at_most_epsilon_but_for_entry_dp(tmp_path: Path, mechanism: str) -> None:
    made, model = fitted(tmp_path, {"epsilon": 1.0, "mechanism": mechanism, "guarantee": "window", "budget": 500.0})
    assert call("run", made.settings).code == 0
    row = made.rows()[0]
    chains = mechanism in ("mqm-exact", "pairwise", "forward-backward")
    belief = belief_from_dict(model.belief)
    account = Ledger(belief if chains else mixing_bounds(belief))
    assert row.loss_after == pytest.approx(account.loss_of([(0, SLOTS, row.epsilon_dp)]), rel=1e-12)
    assert (row.loss_after <= 1) == (mechanism != "entry-dp")


@pytest.mark.night
def test_a_dry_run_has_cost_calibration_and_proof_of_the_noise(tmp_path: Path) -> None:
    made, _ = fitted(tmp_path, {"epsilon": 1.0, "mechanism": "mqm-approx"})
    said = json.loads(call("run", "--dry-run", "--json", made.settings).out)
    assert 0 < said["schedule_loss"] == said["cost"]["loss"] < 0.5
    within = said["cost"]["events"]
    assert [loss for loss, _ in within] == [1.0, 2.0, 4.0]
    assert 1 < within[0][1] < within[1][1] < within[2][1]
    assert (said["certified"], said["lower_bound"]) == (False, None)

    made, model = fitted(tmp_path, {"epsilon": 1.0, "mechanism": "forward-backward"})
    said = json.loads(call("run", "--dry-run", "--json", made.settings).out)
    noise = forward_backward(belief_from_dict(model.belief), 1.0)
    assert noise.lower_bound is not None
    assert (said["certified"], said["lower_bound"]) == (True, noise.lower_bound)
    assert 1.0 >= said["schedule_loss"] > 0.99


@pytest.mark.night
def test_sliding_windows_share_the_exact_density(tmp_path: Path) -> None:
    windows = {"size": "2d", "every": "1d", "start": "2024-03-01", "stop": "2024-03-08"}
    made, model = fitted(tmp_path, {"epsilon": 1.0, "mechanism": "pairwise"}, windows=windows)
    assert call("run", made.settings).code == 0
    rows = made.rows()
    assert [row.scale for row in rows] == pytest.approx([4 * sigma_of("pairwise", model, "stream")] * 12, rel=1e-6)
    assert 0.2 < rows[-1].loss_after < 0.25  # as much as adjacent windows of pairwise


@pytest.mark.night
def test_the_london_homes_need_the_noise_of_the_papers_methods(tmp_path: Path, shared_data: Path) -> None:
    made = job(
        tmp_path,
        source={"parquet": str(shared_data / "lcl2013" / "lcl2013_halfhourly_60hh.parquet")},
        readings={"series": "household", "time": "ts", "value": "kwh", "scale": 2000},
        slots={"interval": "30min", "origin": "2013-01-01"},
        windows={"size": "7d", "start": "2013-01-01", "stop": "2013-12-31"},
        group_by=None,
        roster=None,
        model="model.json",
    )
    assert call("fit", made.settings, "--belief", "pooled").code == 0
    text = made.settings.read_text(encoding="utf-8")
    for mechanism, sigma, loss in (("mqm-approx", 84.4445, 0.4862), ("mqm-exact", 43.4090, 0.2406)):
        made.settings.write_text(
            text.replace("epsilon: 1.0", f"epsilon: 1.0\n  mechanism: {mechanism}"), encoding="utf-8"
        )
        said = json.loads(call("run", "--dry-run", "--json", made.settings).out)
        assert said["sigma"] == pytest.approx(sigma, abs=5e-5)
        assert said["schedule_loss"] == pytest.approx(loss, abs=5e-4)
