"""``quiltstream fit``: the model file and what is said about it."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from quiltstream.privacy import (
    FiniteClass,
    LaplaceHistogram,
    MarkovChain,
    MixingBounds,
    belief_from_dict,
    forward_backward,
    mqm_approx,
)
from quiltstream.privacy.models import DobrushinBounds, PeriodicChain
from quiltstream.schemas.model_file import Model

from ..jobs import HOMES, Done, Job, Row, call, job, readings, write_as

POOLED = ("--belief", "pooled")


def chain_of(rows: list[Row], homes: Iterable[str]) -> list[list[float]]:
    """The pooled chain in plain Python; the rows of a home are half an hour apart."""
    pairs: Counter[tuple[int, int]] = Counter()
    for home in homes:
        path = [sum(v * 2000 >= edge for edge in (250, 500, 1000, 2000)) for m, _, v in rows if m == home]
        pairs.update(pairwise(path))
    return [[pairs[x, y] / sum(pairs[x, z] for z in range(5)) for y in range(5)] for x in range(5)]


@pytest.fixture(scope="module")
def leveled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Job]:
    """A class of five of six series, fitted once: what the command said, and the job; it is only read and copied."""
    made = job(tmp_path_factory.mktemp("leveled"), model="model.json")
    return call("fit", made.settings, "--cover", "0.7"), made


def copied(leveled: tuple[Done, Job], folder: Path, **changes: Any) -> Job:
    """The same job with its fitted model in another folder."""
    made = job(folder, model="model.json", **changes)
    (folder / "model.json").write_bytes((leveled[1].folder / "model.json").read_bytes())
    return made


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the losses under richer beliefs, which take longer than the rest of a fit and have a test below."""
    monkeypatch.setattr("quiltstream.pipelines.commands.fit_checks._MOST_ROWS", 0)


@pytest.mark.night
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "avro", "csv.gz"])
def test_a_data_file_of_each_format_gives_the_chain_of_a_plain_count(tmp_path: Path, form: str) -> None:
    rows = readings()
    path = write_as(form.removesuffix(".gz"), tmp_path / f"history.{form}", rows)
    if form.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    made = job(tmp_path, source={form.removesuffix(".gz"): path.name}, model="model.json")
    call("fit", made.settings, *POOLED).ended(0)
    model = Model.load(tmp_path / "model.json")
    assert model.belief["transition"] == chain_of(rows, set(HOMES))
    assert (model.provenance.series, model.provenance.transitions) == (6, 6 * (48 * 8 - 1))
    assert model.provenance.used(HOMES) == 6
    assert not any(home in (tmp_path / "model.json").read_text(encoding="utf-8") for home in HOMES)


def test_settings_define_the_history_and_the_path_of_the_model(tmp_path: Path) -> None:
    rows = readings()
    made = job(tmp_path, rows, model="models/model.json")
    (tmp_path / "out.csv").write_text("series\nm1\nm2\n", encoding="utf-8")
    done = call("fit", made.settings, *POOLED, "--exclude", tmp_path / "out.csv").ended(0)
    model = Model.load(tmp_path / "models" / "model.json")
    assert model.belief["transition"] == chain_of(rows, set(HOMES) - {"m1", "m2"})
    assert done.said("4 of its series are in the settings' roster")
    assert done.said("all of this is exact: publishing it is a release")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("settings.yaml", "-o", "ledger.db"), "ledger and the model file (-o) name the same file"),
        (("settings.yaml", "-o", "../made/roster.csv"), "roster and the model file (-o) name the same file"),
        (("settings.yaml", "-o", "readings.csv"), "source.csv and the model file (-o) name the same"),
        (("settings.yaml", "--only", "nothing.csv"), "cannot be read as a CSV file of series"),
        (("settings.yaml", "--start", "2030-01-01"), "none of the 0 series"),
        (("settings.yaml", "--smoothing", "-1"), "smoothing"),
    ],
)
def test_an_impossible_fit_exits_with_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    job(tmp_path / "made", model="model.json")
    monkeypatch.chdir(tmp_path / "made")
    before = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    call("fit", *words).ended(2, message)
    assert {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()} == before


def test_lists_of_series_by_the_rosters_column_or_the_datas_and_times_select_the_history(tmp_path: Path) -> None:
    rows, homes, only = readings(), tmp_path / "homes.csv", tmp_path / "only.csv"
    made = job(tmp_path, rows, model="model.json", roster={"file": "homes.csv", "series": "home"}, group_by=None)
    homes.write_text("series,home,other\nx,m1,m3\ny,m2,m4\n", encoding="utf-8")
    only.write_text("meter,street\nm5,x\nm6,x\n", encoding="utf-8")
    in_days = [row for row in rows if "2024-03-02" <= row[1] < "2024-03-08"]
    for words, chosen, kept in (
        (("--exclude", homes), rows, set(HOMES) - {"m1", "m2"}),
        (("--only", only, "--start", "2024-03-02", "--stop", "2024-03-08"), in_days, {"m5", "m6"}),
    ):
        call("fit", made.settings, *POOLED, *words).ended(0)
        assert Model.load(tmp_path / "model.json").belief["transition"] == chain_of(chosen, kept)


@pytest.mark.night
@pytest.mark.parametrize("option", ["only", "exclude"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("m1\nm2\n", "its first line must be a header"),
        ("series\nM1\nM2\n", "none of the 2 series it lists is among the 6 of the history"),
    ],
    ids=["no header", "other names"],
)
def test_a_list_matching_no_series_is_refused_and_not_quoted(
    tmp_path: Path, option: str, content: str, message: str
) -> None:
    made = job(tmp_path, model="model.json")
    (tmp_path / "list.csv").write_text(content, encoding="utf-8")
    done = call("fit", made.settings, *POOLED, f"--{option}", tmp_path / "list.csv").ended(2, message)
    assert not any(name in done.err for name in ("m1", "M1", "street"))
    assert not (tmp_path / "model.json").exists()


@pytest.mark.night
def test_a_class_of_most_series_is_fitted_with_its_noise_and_coverage(leveled: tuple[Done, Job]) -> None:
    done, made = leveled
    assert done.code == 0, done.err
    model = Model.load(made.folder / "model.json")
    bounds = DobrushinBounds.from_dict(model.belief)
    # five of six: ceil(0.7 * 7)
    assert model.diagnostics["cover"]["rank"] == 5
    assert model.provenance.outside == 6 - 5
    assert model.provenance.text.startswith("contraction class, cover 0.7, 10 pseudo-visits")
    for _, eta in (*bounds.forward, *bounds.backward):
        assert eta == round(eta, 4)
    assert not any(home in (made.folder / "model.json").read_text(encoding="utf-8") for home in HOMES)
    checks = model.diagnostics["cover"]["checks"]
    assert set(checks) == {"rhythm", "memory", "25 hours", "week"}
    assert {found["series"] for found in checks.values()} == {6}


@pytest.mark.night
@pytest.mark.usefixtures("unchecked")
def test_own_chains_are_checked_at_the_epsilon_of_the_settings(tmp_path: Path) -> None:
    made = job(tmp_path, model="model.json", privacy={"epsilon": 0.2, "mechanism": "forward-backward", "budget": 0.2})
    call("fit", made.settings, "--cover", "0.7").ended(0)
    cover = Model.load(tmp_path / "model.json").diagnostics["cover"]
    own, sigma = cover["checked"]["own"], cover["checked"]["sigma"]
    assert (cover["checked"]["epsilon"], own["series"]) == (0.2, 6)
    assert sigma > cover["sigma"]
    assert own["within"] >= cover["rank"]  # the class holds so many of these chains
    assert own["largest"] < cover["own"]["largest"]  # a loss at epsilon 0.2, and a sigma at epsilon 1


@pytest.mark.night
@pytest.mark.usefixtures("unchecked")
def test_a_rhythm_is_fitted_by_the_slot_of_the_day_and_published_under(tmp_path: Path) -> None:
    rows = readings()
    made = job(
        tmp_path, rows, model="model.json", privacy={"epsilon": 1.0, "budget": 1.0, "mechanism": "forward-backward"}
    )
    call("fit", made.settings, "--belief", "periodic").ended(0)
    model = Model.load(tmp_path / "model.json")
    chain = PeriodicChain.from_dict(model.belief)
    # slot 20 of the day in plain Python: 8 days of 6 homes, and 10 visits of the pooled row
    counts: Counter[tuple[int, int]] = Counter()
    for home in HOMES:
        path = [sum(v * 2000 >= edge for edge in (250, 500, 1000, 2000)) for m, _, v in rows if m == home]
        counts.update((path[slot], path[slot + 1]) for slot in range(20, len(path) - 1, 48))
    pooled = chain_of(rows, HOMES)
    for x in range(5):
        visits = sum(counts[x, y] for y in range(5))
        expected = [(counts[x, y] + 10 * pooled[x][y]) / (visits + 10) for y in range(5)]
        assert chain.transitions[20, x].tolist() == pytest.approx(expected, abs=3e-4)
    assert (chain.transitions == chain.transitions.round(4)).all()
    call("run", made.settings).ended(0)
    sigma = model.diagnostics["rhythm"]["sigma"]
    assert pl.read_parquet(tmp_path / "releases.parquet")["epsilon_dp"].max() == pytest.approx(1 / sigma, rel=2e-3)


@pytest.mark.night
def test_a_certificate_of_the_exact_account_is_kept_with_the_pooled_chain(tmp_path: Path) -> None:
    done = call("fit", job(tmp_path, model="model.json").settings, *POOLED, "--certify").ended(0)
    belief = belief_from_dict(Model.load(tmp_path / "model.json").belief)
    assert len(belief.certificates) == 1
    assert done.said(f"endless: sigma {1 / belief.certificates[0].density:.4f}, kept in the model")
    assert forward_backward(belief, 1.0).sigma == pytest.approx(1 / belief.certificates[0].density, rel=2**-11)


@pytest.mark.usefixtures("unchecked")
def test_own_chains_of_most_series_are_a_list_whose_slowest_chain_is_not_rounded(tmp_path: Path) -> None:
    call("fit", job(tmp_path, model="model.json").settings, "--belief", "series", "--cover", "0.5").ended(0)
    model = Model.load(tmp_path / "model.json")
    belief = belief_from_dict(model.belief)
    assert isinstance(belief, FiniteClass)
    assert len(belief.chains) == 4
    assert sum((chain.transition == chain.transition.round(4)).all() for chain in belief.chains) == 3
    assert all((chain.transition > 0).all() for chain in belief.chains)
    cover = model.diagnostics["cover"]
    (row,) = (row for row in cover["table"] if row["rank"] == 4)
    assert cover["sigma"] >= row["series_sigma"]


@pytest.mark.night
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cover", "0.9"), "with probability 6/7 = 0.857; give a smaller cover"),
        (("--certify",), "--certify: it is for --belief pooled"),
        (("--cover", "0.86"), "the largest for this history is --cover 0.85"),
        (("--belief", "pooled", "--cover", "0.5"), "--cover: it is for --belief level or series"),
        (("--cover", "0.5", "--smoothing", "1"), "--smoothing: it is for --belief pooled"),
    ],
)
def test_a_cover_unattainable_by_the_history_writes_no_model(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    call("fit", job(tmp_path, model="model.json").settings, *words).ended(2, message)
    assert not (tmp_path / "model.json").exists()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("regimes", ["weekday", "kinds", "calendar.csv"])
def test_a_class_holds_for_someone_who_knows_the_kind_of_each_day(tmp_path: Path, regimes: str) -> None:
    made = job(tmp_path, model="model.json")
    days = [f"2024-03-{day:02},{'free' if day in (2, 3, 9, 10) else 'work'}" for day in range(1, 13)]
    (tmp_path / "calendar.csv").write_text("\n".join(["day,kind", *days]), encoding="utf-8")
    words = regimes if "." not in regimes else tmp_path / regimes
    done = call("fit", made.settings, "--cover", "0.85", "--regimes", words).ended(0)
    assert done.said("habits tell at most")
    assert done.said("the promise is given that label") == (regimes == "kinds")
    model = Model.load(tmp_path / "model.json")
    assert "given the kind of day" in model.provenance.text
    assert model.diagnostics["cover"]["habits"]["most"] > 0
    bounds = DobrushinBounds.from_dict(model.belief)
    assert max(m for m, _ in bounds.forward) <= 48
    call("run", made.settings, "--accept-cover").ended(2, "pi_min and the gap are those of one kernel")
    if regimes == "weekday":
        weekday = bounds
    elif "." in regimes:  # the same kinds by another road
        call("fit", made.settings, "--cover", "0.85", "--regimes", "weekday").ended(0)
        weekday = DobrushinBounds.from_dict(Model.load(tmp_path / "model.json").belief)
        assert weekday == bounds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda days: days[:4] + days[5:], "2024-03-05 has no kind"),
        (lambda days: [*days, days[3]], "2024-03-04 is there twice"),
        (lambda days: days[0].split(",")[:1], "a line has no day and kind"),
        (lambda days: [f"{one[:10]},k{at}" for at, one in enumerate(days)], "kinds, and at most 4"),
    ],
)
def test_a_calendar_of_kinds_with_a_mistake_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    made = job(tmp_path, model="model.json")
    days = [f"2024-03-{day:02},work" for day in range(1, 13)]
    (tmp_path / "calendar.csv").write_text("\n".join(["day,kind", *change(days)]), encoding="utf-8")
    call("fit", made.settings, "--cover", "0.8", "--regimes", tmp_path / "calendar.csv").ended(2, message)
    assert not (tmp_path / "model.json").exists()


def test_one_series_has_no_regimes_and_needs_a_word_to_be_published(tmp_path: Path) -> None:
    made = job(tmp_path, readings(homes=["m1"]), model="model.json")
    call("fit", made.settings, "--cover", "0.5", "--regimes", "kinds").ended(2, "a history of one series")
    call("fit", made.settings, "--belief", "pooled", "--regimes", "kinds").ended(2, "it is for --belief level")
    done = call("fit", made.settings, "--cover", "0.5").ended(
        0,
    )
    assert done.said("one series does not say how much they tell")
    assert done.said("`run` needs --accept-cover")


@pytest.mark.night
def test_a_job_publishes_under_a_class_of_most_series_for_its_epsilon(
    leveled: tuple[Done, Job], tmp_path: Path
) -> None:
    privacy = {"epsilon": 1.0, "budget": 1.0, "mechanism": "forward-backward"}
    made = copied(leveled, tmp_path, privacy=privacy)
    call("run", made.settings).ended(2, "probability about 0.71, below 0.8", "--accept-cover")
    call("run", "--dry-run", made.settings).ended(2, "unless it is run with --accept-cover", "probability about 0.71")
    call("run", "--accept-cover", made.settings).ended(0, "probability about 0.71")
    sigma = Model.load(tmp_path / "model.json").diagnostics["cover"]["sigma"]
    rows = pl.read_parquet(tmp_path / "releases.parquet")
    assert all("probability about 0.71" in text for text in rows["model_provenance"])
    call("report", made.settings, "-o", tmp_path / "report.html").ended(0)
    assert "probability about 0.71" in " ".join((tmp_path / "report.html").read_text(encoding="utf-8").split())
    assert rows["epsilon_dp"].max() == pytest.approx(1 / sigma, rel=2e-3)
    # all windows of the endless stream together, on a budget of 1
    assert 0.99 < max(rows["loss_after"]) <= 1.0


def test_a_job_with_another_mechanism_refuses_a_class_without_quilts(leveled: tuple[Done, Job], tmp_path: Path) -> None:
    privacy = {"epsilon": 1.0, "mechanism": "mqm-exact"}
    call("run", copied(leveled, tmp_path, privacy=privacy).settings).ended(
        2, "privacy.mechanism is mqm-exact", "use forward-backward, or fit a model with --belief series or pooled"
    )


@pytest.mark.night
@pytest.mark.parametrize("slots", [47, 49])
def test_a_job_refuses_a_rhythm_that_does_not_fit_the_day(tmp_path: Path, slots: int) -> None:
    made = job(tmp_path, model="model.json", privacy={"epsilon": 1.0, "mechanism": "forward-backward"})
    assert call("fit", made.settings, *POOLED).code == 0
    model = Model.load(tmp_path / "model.json")
    kernel = model.belief["transition"]
    replace(model, belief=PeriodicChain([kernel] * slots).to_dict()).save(tmp_path / "model.json")
    call("run", made.settings).ended(2, f"{slots} matrices, one a slot, but a day has 48 slots")
    replace(model, belief=PeriodicChain([kernel] * 48).to_dict()).save(tmp_path / "model.json")
    assert call("run", made.settings, "--dry-run").code == 0


@pytest.mark.night
def test_series_outside_a_belief_are_for_the_operator_and_none_is_no_warning(tmp_path: Path) -> None:
    made = job(tmp_path, model="model.json")
    fitted = call("fit", made.settings, *POOLED)
    assert fitted.said("of the 6 series, by their own counts: the loss is not proved for them")
    text = "lie outside its belief by plug-in; the loss is not proved for such a series"
    for words in (("--dry-run",), ()):
        done = call("run", *words, made.settings, *(() if words else ("--accept-noise",)))
        assert done.said(text), (words, done.out, done.err)
        told = " ".join(done.out.split())
        assert told.index("For the operator only, not to be published") < told.index(text)
        plain = json.loads(call("run", *words, "--json", made.settings, *(() if words else ("--accept-noise",))).out)
        (said,) = plain.pop("operator_only")["of_history"]
        assert said.endswith(text)
        assert text not in json.dumps(plain)
    one = call("fit", job(tmp_path / "one", readings(homes=["m1"]), model="model.json").settings, *POOLED)
    assert one.said("0 of the 1 series, by their own counts model id"), one.out


def own_chains(rows: list[Row]) -> list[MarkovChain]:
    """Each home's chain in plain Python: its moves, and ten more from each state as all homes together make them."""
    pooled, found = np.array(chain_of(rows, HOMES)), list[MarkovChain]()
    for home in HOMES:
        path = [sum(v * 2000 >= edge for edge in (250, 500, 1000, 2000)) for m, _, v in rows if m == home]
        table = 10 * pooled
        for move in pairwise(path):
            table[move] += 1
        found.append(MarkovChain(table / table.sum(axis=1, keepdims=True)))
    return found


@pytest.mark.usefixtures("unchecked")
def test_the_model_that_fit_writes_serves_a_job_by_the_papers_own_mechanism(tmp_path: Path) -> None:
    rows = readings()
    made = job(tmp_path, rows, model="model.json")  # which names no mechanism: it is mqm-approx
    call("fit", made.settings, "--cover", "0.7").ended(0)
    bounds = belief_from_dict(Model.load(tmp_path / "model.json").bounds)
    assert isinstance(bounds, MixingBounds)
    # those of five of the six homes
    own = own_chains(rows)
    around = (MixingBounds.of(chosen) for chosen in itertools.combinations(own, 5))
    close = [
        one
        for one in around
        if one.pi_min == pytest.approx(bounds.pi_min, rel=1e-5) and one.gap == pytest.approx(bounds.gap, rel=1e-5)
    ]
    assert close
    assert sum(map(bounds.covers, own)) >= 5
    sigma = mqm_approx(bounds, 1.0).sigma
    planned = json.loads(call("plan", made.settings, "--format", "json").ended(0).out)
    assert {one["name"]: one["sigma"] for one in planned["mechanisms"]}["mqm-approx"] == pytest.approx(sigma)
    done = call("run", made.settings, "--accept-cover", "--all").ended(0)
    assert done.said("Lemma 4.9: of all slots the middle one decides")
    assert {row.mechanism for row in made.rows()} == {"mqm-approx"}
    assert {row.epsilon_dp for row in made.rows()} == {LaplaceHistogram.from_sigma(5, sigma).epsilon_dp}
    shown = call("ledger", "show", made.ledger, "--all").ended(0)
    assert shown.said("7 different windows cannot share their quilts")
