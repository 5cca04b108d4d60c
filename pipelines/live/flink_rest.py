"""A live job's own job in a Flink cluster: found by its name, cancelled by Flink's REST API, and waited for.

Beam's job server for Flink says that it cancels a job, and lets it run on in the cluster. Where the options give the
cluster's REST address, the command cancels the job itself. A cluster runs the jobs of others too, so every submission
gets a name that no other one has, and nothing but the job of exactly that name is ever touched. With ``--flink_leave``
the command only watches its job, and leaves it in the cluster when it is stopped or fails itself.

The API is spoken to by plain HTTP, directly and without a name or password: a cluster that asks for TLS or credentials
is treated as one without an address.
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
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
)

from ..engine import runner_name
from ..failures import CommandError

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
_ID = re.compile(r"[0-9a-f]{32}")

#: HTTP status of a JobManager that is not ready yet.
_STARTING = 503

#: How the cluster can be reached, for messages.
OPTION = "--flink_master=HOST:PORT, the address of the cluster's REST API (plain HTTP),"

#: What is said of an answer that nobody can use.
NO_LIST = "it answered with something else than a list of jobs; is this Flink's REST API?"

#: Leaves the job in the cluster.
LEAVE = "--flink_leave"

_Read = TypeVar("_Read")

End = Literal["over", "absent", "unknown"]
"""What became of a job: it is over; the cluster has no such job; or it may run on."""


class RestError(Exception):
    """The API did not give an answer that can be used; the message names no part of what it said."""


class RestAway(RestError):  # noqa: N818 - it says what happened
    """The API did not answer at all: the JobManager, or the network to it, is away."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a job in its cluster.

    Attributes:
        end: whether it is over.
        text: the same in words.
        asked: whether it had to be cancelled.
        away: whether it is unknown because the cluster does not answer.
    """

    end: End
    text: str
    asked: bool = False
    away: bool = False


class FlinkLeaveOptions(PipelineOptions):
    """An option of ours among Beam's, because it says what ``--flink_master`` is used for."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        told = "leave the job in its cluster when quiltstream run --live is stopped, or fails itself"
        parser.add_argument(LEAVE, action="store_true", default=False, help=told)


class FlinkJob:
    """The job of one submission in a cluster.

    Args:
        place: HOST:PORT of the REST API.
        name: of the job, and of no other one.
        leave: whether it outlives its command: only where nothing is left to do it is ended then.

    Attributes:
        ended: what became of it, once somebody has ended it or asked.
        seen: whether the cluster had it at some time.
    """

    def __init__(self, place: str, name: str, *, leave: bool = False) -> None:
        self.place, self.name, self.leave = place, name, leave
        self.ended: Ended | None = None
        self.seen = False
        # the cluster is reached as Beam's job server reaches it, whatever proxy the environment names
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def check(self) -> None:
        """See that the API answers.

        Raises:
            RestError: it does not.
        """
        self._found()

    def end(self, *, appear_s: float = 0.0) -> Ended:
        """Cancel the job, unless it is over, and wait until it is.

        Args:
            appear_s: seconds to wait for a job that the cluster does not have.

        Returns:
            What became of it, which :attr:`ended` is from then on; nothing is raised.
        """
        self.ended = self._end(appear_s)
        return self.ended

    def _end(self, appear_s: float) -> Ended:
        begun, asked, trouble, answered, away = time.monotonic(), "", "", False, False
        while True:
            try:
                found, answered, away = self._found(), True, False
                if found is None:
                    if asked:  # it was there, and the cluster keeps what is over for a while only
                        return Ended("over", f"its job {asked} is no longer in {self.where}", asked=True)
                    if time.monotonic() - begun >= appear_s:
                        return Ended("absent", self._absent())
                else:
                    job, state = found
                    if state in _TERMINAL:
                        return Ended("over", f"its job {job} in {self.where} is over ({state})", asked=bool(asked))
                    trouble = f"it was still {state}"
                    if not asked:
                        self._call("PATCH", f"/jobs/{job}?mode=cancel")
                        asked = job
            except RestError as error:
                trouble, away = str(error), isinstance(error, RestAway)
            passed = time.monotonic() - begun
            if passed >= (_CANCEL_S if answered else _AWAY_S):
                return Ended("unknown", self._unknown(passed, trouble), asked=bool(asked), away=away)
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
        """What is to be said of the job where its command leaves it; nothing is asked of it, and nothing is raised.

        A job that is about to be over is waited for.

        Args:
            appear_s: seconds to wait for a job that the cluster does not have.

        Returns:
            ``None`` where the cluster has no such job any more, or never had one.
        """
        begun = time.monotonic()
        while True:
            passed = time.monotonic() - begun
            try:
                found = self._found()
            except RestError as error:
                return f"its job {self.name!r} may be left in {self.where}: {error}; look there"
            if found is not None and found[1] in _TERMINAL:
                return None
            if found is None and passed >= appear_s:
                return None
            if found is not None and (found[1] not in _ENDING or passed >= _CANCEL_S):
                return (
                    f"its job {self.name!r} is left in {self.where} ({found[1]}), where nobody watches it any more; "
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
        """Id and state of the job of this name.

        Raises:
            RestError: the API did not answer, or has several, of which only one can be this command's.
        """
        found = self._mine(lambda one: (str(one["jid"]), str(one["state"])))
        if len(found) > 1:
            raise RestError("it had several jobs of this name, and none of them was touched")
        if found and not _ID.fullmatch(found[0][0]):
            raise RestError("it answered with something else than a job's id; is this Flink's REST API?")
        return found[0] if found else None

    def _mine(self, read: Callable[[Any], _Read]) -> list[_Read]:
        """What the cluster lists of this name, each read by ``read``.

        Raises:
            RestError: the API did not answer, or gave something else than a list of jobs.
        """
        answer = self._call("GET", "/jobs/overview")
        try:
            found = [read(one) for one in answer["jobs"] if one["name"] == self.name]
        except (KeyError, TypeError, ValueError):
            raise RestError(NO_LIST) from None
        self.seen |= bool(found)
        return found

    def _call(self, method: str, path: str) -> Any:
        """What the API answers, within :data:`_ANSWER_S`."""
        future: Future[bytes] = Future()

        def ask() -> None:
            try:
                future.set_result(self._asked(method, path))
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
                future.set_exception(error)

        # a name that is looked up for ever heeds no timeout
        threading.Thread(target=ask, name="quiltstream-flink", daemon=True).start()
        try:
            return json.loads(future.result(_ANSWER_S) or b"{}")
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
        except Exception as error:  # noqa: BLE001 - whoever ends a job has an exit code of its own to keep
            raise RestError(f"it could not be asked ({type(error).__name__})") from None

    def _asked(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(f"http://{self.place}{path}", method=method)
        with self._open(request, timeout=_PART_S) as answer:
            return answer.read(_MOST)


def flink_place(options: PipelineOptions) -> str | None:
    """HOST:PORT of the REST API of the cluster that the options name; ``None`` if they name none that can be used."""
    if (runner_name(options) or "").lower() not in ("flinkrunner", "portablerunner"):
        return None
    found = _ADDRESS.fullmatch(str(options.view_as(FlinkRunnerOptions).flink_master or "").strip())
    return None if found is None or not 0 < int(found["port"]) <= _MOST_PORT else found["place"]


def flink_job(options: PipelineOptions) -> FlinkJob | None:
    """The job that the options' next submission will be, which gets a name of its own.

    Args:
        options: Beam's; ``job_name`` in them is changed to one that no other submission has.

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


__all__ = [
    "APPEAR_S",
    "LEAVE",
    "NO_LIST",
    "OPTION",
    "End",
    "Ended",
    "FlinkJob",
    "FlinkLeaveOptions",
    "RestAway",
    "RestError",
    "flink_job",
    "flink_place",
    "leaves",
]
