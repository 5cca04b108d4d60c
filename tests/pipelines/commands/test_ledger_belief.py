"""``quiltstream ledger belief``: a belief is priced before it is on record, and what an account holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.pipelines.commands import ledger as commands
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


def test_the_price_of_a_belief_is_in_the_question(tmp_path: Path) -> None:
    made = ran(tmp_path)
    code, text = answered(made, tmp_path / "slower.yaml", "n\n")
    assert (code, beliefs(made)) == (130, 1)
    price = text.partition("Everything charged costs ")[2].partition(" stays free.")[0]
    assert price, text
    assert "of a budget of 3, of which" in price
    code, text = answered(made, tmp_path / "slower.yaml", "y\n")
    assert (code, beliefs(made)) == (0, 2)
    assert price in text
    before, after = (price.split(word)[0].split()[-2] for word in (" now", " then"))
    assert before != after, price
    with Store(f"sqlite:///{made.ledger}") as store:
        assert f"{store.summary('streets').loss:.9g}" == price.partition("and ")[2].split()[0]


def test_a_dry_run_of_a_belief_prices_it_and_changes_nothing(tmp_path: Path) -> None:
    made = ran(tmp_path)
    before = made.ledger.read_bytes()
    dry = call("ledger", "belief", made.ledger, "streets", tmp_path / "slower.yaml", "--dry-run").ended(
        0, "stays free. ", "Nothing was changed."
    )
    assert made.ledger.read_bytes() == before
    asked = answered(made, tmp_path / "slower.yaml", "n\n")[1]
    assert " ".join(dry.out.split()).partition("Everything")[2].partition("free")[0] in asked


def test_a_belief_is_refused_if_budget_was_charged_while_the_question_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ran(tmp_path, budget=1.4)

    def charged(question: str) -> None:
        assert "stays free" in question
        change(made, query="other", sink={"parquet": "other.parquet"})
        assert call("run", made.settings).code == 0

    monkeypatch.setattr(commands, "_ask", charged)
    done = call("ledger", "belief", made.ledger, "streets", tmp_path / "slower.yaml")
    assert (done.code, beliefs(made)) == (3, 1), done
    assert done.said("the new belief about domain 'streets' would cost"), done.err


def test_a_cheaper_change_from_an_instant_is_named_where_there_is_one(tmp_path: Path) -> None:
    made = ran(tmp_path, mechanism="forward-backward")
    asked = answered(made, tmp_path / "slower.yaml", "n\n")[1]
    assert "What costs less is --from 2024-03-08T00:00:00Z, by which the old belief holds until then" in asked
    tight = ran(tmp_path / "tight", mechanism="forward-backward", budget=1.1)
    words = ("ledger", "belief", tight.ledger, "streets", tight.folder / "slower.yaml", "--yes")
    for more in (("--dry-run",), ()):
        refused = call(*words, *more)
        assert (refused.code, beliefs(tight)) == (3, 1)
        assert refused.said("the budget allows --from 2024-03-08T00:00:00Z, by which"), refused.err
    assert call(*words, "--from", "2024-03-08T00:00:00Z").code == 0
    assert beliefs(tight) == 2


@pytest.mark.parametrize("belief", [CURVES, CHAIN], ids=["curves", "chain"])
def test_an_account_of_bounds_by_forward_backward_holds_the_belief_of_a_model(tmp_path: Path, belief: Belief) -> None:
    """As the model has it, so that a query calibrated for it can be registered."""
    made = ran(tmp_path, mechanism="forward-backward", budget=20.0)
    path = model(tmp_path / "model.json", belief)
    assert call("ledger", "belief", made.ledger, "streets", path, "--yes").code == 0
    change(made, model="model.json", query="other", sink={"parquet": "other.parquet"})
    call("run", made.settings).ended(0)
    assert beliefs(made) == 2


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
    refused = call(
        "ledger", "belief", made.ledger, "streets", model(tmp_path / "curves.json", CURVES), "--dry-run"
    ).ended(2)
    for text in (
        "domain 'streets' rests on bounds (pi_min, gap), because a query of it is of mqm-approx, and",
        "curves.json on total-variation bounds: fit a model with `quiltstream fit SETTINGS --belief pooled`",
    ):
        assert refused.said(text), refused.err
    assert call("ledger", "belief", made.ledger, "streets", model(tmp_path / "a.json", CHAIN), "--yes").code == 0
    with Store(f"sqlite:///{made.ledger}") as store:
        held = present(store.registered("streets", "daily"))
        assert held.domain.beliefs[1][0] == MixingBounds.of(CHAIN).to_dict()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pi_min: 0.1\ngaps: 0.3\n", "gaps is not a setting"),
        ("pi_min: 0.1\n", "gap is missing; add it (see a file that holds `pi_min: 0.05` and `gap: 0.3`"),
        ("pi_min: 0.7\ngap: 0.3\n", "pi_min is 0.7, but must be at most 0.5"),
        ("pi_min: [\n", "not YAML"),
    ],
)
def test_bounds_by_hand_that_are_none_are_refused_with_their_file(tmp_path: Path, text: str, said: str) -> None:
    made = ran(tmp_path)
    (tmp_path / "hand.yaml").write_text(text, encoding="utf-8")
    call("ledger", "belief", made.ledger, "streets", tmp_path / "hand.yaml", "--dry-run").ended(2, f"hand.yaml: {said}")


def test_a_model_of_other_states_than_the_domains_is_refused(tmp_path: Path) -> None:
    made = ran(tmp_path)
    path = model(tmp_path / "model.json", MarkovChain([[0.8, 0.2], [0.3, 0.7]]), (300.0,))
    call("ledger", "belief", made.ledger, "streets", path, "--dry-run").ended(2, "below 300 W")
