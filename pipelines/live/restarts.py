"""When a live job that failed is begun again by itself, and what its runner's failure is called.

A job that fails by itself is begun again a few times an hour. One that lacks what it needs, because a ledger, a broker
or a cluster is away or the disk of its sink is full, waits for it without an end, and that is no restart. Nothing is
lost or counted twice by either: the ledger of record says which windows are missing, and the source is read again for
these. What would fail again in the same way is not tried again. No text of a runner is shown: it may quote data; known
symptoms have names of our own.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...store.errors import StoreReplaced
from ..connectors.job_io import Output, SinkError, is_full, output_of
from ..console import plural
from ..errors import AwayError, CommandError, ExitCode, LoginError, Part, explain, failed_step
from ..on_record import ReplacedError
from .watchdog import HEALTH_METRICS, Cause, Say

#: Restarts are counted over so many seconds.
WITHIN_S = 3600.0

#: Seconds before the first restart; each further one within the hour waits twice as long, up to the last.
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0

#: Seconds before a job that waits is first tried again; each further pause is twice as long, up to the last.
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0

#: Seconds from one line about the same wait to the next, and those for which a job runs that has waited long enough.
_TELL_S = 300.0
_SOUND_S = 60.0

#: What is said to be away, on the metric.
_CAUSES: dict[Part, Cause] = {
    "ledger": Cause.LEDGER,
    "source": Cause.SOURCE,
    "sink": Cause.SINK,
    "cluster": Cause.RUNNER,
}

_SYMPTOMS = (
    (re.compile(r"panic in stage\.Execute"), "Prism's panic in stage.Execute"),
    (re.compile(r"panic in ElementManager\.Bundles"), "Prism's panic in ElementManager.Bundles"),
    (re.compile(r"OutOfMemoryError"), "the runner ran out of memory"),
    (
        re.compile(r"TaskManager with id|Heartbeat of TaskManager|RemoteTransportException|TaskManagerLost"),
        "a TaskManager was lost",
    ),
    (re.compile(r"NoResourceAvailableException"), "no slot was free for the job"),
    (re.compile(r"StatusCode\.UNAVAILABLE|status = UNAVAILABLE|io exception"), "a connection of the runner was cut"),
    (re.compile(r"\bdata channel\b|\bcontrol channel\b|SDK harness (?:disconnected|crashed)"), "a worker was lost"),
)

#: What Flink says of a job that somebody cancelled.
_CANCELLED = re.compile(r"JobCancell?ationException|Job was cancell?ed|in state CANCELLED")

#: What Flink says of a savepoint that is not there, or that another graph has written.
_UNFIT = re.compile(r"Failed to rollback to checkpoint/savepoint|Cannot find checkpoint or savepoint file")

#: The package's own error of a worker that has waited for a broker long enough.
_BROKER = re.compile(r"\bquiltstream\.transforms\.[\w.]*AwayError\b")

_AGAIN = "what is on record stays: run it again to go on"


#: The same of a job that could not be begun again: there may be rows on record that its sink lacks.
_KEPT = "What is on record stays, and what the sink lacks of it is sent when the job is begun again"


class RunnerError(CommandError):
    """A live job failed on its runner by what may go by.

    Attributes:
        symptom: what it failed of, in words that hold no data.
    """

    def __init__(self, symptom: str, code: ExitCode = ExitCode.FAILURE, text: str | None = None) -> None:
        """Keep the symptom; the message says it, unless there is a better one."""
        super().__init__(f"the job failed on its runner: {symptom}; {_AGAIN}" if text is None else text, code)
        self.symptom = symptom


def failure_of(  # noqa: PLR0911 - one for each kind of failure
    error: BaseException, outputs: tuple[Output, ...] = ()
) -> CommandError:
    """What an error of a runner, or of a worker through its runner, means for a live job.

    A failure of one of ``outputs``, the steps that write, is named by its place.

    Returns:
        :class:`RunnerError` if another try may go well, :class:`.AwayError` if it will once something is back.
    """
    if isinstance(error, CommandError):
        return _passing(error, outputs)
    failure = explain(error)
    if failure.kind == StoreReplaced.__name__:
        return ReplacedError(failure.text)
    if failure.passing:
        return AwayError(failure.text, failure.code, "ledger")
    if failure.kind or failure.code is not ExitCode.FAILURE:
        return CommandError(failure.text, failure.code)
    text = str(error)
    if _CANCELLED.search(text):
        return cancelled()
    if _UNFIT.search(text):
        return CommandError(
            "the cluster cannot take up the state that --savepoint_path names: it is not there, or a job with another "
            "graph has written it (parallelism, source, sink, rejects, or a version differs). Set these back, or run "
            "it without --savepoint_path: it reads the source again and publishes what is missing"
        )
    output = output_of(error, outputs)
    return RunnerError(_symptom(error, text)) if output is None else _undelivered(error, output)


def failure_at_restart(error: BaseException) -> CommandError:
    """What it means that a job which ran before cannot be made once more.

    A login or certificate that was taken then is being changed, and another try may go well.

    Returns:
        As :func:`failure_of`; nothing in its message is true of a first start only.
    """
    failure = failure_of(error)
    if isinstance(failure, LoginError):
        return RunnerError(failure.cause, failure.code, f"{failure.cause}. {_KEPT}")
    if failure.cause == str(failure):
        return failure
    text = f"{failure.cause}. {_KEPT}"
    if isinstance(failure, AwayError):
        return AwayError(text, failure.code, failure.part)
    return CommandError(f"{text}: mend it and run the command again", failure.code)


def _passing(error: CommandError, outputs: tuple[Output, ...]) -> CommandError:
    """The same failure, or what it is where rows could not be written."""
    if isinstance(error, SinkError):
        return _without_room(error.symptom) if error.full else RunnerError(error.symptom, error.code, str(error))
    cause = error.__cause__ if isinstance(error, RunnerError) else None
    output = None if cause is None else output_of(cause, outputs)
    return error if cause is None or output is None else _undelivered(cause, output)


def _undelivered(error: BaseException, output: Output) -> CommandError:
    symptom = output.failed(error)
    if not output.files and _BROKER.search(str(error)):
        return AwayError(f"{symptom}: no broker took them", ExitCode.SINK, "sink")
    if output.files and is_full(error):
        return _without_room(symptom)
    then = f"{output.kept}: {output.mend(error)}, and run it again; what is missing is written then"
    return RunnerError(symptom, ExitCode.SINK, f"{symptom}. {then}")


def _without_room(symptom: str) -> AwayError:
    """A folder on a full disk is waited for: somebody makes room, and nothing else is wrong with the job."""
    return AwayError(f"{symptom}: make room there", ExitCode.SINK, "sink")


def _symptom(error: BaseException, text: str) -> str:
    for pattern, symptom in _SYMPTOMS:
        if pattern.search(text):
            return symptom
    step, kind = failed_step(error)
    where = f" in the step {step!r} of the pipeline" if step else ""
    return (
        f"{kind or type(error).__name__}{where} (the runner's own text may quote data and is not shown; --debug shows "
        "it, to be kept inside the trust boundary)"
    )


def cancelled() -> CommandError:
    """Somebody cancelled the job at its runner, so it is not begun again."""
    return CommandError(
        f"the job was cancelled from outside, at its runner; nothing is lost, and {_AGAIN}", ExitCode.FAILURE
    )


def ended(state: str) -> CommandError:
    """A job ended otherwise than by itself."""
    if state == "CANCELLED":
        return cancelled()
    return CommandError(
        f"the job was ended from outside, at its runner, as {state}: the windows that were open then stay missing; "
        f"{_AGAIN}",
        ExitCode.FAILURE,
    )


def is_away(error: BaseException) -> bool:
    """Whether an error of a connection says that the other end does not answer, which may pass."""
    given = getattr(error, "code", None)
    code = given() if callable(given) else None
    return getattr(code, "name", "") in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


def gone(kind: str, *, here: bool) -> CommandError:
    """The runner does not answer about its job; one that is a process of this job's own took the job with it."""
    if here:
        return RunnerError(f"the runner has gone away ({kind})")
    return CommandError(
        f"the server that was asked how the job is has gone away ({kind}), and the job may run on in its cluster: look "
        "there; if it does not run, or after it was cancelled there, run it again to go on; what is on record stays",
        ExitCode.FAILURE,
    )


@dataclass
class Restarts:
    """Decides whether a job that failed is begun again, and after which pause."""

    limit: int  # how many restarts there may be within an hour; 0 for none
    once: bool = False  # whether the source can be read only once, so that no restart helps
    clock: Callable[[], float] = time.monotonic  # monotonic seconds; the tests' own
    count: int = 0  # restarts so far
    _at: deque[float] = field(default_factory=deque[float])

    def pause(self, failed: RunnerError) -> float:
        """Seconds to wait before the job is begun again.

        Raises:
            CommandError: it is not; the message says why.
        """
        self.check(failed)
        now = self.clock()
        while self._at and now - self._at[0] >= WITHIN_S:
            self._at.popleft()
        if len(self._at) >= self.limit:
            said = "live.restarts is 0, so it is not begun again by itself"
            if self.limit:
                said = (
                    f"It was begun again {plural(len(self._at), 'time')} within an hour, and live.restarts allows no "
                    "more: look at the runner and at this machine first"
                )
            raise CommandError(f"{failed}. {said}", failed.code) from failed
        self._at.append(now)
        self.count += 1
        return min(_FIRST_PAUSE_S * 2 ** (len(self._at) - 1), _LONGEST_PAUSE_S)

    def check(self, failed: CommandError) -> None:
        """See that the source can be read again.

        Raises:
            CommandError: it cannot.
        """
        if self.once:
            raise CommandError(
                f"{failed}. It is not begun again by itself, because standard input cannot be read again: send what is "
                "missing, or write it to files and follow these",
                failed.code,
            ) from failed


@dataclass
class Waits:
    """Waits for what a job lacks, without an end."""

    say: Say  # tells a kind of news and the news
    clock: Callable[[], float] = time.monotonic  # monotonic seconds; the tests' own
    sleep: Callable[[float], None] = time.sleep  # waits for some seconds; the tests' own
    _tries: int = 0
    _part: Part | None = None
    _told: float = 0.0
    _begun: float | None = None

    def wait(self, away: AwayError) -> None:
        """Say once, and then every few minutes, what is away, and wait until it is worth another try."""
        now = self.clock()
        anew = self._part != away.part or (self._begun is not None and now - self._begun >= _SOUND_S)
        if anew:
            self._tries = 0
        if anew or now - self._told >= _TELL_S:
            self._told = now
            self.say("waiting", f"{away}. The job waits until it is back, and is begun again then; this is no restart")
        self._part, self._begun = away.part, None
        HEALTH_METRICS.wait(_CAUSES[away.part])
        self.sleep(min(_FIRST_WAIT_S * 2**self._tries, _LONGEST_WAIT_S))
        self._tries = min(self._tries + 1, 16)

    def over(self) -> None:
        """Say that what was away is back: the job could be made again."""
        if self._part is not None and self._begun is None:
            self._begun = self.clock()
            self.say("resumed", _CAUSES[self._part].well)
