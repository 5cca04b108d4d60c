"""A live job to which a plan's random actions are done, and what must come of it by plain counting.

After the last step the job comes to its end, and is compared with what was sent, counted by a computation that imports
nothing of the package: every window is on record once with its true counts, the ledger charged the windows that were
drawn and no others, within the budget, nothing left the job with other values, each row is in the sink, what was
late or no reading is among the rejects with its reason and nothing else is, and no process is left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from quiltstream.pipelines.live.monitor import STOPPED
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.store import BudgetRefused, Store, StoreMissing
from quiltstream.store.errors import UnknownNameError
from quiltstream.store.specs import BeliefChange

from ..examined import every
from .flink import FlinkCluster
from .kafka import KafkaBroker
from .kafka_topics import READINGS, TopicBench, as_it_comes
from .live_bench import DAY, DAY_US, GROUPS, HOUR, NAMES, ORIGIN, SERIES, SLOT, Bench, Running, lines, readings, truth
from .postgres import PostgresServer
from .prism import prism_arguments
from .processes import ServerError
from .random_plans import Plan, Step
from .test_live_postgres import PostgresBench
from .test_live_restart import prisms_of
from .test_orphans import MARK, kill_alone, left_of

#: Days of the schedule, a window each.
DAYS = 7

#: The home that may be added, and its group.
HOME, ITS_GROUP = "f", "x"

#: A reading that would count if it were taken: in the highest bin, at the end of its slot.
LOUD = 9999.0

#: A belief that holds more chains than the domain's.
WIDER = MixingBounds(pi_min=0.008, gap=0.25)

#: Lines that are no readings.
BAD = ('{"series": "a"', '{"series": "a", "time": "soon", "value": 1}', '{"series": "a", "time": 1, "value": null}')


@dataclass(frozen=True, slots=True)
class Servers:
    """What runs beside the jobs."""

    prism: Path  # the program of the runner
    postgres: PostgresServer  # a server of ledgers
    kafka: KafkaBroker  # a broker of topics
    beams: dict[str, str]  # the Python of each version of Beam
    flink: FlinkCluster | None = None  # a cluster, where jobs run on one


@dataclass
class Sent:
    """What was sent."""

    frames: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])  # readings that were in time
    again: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])  # readings that were sent once more
    late: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])  # readings of windows that were on record
    owed: int = 0  # how many of them the job that runs must tell as late: it has published their windows itself
    # where lines are that are no readings, in the source: file or partition, line or offset
    bad: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    strangers: int = 0  # lines of a series that is in no roster
    # lines of the files, or messages of each partition, so far
    lines: Counter[int] = field(default_factory=Counter[int])
    reached: dict[int, int] = field(default_factory=dict[int, int])  # the latest reading of each partition


class WrongError(AssertionError):
    """A run did not come to what plain counting says."""


class Run:
    """One run of a plan.

    Args:
        plan: what is done.
        servers: run beside the jobs.
        folder: an empty one.
        words: of ``live_job.py``, beside its own.
    """

    def __init__(self, plan: Plan, servers: Servers, folder: Path, words: tuple[str, ...] = ()) -> None:
        self.plan, self.servers, self._words = plan, servers, words
        given = plan.configuration
        if given.ledger == "postgres" and servers.postgres.pid is None:
            servers.postgres.start()
        self.bench = self.place(folder)
        self._beam = given.beam
        self._topics: TopicBench | None = None
        if "kafka" in (given.source, given.sink):
            self._topics = TopicBench(servers.kafka, self.bench, given.partitions)
        self._members = dict(GROUPS if given.grouped else SERIES)
        self._members_of: dict[int, dict[str, list[str]]] = {}
        self.bench.keys = dict(self._members)
        lateness = max(1, given.lateness_h * HOUR)
        frame = readings(DAYS + 0.5, plan.seed, [*NAMES, HOME])
        self._arriving = as_it_comes(frame, lateness, plan.seed)
        self._came = 0.0
        self.sent = Sent()
        self._job: Running | None = None
        self._poll_ms = given.poll_ms
        self._published: dict[str, str] = {}
        self._read: dict[str, Any] = {}
        self._joined: list[tuple[int, MixingBounds]] = []
        self._marks: list[str] = []
        self._known: set[int] = set()
        self.settle()

    def place(self, folder: Path) -> Bench:
        """An empty place for the jobs."""
        temporary = folder / "temporary"
        temporary.mkdir()
        where = (folder / "job", prism_arguments(self.servers.prism), {"TMPDIR": str(temporary)})
        on_server = self.plan.configuration.ledger == "postgres"
        bench = PostgresBench(*where, self.servers.postgres.url) if on_server else Bench(*where)
        # of Parquet the bytes depend on the version of Arrow, and the versions of Beam have different ones
        bench.format = "jsonl"  # type: ignore[misc]
        bench.python = self.pythons.get(self.plan.configuration.beam, sys.executable)
        return bench

    @property
    def pythons(self) -> dict[str, str]:
        """The Python of each version of Beam that a job may be upgraded to."""
        return self.servers.beams

    def close(self) -> None:
        """End what runs."""
        self.bench.close()

    # Jobs

    def settle(self) -> None:
        """Write the settings."""
        given = self.plan.configuration
        changes: dict[str, Any] = {
            "windows": {
                "size": "1d",
                "start": "2013-01-01",
                "stop": f"2013-01-{DAYS + 1:02}",
            }
            | ({"lateness": f"{given.lateness_h}h"} if given.lateness_h else {}),
            "live": {"poll": f"{self._poll_ms}ms", "restarts": 20},
            "privacy": {"epsilon": 1.0, "budget": given.budget},
            "shards": given.shards,
            "group_by": "group" if given.grouped else None,
            "rejects": {"jsonl": "rejects"},
        }
        if self._topics is not None:
            servers = {"servers": self.servers.kafka.servers}
            if given.source == "kafka":
                topic = servers | {"topic": self._topics.source, "discover": "500ms"}
                changes |= {"source": {"kafka": topic | {"lanes": min(2, given.partitions)}}, "readings": READINGS}
            if given.sink == "kafka":
                changes["sink"] = {"kafka": servers | {"topic": self._topics.sink}}
        self.bench.settings(**changes)
        if HOME in {name for names in self._members.values() for name in names}:
            with (self.bench.folder / "roster.csv").open("a", encoding="utf-8") as file:
                file.write(f"{HOME},{ITS_GROUP}\n")

    def begin(self) -> None:
        """Start a job."""
        self._marks.append(f"{self.bench.folder}-{len(self._marks)}-")
        self.bench.environment[MARK] = self._marks[-1]
        self.settle()
        self._owe_nothing()
        self._job = self.bench.start(*self._words)

    def _owe_nothing(self) -> None:
        """Note what is on record: a job that begins tells no reading of these windows as late."""
        self._known, self.sent.owed = self.on_record(), 0

    @property
    def job(self) -> Running:
        """The one that runs."""
        assert self._job is not None
        return self._job

    def end(self, how: str) -> None:
        """End the job that runs, and see that nothing of it goes on."""
        job, self._job = self.job, None
        self._remember()
        if how == "killed":
            job.kill()
        elif how == "killed alone":
            kill_alone(job)
        else:
            os.killpg(job.process.pid, signal.SIGINT)
            # before its pipeline has begun it ends with 130, and before the command has, by the signal; it does not
            # wait for a ledger that takes its time, and says so
            code, said = job.wait(), job.err.read_text(encoding="utf-8")
            slow = code == 4 and said.startswith(f"Error: {STOPPED}; what that is cannot be told")
            if slow:
                sys.stdout.write(said)
            elif code not in {0, 3, 130, -signal.SIGINT}:
                raise WrongError(f"a job that was asked to end said {said}")
        self._see_no_process()

    def _see_no_process(self) -> None:
        if left := left_of(self._marks[-1]):
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise WrongError(f"processes that a job left: {sorted(left.values())}")

    def _remember(self) -> None:
        """What is on record must stay there."""
        self._published |= self._record()

    def _record(self) -> dict[str, str]:
        try:
            return self.bench.on_record()
        except (StoreMissing, UnknownNameError):
            return {}

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Wait until something is true, while the job runs."""

        def there() -> Any:
            if self.job.process.poll() is not None:
                raise self.ended(f"the job ended before {what}")
            return true()

        self.bench.until(there, what)

    def ended(self, how: str) -> Exception:
        """What it means that the job ended by itself."""
        return WrongError(f"{how}: {self.job.err.read_text(encoding='utf-8')}")

    # Readings

    def put(self, rows: Sequence[str], names: Sequence[str]) -> list[tuple[str, int]]:
        """Send lines, each of a series; where they are in the source."""
        if self.plan.configuration.source == "files":
            name = f"{self.sent.lines[0]:05}.jsonl"
            self.sent.lines[0] += len(rows)
            self.bench.put(name, "".join(f"{row}\n" for row in rows))
            return [(name, number) for number in range(1, len(rows) + 1)]
        assert self._topics is not None
        places: list[tuple[str, int]] = []
        messages: list[tuple[int, bytes]] = []
        for row, name in zip(rows, names, strict=True):
            partition = self._partition(name)
            places.append((f"{self._topics.source}/{partition}", self.sent.lines[partition]))
            self.sent.lines[partition] += 1
            messages.append((partition, row.encode()))
        self.servers.kafka.send(self._topics.source, messages)
        return places

    def _partition(self, name: str) -> int:
        known = [*NAMES, HOME]
        files = self.plan.configuration.source == "files"
        return 0 if files or name not in known else known.index(name) % self.plan.configuration.partitions

    def put_frame(self, frame: pl.DataFrame) -> None:
        """Send readings."""
        if not frame.is_empty():
            self.put(lines(frame).splitlines(), frame["series"].to_list())

    def send(self, days: float) -> None:
        """Send the readings of the next days."""
        many = self.plan.configuration.batches
        begin, self._came = self._came, min(self._came + days, DAYS + 0.5)
        # by their arrival, which the order of the rows is
        first, last = (round(len(self._arriving) * day / (DAYS + 0.5)) for day in (begin, self._came))
        chunk = self._arriving[first:last]
        self.sent.frames.append(chunk)
        for part in range(many):
            self.put_frame(chunk[len(chunk) * part // many : len(chunk) * (part + 1) // many])
        for name, at in chunk.filter(pl.col("series") != HOME).select("series", "time").rows():
            partition = self._partition(name)
            self.sent.reached[partition] = max(at, self.sent.reached.get(partition, at))

    def due(self) -> range:
        """The days whose windows the readings have closed, in every partition."""
        given = self.plan.configuration
        needed = given.partitions if given.source == "kafka" else 1
        if len(self.sent.reached) < needed:
            return range(0)
        clock = min(self.sent.reached.values()) - given.lateness_h * HOUR
        return range(max(0, min(DAYS, (clock - ORIGIN) // DAY_US)))

    # What must have come of it

    def keys_of(self, day: int) -> dict[str, list[str]]:
        """The keys of a day's window, and their series: those at its charge."""
        return self._members_of.get(day, self._members)

    def decided(self, decision: str) -> set[int]:
        """The days whose windows are charged, or refused."""
        with Store(self.bench.ledger, create=False) as store:
            try:
                return {one.window_start // DAY for one in store.entries("homes") if one.decision == decision}
            except (StoreMissing, UnknownNameError):
                return set()

    def on_record(self) -> set[int]:
        """The days whose windows are on record with all keys."""
        found = Counter((row.window_start - ORIGIN) // DAY_US for row in self.bench.rows())
        return {day for day, rows in found.items() if rows == len(self.keys_of(day))}

    def told(self) -> list[tuple[str, str, int]]:
        """What the jobs told of lines: reason, file or partition, and line or offset."""
        files = (self.bench.folder / "rejects").glob("*.jsonl")
        rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
        return [(row["reason"], row["source"].rpartition("inbox/")[2], row["position"]) for row in rows]

    def sunk(self) -> list[tuple[str, Any]]:
        """What is in the sink: the name of each release, and what is written of it."""
        if self.plan.configuration.sink == "kafka":
            assert self._topics is not None
            found = self.servers.kafka.read(self._topics.sink)
            return [(one.key().decode(), json.loads(one.value())["counts"]) for one in found]
        return [(rows[0]["release_id"], path.read_bytes()) for path, rows in self.bench.sunk().items()]

    def do(self, step: Step) -> None:
        """Do one step of the plan."""
        source = random.Random(step.number)
        time.sleep(source.choice([0.0, 0.0, 0.3, 1.0]))
        getattr(self, f"_{step.action.replace(' ', '_')}")(source)

    def _begin(self, source: random.Random) -> None:
        del source
        self.begin()

    def _send(self, source: random.Random) -> None:
        first = 0.8 if not self.sent.frames else 0.0
        # the last window stays open until the end
        self.send(min(source.uniform(0.7, 1.3) + first, max(0.0, DAYS - 0.3 - self._came)))

    def _await_rows(self, source: random.Random) -> None:
        del source
        due = set(self.due())
        self.until(lambda: due <= self.on_record() | self.decided("refused"), f"windows {sorted(due)} on record")
        self._remember()

    def _late(self, source: random.Random) -> None:
        days = sorted(self.on_record())
        if not days:
            return
        day = source.choice(days)
        cells = [(name, slot) for name in NAMES for slot in range(day * DAY, (day + 1) * DAY)]
        rows = [(name, ORIGIN + (slot + 1) * SLOT - 1, LOUD) for name, slot in source.sample(cells, 20)]
        frame = pl.DataFrame(rows, schema=self._arriving.schema, orient="row")
        self.sent.late.append(frame)
        before = self.lates()
        self.put_frame(frame)
        if day in self._known:
            return
        self.sent.owed += len(frame)
        if source.random() < 0.5:
            wanted = before + len(frame)
            self.until(lambda: self.told_late(wanted), "the rejects name the late readings")

    def lates(self) -> int:
        """How many late readings the rejects name."""
        return sum(reason == "late" for reason, *_ in self.told())

    def told_late(self, wanted: int) -> bool:
        """Whether the rejects name so many late readings."""
        return self.lates() >= wanted

    def _duplicate(self, source: random.Random) -> None:
        # in another order than they came in
        frame = source.choice(self.sent.frames).sample(fraction=0.5, shuffle=True, seed=source.randrange(1 << 30))
        self.sent.again.append(frame)
        self.put_frame(frame)

    def _damage(self, source: random.Random) -> None:
        stranger = json.dumps({"series": "stranger", "time": ORIGIN + int(self._came * DAY_US), "value": 1.0})
        bad = [source.choice(BAD) for _ in range(3)]
        self.sent.bad |= set(self.put([*bad, stranger], ["a"] * 4)[:3])
        self.sent.strangers += 1

    def _kill_worker(self, source: random.Random) -> None:
        self.end(source.choice(["killed", "killed alone"]))
        self.begin()

    def _kill_runner(self, source: random.Random) -> None:
        del source
        self._await_start()
        self._remember()
        before: list[int] = []
        self.until(lambda: before.extend(prisms_of(self.job)) or before, "Prism runs")
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        self.until(lambda: [pid for pid in prisms_of(self.job) if pid not in before], "another Prism runs")
        self._owe_nothing()

    def _await_start(self) -> None:
        """What is away, or fails, at a first start ends a job; later it is waited for, or begun again."""
        if self._job is not None:
            self.until(lambda: "start" in {one["kind"] for one in self.job.said}, "the job has begun")

    def _kill_broker(self, source: random.Random) -> None:
        self._await_start()
        self.servers.kafka.kill()
        time.sleep(source.uniform(0.0, 2.0))
        self.servers.kafka.start()

    def _kill_database(self, source: random.Random) -> None:
        self._await_start()
        self._remember()
        self.servers.postgres.kill()
        time.sleep(source.uniform(0.0, 2.0))
        self.servers.postgres.start()

    def _stop(self, source: random.Random) -> None:
        del source
        self.end("asked")

    def _change_belief(self, source: random.Random) -> None:
        del source
        with Store(self.bench.ledger, create=False) as store:
            change = BeliefChange("joined", WIDER.to_dict(), "another model", source="a test")
            try:
                done = store.change_belief("homes", change)
            except BudgetRefused:
                return
            charged = [one for one in store.entries("homes") if one.decision == "charged"]
        # the job may have charged another window since
        later = (number for number, one in enumerate(charged) if one.loss_before == done.after)
        self._joined.append((next(later, len(charged)), WIDER))

    def _add_home(self, source: random.Random) -> None:
        runs = self._job is not None
        if runs:
            self.end(source.choice(["killed", "asked"]))
        # the roster of a window is fixed when it is charged
        for day in self.decided("charged") | self.decided("refused"):
            self._members_of[day] = self._members
        key = ITS_GROUP if self.plan.configuration.grouped else HOME
        self._members = {**self._members, key: [*self._members.get(key, []), HOME]}
        if runs:
            self.begin()

    def _read_sink(self, source: random.Random) -> None:
        for name, row in self.sunk():
            if self._read.setdefault(name, row) != row:
                raise WrongError("a row of the sink is not the one that was read of it before")
        if self.plan.configuration.sink == "files" and source.random() < 0.5:
            for path in self.bench.sunk():
                path.unlink()

    def _upgrade(self, source: random.Random) -> None:
        self.end("asked")
        self._poll_ms = source.choice([50, 100, 400])
        self._beam = source.choice([*self.pythons])
        self.bench.python = self.pythons[self._beam]
        self.begin()

    # The end

    def finish(self) -> None:
        """Send what is left, and let the job come to its end."""
        if self._job is None:
            self.begin()
        self.send(DAYS + 0.5)
        code = self.code()
        wanted = 3 if self.decided("refused") else 0
        if code != wanted:
            raise WrongError(f"the job ended with {code}, not {wanted}: {self.job.err.read_text(encoding='utf-8')}")

    def code(self) -> int:
        """The exit code of the job, when it comes to its end."""
        return self.job.wait()

    def complaints(self) -> Iterator[str]:
        """Whatever is not as plain counting says."""
        refused = self.decided("refused")
        frame = pl.concat(self.sent.frames)
        expected = {
            place: counts
            for day in range(DAYS)
            if day not in refused
            for place, counts in truth(frame, range(day, day + 1), self.keys_of(day)).items()
        }
        if refused != set(range(DAYS - len(refused), DAYS)):
            yield f"windows {sorted(refused)} refused, which are not the last ones"
        if refused and self.plan.configuration.budget >= 1.0 and not self._joined:
            yield f"windows {sorted(refused)} refused, though the budget is enough for all"
        try:
            found = self.bench.counts()
            _, record = self.bench._examined(  # pyright: ignore[reportPrivateUsage] - its own way to look
                every(DAY, DAY, DAYS * DAY), self._published, joined=self._joined
            )
        except AssertionError as error:
            yield f"the ledger: {error}"
            return
        for place in sorted(expected.keys() | found.keys()):
            if expected.get(place) != found.get(place):
                yield f"window and key {place}: {found.get(place)} on record, and {expected.get(place)} is true"
        yield from self._complaints_of_sink(record)
        yield from self._complaints_of_lines()

    def _complaints_of_sink(self, record: dict[str, bytes]) -> Iterator[str]:
        rows: dict[str, Any] = dict(record)
        if self.plan.configuration.sink == "kafka":
            rows = {row.release_id: list(row.counts) for row in self.bench.rows()}
        found = [*self.sunk(), *self._read.items()]
        if wrong := {name for name, row in found if rows.get(name) != row}:
            yield f"{len(wrong)} rows in the sink are not those on record"
        if lacking := rows.keys() - {name for name, _ in found}:
            yield f"{len(lacking)} rows on record are not in the sink"

    def _complaints_of_lines(self) -> Iterator[str]:
        """Every line is counted, or told with its reason.

        The last runner has read all of them. What of them is in the schedule and the roster is a reading that counted,
        of a window that was on record when it began, or late.
        """
        told = self.told()
        places = {(place, number): reason for reason, place, number in told if number >= 0}
        if places.keys() != self.sent.bad:
            yield f"{len(places.keys() ^ self.sent.bad)} lines were told as no readings, or not, and are the other"
        yield from self.complaints_of_numbers(told)

    def complaints_of_numbers(self, told: list[tuple[str, str, int]]) -> Iterator[str]:
        """How many lines were told, and of which reasons.

        Args:
            told: by the rejects; what else is known is in the job's counters.
        """
        if self._beam != "2.77":
            return  # does not tell all counters of a job on Prism
        said = self.job.summary["operator_only"]
        rejected = Counter(said["rejected"])
        late = rejected.pop("late", 0)
        strange = rejected.pop("not-in-roster", 0)
        if rejected.total() != len(self.sent.bad):
            yield f"{rejected.total()} lines were counted as no readings, of {len(self.sent.bad)}"
        if strange < self.sent.strangers:
            yield f"{strange} lines were counted as of strangers, of at least {self.sent.strangers}"
        sent = pl.concat([*self.sent.frames, *self.sent.again, *self.sent.late])
        days = Counter[tuple[str, int]](zip(sent["series"], (sent["time"] - ORIGIN) // DAY_US, strict=True))
        wanted = sum(
            count
            for (name, day), count in days.items()
            if day < DAYS and any(name in names for names in self.keys_of(day).values())
        )
        if (got := said["readings"] + said["readings_on_record"] + late) != wanted:
            yield f"{got} readings were counted, on record or late, and {wanted} were sent: {said}"
        if not self.sent.owed <= late <= sum(map(len, [*self.sent.late, *self.sent.again])):
            yield f"{late} readings were late, of at least {self.sent.owed}"
        if sum(reason == "late" for reason, *_ in told) < late:
            yield "not every late reading is among the rejects"

    def all(self) -> None:
        """Do everything, and see what has come of it.

        Raises:
            WrongError: it is not as plain counting says; the message has the plan.
        """
        try:
            for step in self.plan.steps:
                self.do(step)
            self.finish()
            self._see_no_process()
            found = list(self.complaints())
        except (AssertionError, ServerError, pytest.fail.Exception) as error:
            found = [str(error)]
        if found:
            said = [f"the newest job said {self.bench.started[-1].said[-3:]}"] if self.bench.started else []
            raise WrongError("\n".join([str(self.plan), *found[:20], *said]))
