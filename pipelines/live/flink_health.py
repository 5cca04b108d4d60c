"""How a live job does in its Flink cluster, asked of Flink's REST API: Beam tells no counters of it while it runs.

A cluster that has lost its TaskManagers says that the job is running, with no task that runs, and waits for others; one
whose worker pool is gone begins the job again and again, and says so between two attempts only. What is told is the
part that died: the numbers of tasks and TaskManagers, the instants of heartbeats, and the address or the class of the
newest failure tell it. Nothing else of what the API says goes on.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..console import plural
from .flink_rest import NO_LIST, FlinkJob, RestAway, RestError
from .verdict import Cause

#: States of a job that is over, or not begun: whoever follows it is told so by Beam.
_NOT_RUN = frozenset({"FINISHED", "CANCELED", "CANCELLING", "FAILED", "INITIALIZING"})

#: Seconds without a heartbeat after which a TaskManager does not answer: Flink asks every ten, by default.
_HEARTBEAT_S = 25.0

#: Seconds that a worker pool has to take a connection.
_CONNECT_S = 3.0

_REFUSED = re.compile(
    r"(?:Connection refused|No route to host|connection timed out)[^\n]{0,200}?:(\d{1,5})\b", re.IGNORECASE
)
_OURS = re.compile(r"^(?:Caused by: )?(?:[\w.]+: )*quiltstream\.(?P<module>[\w.]+)\.(?P<kind>\w+): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a job cannot go on where it runs.

    Attributes:
        cause: the part that died, or ``Cause.NO_WORKER`` where that is not known.
        text: the same in words.
        sure: whether it is told at once, because it cannot be a part of a usual beginning.
    """

    cause: Cause
    text: str
    sure: bool = False


class WorkerPool:
    """The pool that starts a job's workers, of which is asked only whether it takes a connection.

    Args:
        address: HOST:PORT as the runner knows it, which may be another place from here.
        near: whether it is the same place from here.
    """

    def __init__(self, address: str, *, near: bool) -> None:
        self.address = address
        host, _, port = address.removeprefix("http://").rpartition(":")
        self.port = int(port) if port.isdecimal() else 0
        self._host, self._known = host.strip("[]"), near

    def trouble(self) -> Trouble | None:
        """``None`` if it takes connections, or never did from here."""
        try:
            socket.create_connection((self._host, self.port), _CONNECT_S).close()
        except OSError:
            return self.gone() if self._known else None
        self._known = True
        return None

    def gone(self) -> Trouble:
        """That it takes none."""
        text = (
            f"the worker pool at {self.address} takes no connection: start it again. No worker can be started without "
            "it, and the job waits"
        )
        return Trouble(Cause.POOL, text, sure=True)


class _Job(NamedTuple):
    """What the API says of the job: its id, and tasks that run or are done, and all; ``None`` if it does not run."""

    id: str
    well: int | None
    total: int


class FlinkHealth(FlinkJob):
    """The job of one submission, which is asked how it does and never touched.

    Args:
        place: HOST:PORT of the REST API.
        name: of the job, and of no other one.
        pool: starts its workers, where its address is known.
        clock: monotonic seconds; the tests' own.
    """

    def __init__(
        self,
        place: str,
        name: str,
        pool: WorkerPool | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(place, name)
        self._pool, self._clock = pool, clock
        self._beats: dict[str, tuple[int, float]] = {}
        self._had = False

    def trouble(self) -> Trouble | None:
        """Why the job cannot go on now; ``None`` if all of its tasks run, or it has not begun, or is over."""
        try:
            return self._trouble()
        except RestAway as error:
            return Trouble(Cause.RUNNER, f"the JobManager of {self.where} does not answer: {error}")
        except RestError as error:
            return Trouble(Cause.RUNNER, f"{self.where} cannot be asked how the job is: {error}")

    def _trouble(self) -> Trouble | None:
        mine = self._mine(_tasks)
        if not mine or mine[0].well is None:
            return None
        job, still = mine[0], mine[0].total - mine[0].well
        managers, free, silent = self._managers()
        had, self._had = self._had, self._had or managers > silent
        if silent and (silent == managers or still):
            said = "its TaskManager does" if managers == 1 else f"{silent} of its {managers} TaskManagers do"
            return Trouble(
                Cause.TASKMANAGER,
                f"{said} not answer in {self.where}: look at its machine, or start another",
                sure=True,
            )
        if not still:
            return None
        do_not = f"{still} of {plural(job.total, 'task')} of the job do not run in {self.where}"
        then = "The job waits for it, and what is on record stays"
        if not managers:
            return Trouble(Cause.TASKMANAGER, f"{do_not}: no TaskManager is left in it; start one. {then}", sure=had)
        if (found := self._pool_or_part(job.id, do_not)) is not None:
            return found
        has = f"{plural(managers, 'TaskManager')} with {plural(free, 'free slot')}"
        may = "which may be too few, or the job fails again and again; look at its pages"
        return Trouble(Cause.NO_WORKER, f"{do_not}: it has {has}, {may}. {then}")

    def _pool_or_part(self, job: str, do_not: str) -> Trouble | None:
        """What the newest failure of the job says of the part that died, or the worker pool itself."""
        newest = self._newest_failure(job)
        if self._pool is not None:
            refused = {int(port) for port in _REFUSED.findall(newest)}
            if self._pool.port in refused:
                return self._pool.gone()
            if (found := self._pool.trouble()) is not None:
                return found
        for found in _OURS.finditer(newest):
            if found["module"] == "store.errors":
                return Trouble(Cause.LEDGER, f"{do_not}: its workers cannot use the ledger of record ({found['kind']})")
            if found["kind"].endswith("UnavailableError"):
                return Trouble(Cause.SINK, f"{do_not}: its workers cannot use a broker ({found['kind']})")
        return None

    def _newest_failure(self, job: str) -> str:
        answer = self._call("GET", f"/jobs/{job}/exceptions?maxExceptions=1")
        try:
            entries = answer.get("exceptionHistory", {}).get("entries", [])
            return "\n".join(str(one["stacktrace"]) for one in entries[:1])
        except (AttributeError, KeyError, TypeError):
            raise RestError(NO_LIST) from None

    def _managers(self) -> tuple[int, int, int]:
        """TaskManagers, slots that nothing runs in, and TaskManagers without a heartbeat for a while."""
        answer: Any = self._call("GET", "/taskmanagers")
        now = self._clock()
        try:
            found = {str(one["id"]): int(one["timeSinceLastHeartbeat"]) for one in answer["taskmanagers"]}
            free = sum(int(one["freeSlots"]) for one in answer["taskmanagers"])
        except (KeyError, TypeError, ValueError):
            raise RestError(NO_LIST) from None
        # the number is the instant of the last one, by the cluster's clock
        self._beats = {
            name: self._beats[name] if self._beats.get(name, (None,))[0] == at else (at, now)
            for name, at in found.items()
        }
        return len(found), free, sum(now - since > _HEARTBEAT_S for _, since in self._beats.values())


def _tasks(job: Any) -> _Job:
    """How many tasks of a job run or are done, and how many it has."""
    if str(job["state"]) in _NOT_RUN:
        return _Job(str(job["jid"]), None, 0)
    tasks = job["tasks"]
    return _Job(str(job["jid"]), int(tasks["running"]) + int(tasks["finished"]), int(tasks["total"]))


__all__ = ["FlinkHealth", "Trouble", "WorkerPool"]
