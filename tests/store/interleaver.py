"""Jobs that share an SQLite ledger, interleaved at every statement and commit as a schedule says, with kills.

Each job is a thread with a connection of its own, as a process would have; one runs at a time. Before each statement,
and before and after each commit, the schedule decides which one goes on. A job that finds the ledger locked waits until
another one has committed or is gone. A job that is killed stops where it is: its transaction is taken back, and what it
remembers is forgotten.

After every statement, commit and rollback the ledger is looked at over another connection, which sees what any other
process sees: where SQLite says that something was committed since, all of it is read, and everything is checked that
must hold in each state of it and for all that was ever published. So a statement that is on record by itself, outside
of a transaction, is checked by itself, too.
"""

from __future__ import annotations

import ast
import json
import random
import shutil
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from sqlalchemy import event

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.privacy.models.serialisation import belief_from_dict
from quiltstream.store import Store
from quiltstream.store.address import Seen
from quiltstream.store.codec import block_from_bytes, unpacked
from quiltstream.store.database import Database
from quiltstream.store.specs import Record, Registration

from .samples import BELIEF

Schedule = Sequence[tuple[int, int]]
"""Pairs: after so many steps, an action, which is ``KILL`` or ``n`` for the n-th of the other jobs that can run."""

KILL = 0

#: A schedule that hangs ends its test after so many seconds, a hundred times what the longest takes.
_HANGS_S = 60.0


class Killed(BaseException):
    """A job ends here, as if its process was killed."""


class Broken(AssertionError):  # noqa: N818 - what a test has found
    """Something does not hold that must always hold."""


@dataclass
class Watch:
    """What an observer saw: every state of the ledger, and everything that was published."""

    ledger: sqlite3.Connection  # a connection of its own
    # what SQLite says of the last state that was looked at: another number after each commit of others
    version: int | None = None
    states: int = 0  # how many states were checked
    published: dict[Any, bytes] = field(default_factory=dict[Any, bytes])  # counts that were published, as bytes
    blocks: dict[Any, Any] = field(default_factory=dict[Any, Any])  # of record, with what they belong to
    charges: dict[Any, Any] = field(default_factory=dict[Any, Any])  # of record

    def look(self) -> None:
        """Check the state of the ledger if it is another one than at the last look.

        Raises:
            Broken: something does not hold.
        """
        (version,) = self.ledger.execute("PRAGMA data_version").fetchone()
        if version != self.version:
            self.version = version
            self.check()

    def check(self) -> None:
        """Check the state of the ledger, against those before it as well.

        Raises:
            Broken: something does not hold.
        """
        self.states += 1
        charges, blocks = dict[Any, Any](), dict[Any, Any]()
        accounts: dict[str, _Account] = defaultdict(_Account)
        for domain, seq, key, body, blob in self.ledger.execute(_ROWS):
            kind, *place = key.split("/")
            said = json.loads(body)
            accounts[domain].take(kind, place, said, blob)
            if kind == "entry":
                charges[domain, place[1], int(place[0])] = seq, said
            elif kind == "block":
                blocks[domain, place[2], int(place[0]), int(place[1])] = seq, blob
        _kept("charge", self.charges, charges)
        _kept("block", self.blocks, blocks)
        for place, (seq, _) in blocks.items():
            paid = charges.get(place[:3])
            if paid is None or not paid[1]["charged"] or paid[0] > seq:
                raise Broken(f"the block at {place} has no charge that paid for it")
        heads = dict(self.ledger.execute("SELECT domain, seq FROM quiltstream_heads"))
        if heads != dict(self.ledger.execute("SELECT domain, max(seq) FROM quiltstream_log GROUP BY domain")):
            raise Broken("a head counts other rows than there are")
        for domain, account in accounts.items():
            account.check(domain)

    def told(self, held: Registration, records: Sequence[Record]) -> None:
        """A job publishes what its store returned: the same rows as ever, and rows of record alone.

        Raises:
            Broken: something does not hold.
        """
        for record in records:
            if record.block is None:
                continue
            place = (held.domain.name, held.query.name, record.window.start, record.shard)
            said = record.block.counts.tobytes()
            if self.published.setdefault(place, said) != said:
                raise Broken(f"two values were published at {place}")
            if place not in self.blocks:
                raise Broken(f"what was published at {place} is not on record")
            if block_from_bytes(self.blocks[place][1], "live").counts.tobytes() != said:
                raise Broken(f"what was published at {place} is not what is on record")


_TABLES = "SELECT name FROM template.sqlite_master WHERE type = 'table'"


@dataclass
class _Account:
    """What the rows of a domain say of its account."""

    paid: list[tuple[int, int, float]] = field(default_factory=list[tuple[int, int, float]])
    losses: list[float] = field(default_factory=list[float])
    beliefs: list[Any] = field(default_factory=list[Any])
    budget: float = 0.0
    reserved: float = 0.0

    def take(self, kind: str, place: list[str], said: dict[str, Any], blob: bytes | None) -> None:
        if kind == "entry" and said["charged"]:
            self.paid.append((int(place[0]), said["stop"], said["epsilon_dp"]))
            self.losses.append(said["after"])
        elif kind == "domain":
            self.budget = said["budget"]
        elif said.get("kind") == "budget-raised":
            self.budget = said["new"]
        elif "change" in said:
            self.beliefs.append(unpacked(blob)["belief"])
        self.reserved = said.get("reserved", self.reserved)

    def check(self, domain: str) -> None:
        losses = _losses(tuple(self.paid), repr(self.beliefs))
        # charges from before a belief changed say what they cost then
        if not self.beliefs and losses != tuple(self.losses):
            raise Broken(f"the losses on record of domain {domain} are not what its charges cost")
        if losses and not losses[-1] <= min(self.budget, self.reserved * (1 + 1e-12)):
            raise Broken(f"domain {domain} lost {losses[-1]} of {self.budget}, of which {self.reserved} is reserved")


_ROWS = "SELECT domain, seq, key, body, blob FROM quiltstream_log WHERE domain != '' ORDER BY domain, seq"


def _kept(what: str, before: dict[Any, Any], now: dict[Any, Any]) -> None:
    if not before.items() <= now.items():
        raise Broken(f"a {what} changed or vanished")
    before.update(now)


@lru_cache(4096)
def _losses(spans: tuple[tuple[int, int, float], ...], beliefs: str) -> tuple[float, ...]:
    """What the mathematics alone says of charges, the loss after each; beliefs that joined as Python writes them."""
    ledger = Ledger(BELIEF)
    for belief in ast.literal_eval(beliefs):
        ledger.add_belief(belief_from_dict(belief))
    return tuple(ledger.charge(*span).loss_after for span in spans)


class Turns:
    """Which job runs: one at a time, by a schedule.

    Attributes:
        trace: the job that took each step.
        failure: what went wrong first.
    """

    def __init__(self, jobs: int, schedule: Schedule) -> None:
        self.trace: list[int] = []
        self.failure: BaseException | None = None
        self.done = threading.Event()
        self._left = list(schedule)
        self._alive = list(range(jobs))
        self._blocked: set[int] = set()
        # locks, each held but while its job may go on: semaphores of this library take longer
        self._gates = [threading.Lock() for _ in range(jobs)]
        for gate in self._gates:
            gate.acquire()

    def begin(self) -> None:
        """Let the first job go."""
        self._gates[0].release()

    def wait(self, job: int) -> None:
        """Wait for the first turn of a job."""
        self._gates[job].acquire()

    def step(self, job: int) -> None:
        """The running job is about to do something: go on, let another one go on, or be killed."""
        self.trace.append(job)
        if self.failure is not None:
            raise Killed
        if not self._left:
            return
        steps, action = self._left[0]
        if steps:
            self._left[0] = steps - 1, action
            return
        del self._left[0]
        if action == KILL:
            raise Killed
        others = [one for one in self._alive if one != job and one not in self._blocked]
        if others:
            self._hand_over(job, others[(action - 1) % len(others)])

    def blocked(self, job: int) -> None:
        """The running job finds the ledger locked: let another one go on, until the lock may be free."""
        self._blocked.add(job)
        others = [one for one in self._alive if one not in self._blocked]
        if not others:
            raise Broken("every job waits for the ledger, and none has it")
        self._hand_over(job, others[0])

    def released(self) -> None:
        """The ledger may be free now."""
        self._blocked.clear()

    def end(self, job: int, error: BaseException | None) -> None:
        """The running job is done, or was killed, or failed."""
        if error is not None and not isinstance(error, Killed) and self.failure is None:
            self.failure = error
        self._alive.remove(job)
        self._blocked.clear()
        if self._alive:
            self._gates[self._alive[0]].release()
        else:
            self.done.set()

    def _hand_over(self, job: int, other: int) -> None:
        self._gates[other].release()
        self._gates[job].acquire()
        if self.failure is not None:
            raise Killed


@dataclass
class World:
    """What a job of a scenario has."""

    watch: Watch  # the observer
    memory: dict[str, Any]  # whatever a scenario prepared for its jobs

    def publish(self, store: Store, held: Registration, drafts: Sequence[Any]) -> list[Record]:
        """Publish drafts: what comes back leaves the process."""
        records = store.publish(held, drafts)
        self.watch.told(held, records)
        return records


Job = Callable[[World, Store], None]
"""What a process does with its store."""


@dataclass(frozen=True)
class Scenario:
    """Jobs that run at once on a ledger that was prepared.

    Attributes:
        name: of its folder, too.
        prepare: puts into an empty ledger what is there before, and returns what the jobs have to know.
        jobs: what runs; a job of several parts begins each with nothing remembered, also behind one that was killed.
    """

    name: str
    prepare: Callable[[Store], dict[str, Any]]
    jobs: tuple[tuple[Job, ...], ...]


class Stage:
    """A scenario's ledger, its connections and threads, which all of its schedules use.

    Args:
        scenario: what runs.
        folder: for the files.
    """

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.begin = "BEGIN IMMEDIATE"  # of transactions that write; a test plants another
        self._turns: Turns | None = None
        self._watch: Watch
        self._url = f"sqlite:///{folder}/{scenario.name}/ledger.db"
        with Store(self._url, create=True) as store:
            store.domains()
            self._memory = scenario.prepare(store)
        self._folder = folder / scenario.name
        path = self._folder / "ledger.db"
        shutil.copy(path, path.with_name("template.db"))
        self._open(path)

    def _open(self, path: Path) -> None:
        self._url = f"sqlite:///{path}"
        self._ledger = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._ledger.execute("PRAGMA synchronous=OFF")
        self._ledger.execute("ATTACH ? AS template", (str(self._folder / "template.db"),))
        self._tables = [row[0] for row in self._ledger.execute(_TABLES)]
        # a database for each wait: what a process has alone
        self._stores = [Store(self._url, create=True, wait=1.0 + job) for job in range(len(self.scenario.jobs))]
        for job, store in enumerate(self._stores):
            self._hook(job, store._database())

    def run(self, schedule: Schedule) -> Turns:
        """Run the jobs by a schedule on a fresh copy of the ledger; what went wrong is in the answer."""
        self._begin()
        watch = Watch(self._ledger)
        watch.look()
        world = World(watch, self._memory)
        turns = Turns(len(self._stores), schedule)
        self._turns, self._watch = turns, watch
        threads = [
            threading.Thread(target=self._work, args=(turns, world, job), daemon=True)
            for job in range(len(self._stores))
        ]
        for thread in threads:
            thread.start()
        turns.begin()
        if not turns.done.wait(_HANGS_S):
            raise Broken(f"{self.scenario.name}: the jobs hang after {len(turns.trace)} steps")
        for thread in threads:
            thread.join()
        self._turns = None
        return turns

    def close(self) -> None:
        """Close everything."""
        self._end()

    def _begin(self) -> None:
        # row by row: a copy of the file would make every connection read its tables' definitions again
        with self._ledger:
            self._ledger.execute("BEGIN IMMEDIATE")
            for table in self._tables:
                self._ledger.execute(f"DELETE FROM main.{table}")  # noqa: S608 - a name
                self._ledger.execute(f"INSERT INTO main.{table} SELECT * FROM template.{table}")  # noqa: S608 - a name

    def _end(self) -> None:
        for store in self._stores:
            store.close()
        self._ledger.close()

    def _work(self, turns: Turns, world: World, job: int) -> None:
        turns.wait(job)
        error: BaseException | None = None
        store = self._stores[job]
        try:
            for part in self.scenario.jobs[job]:
                database = store._database()
                database._chains.clear()
                database.seen.clear()
                with suppress(Killed):
                    turns.step(job)
                    part(world, store)
        except BaseException as found:  # noqa: BLE001 - whatever it is, the schedule is shown with it
            error = found
        turns.end(job, error)

    def _hook(self, job: int, database: Database) -> None:
        """Make a database of a job take its turns."""
        database.__class__ = _Own
        engine = database._require()
        event.listen(engine, "connect", _unsynchronised)
        engine.dispose()
        dialect: Any = engine.dialect
        event.listen(engine, "before_cursor_execute", partial(self._step, job))
        event.listen(engine, "after_cursor_execute", self._look)
        event.listen(engine, "do_execute", partial(self._execute, job))
        dialect.do_commit = partial(self._commit, job, dialect.do_commit)
        dialect.do_rollback = partial(self._rollback, dialect.do_rollback)

    def _step(self, job: int, *_: Any) -> None:
        if self._turns is not None:
            self._turns.step(job)

    def _look(self, *_: Any) -> None:
        if self._turns is not None and self._turns.failure is None:
            self._watch.look()

    def _execute(self, job: int, cursor: Any, statement: str, _parameters: Any, _context: Any) -> bool:
        """Begin a transaction where that is possible, and wait where it is not; other statements are not for this."""
        if self._turns is None or not statement.startswith("BEGIN"):
            return False
        statement = statement.replace("BEGIN IMMEDIATE", self.begin)
        while statement and not _began(cursor, statement):
            self._turns.blocked(job)
        return True

    def _commit(self, job: int, commit: Callable[[Any], None], connection: Any) -> None:
        self._step(job)
        commit(connection)
        if self._turns is not None:
            self._turns.released()
        self._look()
        self._step(job)

    def _rollback(self, rollback: Callable[[Any], None], connection: Any) -> None:
        rollback(connection)
        if self._turns is not None:
            self._turns.released()
        self._look()


def _began(cursor: Any, statement: str) -> bool:
    try:
        cursor.execute(statement)
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        return False
    return True


@dataclass(frozen=True)
class Found:
    """A schedule under which something breaks."""

    seed: int  # of all schedules tried
    number: int  # of the one that found it, from 0
    schedule: Schedule
    failure: BaseException  # what broke


def drawn(seed: int, number: int) -> Schedule:
    """One of the schedules of a seed."""
    chance = random.Random(f"{seed}/{number}")
    return [(chance.randrange(31), chance.randrange(4)) for _ in range(chance.randrange(1, 9))]


def explore(stage: Stage, schedules: int, seed: int) -> Found | None:
    """Run so many schedules of a seed; the first under which something breaks."""
    for number in range(schedules):
        schedule = drawn(seed, number)
        failure = stage.run(schedule).failure
        if failure is not None:
            return Found(seed, number, schedule, failure)
    return None


class _Own(Database):
    """What one job has seen: in the store, jobs of one process share it."""

    @property
    def seen(self) -> Seen:
        """As of a process of its own."""
        return vars(self).setdefault("own", {})


def _unsynchronised(connection: sqlite3.Connection, _record: Any) -> None:
    # nothing here ends the machine; and who waits lets another job run instead
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA busy_timeout=0")
