"""What the tests about the repository know of its tree."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PORTIONS = ("schemas", "privacy", "store", "transforms", "pipelines")
"""The portions of the namespace in the direction of imports: each may import those before it."""

LITTER = {"__pycache__", "build", "dist"}


def modules(portion: str) -> Iterator[Path]:
    """Every Python file of a portion, in a fixed order."""
    return (file for file in sorted((ROOT / portion).rglob("*.py")) if not LITTER.intersection(file.parts))


def module_name(file: Path) -> str:
    """The name that a file of a portion is imported by."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("quiltstream", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def all_modules() -> list[Path]:
    """Every Python file of every portion."""
    return [file for portion in PORTIONS for file in modules(portion)]


def tracked_files() -> list[Path]:
    """The files that are, or would be, committed; in a tree without git, all but hidden ones and litter."""
    if (ROOT / ".git").exists() and shutil.which("git") is not None:
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
        return [ROOT / name for name in sorted(set(names) - {""}) if (ROOT / name).is_file()]
    return [
        file
        for file in sorted(ROOT.rglob("*"))
        if file.is_file() and not any(part in LITTER or part.startswith(".") for part in file.relative_to(ROOT).parts)
    ]
