"""The Flex Template's program, as far as it can be run without Google: Beam translates the whole graph and stops."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystem import FileMetadata, MatchResult

from quiltstream.pipelines.live import job as launch
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import read_settings

from ..loading import load
from .dataflow_graphs import DRY, SOURCES, no_cluster, settings_file

Find = Callable[[str], Any]


def program(deploy: Path, name: str) -> Any:
    return load(deploy / "dataflow" / f"{name}.py")


@pytest.fixture
def dry(monkeypatch: pytest.MonkeyPatch, module: Find) -> None:
    """Dataflow's runner is here, and the ledger is a file."""
    module("google.cloud.dataflow_v1beta3")
    no_cluster(monkeypatch)


@pytest.mark.parametrize("kind", sorted(SOURCES))
@pytest.mark.usefixtures("dry")
def test_dataflow_accepts_the_whole_graph(kind: str, tmp_path: Path, deploy: Path) -> None:
    """Options, translation and Dataflow's own checks; nothing is sent."""
    result = program(deploy, "main").main([f"--settings={settings_file(tmp_path, kind)}", *DRY])
    assert str(result.state) == "DONE"


@pytest.mark.usefixtures("dry")
def test_an_update_sends_no_seek_request_to_pub_sub(tmp_path: Path) -> None:
    """With a runner's state nothing is sought; the running job is then looked up, which takes Google."""
    source = SOURCES["pubsub"]["pubsub"] | {"reread": "1d"}
    path = settings_file(tmp_path, "pubsub", source={"pubsub": source})
    job = launch.graph_of(read_settings(path), [*DRY, "--update"])
    job.follower.close()


def test_the_files_beside_the_settings_are_fetched_with_them(tmp_path: Path, deploy: Path) -> None:
    there, here = tmp_path / "bucket", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    path = settings_file(there, "pubsub")
    (there / "model.json").write_bytes(b"\x00model")
    found = program(deploy, "main").fetched(str(path), here)
    assert found == here / "settings.yaml"
    assert {one.name: one.read_bytes() for one in here.iterdir()} == {
        one.name: one.read_bytes() for one in there.iterdir()
    }


@pytest.mark.usefixtures("dry")
def test_a_folder_that_is_an_object_without_a_name_is_passed_over(
    tmp_path: Path, deploy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = program(deploy, "main")
    found = [FileMetadata(f"gs://bucket/job/{name}", 1) for name in ("", "settings.yaml")]
    monkeypatch.setattr(main.FileSystems, "match", lambda _: [MatchResult("gs://bucket/job/*", found)])
    monkeypatch.setattr(main.FileSystems, "open", lambda path: io.BytesIO(path.encode()))
    assert main.fetched("gs://bucket/job/settings.yaml", tmp_path) == tmp_path / "settings.yaml"
    assert [one.read_text() for one in tmp_path.iterdir()] == ["gs://bucket/job/settings.yaml"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sink": {"parquet": "releases"}}, "sink: releases is a folder of each worker's own disk"),
        ({"rejects": {"csv": "rejects"}}, "rejects: rejects is a folder of each worker's own disk"),
        ({"source": {"jsonl": "inbox/*.jsonl"}}, "source.jsonl is of this machine"),
        ({"source": {"stdin": "jsonl"}}, "source.stdin is of this machine"),
        (
            {"model": {"estimate": {"from": "readings"}}},
            "model.estimate",
        ),
    ],
)
def test_settings_that_remote_workers_cannot_use_are_refused(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cluster(monkeypatch)
    with pytest.raises(SettingsError, match=said):
        launch.graph_of(read_settings(settings_file(tmp_path, "pubsub", **changes)), DRY)
