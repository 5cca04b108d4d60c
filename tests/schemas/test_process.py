"""A process that holds readings or noise leaves no core file."""

from __future__ import annotations

import json

import pytest

from ..forked import forker

#: Says whether the process is dumpable, and how large its core file may be.
SAY = """
import ctypes, json, resource
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
def say():
    dumpable = ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
    print(json.dumps([dumpable, resource.getrlimit(resource.RLIMIT_CORE)[0]]))
def fresh():
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    say()
"""

COMMAND = """
from quiltstream.pipelines import cli
fresh()
cli.main = say
cli.program()
"""

STEPS = """
from quiltstream.transforms.sources.files import DecodeFiles
from quiltstream.transforms.aggregate.encode import EncodeCells
from quiltstream.transforms.sources.reader import ReadPart
from quiltstream.transforms.aggregate.release import ChargeAndCount, ReleaseHistograms
for kind in (DecodeFiles, EncodeCells, ReadPart, ChargeAndCount, ReleaseHistograms):
    fresh()
    try:
        kind.setup(kind.__new__(kind))
    except AttributeError:
        pass  # of what its constructor makes
    say()
"""


@pytest.mark.night
@pytest.mark.parametrize("program", [COMMAND, STEPS], ids=["command", "steps"])
def test_commands_and_workers_leave_no_core_file(program: str) -> None:
    done = forker().run(SAY + program)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said
    assert {dumpable for dumpable, _ in said[::2]} == {1}
    assert {tuple(after) for after in said[1::2]} == {(0, 0)}
