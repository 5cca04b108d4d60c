"""How a live job does in its Flink cluster, asked of Flink's REST API: Beam tells no counters of it while it runs.

A cluster that has lost its TaskManagers says that the job is running, with no task that runs, and waits for others. The
numbers of tasks and TaskManagers tell that; nothing else of what the API says goes on.
"""

from __future__ import annotations

from typing import Any

from ..console import plural
from .flink_rest import NO_LIST, FlinkJob, RestError
from .verdict import Cause

#: States of a job that is over, or not begun: whoever follows it is told so by Beam.
_NOT_RUN = frozenset({"FINISHED", "CANCELED", "CANCELLING", "FAILED", "INITIALIZING"})


class FlinkHealth(FlinkJob):
    """The job of one submission, which is asked how it does and never touched.

    Args:
        place: HOST:PORT of the REST API.
        name: of the job, and of no other one.
    """

    def trouble(self) -> tuple[Cause, str] | None:
        """Why the job cannot go on now; ``None`` if all of its tasks run, or it has not begun, or is over."""
        try:
            return self._trouble()
        except RestError as error:
            return Cause.RUNNER, f"{self.where} cannot be asked how the job is: {error}"

    def _trouble(self) -> tuple[Cause, str] | None:
        mine = self._mine(_tasks)
        if not mine or mine[0] is None:
            return None
        well, total = mine[0]
        return None if well >= total else (Cause.NO_WORKER, self._said(total - well, total))

    def _said(self, still: int, total: int) -> str:
        managers, free = self._room()
        cause = "no TaskManager is left in it; start one"
        if managers:
            has = f"{plural(managers, 'TaskManager')} with {plural(free, 'free slot')}"
            cause = f"it has {has}, which may be too few, or the job fails again and again; look at its pages"
        return (
            f"{still} of {plural(total, 'task')} of the job do not run in {self.where}: {cause}. The job waits for it, "
            "and what is on record stays"
        )

    def _room(self) -> tuple[int, int]:
        """TaskManagers, and slots that nothing runs in."""
        answer: Any = self._call("GET", "/overview")
        try:
            return int(answer["taskmanagers"]), int(answer["slots-available"])
        except (KeyError, TypeError, ValueError):
            raise RestError(NO_LIST) from None


def _tasks(job: Any) -> tuple[int, int] | None:
    """How many tasks of a job run or are done, and how many it has; ``None`` of one that does not run at all."""
    if str(job["state"]) in _NOT_RUN:
        return None
    tasks = job["tasks"]
    return int(tasks["running"]) + int(tasks["finished"]), int(tasks["total"])


__all__ = ["FlinkHealth"]
