"""The shipped data are the published ones, and found wherever the package is installed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from quiltstream.pipelines import data
from quiltstream.schemas.model_file import Model
from quiltstream.schemas.settings.model import SHIPPED, shipped

from ..loading import load

# The first 16 hexadecimal digits of each file's SHA-256.
DIGESTS = {
    "activity_1min_1person_7days.csv": "220c5764ea41158c",
    "activity_1min_25persons.parquet": "0b450824b5ed5b2a",
    "house_hourly_dst.csv": "59657e31a0635efd",
    "house_power_1min_2weeks.csv": "f70b300400e2d419",
    "households_halfhourly_3weeks.csv": "560b3bfd24566fd8",
    "lcl2013_halfhourly_60hh.parquet": "6f27f57f351731fd",
}


@pytest.mark.parametrize("name", data.FILES)
def test_a_data_file_is_the_published_one(name: str) -> None:
    assert hashlib.sha256(data.path(name).read_bytes()).hexdigest()[:16] == DIGESTS[name]


def test_every_data_file_is_listed_and_credited() -> None:
    folder = Path(data.__file__).parent
    assert {file.name for file in folder.iterdir() if file.suffix in {".csv", ".parquet"}} == set(data.FILES)
    notice = (folder / "NOTICE").read_text(encoding="utf-8")
    assert [name for name in data.FILES if name not in notice] == []


@pytest.mark.parametrize("name", ["", "nothing.csv", "../__init__.py", "NOTICE"])
def test_a_name_that_does_not_ship_is_refused_with_the_names_that_do(name: str) -> None:
    with pytest.raises(ValueError, match=r"the names are: activity_1min_1person_7days\.csv, "):
        data.path(name)


@pytest.mark.night
def test_the_models_of_the_package_are_fitted_on_the_samples_of_the_package(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = load(repository / "examples" / "shipped_models.py")
    monkeypatch.setattr(program, "shipped", lambda name: str(tmp_path / name))
    program.main()
    for name in SHIPPED:
        made, held = Model.load(tmp_path / name), Model.load(Path(shipped(name)))
        assert made.model_id == held.model_id
        assert made.provenance == held.provenance
