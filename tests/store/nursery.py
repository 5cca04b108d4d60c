"""Workers in processes of their own: forked, raced and killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Nursery:
    """The other end of ``workers.py``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("workers.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *commands: dict[str, Any]) -> list[dict[str, Any]]:
        """Run workers at once and wait for all; a killed one answers ``{"killed": True}``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if len(commands) > 1:
            # they wait for each other, or the first would be done before the last is forked
            not_before = time.time() + 0.05
            commands = tuple({**command, "not_before": not_before} for command in commands)
        self._process.stdin.write(json.dumps(commands) + "\n")
        self._process.stdin.flush()
        answers = json.loads(self._process.stdout.readline())
        assert not [answer for answer in answers if answer.get("error") == "unexpected"], answers
        return answers

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(timeout=30)
