"""A script that is forked from a process with its modules is, to those who watch it, one that was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import alive
from .starting import Started, Starter

SCRIPT = """
import os, sys
if __name__ == "__main__":
    print(sys.argv[1:], os.getcwd(), os.environ["SAID"], os.getpid() == os.getpgrp() == os.getsid(0), flush=True)
    print(sys.stdin.read(), file=sys.stderr, flush=True)
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def starter() -> Iterator[Starter]:
    made = Starter(sys.executable, os.environ, ["fractions"])
    yield made
    made.close()


def begin(starter: Starter, folder: Path, code: int, stdin: int) -> Started:
    """The script, with files for what it says."""
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    words = [str(folder / "script.py"), str(code), "b c"]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return starter.start(words, folder, os.environ | {"SAID": "yes"}, stdin, out, err)


def test_it_has_its_words_folder_variables_input_and_a_session_of_its_own(starter: Starter, tmp_path: Path) -> None:
    for code in (0, 3):
        process = begin(starter, tmp_path, code, subprocess.PIPE)
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.write("what comes in")
        process.stdin.close()
        assert process.wait() == code
        assert process.poll() == process.returncode == code
        assert (tmp_path / "out").read_text(encoding="utf-8") == f"['{code}', 'b c'] {tmp_path} yes True\n"
        assert (tmp_path / "err").read_text(encoding="utf-8") == "what comes in\n"


def test_it_can_be_killed_and_its_id_is_nobody_elses_until_its_end_was_heard(starter: Starter, tmp_path: Path) -> None:
    process = begin(starter, tmp_path, 0, subprocess.PIPE)
    os.killpg(process.pid, signal.SIGKILL)
    while alive(process.pid):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.stdin is not None
    process.stdin.close()


def test_without_an_input_it_reads_nothing(starter: Starter, tmp_path: Path) -> None:
    assert begin(starter, tmp_path, 0, subprocess.DEVNULL).wait() == 0


def test_modules_that_are_not_there_or_that_speak_when_they_are_imported_are_told(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("print('ready')", encoding="utf-8")
    for module, said in (("loud", "without a word: ready"), ("nowhere", "cannot be imported")):
        made = Starter(sys.executable, os.environ | {"PYTHONPATH": str(tmp_path)}, [module])
        try:
            with pytest.raises(pytest.fail.Exception, match=said):
                begin(made, tmp_path, 0, subprocess.DEVNULL)
        finally:
            made.close()
