"""The public sample data that ships with the package, found by file name.

``NOTICE`` in this folder says where each file comes from and how sure its licence is.

>>> from quiltstream.pipelines import data
>>> data.path("house_power_1min_2weeks.csv").name
'house_power_1min_2weeks.csv'
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["FILES", "path"]

FILES: tuple[str, ...] = (
    "activity_1min_1person_7days.csv",
    "activity_1min_25persons.parquet",
    "house_hourly_dst.csv",
    "house_power_1min_2weeks.csv",
    "households_halfhourly_3weeks.csv",
    "lcl2013_halfhourly_60hh.parquet",
)
"""The names of the shipped data files."""


def path(name: str) -> Path:
    """Find a shipped data file.

    Args:
        name: One of `FILES`.

    Returns:
        The file's place on this machine.

    Raises:
        ValueError: If no file of that name ships with the package.
        FileNotFoundError: If the installation has lost the file.
    """
    if name not in FILES:
        msg = f"no shipped data file is named {name!r}; the names are: {', '.join(FILES)}"
        raise ValueError(msg)
    file = Path(__file__).parent / name
    if not file.is_file():
        msg = f"the installed package lacks its data file {name!r}; install it again"
        raise FileNotFoundError(msg)
    return file
