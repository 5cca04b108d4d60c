"""``quiltstream report``: its numbers are the ledger's, it loads nothing, and no name in it is markup. No Beam.

The page is read by a parser of HTML; the end-to-end tests open one in Chromium.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest

from quiltstream.pipelines.report import loss_without_habits
from quiltstream.privacy import FiniteClass, MarkovChain
from quiltstream.privacy.accounting.habits import HABITS, PROMISE
from quiltstream.schemas.ledger import LedgerEntry
from quiltstream.schemas.roster import Roster
from quiltstream.store.answers import DomainSummary
from quiltstream.store.store import Store

from ...store.samples import domain, drafts, query
from ..jobs import call
from .report_page import Page

SCRIPT = "<script>alert(1)</script>\"'"
NAMES = (SCRIPT, "$x^2$ & <b>bold</b>", "]]></svg><img src=x onerror=alert(1)>", "plain")
DOMAIN = "<i>homes</i> {{ 7 * 7 }}"


@dataclass(frozen=True)
class Made:
    """A ledger with hostile names, its account, and its report."""

    ledger: Path
    page: str
    said: DomainSummary
    head: str
    entries: list[LedgerEntry]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("report")
    with Store(f"sqlite:///{folder / 'ledger.db'}", create=True) as store:
        spec = query(f"load {SCRIPT}", DOMAIN, windows=12, size=4, every=4, share=4.0, roster=Roster.of(NAMES))
        held = store.register(domain(DOMAIN, budget=0.6), replace(spec, name=f"load {SCRIPT}"))
        store.publish(held, drafts(held))
        said, head, entries = store.summary(DOMAIN), str(store.head(DOMAIN)), store.entries(DOMAIN)
    assert said.charged
    assert said.refused
    call("report", folder / "ledger.db", "-o", folder / "report.html").ended(0)
    return Made(folder / "ledger.db", (folder / "report.html").read_text(encoding="utf-8"), said, head, entries)


def test_the_numbers_of_the_page_are_those_of_the_ledger(made: Made) -> None:
    text, said = " ".join(Page(made.page).text.split()), made.said
    assert f"Epsilon is {said.loss:.4f} after {said.charged} window" in text
    assert f"Adding the windows up would say {said.naive:g}" in text
    assert f"{said.charged} charged and {said.refused} refused of 12 windows" in text
    assert f"The line ends at {said.loss:.4g}; the budget, dashed, is {said.budget:g}" in text
    assert f"Crosses are the {said.refused} windows that the budget refused" in text
    assert made.head in text


@pytest.mark.night
def test_the_data_in_the_page_are_the_released_rows_and_the_entries(made: Made) -> None:
    found = {one["download"]: base64.b64decode(one["href"].partition("base64,")[2])
             for one in Page(made.page).all("a") if "download" in one}  # fmt: skip
    cells = pl.read_parquet(io.BytesIO(found["counts.parquet"]))
    with Store(f"sqlite:///{made.ledger}") as store:
        batches = list(store.releases(DOMAIN, f"load {SCRIPT}"))
    counts = [count for batch in batches for row in batch["counts"].to_pylist() for count in row]
    assert sorted(cells["count"].to_list()) == sorted(counts)
    text = gzip.decompress(found["counts.csv.gz"]).decode()
    assert [int(row["count"]) for row in csv.DictReader(io.StringIO(text))] == cells["count"].to_list()
    entries = list(csv.DictReader(io.StringIO(gzip.decompress(found["ledger-entries.csv.gz"]).decode())))
    assert [row["entry_id"] for row in entries] == [entry.entry_id for entry in made.entries]


def test_names_that_are_markup_stay_text(made: Made) -> None:
    page = Page(made.page)
    assert not {"script", "i", "b", "img", "iframe", "object", "link", "base", "form"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    for name in (*NAMES, DOMAIN):
        assert name in page.text, name
    assert "49" not in page.text.partition("homes")[2][:20]  # the name is no template


def test_nothing_in_the_page_is_loaded_from_anywhere(made: Made) -> None:
    page = Page(made.page)
    (policy,) = [one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    places = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert {place.partition(":")[0] for place in places} == {"data"}
    assert not re.search(r"url\(|@import", made.page)


def test_every_figure_has_a_name_and_its_numbers_in_words(made: Made) -> None:
    page = Page(made.page)
    figures = page.all("svg")
    # the first windows are charged: bars for each series, a course where there are several, and the cost
    assert len(figures) == 1 + len(NAMES) * (1 if made.said.charged == 1 else 2)
    assert all(one["role"] == "img" and one["aria-label"] in page.text for one in figures)
    assert page.text.count("With probability 95 % a count is within") == len(NAMES)
    assert not {"table", "td", "foreignobject", "image"} & {tag for tag, _ in page.tags}


def test_the_same_ledger_makes_the_same_report(made: Made, tmp_path: Path) -> None:
    assert call("report", made.ledger, "-o", tmp_path / "again.html", "--figures", "1").code == 0
    assert call("report", made.ledger, "-o", tmp_path / "twice.html", "--figures", "1").code == 0
    again = (tmp_path / "again.html").read_bytes()
    assert again == (tmp_path / "twice.html").read_bytes()
    assert len(Page(again.decode()).all("svg")) < len(Page(made.page).all("svg"))


def test_a_missing_ledger_or_domain_is_reported(made: Made, tmp_path: Path) -> None:
    assert call("report", tmp_path / "absent.db").code == 2
    assert call("report", made.ledger, "--domain", "others").code == 4


def test_the_page_says_who_the_attacker_is_and_what_is_not_hidden(made: Made) -> None:
    text = " ".join(Page(made.page).text.split())
    assert PROMISE[1:] in text
    assert HABITS[1:] in text


def test_a_list_of_chains_loses_lambda_more_to_who_does_not_know_the_chain() -> None:
    early, late = MarkovChain([[0.9, 0.1], [0.9, 0.1]]), MarkovChain([[0.1, 0.9], [0.1, 0.9]])
    spec = replace(domain(DOMAIN, budget=5.0), belief=FiniteClass([early, late]).to_dict())
    assert loss_without_habits(spec, 0.05, 100.0) == pytest.approx(0.05 + math.log(9))
    assert loss_without_habits(spec, 0.05, 0.1) == pytest.approx(0.1)  # group privacy
    assert loss_without_habits(domain(DOMAIN), 0.05, 100.0) is None  # a class names no chains
