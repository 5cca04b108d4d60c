"""Errors that are put into a job on purpose, by name: what random actions must find (``live_job.py --plant``).

Each changes the package in the process of the command, where the workers of these jobs are.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from quiltstream.pipelines.connectors import folders
from quiltstream.schemas.readings import RejectReason
from quiltstream.transforms.aggregate.encode import Encoder
from quiltstream.transforms.aggregate.release import ChargeAndCount


def counted_twice() -> None:
    """A cell that is read twice counts twice."""
    real: Any = ChargeAndCount._count

    def _count(self: Any, slots: Any, collected: Any, registration: Any) -> Any:
        counts = real(self, slots, collected, registration)
        again = sum(one.readings - int(np.count_nonzero(one.present)) for one in collected.steps.values())
        counts[:1, :1] += again
        return counts

    ChargeAndCount._count = _count  # type: ignore[method-assign]


def drawn_again() -> None:
    """A job that finds no file of a block on record draws its counts anew."""
    real: Any = vars(folders)["rows_of"]

    def rows_of(registration: Any, record: Any) -> Any:
        return real(registration, replace(record, block=replace(record.block, counts=record.block.counts + 1)))

    folders.rows_of = rows_of  # type: ignore[attr-defined]


def late_in_silence() -> None:
    """A reading that comes late is dropped, and nobody is told."""
    real: Any = Encoder.encode

    def encode(self: Any, given: Any) -> Any:
        encoded = real(self, given)
        encoded.rejects.pop(RejectReason.LATE, None)
        return encoded

    Encoder.encode = encode  # type: ignore[method-assign]


def left_running() -> None:
    """A process outlives the command."""
    subprocess.Popen(["sleep", "600"], start_new_session=True)


PLANTED: dict[str, Callable[[], None]] = {
    one.__name__.replace("_", " "): one for one in (counted_twice, drawn_again, late_in_silence, left_running)
}
