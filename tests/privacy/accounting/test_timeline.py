"""A timeline is the same step function as a density, whatever is added, taken back, cut or split."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy.accounting.charges import Density, Run, Timeline

from ...depth import examples
from ..strategies import windows

CUTS = st.lists(st.integers(-5, 40), max_size=3)


def built(charges, cuts=()):
    line = Timeline(cuts=cuts)
    for start, stop, rate in charges:
        line.add(start, stop, Fraction(rate))
    return line, Density().with_spans(charges)


@settings(max_examples=examples(200), deadline=None)
@given(windows(30, most=7), CUTS, windows(35, most=1))
def test_a_timeline_equals_the_density_of_its_charges_after_withdrawals(charges, cuts, extra):
    line, density = built(charges, cuts)
    assert line.runs() == density.runs()
    assert line.density() == density
    again = Timeline(density, cuts=cuts)
    assert (line.slots, line.levels, line.shown) == (again.slots, again.levels, again.shown)
    ((start, stop, rate),) = extra
    line.add(start, stop, Fraction(rate))()
    assert (line.slots, line.levels, line.shown) == (again.slots, again.levels, again.shown)
    assert all(cut in line.slots for cut in cuts if line.slots[0] < cut < line.slots[-1])
    assert line.mass == sum(Fraction(e) * (stop - start) for start, stop, e in charges)


@settings(max_examples=examples(200), deadline=None)
@given(windows(30, most=5), st.integers(-5, 40), windows(20, most=3))
def test_a_timeline_with_a_floor_keeps_every_slot_from_the_floor_on(charges, floor, later):
    moved = [(start + max(30, floor), stop + max(30, floor), rate) for start, stop, rate in later]
    late = [(max(start, floor), stop, rate) for start, stop, rate in charges if stop > floor]
    line = Timeline(Density().with_spans(late), floor=floor)
    for start, stop, rate in moved:
        line.add(start, stop, Fraction(rate))
    late += moved
    assert line.density() == Density().with_spans(late)
    assert line.slots[0] == floor
    assert line.mass == sum(Fraction(e) * (stop - start) for start, stop, e in late)
    assert line.mass_before(line.count, float("inf")) == line.mass


def test_masses_stop_at_their_limit():
    line, _ = built([(0, 10, 0.5), (20, 30, 0.25)])
    assert line.runs() == (Run(0, 10, 0.5), Run(10, 20, 0.0), Run(20, 30, 0.25))
    assert line.mass_before(2, float("inf")) == 5
    assert line.mass_from(0, float("inf")) == Fraction(15, 2)
    assert line.mass_from(0, 1.0) == 5
    assert line.mass_before(0, 1.0) == 0
    assert (line.find(-3), line.find(9), line.find(10)) == (0, 0, 1)
