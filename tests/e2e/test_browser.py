"""The report in a browser: its numbers, no request, no complaint, and a telephone's width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from quiltstream.schemas.ledger import LedgerEntry
from quiltstream.schemas.roster import Roster
from quiltstream.store.answers import DomainSummary
from quiltstream.store.store import Store

from ..pipelines.commands.report_page import Page
from ..pipelines.jobs import call
from ..store.samples import domain, drafts, query
from .chromium import PHONE, find_chromium, laid_out, opened
from .conftest import there

HOSTILE = "<script>alert(1)</script>\"'"
NAMES = (HOSTILE, "]]></svg><img src=https://example.invalid/b.png onerror=alert(1)>", "plain")
DOMAIN = "<i>homes</i>"

#: Weeks of four series, which make 10,000 released histograms.
MANY = 2_500


@dataclass(frozen=True)
class Made:
    """A report, and what its ledger has on record."""

    page: Path
    said: DomainSummary
    entries: list[LedgerEntry]


def made_in(folder: Path, names: tuple[str, ...], windows: int, *, budget: float) -> Made:
    """A ledger with windows of these series, and its report."""
    path = folder / "ledger.db"
    with Store(f"sqlite:///{path}", create=True) as store:
        spec = query(f"load {HOSTILE}", DOMAIN, windows=windows, size=4, every=4, share=4.0, roster=Roster.of(names))
        held = store.register(domain(DOMAIN, budget=budget), replace(spec, name=f"load {HOSTILE}"))
        store.publish(held, drafts(held))
        said, entries = store.summary(DOMAIN), store.entries(DOMAIN)
    done = call("report", path, "-o", folder / "report.html")
    assert done.code == 0, done.err
    return Made(folder / "report.html", said, entries)


@pytest.fixture(scope="module")
def browser() -> Path:
    return there(find_chromium)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    found = made_in(tmp_path_factory.mktemp("report"), NAMES, 12, budget=0.6)
    assert found.said.charged
    assert found.said.refused
    return found


def test_a_report_sends_no_request_and_logs_nothing_to_the_console(browser: Path, made: Made, tmp_path: Path) -> None:
    found = opened(browser, made.page, tmp_path / "report")
    assert (found.console, found.requests) == ((), ())
    # what a page that asks for something shows: the policy of the report forbids it, and without one it is asked for
    worse = made.page.read_text(encoding="utf-8").replace(
        "</main>", '<img src="https://example.invalid/a.png"><script>alert(1)</script></main>'
    )
    (tmp_path / "worse.html").write_text(worse, encoding="utf-8")
    forbidden = opened(browser, tmp_path / "worse.html", tmp_path / "worse")
    assert len([line for line in forbidden.console if "Content Security Policy" in line]) >= 2
    assert forbidden.requests == ()
    plain = tmp_path / "plain.html"
    plain.write_text('<!doctype html><img src="https://example.invalid/a.png">', encoding="utf-8")
    assert opened(browser, plain, tmp_path / "plain").requests == ("https://example.invalid/a.png",)


@pytest.mark.parametrize("screen", [PHONE, (1280, 900)], ids=["phone", "desk"])
def test_a_report_fits_the_screen_and_every_figure_is_drawn(
    browser: Path, made: Made, tmp_path: Path, screen: tuple[int, int]
) -> None:
    layout = laid_out(browser, made.page, tmp_path / "measured", screen)
    assert layout.wide <= screen[0]
    assert (layout.images, layout.broken) == (0, 0)  # figures are elements of the page
    worse = made.page.read_text(encoding="utf-8").replace(
        "</main>", '<div style="width: 2000px">wide</div><img src="data:image/png;base64,AAAA"></main>'
    )
    (tmp_path / "worse.html").write_text(worse, encoding="utf-8")
    layout = laid_out(browser, tmp_path / "worse.html", tmp_path / "worse", screen)
    assert (layout.wide > screen[0], layout.broken) == (True, 1)


def test_ten_thousand_histograms_make_a_page_that_a_browser_opens(browser: Path, tmp_path: Path) -> None:
    made = made_in(tmp_path, ("a", "b", "c", "d"), MANY, budget=1e6)
    assert made.said.charged == MANY
    assert made.page.stat().st_size < 6_000_000
    found = opened(browser, made.page, tmp_path / "browser")
    assert (found.console, found.requests) == ((), ())
    assert "10,000 released histograms" in " ".join(Page(found.document).text.split())
    layout = laid_out(browser, made.page, tmp_path / "measured")
    assert (layout.wide <= PHONE[0], layout.broken) == (True, 0)
    # long tables are folded
    assert layout.high < 40_000, layout
