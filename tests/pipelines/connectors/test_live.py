"""The table of connectors: every setting has one, and a job imports no other than those that its settings name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.settings.connectors import CONNECTORS, FileSink, FileSource

from ..jobs import job, readings, write_as

#: Clients of brokers, and modules of ours that are for brokers or for the payloads of messages.
CLIENTS = ("confluent_kafka", "paho", "cbor2", "google.pubsub", "google.cloud.pubsub")
KAFKA = ("quiltstream.transforms.kafka", "quiltstream.pipelines.connectors.kafka")
PUBSUB = ("quiltstream.transforms.pubsub", "quiltstream.pipelines.connectors.pubsub")
MESSAGES = ("quiltstream.transforms.payloads", "quiltstream.transforms.sources.message_files")
LIVE = ("quiltstream.pipelines.live", "quiltstream.pipelines.gateway")
WINDOWS = {"size": "1d", "start": "2024-03-01", "stop": "2024-03-02"}


def imported(code: str, folder: Path) -> list[str]:
    """The modules that a process of its own has imported after some code."""
    program = f"import json, sys\n{code}\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def among(modules: list[str], packages: tuple[str, ...]) -> list[str]:
    return [name for name in modules if name.startswith(packages)]


@pytest.mark.night
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_job_over_files_imports_no_broker_and_no_payload_decoder(tmp_path: Path, form: str) -> None:
    source = write_as(form, tmp_path / f"readings.{form}", readings(days=1))
    one = job(tmp_path, source={form: str(source)}, windows=WINDOWS)
    modules = imported(
        "from quiltstream.pipelines.cli import main\n"
        "for words in (['--dry-run'], []):\n"
        "    try:\n"
        f"        main(['run', *words, {str(one.settings)!r}], standalone_mode=False)\n"
        "    except SystemExit as end:\n"
        "        assert not end.code",
        tmp_path,
    )
    assert one.ledger.exists()
    assert "quiltstream.transforms.private_histograms" in modules
    assert among(modules, (*CLIENTS, *KAFKA, *PUBSUB, *MESSAGES, *LIVE)) == []


@pytest.mark.night
def test_a_dry_run_imports_no_beam_and_help_nothing_of_the_mathematics(tmp_path: Path) -> None:
    one = job(tmp_path)
    call = (
        "from quiltstream.pipelines.cli import main\n"
        "try:\n"
        "    main({words!r}, standalone_mode=False)\n"
        "except SystemExit as end:\n"
        "    assert not end.code"
    )
    modules = imported(call.format(words=["run", "--dry-run", str(one.settings)]), tmp_path)
    assert "quiltstream.privacy.accounting.ledger" in modules
    assert among(modules, ("apache_beam", *CLIENTS)) == []
    modules = imported(call.format(words=["--help"]), tmp_path)
    assert among(modules, ("numpy", "scipy", "pydantic", "pyarrow", "sqlalchemy", "rich", "apache_beam")) == []
    modules = imported("import quiltstream.privacy", tmp_path)
    assert among(modules, ("numpy", "scipy")) == []


def test_every_source_and_sink_of_the_settings_has_a_connector() -> None:
    fields = {*FileSource.model_fields, *FileSink.model_fields}
    assert fields - {"delimiter", "encoding", "names", "skip"} == set(CONNECTORS)
    for one in CONNECTORS.values():
        connector: Any = import_module(one)
        assert callable(connector.source)
        assert callable(connector.sink)
