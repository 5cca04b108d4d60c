"""Build the sdist and the wheel, and use the wheel as a stranger would.

The tracked files are copied to a temporary folder and built there: the sdist from the copy, the wheel from the sdist.
The wheel must hold the files of the portions and nothing else, and the metadata of both must be such as a package index
accepts. The wheel is then installed into an empty environment elsewhere, where every module is imported and the demo
runs. Every night the pipeline of Beam YAML in docs/guides/own-pipeline.md runs there too, by Beam's own program: its
extra brings packages that nothing else here needs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PORTIONS = ("schemas", "privacy", "store", "transforms", "pipelines")
# They need an extra to be imported: mqtt, sql, messages.
NOT_IMPORTED = (
    "quiltstream.pipelines.gateway.bridge",
    "quiltstream.transforms.readings.select",
    "quiltstream.transforms.payloads.expressions",
)

IMPORT_ALL = """
import importlib, pathlib, sys
modules = sys.argv[1:]
for name in modules:
    file = importlib.import_module(name).__file__
    assert pathlib.Path(sys.prefix) in pathlib.Path(file).parents, file
print(len(modules), "modules imported from", sys.prefix)
"""


def run(command: list[str | Path], folder: Path) -> None:
    """Run a command in a folder; it must succeed."""
    print("$", *(str(part) for part in command if "\n" not in str(part)), flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=folder, env=environment, check=True)


def tracked_files() -> list[str]:
    """What git tracks or would add: no litter of earlier builds."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in set(listed) if name and (ROOT / name).is_file())


def build(names: list[str], work: Path) -> Path:
    """Build the sdist, and from it the wheel."""
    source = work / "source"
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    with (work / "build.log").open("w+", encoding="utf-8") as log:
        command = [sys.executable, "-m", "build", "--outdir", work / "dist", source]
        if subprocess.run(command, cwd=work, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
            log.seek(0)
            sys.exit(log.read())
    (wheel,) = (work / "dist").glob("*.whl")
    return wheel


def complaints(wheel: Path, names: list[str]) -> list[str]:
    """How the wheel differs from the tree."""
    wanted = {f"quiltstream/{name}" for name in names if name.split("/")[0] in PORTIONS}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
        differing = [
            f"differs from the tree: {name}"
            for name in sorted(wanted & held)
            if archive.read(name) != (ROOT / name.removeprefix("quiltstream/")).read_bytes()
        ]
    metadata = {name for name in held if name.split("/")[0].endswith(".dist-info")}
    ends = ("METADATA", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE")
    return [
        *(f"missing in the wheel: {name}" for name in sorted(wanted - held)),
        *(f"only in the wheel: {name}" for name in sorted(held - wanted - metadata)),
        *(f"missing in the wheel: *.dist-info/{end}" for end in ends if not any(n.endswith(end) for n in metadata)),
        *differing,
    ]


def use(wheel: Path, names: list[str], work: Path) -> None:
    """Install the wheel into an empty environment, import every module and run the demo."""
    run([sys.executable, "-m", "venv", work / "venv"], work)
    binaries = work / "venv" / "bin"
    run([binaries / "pip", "install", wheel], work)
    modules = [
        "quiltstream." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names
        if name.split("/")[0] in PORTIONS and name.endswith(".py")
    ]
    elsewhere = work / "elsewhere"
    elsewhere.mkdir()
    run([binaries / "python", "-c", IMPORT_ALL, *(m for m in modules if not m.startswith(NOT_IMPORTED))], elsewhere)
    run([binaries / "quiltstream", "--version"], elsewhere)
    run([binaries / "quiltstream", "demo", "--out", elsewhere / "out"], elsewhere)
    made = [file for file in (elsewhere / "out").rglob("*") if file.is_file()]
    if not made or not all(file.stat().st_size for file in made):
        sys.exit(f"the demo left no files, or empty ones, in its folder: {made}")


#: The settings and the readings that the documented pipeline of Beam YAML names.
YAML_SETTINGS = """\
slots: {interval: 30min, origin: 2024-03-01}
states: {edges: [500, 1000], unit: W}
model: {pi_min: 0.2, gap: 0.5}
windows: {size: 1d, start: 2024-03-01, stop: 2024-03-03}
privacy: {epsilon: 1.0, mechanism: forward-backward}
query: daily
domain: homes
most_error: 1.0e+6
roster: roster.csv
ledger: sqlite:///ledger.db
"""
YAML_HOMES, YAML_DAYS, YAML_SLOTS = 30, 2, 48


def beam_yaml(work: Path) -> None:
    """Run the pipeline of the page by Beam's own program, as the page says, and count its rows."""
    folder = work / "yaml"
    folder.mkdir()
    page = (ROOT / "docs" / "guides" / "own-pipeline.md").read_text(encoding="utf-8")
    (pipeline,) = (one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "providers:" in one)
    (folder / "pipeline.yaml").write_text(pipeline, encoding="utf-8")
    (folder / "settings.yaml").write_text(YAML_SETTINGS, encoding="utf-8")
    homes = [f"h{n}" for n in range(YAML_HOMES)]
    (folder / "roster.csv").write_text("\n".join(["series", *homes, ""]), encoding="utf-8")
    lines = [
        f"{home},2024-03-{1 + n // 48:02}T{n // 2 % 24:02}:{n % 2 * 30:02}:00Z,{(number * 7 + n) % 10 / 10}"
        for number, home in enumerate(homes)
        for n in range(YAML_DAYS * YAML_SLOTS)
    ]
    (folder / "readings.csv").write_text("\n".join(["household,ts,kwh", *lines, ""]), encoding="utf-8")
    binaries = work / "venv" / "bin"
    run([binaries / "pip", "install", "apache-beam[yaml]"], work)
    main = ["-m", "apache_beam.yaml.main", "--yaml_pipeline_file=pipeline.yaml", "--runner=FnApiRunner"]
    run([binaries / "python", *main], folder)
    rows = [json.loads(line) for file in folder.glob("releases.jsonl*") for line in file.read_text().splitlines()]
    found = sorted((row["key"], row["window_start"][:10], sum(row["counts"])) for row in rows)
    if found != sorted((home, f"2024-03-0{1 + day}", YAML_SLOTS) for home in homes for day in range(YAML_DAYS)):
        sys.exit(f"the pipeline of Beam YAML released other rows: {found[:3]} and so on, {len(found)} in all")


def main() -> None:
    """Run the whole check; the exit code is 1 if the wheel and the tree differ."""
    names = tracked_files()
    with tempfile.TemporaryDirectory(prefix="quiltstream-wheel-") as folder:
        work = Path(folder)
        wheel = build(names, work)
        if found := complaints(wheel, names):
            sys.exit("\n".join(found))
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, the same files as the tree", flush=True)
        run([sys.executable, "-m", "twine", "check", "--strict", *(work / "dist").iterdir()], work)
        use(wheel, names, work)
        if os.environ.get("QUILTSTREAM_TESTS") == "night":
            beam_yaml(work)


if __name__ == "__main__":
    main()
