"""The README's picture is what the code of the report draws from the released rows beside it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ..loading import load
from .tree import ROOT

PICTURES = ROOT / "docs" / "pictures"


def texts(picture: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture)


def curves(picture: str) -> list[list[float]]:
    return [[float(one) for one in re.findall(r"-?[\d.]+", d)] for d in re.findall(r'\bd="([^"]*)"', picture)]


@pytest.mark.night
def test_the_readme_shows_the_released_year_as_the_report_draws_it() -> None:
    drawn, words = load(PICTURES / "draw.py").draw()
    kept = (PICTURES / "london-feeder-2013.svg").read_text(encoding="utf-8")
    assert "below 250 W" in texts(kept)
    assert texts(kept) == texts(drawn)
    assert sum(len(curve) >= 2 * 52 for curve in curves(kept)) >= 10  # a line and a band for each of five bins
    for was, now in zip(curves(kept), curves(drawn), strict=True):
        np.testing.assert_allclose(was, now, atol=0.01)
    shown = re.search(r"!\[([^]]*)\]\(docs/pictures/london-feeder-2013\.svg\)", (ROOT / "README.md").read_text("utf-8"))
    assert shown is not None
    assert words in " ".join(shown[1].split())
