"""Histograms as text: bars of block characters that read the same with and without colour, from 80 columns on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

_SURE, _UNSURE, _BAR = "█", "░", "█"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(value: float, largest: float, width: int) -> str:
    """A bar of ``width`` columns for the largest value, in eighths of a column."""
    eighths = round(8 * width * max(0.0, value) / largest) if largest > 0 else 0
    whole, rest = divmod(min(eighths, 8 * width), 8)
    return _BAR * whole + (_EIGHTHS[rest] if rest else "")


def band(value: float, half_width: float, largest: float, width: int) -> str:
    """A bar with its error: full where the value surely reaches, shaded over the 95 % band, a mark at the value."""
    if largest <= 0:
        return ""

    def column(at: float) -> int:
        return min(width, max(0, round(width * at / largest)))

    low, middle, high = column(value - half_width), column(value), column(value + half_width)
    cells = [_SURE] * low + [_UNSURE] * (high - low)
    if cells:
        cells[min(max(middle - 1, 0), len(cells) - 1)] = "┃"
    return "".join(cells)


def comparison(
    labels: Sequence[str],
    true: Sequence[float],
    private: Sequence[float],
    half_width: float,
    *,
    width: int,
) -> list[Text]:
    """True and private counts under each other, one pair of lines a bin.

    Args:
        labels: names of the k bins.
        true: true counts, k of them.
        private: published counts, k of them.
        half_width: of the noise band around the private ones.
        width: columns in all.
    """
    left = max(len(label) for label in labels)
    numbers = max(len(f"{value:,.0f}") for value in (*true, *private))
    room = max(10, width - left - numbers - 13)
    largest = max(*true, *(value + half_width for value in private), 1.0)
    lines: list[Text] = []
    for label, exact, noisy in zip(labels, true, private, strict=True):
        lines.append(
            Text(f"{label:<{left}}  true     ")
            .append(f"{exact:>{numbers},.0f}  ")
            .append(bar(exact, largest, room), "dim")
        )
        lines.append(
            Text(f"{'':<{left}}  private  ")
            .append(f"{noisy:>{numbers},.0f}  ", "bold")
            .append(band(noisy, half_width, largest, room), "cyan")
        )
    return lines


def banded(
    labels: Sequence[str],
    values: Sequence[float],
    half_width: float | Sequence[float],
    total: float | None,
    *,
    width: int,
    percent: bool = False,
) -> list[Text]:
    """Published numbers with the bands of their noise, one line each.

    Args:
        labels: names of the k bins.
        values: published numbers, k of them.
        half_width: of the band, of all or of each.
        total: of what the numbers are shares, where that is to be said.
        width: columns in all.
        percent: whether the numbers are shares of one themselves.
    """
    halves = [half_width] * len(values) if isinstance(half_width, (int, float)) else list(half_width)
    said = [f"{value:.1%}" if percent else f"{value:,.0f}" for value in values]
    off = [f"± {half:.1%}" if percent else f"± {half:,.0f}" for half in halves]
    if total:
        off = [f"{one}  {value / total:>6.1%}" for one, value in zip(off, values, strict=True)]
    left, middle, right = (max(map(len, column)) for column in (labels, said, off))
    room = max(10, width - left - middle - right - 5)
    largest = max([value + half for value, half in zip(values, halves, strict=True)] + [1e-9])
    return [
        Text(f"{label:<{left}}  ")
        .append(f"{number:>{middle}} ", "bold")
        .append(f"{error:<{right}}  ")
        .append(band(value, half, largest, room), "cyan")
        for label, number, error, value, half in zip(labels, said, off, values, halves, strict=True)
    ]


def shares(labels: Sequence[str], values: Sequence[float], *, width: int) -> list[Text]:
    """Probabilities as bars, one line a state."""
    left = max(len(label) for label in labels)
    room = max(10, width - left - 12)
    largest = max(values)
    return [
        Text(f"{label:<{left}}  {value:>8.3%}  ").append(bar(value, largest, room), "cyan")
        for label, value in zip(labels, values, strict=True)
    ]
