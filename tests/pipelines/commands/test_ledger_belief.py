"""``quiltstream ledger belief``: a belief is priced before it is on record, and what an account holds."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.privacy import DobrushinBounds, MarkovChain, MixingBounds
from quiltstream.privacy.models.belief import Belief
from quiltstream.schemas.model_file import Model, Provenance
from quiltstream.schemas.slots import parse_duration
from quiltstream.schemas.states import StateSpace
from quiltstream.store.store import Store

from ...present import present
from ..jobs import Job, call, change, job

EDGES = {"states": {"edges": [500], "unit": "W"}}
#: Believed in the place of ``BOUNDS`` it costs more.
SLOWER = "pi_min: 0.05\ngap: 0.2\n"
BOUNDS = {"pi_min": 0.05, "gap": 0.3}
CHAIN = MarkovChain([[0.8, 0.2], [0.3, 0.7]])
CURVES = DobrushinBounds(forward={1: 0.8, 4: 0.35, 16: 0.02}, backward={1: 0.85, 4: 0.4, 16: 0.03})


def ran(folder: Path, *, mechanism: str = "mqm-approx", budget: float = 3.0, **changes: Any) -> Job:
    """A job that ran, of two states, whose model is of bounds by hand."""
    privacy = {"epsilon": 1.0, "budget": budget, "mechanism": mechanism}
    made = job(folder, model=BOUNDS, privacy=privacy, **EDGES, **changes)
    call("run", made.settings).ended(0)
    (folder / "slower.yaml").write_text(SLOWER, encoding="utf-8")
    return made


def model(path: Path, belief: Belief, edges: tuple[float, ...] = (500.0,)) -> Path:
    origin = Provenance(method="given")
    Model(belief.to_dict(), StateSpace(edges, "W"), parse_duration("30min"), origin).save(path)
    return path


def answered(made: Job, path: Path, answer: str) -> tuple[int, str]:
    words = ["ledger", "belief", str(made.ledger), "streets", str(path)]
    done = CliRunner().invoke(main, words, input=answer)
    return done.exit_code, " ".join(done.output.split())


def beliefs(made: Job) -> int:
    """How many beliefs are on record."""
    with Store(f"sqlite:///{made.ledger}") as store:
        (query, *_) = store.queries()
        held = present(store.registered(*query))
        return len(held.domain.beliefs)


@pytest.mark.night
def test_the_price_of_a_belief_is_in_the_question(tmp_path: Path) -> None:
    made = ran(tmp_path)
    before = made.ledger.read_bytes()
    call("ledger", "belief", made.ledger, "streets", tmp_path / "slower.yaml", "--dry-run").ended(0)
    assert made.ledger.read_bytes() == before
    code, text = answered(made, tmp_path / "slower.yaml", "n\n")
    assert (code, beliefs(made)) == (130, 1)
    price = text.partition("Everything charged costs ")[2].partition(" stays free.")[0]
    assert price, text
    assert "The budget is 3" in price
    code, text = answered(made, tmp_path / "slower.yaml", "y\n")
    assert (code, beliefs(made)) == (0, 2)
    assert price in text
    before, after = (price.split(word)[0].split()[-2] for word in (" now", " then"))
    assert before != after, price
    with Store(f"sqlite:///{made.ledger}") as store:
        assert f"{store.summary('streets').loss:.9g}" == price.partition("and ")[2].split()[0]


@pytest.mark.night
def test_a_belief_is_refused_if_budget_was_charged_while_the_question_stood(tmp_path: Path) -> None:
    made = ran(tmp_path, budget=1.4)

    class Answer(io.BytesIO):
        def read1(self, _most: int | None = -1, /) -> bytes:
            change(made, query="other", sink={"parquet": "other.parquet"})
            assert call("run", made.settings).code == 0
            return b"y\n"

    done = CliRunner().invoke(
        main, ["ledger", "belief", str(made.ledger), "streets", str(tmp_path / "slower.yaml")], Answer()
    )
    assert (done.exit_code, beliefs(made)) == (3, 1), done
    assert "the new belief about domain 'streets' would cost" in " ".join(done.stderr.split())


@pytest.mark.night
@pytest.mark.parametrize("belief", [CURVES, CHAIN], ids=["curves", "chain"])
def test_an_account_of_bounds_by_forward_backward_holds_the_belief_of_a_model(tmp_path: Path, belief: Belief) -> None:
    """As the model has it, so that a query calibrated for it can be registered."""
    made = ran(tmp_path, mechanism="forward-backward", budget=20.0)
    path = model(tmp_path / "model.json", belief)
    assert call("ledger", "belief", made.ledger, "streets", path, "--yes").code == 0
    change(made, model="model.json", query="other", sink={"parquet": "other.parquet"})
    call("run", made.settings).ended(0)
    assert beliefs(made) == 2


@pytest.mark.night
def test_a_belief_about_the_marginals_may_join_and_not_follow(tmp_path: Path) -> None:
    made = ran(tmp_path, mechanism="forward-backward", budget=20.0)
    words = ("ledger", "belief", made.ledger, "streets", model(tmp_path / "model.json", CURVES))
    call(*words, "--from", "2024-03-08T00:00:00Z", "--yes").ended(
        2,
        "their proof rests on how often the series are in each state, which is not known after a change",
        "leave --from out, so that the belief joins the others",
    )
    assert beliefs(made) == 1
    assert "--from" not in call(*words, "--dry-run").out
    assert call(*words, "--yes").code == 0


def test_a_query_by_quilts_keeps_its_account_on_the_bounds_of_a_model(tmp_path: Path) -> None:
    made = ran(tmp_path)
    call("ledger", "belief", made.ledger, "streets", model(tmp_path / "curves.json", CURVES), "--dry-run").ended(2)
    assert call("ledger", "belief", made.ledger, "streets", model(tmp_path / "a.json", CHAIN), "--yes").code == 0
    with Store(f"sqlite:///{made.ledger}") as store:
        held = present(store.registered("streets", "daily"))
        assert held.domain.beliefs[1][0] == MixingBounds.of(CHAIN).to_dict()
