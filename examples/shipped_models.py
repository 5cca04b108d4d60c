"""The beliefs that come with the package, fitted on its public samples: ``python examples/shipped_models.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quiltstream.pipelines import data
from quiltstream.pipelines.commands.fit import Choice, fit_settings
from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.settings.model import SHIPPED, shipped

#: Minutes of the samples' days, which carry no date: day 1 is 1970-01-01; a monitor that is not worn counts nothing.
_MINUTES = """\
select cast(id as varchar) as series, epoch_ms(((day - 1) * 1440 + minute)::bigint * 60000) as time, "count" as value
from files"""

_OF: dict[str, tuple[str, dict[str, Any]]] = {
    "london": (
        "60 London homes at half-hours, 2013 (Low Carbon London)",
        {
            "source": {"parquet": str(data.path("lcl2013_halfhourly_60hh.parquet"))},
            "readings": {"series": "household", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000},
            "slots": {"interval": "30min", "origin": "2013-01-01"},
            "states": {"edges": [250, 500, 1000, 2000], "unit": "W"},
        },
    ),
    "nhanes": (
        "25 wearers at minutes, up to a week each (NHANES 2003-2006)",
        {
            "source": {"parquet": str(data.path("activity_1min_25persons.parquet"))},
            "readings": {"select": _MINUTES, "unit": "counts"},
            "slots": {"interval": "1min"},
            "states": {"edges": [100], "unit": "counts"},
        },
    ),
}
_REST: dict[str, Any] = {
    "model": "stand-in",
    "windows": {"size": "7d"},
    "privacy": {"epsilon": 1.0, "mechanism": "forward-backward"},
    "query": "history",
    "domain": "history",
    "ledger": "sqlite:///never-made.db",
}


def main() -> None:
    """Write each."""
    for name in SHIPPED:
        source, given = _OF[name]
        fit_settings(Settings.parse({**given, **_REST}), Choice(), source=source).save(Path(shipped(name)))


if __name__ == "__main__":
    main()
