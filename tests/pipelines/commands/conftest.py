"""A job that has run, once for all tests of the commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..jobs import Done, Job, call, job


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Done]:
    """A job that has run, and what it said."""
    made = job(tmp_path_factory.mktemp("finished") / "job")
    return made, call("run", made.settings).ended(0)


@pytest.fixture(scope="session")
def ran(finished: tuple[Job, Done]) -> Job:
    """The job that has run; it is only read."""
    return finished[0]


@pytest.fixture
def copy(ran: Job, tmp_path: Path) -> Job:
    """A copy of the job that has run, with its ledger."""
    return Job(shutil.copytree(ran.folder, tmp_path / "job"))
