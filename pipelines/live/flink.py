"""A live job's own job in a Flink cluster, by Flink's REST API: found, watched, cancelled.

Beam's job server for Flink says that it cancels a job, and lets it run on in the cluster. Where the options give the
cluster's REST address (plain HTTP, no password), the command cancels the job itself. Every submission gets a name that
no other one has, and nothing but the job of exactly that name is ever touched. With ``--flink_leave`` the command only
watches its job, and leaves it in the cluster when it is stopped or fails itself.

Flink begins a job again for ever, also one whose workers would fail for ever. So the command reads of what they failed:
an error of this package that is final ends the job, and the command with its exit code. Nothing else that the API says
of failures goes on.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
)

from ...schemas.errors import QuiltstreamError
from ..errors import CommandError
from ..runners import runner_name
from .failures import check_final

#: Final states of a job, and those that soon lead to one. SUSPENDED is none: another JobManager may take the job up.
_OVER = frozenset({"FINISHED", "CANCELED", "FAILED"})
_ENDING = frozenset({"FAILING", "CANCELLING"})

#: Seconds that a job has to be over once it is cancelled, and that the API has to answer at all.
_CANCEL_S, _AWAY_S = 60.0, 20.0

#: Seconds for a job to turn up whose submission was cut off: the cluster gets it a while after Beam's job server.
APPEAR_S = 10.0

#: Seconds between two looks, for an answer, and that tasks may take to run first.
_PAUSE_S, _ANSWER_S, _BEGIN_S = 0.3, 8.0, 60.0

#: Bytes of an answer; a thousand jobs take about half a megabyte.
_MOST = 16_000_000

_ADDRESS = re.compile(r"(?:http://)?(?P<place>(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5}))/?")
_REFUSED = re.compile(
    r"(?:Connection refused|No route to host|connection timed out)[^\n]{0,200}?:(\d{1,5})\b", re.IGNORECASE
)

#: How the cluster can be reached, for messages, and what leaves the job there.
OPTION = "--flink_master=HOST:PORT, the address of the cluster's REST API (plain HTTP),"
LEAVE = "--flink_leave"

_Read = TypeVar("_Read")


class RestError(QuiltstreamError):
    """The API did not answer, or gave something that cannot be used; the message names no part of what it said."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a job in its cluster."""

    over: bool  # whether it does not run there; else it does, or may
    text: str  # the same in words
    cancelled: bool = False  # whether this command cancelled it


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
        pool: HOST:PORT of the pool that starts its workers, as the cluster knows it.
    """

    def __init__(self, place: str, name: str, *, leave: bool = False, pool: str | None = None) -> None:
        self.place, self.name, self.leave, self._pool = place, name, leave, pool
        self._begun, self._ran = time.monotonic(), False
        # the cluster is reached as Beam's job server reaches it, whatever proxy the environment names
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    @property
    def where(self) -> str:
        """Its cluster in words."""
        return f"the Flink cluster at {self.place}"

    def state(self) -> str | None:
        """Its state as Flink says it; ``None`` where the cluster has no such job.

        Raises:
            RestError: the API did not answer, or gave something else.
        """
        return next(iter(self._mine(lambda one: str(one["state"]))), None)

    def end(self, *, cancel: bool = True, appear_s: float = 0.0) -> Ended:
        """Cancel the job, or say that it is left there; nothing is raised.

        One that is over soon is waited for, and for so many seconds one that is not there.
        """
        begun, cancelled, trouble, answered = time.monotonic(), "", "", False
        while True:
            passed = time.monotonic() - begun
            try:
                found, answered = self._mine(lambda one: (str(one["jid"]), str(one["state"]))), True
                job, state = found[0] if found else (cancelled, "gone")
                if not found and not cancelled and passed >= appear_s:
                    text = f"{self.where} has no job {self.name!r}: if it turns up yet, cancel it there"
                    return Ended(over=True, text=text)
                if state in _OVER or (not found and cancelled):
                    text = f"its job {job} in {self.where} is over ({state})"
                    return Ended(over=True, text=text, cancelled=bool(cancelled))
                trouble = f"it was still {state}"
                if found and not cancel and state not in _ENDING:
                    text = f"its job {self.name!r} is left in {self.where} ({state}), where nobody watches it any more"
                    return Ended(over=False, text=f"{text}; cancel it there before another one is begun")
                if found and cancel and not cancelled:
                    self._call("PATCH", f"/jobs/{job}?mode=cancel")
                    cancelled = job
            except RestError as error:
                trouble = str(error)
            if passed >= (_CANCEL_S if answered else _AWAY_S):
                text = f"its job {self.name!r} may run on in {self.where}: after {passed:.0f} s {trouble}"
                return Ended(over=False, text=f"{text}; look there and cancel it")
            time.sleep(_PAUSE_S)

    def trouble(self) -> str | None:
        """Why the job cannot go on now; ``None`` if all of its tasks run, or it has not begun, or is over.

        Raises:
            CommandError: it never will: its workers fail of something final.
        """
        try:
            return self._trouble()
        except RestError as error:
            return f"the JobManager of {self.where} cannot be asked how the job is: {error}"

    def _trouble(self) -> str | None:
        mine = self._mine(
            lambda one: (str(one["jid"]), str(one["state"]), {k: int(n) for k, n in one["tasks"].items()})
        )
        if not mine or mine[0][1] in _OVER or mine[0][1] in {"CANCELLING", "INITIALIZING"}:
            return None
        job, _, tasks = mine[0]
        failed = self._read(
            self._call("GET", f"/jobs/{job}/exceptions?maxExceptions=1"),
            lambda said: [str(one["stacktrace"]) for one in said.get("exceptionHistory", {}).get("entries", [])][:1],
        )
        newest = check_final(failed[0], "Flink") if failed else None
        still = tasks["total"] - tasks["running"] - tasks["finished"]
        self._ran |= not still
        if not still or (not self._ran and time.monotonic() - self._begun < _BEGIN_S):
            return None
        do_not = f"{still} of {tasks['total']} tasks of the job do not run in {self.where}"
        if not self._read(self._call("GET", "/taskmanagers"), lambda said: len(said["taskmanagers"])):
            return f"{do_not}: no TaskManager is left in it; start one"
        if failed and self._pool is not None and self._pool.rpartition(":")[2] in _REFUSED.findall(failed[0]):
            return f"{do_not}: the worker pool at {self._pool} takes no connection; start it again"
        return f"{do_not}: {newest.text if newest else 'look at its pages'}"

    def _mine(self, read: Callable[[Any], _Read]) -> list[_Read]:
        """What the cluster lists of this name, each read by ``read``."""
        answer = self._call("GET", "/jobs/overview")
        return self._read(answer, lambda said: [read(one) for one in said["jobs"] if one["name"] == self.name])

    @staticmethod
    def _read(answer: Any, read: Callable[[Any], _Read]) -> _Read:
        try:
            return read(answer)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RestError("it answered with something else than expected; is this Flink's REST API?") from None

    def _call(self, method: str, path: str) -> Any:
        """What the API answers."""
        request = urllib.request.Request(f"http://{self.place}{path}", method=method)

        def ask() -> bytes:
            with self._open(request, timeout=_ANSWER_S) as answer:
                return answer.read(_MOST)

        try:
            # a name that is looked up for ever heeds no timeout
            return json.loads(aside(ask).result(_ANSWER_S) or b"{}")
        except urllib.error.HTTPError as error:
            error.close()
            raise RestError(f"it answered {method} with HTTP status {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise RestError(f"it could not be reached ({type(reason).__name__})") from None
        except ValueError:
            raise RestError("it answered with something else than JSON; is this Flink's REST API?") from None


def aside(call: Callable[[], _Read]) -> Future[_Read]:
    """Call something in a thread that nothing waits for when the process ends; its answer, or its error, to come."""
    future: Future[_Read] = Future()

    def ask() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
            future.set_exception(error)

    threading.Thread(target=ask, name="quiltstream-asking", daemon=True).start()
    return future


def flink_place(options: PipelineOptions) -> str | None:
    """HOST:PORT of the REST API of the cluster that the options name; ``None`` if they name none that can be used."""
    if (runner_name(options) or "").lower() not in ("flinkrunner", "portablerunner"):
        return None
    found = _ADDRESS.fullmatch(str(options.view_as(FlinkRunnerOptions).flink_master or "").strip())
    return None if found is None or not 0 < int(found["port"]) < 1 << 16 else found["place"]


def flink_job(options: PipelineOptions) -> FlinkJob | None:
    """The job that the options' next submission will be: ``job_name`` of the options becomes one of its own.

    Returns:
        ``None`` where no REST address is given; the options are then as they were.

    Raises:
        CommandError: the job is to be left in a cluster, and there is no such address, or its workers are of this
            command.
    """
    place, leave = flink_place(options), bool(options.view_as(FlinkLeaveOptions).flink_leave)
    portable, named = options.view_as(PortableOptions), options.view_as(GoogleCloudOptions)
    if leave and place is None:
        raise CommandError(
            f"{LEAVE} leaves the job in a Flink cluster and watches it there: add {OPTION} or leave {LEAVE} out"
        )
    if leave and portable.environment_type == "LOOPBACK":
        raise CommandError(
            f"--environment_type=LOOPBACK and {LEAVE}: the job's workers would end with the command; take "
            f"--environment_type=EXTERNAL, or leave {LEAVE} out"
        )
    if place is None:
        return None
    # Flink shows a job by the name that Beam's job server is given; it may be given twice, and Flink minds that not
    named.job_name = f"{named.job_name or 'quiltstream'}-{uuid.uuid4().hex[:16]}"
    pool = str(portable.environment_config) if portable.environment_type == "EXTERNAL" else None
    return FlinkJob(place, named.job_name, leave=leave, pool=pool)
