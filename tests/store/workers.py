"""A process that forks workers on demand and kills them where it is told to; run as a script by ``nursery.py``.

It imports everything once, so that a worker costs a fork. Commands are JSON lines on standard input; for each there is
one JSON line on standard output. A worker is killed with SIGKILL at its n-th boundary: before or after a statement or a
commit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect

from quiltstream.store import Store, StoreError

_spec = importlib.util.spec_from_file_location("store_samples", Path(__file__).with_name("samples.py"))
assert _spec is not None
assert _spec.loader is not None
samples: Any = importlib.util.module_from_spec(_spec)
sys.modules["store_samples"] = samples
_spec.loader.exec_module(samples)

#: A worker that hangs is ended, so that its test fails instead of waiting.
LONGEST_SECONDS = 120


class Boundaries:
    """Counts the boundaries a worker crosses and kills it at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.crossed = 0
        self._kill_at = kill_at

    def cross(self, *_: Any, **__: Any) -> None:
        self.crossed += 1
        if self.crossed == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        event.listen(Engine, "before_cursor_execute", self.cross)
        event.listen(Engine, "after_cursor_execute", self.cross)
        commit, cross = DefaultDialect.do_commit, self.cross

        def do_commit(self: DefaultDialect, dbapi_connection: Any) -> None:
            cross()
            commit(self, dbapi_connection)
            cross()

        DefaultDialect.do_commit = do_commit


def job(command: dict[str, Any], boundaries: Boundaries) -> dict[str, Any]:
    """Register a query and publish its windows in batches, in the order asked for."""
    store = Store(command["url"], wait=30, create=True)
    name = command.get("domain", "homes")
    spec = command.get("spec", {})
    if "roster" in command:
        spec["roster"] = samples.Roster.of(command["roster"])
    registration = store.register(
        samples.domain(name, budget=command.get("budget", 1.0)),
        samples.query(command.get("query", "weekly"), name, **spec),
    )
    windows = list(registration.query.schedule.windows())
    order = command.get("order", "forward")
    if order == "backward":
        windows.reverse()
    elif order == "random":
        random.SystemRandom().shuffle(windows)
    if command.get("charge"):
        registration = store.charge_windows(registration, windows)
    size = command.get("batch", 2)
    found: dict[str, Any] = {}
    for at in range(0, len(windows) if command.get("publish", True) else 0, size):
        found |= samples.seen(store.publish(registration, samples.drafts(registration, windows[at : at + size])))
    store.close()
    return {"rows": found, "crossed": boundaries.crossed, "admitted_stop": registration.admitted_stop}


def open_files(part: str) -> list[str]:
    """Files of this process whose path has a part, and sockets; none where the system does not list them."""
    found: list[str] = []
    for number in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            found.append(str(number.readlink()))
    return [name for name in found if part in name or name.startswith("socket:")]


def fork_job(command: dict[str, Any], _: Boundaries) -> dict[str, Any]:
    """Use one store in a process and in its forked child, in turns, and see whose connection each one uses."""
    store = Store(command["url"], create=True)
    registration = store.register(samples.domain(), samples.query())
    windows = list(registration.query.schedule.windows())
    store.publish(registration, samples.drafts(registration, windows[:1]))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            inherited = open_files("ledger")
            store.publish(registration, samples.drafts(registration, windows[1:2]))
            os.write(writing, b"inherited" if inherited else b"own")
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    store.publish(registration, samples.drafts(registration, windows[2:3]))
    status = os.waitpid(child, 0)[1]
    store.publish(registration, samples.drafts(registration, windows[3:4]))
    entries = [entry.sequence for entry in store.entries()]
    store.close()
    return {"status": status, "child": os.read(reading, 20).decode(), "sequences": entries}


def change_job(command: dict[str, Any], boundaries: Boundaries) -> dict[str, Any]:
    """Let another belief join a domain's, or follow it at a slot with an estimate and a query from there on."""
    store = Store(command["url"], wait=30, create=True)
    held = store.registered(command["domain"], "weekly")
    assert held is not None
    slot, belief = command["slot"], samples.OTHER.to_dict()
    change = samples.BeliefChange("joined" if slot is None else "switched", belief, "model-2", slot)
    if slot is None:
        store.change_belief(command["domain"], change)
    else:
        following = replace(
            held.query,
            name="later",
            scale=2 * held.query.scale,
            release_epsilon_dp=held.query.release_epsilon_dp / 2,
            schedule=replace(held.query.schedule, start=slot),
        )
        about = replace(held.domain, belief=belief, model_id="model-2")
        store.register(about, following, samples.Estimated({"belief": belief}, change))
    store.close()
    return {"crossed": boundaries.crossed}


KINDS: dict[str, Any] = {"job": job, "fork": fork_job, "change": change_job}


def start(command: dict[str, Any]) -> tuple[int, int]:
    """Fork a worker; its answer comes through a pipe."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return int(process), int(reading)
    os.close(reading)
    signal.alarm(LONGEST_SECONDS)
    boundaries = Boundaries(command.get("kill_at"))
    boundaries.install()
    if "most_bytes" in command:
        # without the signal a write beyond it is an error, as on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (command["most_bytes"], command["most_bytes"]))
    try:
        while time.time() < command.get("not_before", 0):
            time.sleep(0.001)
        kind: Any = KINDS[command.get("kind", "job")]
        answer = kind(command, boundaries)
    except StoreError as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    except BaseException:  # noqa: BLE001 - whatever it is, the test is to see it
        answer = {"error": "unexpected", "text": traceback.format_exc()}
    with os.fdopen(writing, "w") as pipe:
        json.dump(answer, pipe)
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        workers = [start(command) for command in json.loads(line)]
        answers: list[dict[str, Any]] = []
        for process, reading in workers:
            with os.fdopen(reading) as pipe:
                text = pipe.read()
            _, status = os.waitpid(process, 0)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            ended = {"error": "unexpected", "text": f"the worker ended with {status}"}
            answers.append({"killed": True} if killed else json.loads(text) if text else ended)
        print(json.dumps(answers), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
