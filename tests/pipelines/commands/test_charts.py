"""Bars of text."""

from __future__ import annotations

from quiltstream.pipelines.console import band, bar, comparison, shares


def test_a_bar_is_as_long_as_its_share_in_eighths_of_a_column() -> None:
    assert bar(10, 10, 4) == "████"
    assert bar(5, 10, 4) == "██"
    assert bar(1, 16, 4) == "▎"
    assert (bar(0, 10, 4), bar(-3, 10, 4), bar(3, 0, 4)) == ("", "", "")


def test_a_band_is_full_where_the_value_surely_reaches_and_shaded_where_it_may() -> None:
    assert band(5, 2, 10, 10) == "███░┃░░"
    assert band(0, 2, 10, 10) == "┃░"
    assert band(-1, 2, 10, 10) == "┃"
    assert band(10, 0, 10, 10) == "█████████┃"
    assert (band(-5, 2, 10, 10), band(1, 1, 0, 10)) == ("", "")


def test_the_pictures_keep_to_their_width() -> None:
    labels = ["below 250 W", "2000 W and above"]
    lines = comparison(labels, [123_456, 0], [123_000, -400], 900.0, width=60)
    assert len(lines) == 4
    assert max(len(line.plain) for line in lines) <= 60
    assert lines[3].plain.startswith(" " * 16 + "  private")
    assert max(len(line.plain) for line in shares(labels, [0.9, 0.1], width=50)) <= 50
