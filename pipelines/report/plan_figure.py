"""The picture of a plan: expected error over windows, a panel for each group size, a line for each epsilon."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle

from ...privacy.analysis.utility import ErrorTable
from .figures import drawing, plain_axes


def draw_errors(table: ErrorTable, windows: Sequence[str], wanted: float, form: str) -> bytes:
    """Draw a table of errors.

    Args:
        table: the errors.
        windows: what each of its windows is called.
        wanted: the wanted error, as a share.
        form: ``svg`` or ``png``.

    Returns:
        The content of the file; the same for the same table.
    """
    made = io.BytesIO()
    height = 1.2 + 1.2 * len(table.groups)
    with drawing(height, panels=len(table.groups)) as (figure, panels):
        for place, (axes, group) in enumerate(zip(panels, table.groups, strict=True)):
            for epsilon, rows, mark in zip(table.epsilons, table.errors, cycle("osv^Dx"), strict=False):
                known = [(slots, 100 * share) for slots, row in zip(table.windows, rows, strict=True)
                         if (share := row[place]) is not None and share > 0]  # fmt: skip
                if known:
                    axes.plot(*zip(*known, strict=True), marker=mark, markersize=4, label=f"epsilon {epsilon:g}")
            axes.axhline(100 * wanted, color="#555555", linestyle=":", linewidth=1)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(f"groups of {group:,} series", fontsize=9, loc="left", pad=2)
        figure.suptitle(f"Expected error of a count, % of an evenly filled bin; {table.mechanism}", fontsize=9, y=0.995)
        panels[-1].legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.3))
        plain_axes(figure)
        panels[-1].set_xticks(table.windows, windows)
        panels[-1].minorticks_off()
        figure.subplots_adjust(top=1 - 0.5 / height, bottom=0.8 / height)
        figure.savefig(made, format=form, dpi=150, metadata={"Date": None} if form == "svg" else {"Software": None})
    return made.getvalue()
