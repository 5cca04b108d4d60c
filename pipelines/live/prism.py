"""Prism, Beam's local runner for endless jobs: where its program is, or how to get it. Nothing is fetched silently."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import apache_beam as beam

from ..failures import CommandError

#: Environment variable that names the program.
VARIABLE = "QUILTSTREAM_PRISM"


def how_to_get() -> str:
    """One line that builds the program."""
    return f"go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam.__version__}"


def prism_program(environment: Mapping[str, str] | None = None) -> Path:
    """The program, from the environment variable, the folder of caches, Go's folder or the path.

    Args:
        environment: instead of this process's own.

    Raises:
        CommandError: it is nowhere, or the variable names something else.
    """
    env = os.environ if environment is None else environment
    named = env.get(VARIABLE)
    if named is not None:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise CommandError(f"{VARIABLE} names {named}, which is no program; let it name Prism, or unset it")
        return Path(named).absolute()
    home = Path(env.get("HOME", str(Path.home())))
    caches = Path(env.get("XDG_CACHE_HOME", str(home / ".cache"))) / "quiltstream"
    go = Path(env.get("GOBIN", str(Path(env.get("GOPATH", str(home / "go"))) / "bin")))
    found = shutil.which("prism", path=env.get("PATH", ""))
    places = [caches / f"prism-{beam.__version__}" / "prism", go / "prism"]
    for place in [*places, *([Path(found)] if found else [])]:
        if os.access(place, os.X_OK) and place.is_file():
            return place.absolute()
    raise CommandError(
        f"a live run needs Prism, Beam's local runner, and it is not here. Get it with Go: {how_to_get()} (or let "
        f"{VARIABLE} name the program, or name another runner after --)"
    )
