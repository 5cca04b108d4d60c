"""Prism, Beam's local live runner: one binary, which Beam starts for each pipeline and ends with it."""

from __future__ import annotations

import os
from pathlib import Path

from .installed import NotInstalledError, installed


def find_prism() -> Path:
    """The binary that QUILTSTREAM_PRISM names, or that ``.ci/servers.sh prism`` built.

    Raises:
        NotInstalledError: There is none.
    """
    if named := os.environ.get("QUILTSTREAM_PRISM"):
        binary = Path(named)
        if not os.access(binary, os.X_OK):
            raise NotInstalledError(f"QUILTSTREAM_PRISM is {named}, which is no program")
        return binary.resolve()
    binary = installed("prism").folder / "prism"
    if not os.access(binary, os.X_OK):
        raise NotInstalledError(
            "Prism is not built (run `.ci/servers.sh prism`, or set QUILTSTREAM_PRISM to the binary)"
        )
    return binary


def prism_arguments(binary: Path) -> list[str]:
    """Beam's options that run a pipeline on Prism, with the steps in the process that submits it.

    Prism, and Beam's workers within the submitting process, listen on every address of the machine while the pipeline
    runs; neither has an option against it.
    """
    return ["--runner=PrismRunner", f"--prism_location={binary}", "--environment_type=LOOPBACK", "--streaming"]
