"""Every example runs."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest

from quiltstream.pipelines import data
from quiltstream.schemas.model_file import Model
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms.sinks import read_release_rows

from ...present import present
from ..jobs import call

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ROWS = {
    "london-feeder.yaml": 52,
    "households.yaml": 30,
    "house-power.yaml": 2,
    "house-dst.yaml": 11,
    "london-profile.yaml": 52,
}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The examples beside the data, where their paths expect them."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("out", "__pycache__"))
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "data").symlink_to(Path(data.__file__).parent)
    return tmp_path / "examples"


def test_every_example_settings_file_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == set(ROWS)


@pytest.mark.night
@pytest.mark.parametrize("name", ROWS)
def test_an_example_of_settings_runs(copied: Path, name: str) -> None:
    call("run", copied / name).ended(0)
    settings = read_settings(copied / name)
    assert read_release_rows(settings.path(present(settings.sink).path)).num_rows == ROWS[name]


@pytest.mark.night
def test_the_model_of_the_london_example_equals_a_fit_of_its_settings(copied: Path) -> None:
    shipped = Model.load(copied / "london-model.json")
    call(
        "fit", copied / "london-feeder.yaml", "--exclude", copied / "london-roster.csv", "-o", copied / "again.json"
    ).ended(0)
    assert Model.load(copied / "again.json").model_id == shipped.model_id


@pytest.mark.night
def test_the_example_script_publishes_equal_rows_on_every_run(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> str:
        monkeypatch.setattr(sys, "argv", ["activity.py", str(tmp_path)])
        runpy.run_path(str(copied / "activity.py"), run_name="__main__")
        return capsys.readouterr().out

    first = run()
    assert first.startswith("25539: [")
    assert run() == first
