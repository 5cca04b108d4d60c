"""What the failure of a live job is called, and its exit code: by that a supervisor begins the command again or not.

No text of a runner is shown: it may quote data. Known symptoms have names of our own.
"""

from __future__ import annotations

import re
from typing import Any

from ...schemas.errors import Marked, in_text
from ...store.errors import StoreReplaced
from ..connectors.job_io import Output, SinkError, output_of
from ..errors import CommandError, ExitCode, explain, failed_step
from ..on_record import ReplacedError

AGAIN = "what is on record stays: run it again to go on"


def lost(symptom: str) -> CommandError:
    """The runner, or a part of it, is gone, and another one may take the job."""
    return CommandError(f"the job failed on its runner: {symptom}; {AGAIN}", ExitCode.AWAY)


def ended(state: str) -> CommandError:
    """Somebody cancelled the job at its runner, or ended it otherwise."""
    how = "cancelled" if state == "CANCELLED" else f"ended as {state}"
    text = f"the job was {how} from outside, at its runner; nothing is lost, and {AGAIN}"
    return CommandError(text, ExitCode.FAILURE)


_NEEDS_ANOTHER = (
    "the cluster cannot take up the state that --savepoint_path names: it is not there, or a job with another graph "
    "has written it (parallelism, source, sink, rejects, or a version differs). Set these back, or run it without "
    "--savepoint_path: it reads the source again and publishes what is missing"
)

#: What runners say of what is lost, which another try may not lose.
_LOST = {
    r"panic in stage\.Execute": "Prism's panic in stage.Execute",
    r"panic in ElementManager\.Bundles": "Prism's panic in ElementManager.Bundles",
    r"OutOfMemoryError": "the runner ran out of memory",
    r"TaskManager with id|Heartbeat of TaskManager|RemoteTransportException|TaskManagerLost": "a TaskManager was lost",
    r"NoResourceAvailableException": "no slot was free for the job",
    r"StatusCode\.UNAVAILABLE|status = UNAVAILABLE|io exception": "a connection of the runner was cut",
    r"\bdata channel\b|\bcontrol channel\b|SDK harness (?:disconnected|crashed)": "a worker was lost",
}
_CANCELLED = r"JobCancell?ationException|Job was cancell?ed|in state CANCELLED"
_UNFIT = r"Failed to rollback to checkpoint/savepoint|Cannot find checkpoint or savepoint file"


def failure_of(error: BaseException, outputs: tuple[Output, ...] = ()) -> CommandError:
    """What an error of a runner, or of a worker through its runner, means for a live job.

    A failure of one of ``outputs``, the steps that write, is named by its place.
    """
    if isinstance(error, CommandError):
        return error
    failure, output = explain(error), output_of(error, outputs)
    if failure.kind == StoreReplaced.__name__:
        return ReplacedError(failure.text)
    if failure.kind and (output is None or failure.code is not ExitCode.FAILURE):
        return CommandError(failure.text, failure.code)
    if output is not None:
        return SinkError(output, error, f"{output.kept}: {output.mend(error)}; what is missing is written then")
    return _of_runner(error, str(error))


def _of_runner(error: BaseException, said: str) -> CommandError:
    """What an error means that is none of ours."""
    if re.search(_CANCELLED, said):
        return ended("CANCELLED")
    if re.search(_UNFIT, said):
        return CommandError(_NEEDS_ANOTHER)
    symptom = next((words for pattern, words in _LOST.items() if re.search(pattern, said)), None)
    if symptom is not None or is_away(error):
        return lost(symptom or "the server that takes jobs does not answer")
    step, kind = failed_step(error)
    where = f" in the step {step!r} of the pipeline" if step else ""
    return CommandError(
        f"the job failed on its runner: {kind}{where} (the runner's own text may quote data and is not shown; --debug "
        f"shows it, to be kept inside the trust boundary); {AGAIN}",
        ExitCode.FAILURE,
    )


def check_final(text: str, runner: str) -> Marked | None:
    """The newest error of this package in a text of a runner that begins its workers again for ever.

    Raises:
        CommandError: it is final.
    """
    newest = next(reversed(in_text(text)), None)
    if newest is not None and newest.code.final:
        raise CommandError(f"{newest.text}. {runner} would begin its workers again for ever", newest.code)
    return newest


def check_dataflow(result: Any) -> None:
    """See that no message of a job on Dataflow tells of something final; of other runners there is nothing to see.

    Raises:
        CommandError: one does.
    """
    client = getattr(getattr(result, "_runner", None), "dataflow_client", None)
    if client is None:
        return
    messages, _ = client.list_messages(result.job_id(), minimum_importance="JOB_MESSAGE_ERROR")
    for one in messages:
        check_final(str(getattr(one, "message_text", "") or getattr(one, "messageText", "")), "Dataflow")


def is_away(error: BaseException) -> bool:
    """Whether an error of a connection says that the other end does not answer, which may pass."""
    given = getattr(error, "code", None)
    code = given() if callable(given) else None
    return getattr(code, "name", "") in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
