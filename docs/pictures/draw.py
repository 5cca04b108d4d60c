"""Draw the picture of the README as `quiltstream report` draws it: a year of one feeder, from released rows alone.

    python docs/pictures/draw.py

london-feeder-2013.parquet holds the 52 rows that one run of `quiltstream demo` released, with the noise that it drew.
"""

from __future__ import annotations

from pathlib import Path

from quiltstream.pipelines.released_series import series_in
from quiltstream.pipelines.report.figures import course
from quiltstream.schemas.table_files import released_rows

FOLDER = Path(__file__).resolve().parent
PICTURE = FOLDER / "london-feeder-2013.svg"


def draw() -> tuple[str, str]:
    """The picture and what it shows in words, both by the code of the report."""
    (feeder,) = series_in(released_rows([FOLDER / "london-feeder-2013.parquet"]))
    drawn = course(feeder)
    return drawn.file(), f"{drawn.title}. {drawn.words}"


if __name__ == "__main__":
    picture, words = draw()
    PICTURE.write_text(picture, encoding="utf-8")
    print(words)  # noqa: T201 - the README's alternative text
