"""The Flex Template's program: it hands the job that a settings file describes to Dataflow, and returns.

    python main.py --settings=gs://BUCKET/FOLDER/settings.yaml --runner=DataflowRunner --project=... --region=...

The files beside the settings (the model, the roster) are fetched with them. Every other word is Beam's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import FileSystems

from quiltstream.pipelines.live.job import launch


def fetched(address: str, folder: Path) -> Path:
    """Copy a settings file and the files beside it, and return its path here.

    Args:
        address: of the settings file, gs:// or local.
        folder: an empty folder.
    """
    head, name = FileSystems.split(address)
    (match,) = FileSystems.match([FileSystems.join(head, "*")])
    for one in match.metadata_list:
        if base := FileSystems.split(one.path)[1]:  # a folder that was made by hand is an object without a name in it
            with FileSystems.open(one.path) as file:
                (folder / base).write_bytes(file.read())
    return folder / name


def main(words: Sequence[str]) -> Any:
    """Hand the job over; it is not waited for, since a launcher that waits never launches."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--settings", required=True, help="gs://BUCKET/FOLDER/settings.yaml")
    given, beam_options = parser.parse_known_args(words)
    with tempfile.TemporaryDirectory() as folder:
        return launch(fetched(given.settings, Path(folder)), ["--streaming", *beam_options])


if __name__ == "__main__":
    from ledger_password import fetch

    fetch()
    main(sys.argv[1:])
