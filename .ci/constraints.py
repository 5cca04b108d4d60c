"""Turn pip's resolution report into a constraints file: `constraints.py REPORT TITLE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(report: str, title: str) -> None:
    """Print every resolved package with its exact version, ours left out."""
    installed = json.loads(Path(report).read_text(encoding="utf-8"))["install"]
    versions = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in installed}
    print(f"# What CI installs for {title}, on Python {sys.version_info.major}.{sys.version_info.minor}.")
    print("# Written by `.ci/run resolve`; setuptools and wheel build our package and the few that come as sources.")
    for name in sorted(set(versions) - {"quiltstream"}):
        print(f"{name}=={versions[name]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
