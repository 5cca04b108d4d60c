"""A sample of deliberate errors in what privacy and the record rest on, each held against the tests of a push.

    .venv/bin/python .ci/mutants.py [--number 60] [--minutes 25] [--seed N] [FOLDER ...]

An error changes one place: a comparison or its boundary, arithmetic, a boolean, a number below 10, what is returned, or
a statement that goes; not annotations or texts of errors. The tests of `JUDGES` run on a copy of the tree until one
fails or they do not end, files that name the module first. The step fails where fewer than eight of ten are caught.
`.ci/equivalent.txt` has those that change nothing, as `file: old -> new  # reason`.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, count, pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JUDGES = {
    "privacy/accounting": [
        "tests/privacy/accounting",
        "tests/privacy/models/test_certified.py",
        "tests/store/test_bounds.py",
    ],
    "privacy/mechanisms": ["tests/privacy/mechanisms", "tests/privacy/distribution"],
    "store": [
        "tests/store",
        "tests/transforms/aggregate/test_rosters.py",
        "tests/pipelines/commands/test_damaged_ledger.py",
    ],
    "transforms/aggregate": ["tests/transforms/aggregate", "tests/transforms/test_histograms.py"],
}
OPTIONS = ["-qx", "-n0", "--durations=0", "--durations-min=0", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
PYTEST = """import sys, pytest; from hypothesis import Phase, settings  # what fails need not be made smaller
settings.register_profile("short", phases=[Phase.explicit, Phase.generate]); settings.load_profile("short")
sys.exit(pytest.main())"""
PAIRS = """< <=, <= <, > >=, >= >, == !=, != ==, is is_not, is_not is, in not_in, not_in in, and or, or and,
+ -, - +, * +, / *, // *, % //, ** *, << >>, >> <<, & |, | &"""
SWAPS = dict(pair.split() for pair in PAIRS.split(","))
OPERATOR = re.compile(r"is\s+not|not\s+in|\b(?:is|in|and|or)\b|\*\*|//|<<|>>|[<>=!]=|[-+*/%&|<>]")
TICKS = count(int(time.time()) + 10)


def changes(data: bytes) -> Iterator[tuple[int, int, str]]:  # noqa: C901
    """Every error that can be made in a file: begin and end of what is replaced, and by what."""
    starts = [0, *accumulate(map(len, data.splitlines(keepends=True)))]

    def span(node: Any) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def walk(node: Any) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Raise() | ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute()]):
                yield *span(node), "pass"
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield *span(value), "None"
            case ast.Compare() | ast.BoolOp() | ast.BinOp():
                for left, right in pairwise(one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)):
                    if found := OPERATOR.search(data[(begin := span(left)[1]) : span(right)[0]].decode()):
                        new = SWAPS["_".join(found.group().split())].replace("_", " ")
                        yield begin + found.start(), begin + found.end(), new
            case ast.UnaryOp(op=ast.Not() | ast.USub() as op):
                yield span(node)[0], span(node)[0] + (3 if isinstance(op, ast.Not) else 1), ""
            case ast.Constant(value=int() as value) if value in range(10):
                yield *span(node), str(not value if isinstance(value, bool) else value + 1)
        left_alone = {getattr(node, name, None) for name in ("annotation", "returns")}
        for child in ast.iter_child_nodes(node) if not isinstance(node, ast.Raise | ast.JoinedStr) else ():
            if child not in left_alone:
                yield from walk(child)

    return walk(ast.parse(data))


def mutants_of(folder: str) -> Iterator[tuple[str, str, str, str]]:
    """Every error that can be made in a folder: the folder, the file, its text with the error, the error's name."""
    for path in sorted((ROOT / folder).glob("*.py")):
        text, file = path.read_text(), path.relative_to(ROOT).as_posix()
        for begin, end, new in changes(text.encode()):
            made = (text.encode()[:begin] + new.encode() + text.encode()[end:]).decode()
            lines = enumerate(zip(text.split("\n"), made.split("\n"), strict=False), 1)
            number, (old, changed) = next(line for line in lines if len(set(line[1])) > 1)
            yield folder, file, made, f"{file}: {old.strip()} -> {changed.strip()}  # line {number}"


def put(file: Path, text: str) -> None:
    """Change a file; Python compiles it anew if its time is of another second."""
    file.write_text(text)
    os.utime(file, (tick := next(TICKS), tick))


def ask(tree: Path, tests: list[str], limit: float) -> tuple[int, str]:
    """What tests say in a copy of the tree: pytest's exit code, and its words."""
    command = ["timeout", "--signal=KILL", f"{limit:.0f}", sys.executable, "-c", PYTEST, *OPTIONS, *tests]
    env = os.environ | {"PYTHONPATH": str(tree.parent)}
    done = subprocess.run(command, cwd=tree, env=env, stdout=-1, stderr=-2, text=True, check=False)
    return done.returncode, done.stdout


def main() -> int:
    """Judge a sample."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="*", default=list(JUDGES), metavar="FOLDER")
    for option, value in (("number", 60), ("minutes", 25), ("seed", time.time_ns() % 10**6)):
        parser.add_argument(f"--{option}", type=int, default=value)
    chosen, begun = parser.parse_args(), time.monotonic()
    equivalent = {one.split("  # ")[0] for one in (ROOT / ".ci/equivalent.txt").read_text().splitlines()}
    known = [x for folder in chosen.folders for x in mutants_of(folder) if x[3].split("  # ")[0] not in equivalent]
    sample = random.Random(chosen.seed).sample(known, min(chosen.number, len(known)))  # noqa: S311
    print(f"seed {chosen.seed}: {len(sample)} of {len(known)} errors, without {len(equivalent)} equivalent", flush=True)
    trees, plans = SimpleQueue[Path](), dict[str, tuple[list[str], float]]()

    def right(folder: str) -> None:
        tree, start, times = trees.get(), time.monotonic(), dict[str, float]()
        code, said = ask(tree, JUDGES[folder], 1800)
        trees.put(tree)
        if code:
            raise SystemExit(f"{folder}: its tests fail without an error\n{said[-3000:]}")
        for seconds, file in re.findall(r"(?m)^([0-9.]+)s \w+ +(\S+?)::", said):
            times[file] = times.get(file, 0) + float(seconds)
        plans[folder] = sorted(times, key=times.__getitem__), 60 + 4 * (time.monotonic() - start)

    def judge(mutant: tuple[str, str, str, str]) -> int | None:
        if time.monotonic() > begun + 60 * chosen.minutes:
            return None
        (folder, file, made, name), tree = mutant, trees.get()
        files, limit = plans[folder]
        put(tree / file, made)
        code, said = ask(tree, sorted(files, key=lambda one: Path(file).stem not in (tree / one).read_text()), limit)
        put(tree / file, (ROOT / file).read_text())
        trees.put(tree)
        failed = re.findall(r"(?m)^(?:FAILED|ERROR) (\S+)", said)[:1]
        print("caught " if code else "MISSED ", name, *failed, flush=True)
        return code

    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(2) as pool:
        for tree in (Path(place, "a/quiltstream"), Path(place, "b/quiltstream")):
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv*", "build", "__pycache__"))
            trees.put(tree)
        list(pool.map(right, sorted({folder for folder, *_ in sample})))
        found = [code != 0 for code in pool.map(judge, sample) if code is not None]
    print(f"caught {sum(found)} of {len(found)} in {(time.monotonic() - begun) / 60:.0f} minutes, seed {chosen.seed}")
    return int(not found or sum(found) < 0.8 * len(found))


if __name__ == "__main__":
    sys.exit(main())
