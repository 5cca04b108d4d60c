"""Panes of every kind on Prism: whatever it fires, a window is on record whole and once."""

from __future__ import annotations

import pytest

from ..examined import Tally
from .firings import EARLY
from .live_bench import Bench
from .live_contract import LIVE, begun_again
from .panes import in_pieces, most, publish_fired, timings

#: What Prism says at least of the panes that it fires.
TIMINGS = {
    "each-discarding": {"EARLY"},
    "each-accumulating": {"EARLY"},
    "early-discarding": {"EARLY", "ON_TIME"},
    "early-accumulating": {"EARLY", "ON_TIME"},
    "late-discarding": {"ON_TIME"},
    "late-accumulating": {"ON_TIME", "LATE"},
}


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """An empty place for jobs with the settings of the contract."""
    bench.live = LIVE
    return bench


@pytest.mark.parametrize(
    ("firing", "grouped"),
    # the clock on the wall is waited for: of these, one form
    [(firing, grouped) for firing in TIMINGS for grouped in (False, True) if grouped or firing not in EARLY],
)
@begun_again
def test_every_window_is_recorded_complete_and_once_for_any_panes_of_prism(
    bench: Bench, tally: Tally, firing: str, *, grouped: bool
) -> None:
    panes = publish_fired(bench, tally, firing, grouped=grouped)
    assert timings(panes) >= TIMINGS[firing]
    # where only late readings would make a second pane there is none: the source's clock has dropped them
    assert (most(panes) > 1) == (firing != "late-discarding")
    # of what discards, no pane is the whole of its window
    assert in_pieces(panes) or firing not in {"each-discarding", "early-discarding"}
