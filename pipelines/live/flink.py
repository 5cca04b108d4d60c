"""A live job's own job in a Flink cluster, by Flink's REST API: found, watched, cancelled.

Beam's job server for Flink says that it cancels a job, and lets it run on in the cluster. Where the options give the
cluster's REST address, the command cancels the job itself. A cluster runs the jobs of others too, so every submission
gets a name that no other one has, and nothing but the job of exactly that name is ever touched. With ``--flink_leave``
the command only watches its job, and leaves it in the cluster when it is stopped or fails itself.

The API is called by plain HTTP, directly and without a name or password: a cluster that needs TLS or credentials is
treated as one without an address.

The health of a job is read from the API, too, because Beam reports no counters of it while it runs. A cluster that has
lost its TaskManagers says that the job is running, with no task that runs, and waits for others; one whose worker pool
is gone begins the job again and again, and says so between two attempts only. The report names the part that died, by
the numbers of tasks and TaskManagers, the instants of heartbeats, and the address or the class of the newest failure.
Nothing else of what the API says goes on.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
)

from ...schemas.errors import QuiltstreamError
from ...schemas.settings.base import SettingsError
from ..console import plural
from ..errors import CommandError
from ..runners import runner_name
from .watchdog import Cause, Trouble

#: States of a job that it never leaves. SUSPENDED is none: another JobManager may take such a job up.
_TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})

#: States behind which it is in one of those soon.
_ENDING = frozenset({"FAILING", "CANCELLING"})

#: Seconds that a job has to be over once it is cancelled, and that the API has to answer at all.
_CANCEL_S = 60.0
_AWAY_S = 20.0

#: Seconds for a job to turn up whose submission was cut off: the cluster gets it a while after Beam's job server.
APPEAR_S = 10.0

#: Seconds between two looks; for a part of an answer, and for the whole of it, its host's name looked up.
_PAUSE_S = 0.3
_PART_S = 5.0
_ANSWER_S = 8.0

#: Bytes of an answer; a thousand jobs take about half a megabyte.
_MOST = 16_000_000

_ADDRESS = re.compile(r"(?:http://)?(?P<place>(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5}))/?")
_MOST_PORT = 65_535

#: HTTP status of a JobManager that is not ready yet.
_STARTING = 503

#: How the cluster can be reached, for messages.
OPTION = "--flink_master=HOST:PORT, the address of the cluster's REST API (plain HTTP),"

#: The message about an unusable answer.
NO_LIST = "it answered with something else than a list of jobs; is this Flink's REST API?"

#: Leaves the job in the cluster.
LEAVE = "--flink_leave"

_Read = TypeVar("_Read")

End = Literal["over", "absent", "unknown"]
"""What became of a job: it is over; the cluster has no such job; or it may run on."""


class RestError(QuiltstreamError):
    """The API did not give an answer that can be used; the message names no part of what it said."""


class RestAway(RestError):  # noqa: N818 - it says what happened
    """The API did not answer at all: the JobManager, or the network to it, is away."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a job in its cluster."""

    end: End  # whether it is over
    text: str  # the same in words
    cancelled: bool = False  # whether this command cancelled it
    away: bool = False  # whether it is unknown because the cluster does not answer


class FlinkLeaveOptions(PipelineOptions):
    """An option of ours among Beam's, because it says what ``--flink_master`` is used for."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        text = "leave the job in its cluster when quiltstream run --live is stopped, or fails itself"
        parser.add_argument(LEAVE, action="store_true", default=False, help=text)


class FlinkJob:
    """The job of one submission in a cluster.

    Args:
        place: HOST:PORT of the REST API.
        name: of the job, and of no other one.
        leave: whether it outlives its command: only where nothing is left to do it is ended then.

    Attributes:
        ended: what became of it, once :meth:`end` was called.
        seen: whether the cluster had it at some time.
    """

    def __init__(self, place: str, name: str, *, leave: bool = False) -> None:
        self.place, self.name, self.leave = place, name, leave
        self.ended: Ended | None = None
        self.seen = False
        # the cluster is reached as Beam's job server reaches it, whatever proxy the environment names
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def end(self, *, appear_s: float = 0.0) -> Ended:
        """Cancel the job, unless it is over, and wait until it is.

        A job that the cluster does not have is waited for ``appear_s`` seconds.

        Returns:
            What became of it, which :attr:`ended` is from then on; nothing is raised.
        """
        self.ended = self._end(appear_s)
        return self.ended

    def _end(self, appear_s: float) -> Ended:
        begun, cancelled, trouble, answered, away = time.monotonic(), "", "", False, False
        while True:
            try:
                found, answered, away = self._found(), True, False
                if found is None:
                    if cancelled:  # it was there, and the cluster keeps what is over for a while only
                        return Ended("over", f"its job {cancelled} is no longer in {self.where}", cancelled=True)
                    if time.monotonic() - begun >= appear_s:
                        return Ended("absent", self._absent())
                else:
                    job, state = found
                    if state in _TERMINAL:
                        return Ended(
                            "over", f"its job {job} in {self.where} is over ({state})", cancelled=bool(cancelled)
                        )
                    trouble = f"it was still {state}"
                    if not cancelled:
                        self._call("PATCH", f"/jobs/{job}?mode=cancel")
                        cancelled = job
            except RestError as error:
                trouble, away = str(error), isinstance(error, RestAway)
            passed = time.monotonic() - begun
            if passed >= (_CANCEL_S if answered else _AWAY_S):
                return Ended("unknown", self._unknown(passed, trouble), cancelled=bool(cancelled), away=away)
            time.sleep(_PAUSE_S)

    def state(self) -> str | None:
        """Its state as Flink says it; ``None`` where the cluster has no such job.

        Raises:
            RestError: the API did not answer, or gave something else.
        """
        found = self._found()
        return None if found is None else found[1]

    @property
    def where(self) -> str:
        """Its cluster in words."""
        return f"the Flink cluster at {self.place}"

    def left(self, *, appear_s: float = 0.0) -> str | None:
        """What is to be said of the job where its command leaves it; nothing is changed there, and nothing is raised.

        A job that is about to be over is waited for.

        Returns:
            ``None`` where the cluster has no such job any more, or never had one.
        """
        begun = time.monotonic()
        while True:
            passed = time.monotonic() - begun
            try:
                state = self.state()
            except RestError as error:
                return f"its job {self.name!r} may be left in {self.where}: {error}; look there"
            if state in _TERMINAL or (state is None and passed >= appear_s):
                return None
            if state is not None and (state not in _ENDING or passed >= _CANCEL_S):
                return (
                    f"its job {self.name!r} is left in {self.where} ({state}), where nobody watches it any more; "
                    "cancel it there before another one is begun"
                )
            time.sleep(_PAUSE_S)

    def _absent(self) -> str:
        return (
            f"{self.where} has no job {self.name!r}: it never began, or is long over; if it turns up yet, cancel it "
            "there"
        )

    def _unknown(self, passed: float, trouble: str) -> str:
        return (
            f"its job {self.name!r} may run on in {self.where}: after {passed:.0f} s {trouble}; look there and "
            "cancel it"
        )

    def _found(self) -> tuple[str, str] | None:
        """Id and state of the job of this name."""
        return next(iter(self._mine(lambda one: (str(one["jid"]), str(one["state"])))), None)

    def _mine(self, read: Callable[[Any], _Read]) -> list[_Read]:
        """What the cluster lists of this name, each read by ``read``."""
        answer = self._call("GET", "/jobs/overview")
        try:
            found = [read(one) for one in answer["jobs"] if one["name"] == self.name]
        except (KeyError, TypeError, ValueError):
            raise RestError(NO_LIST) from None
        self.seen |= bool(found)
        return found

    def _call(self, method: str, path: str) -> Any:
        """What the API answers, within :data:`_ANSWER_S`."""
        # a name that is looked up for ever heeds no timeout
        answer = aside(lambda: self._answer(method, path), "quiltstream-flink")
        try:
            return json.loads(answer.result(_ANSWER_S) or b"{}")
        except NotInTime:
            raise RestAway(f"it did not answer within {_ANSWER_S:g} s") from None
        except urllib.error.HTTPError as error:
            error.close()
            kind = RestAway if error.code == _STARTING else RestError
            raise kind(f"it answered {method} with HTTP status {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise RestAway(f"it could not be reached ({type(reason).__name__})") from None
        except ValueError:
            raise RestError("it answered with something else than JSON; is this Flink's REST API?") from None
        except Exception as error:  # noqa: BLE001 - the end of a job has an exit code of its own to keep
            raise RestError(f"it could not be asked ({type(error).__name__})") from None

    def _answer(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(f"http://{self.place}{path}", method=method)
        with self._open(request, timeout=_PART_S) as answer:
            return answer.read(_MOST)


def aside(call: Callable[[], _Read], name: str) -> Future[_Read]:
    """Call something in a thread that nothing waits for when the process ends; its answer, or its error, to come."""
    future: Future[_Read] = Future()

    def ask() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
            future.set_exception(error)

    threading.Thread(target=ask, name=name, daemon=True).start()
    return future


def flink_place(options: PipelineOptions) -> str | None:
    """HOST:PORT of the REST API of the cluster that the options name; ``None`` if they name none that can be used."""
    if (runner_name(options) or "").lower() not in ("flinkrunner", "portablerunner"):
        return None
    found = _ADDRESS.fullmatch(str(options.view_as(FlinkRunnerOptions).flink_master or "").strip())
    return None if found is None or not 0 < int(found["port"]) <= _MOST_PORT else found["place"]


def flink_job(options: PipelineOptions) -> FlinkJob | None:
    """The job that the options' next submission will be, which gets a name of its own.

    ``job_name`` of the options is changed to one that no other submission has.

    Returns:
        ``None`` where no REST address is given; the options are then as they were.

    Raises:
        CommandError: the job is to be left in a cluster, and there is no such address, or its workers are of this
            command.
    """
    place, leave = flink_place(options), leaves(options)
    if place is None:
        if leave:
            raise CommandError(
                f"{LEAVE} leaves the job in a Flink cluster and watches it there: add {OPTION} or leave {LEAVE} out"
            )
        return None
    if leave and options.view_as(PortableOptions).environment_type == "LOOPBACK":
        raise CommandError(
            f"--environment_type=LOOPBACK and {LEAVE}: the job's workers would end with the command; take "
            f"--environment_type=EXTERNAL, or leave {LEAVE} out"
        )
    # Flink shows a job by the name that Beam's job server is given; it may be given twice, and Flink minds that not
    named = options.view_as(GoogleCloudOptions)
    named.job_name = f"{named.job_name or 'quiltstream'}-{uuid.uuid4().hex[:16]}"
    return FlinkJob(place, named.job_name, leave=leave)


def leaves(options: PipelineOptions) -> bool:
    """Whether the job is left in its cluster when the command is stopped."""
    return bool(options.view_as(FlinkLeaveOptions).flink_leave)


#: States of a job that is over, or not begun: Beam reports it to the follower.
_NOT_RUN = frozenset({"FINISHED", "CANCELED", "CANCELLING", "FAILED", "INITIALIZING"})

#: Seconds without a heartbeat after which a TaskManager does not answer: Flink has one every ten, by default.
_HEARTBEAT_S = 25.0

#: Seconds that a worker pool has to take a connection.
_CONNECT_S = 3.0

_REFUSED = re.compile(
    r"(?:Connection refused|No route to host|connection timed out)[^\n]{0,200}?:(\d{1,5})\b", re.IGNORECASE
)
#: Seconds for which all tasks have to run before settings that workers refused are taken as accepted: each further
#: try of the cluster runs until its workers are there, and refuse them again.
_ACCEPTED_S = 60.0

_UNFIT = (
    "its workers refuse the settings, or the state of another job that it takes up, and every further try ends so. The "
    "job's pages in the cluster name the setting: set it back, or begin the job anew without --savepoint_path"
)
_OURS = re.compile(r"^(?:Caused by: )?(?:[\w.]+: )*quiltstream\.(?P<module>[\w.]+)\.(?P<kind>\w+): ", re.MULTILINE)


class WorkerPool:
    """The pool that starts a job's workers, checked by whether it takes a connection.

    ``near`` says whether the address is the same place from here.
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
    """The health of the job of one submission, which is only read."""

    def __init__(
        self, place: str, name: str, pool: WorkerPool | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(place, name)
        self._pool, self._clock = pool, clock
        self._beats: dict[str, tuple[int, float]] = {}
        self._had = False
        self._unfit: tuple[Trouble, float] | None = None

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
            return self._still_unfit()
        do_not = f"{still} of {plural(job.total, 'task')} of the job do not run in {self.where}"
        then = "The job waits for it, and what is on record stays"
        if not managers:
            return Trouble(Cause.TASKMANAGER, f"{do_not}: no TaskManager is left in it; start one. {then}", sure=had)
        if (found := self._pool_or_part(job.id, do_not) or self._still_unfit()) is not None:
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
            if found["kind"] == SettingsError.__name__:
                self._unfit = Trouble(Cause.FAILED, f"{do_not}: {_UNFIT}", sure=True), self._clock()
                return self._unfit[0]
        return None

    def _still_unfit(self) -> Trouble | None:
        """That workers refused the settings, while a further try has not run for long enough."""
        if self._unfit is not None and self._clock() - self._unfit[1] >= _ACCEPTED_S:
            self._unfit = None
        return None if self._unfit is None else self._unfit[0]

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
