"""Distributions of other authors in a folder, as pip would put them there; nothing is built or fetched."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def install(folder: Path, name: str, entry_points: dict[str, dict[str, str]], modules: dict[str, str]) -> None:
    """Put a distribution into a folder of the import path.

    Args:
        folder: the folder.
        name: of the distribution.
        entry_points: objects by group and name.
        modules: texts by the names of modules.
    """
    about = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n", encoding="utf-8")
    groups = [
        "\n".join([f"[{group}]", *(f"{one} = {target}" for one, target in named.items())])
        for group, named in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n\n".join(groups) + "\n", encoding="utf-8")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")


def install_redis_streams(folder: Path) -> None:
    """Put the example of a plug-in into a folder of the import path."""
    example = ROOT / "examples" / "redis-streams"
    text = (example / "pyproject.toml").read_text(encoding="utf-8")
    # Python 3.10 reads no TOML by itself
    section = text.partition('[project.entry-points."quiltstream.connectors"]\n')[2].partition("\n\n")[0]
    named = dict(re.findall(r'^(\S+) = "(.+)"$', section, re.MULTILINE))
    install(folder, "quiltstream-redis-streams", {"quiltstream.connectors": named}, {})
    package = "quiltstream_redis_streams"
    shutil.copytree(example / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
