"""Plans of random actions: data, which are made and checked without a server.

What an action needs and gives are facts. A seed decides configuration, readings and steps.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

#: The version of Beam that Flink's job server is of.
FLINK_BEAM = "2.62"


@dataclass(frozen=True, slots=True)
class Action:
    """A line of the table."""

    name: str  # which action
    needs: tuple[str, ...] = ()  # facts without which it cannot be done
    takes: tuple[str, ...] = ()  # those of them that are used up by it, once each
    gives: tuple[str, ...] = ()  # facts that hold afterwards
    weight: int = 2  # how likely it is, beside the others that can be done


ACTIONS = {
    one.name: one
    for one in (
        Action("begin", ("stopped", "start"), ("stopped", "start"), ("running",), weight=12),
        Action("send", ("portion",), ("portion",), ("sent", "due"), weight=8),
        Action("await rows", ("running", "due"), ("due",), ("recorded",), weight=6),
        Action("late", ("running", "recorded"), weight=4),
        Action("duplicate", ("sent",), weight=3),
        Action("damage"),
        Action("kill worker", ("running", "start"), ("start",), weight=4),
        Action("kill runner", ("running", "prism", "runner"), ("runner",)),
        Action("kill broker", ("kafka", "outage"), ("outage",)),
        Action("kill database", ("postgres", "outage"), ("outage",)),
        Action("stop", ("running",), ("running",), ("stopped",)),
        Action("change belief", ("recorded", "belief"), ("belief",)),
        Action("add home", ("start", "home"), ("start", "home"), weight=3),
        Action("read sink", ("recorded",)),
        Action("upgrade", ("running", "start"), ("start",)),
        # of a job in a cluster, whose state outlives what is killed; behind the others, so that a seed's plans for
        # Prism stay as they are
        Action("kill command", ("running", "flink", "start"), ("start",)),
        Action("kill taskmanager", ("running", "flink", "start"), ("start",), weight=5),
        Action("kill jobmanager", ("running", "flink", "start", "runner"), ("start", "runner")),
        Action("savepoint", ("running", "flink"), ("running",), ("stopped", "saved"), weight=6),
        Action("take up", ("stopped", "saved", "start"), ("stopped", "start"), ("running",), weight=24),
    )
}

#: Facts at the beginning: how often something may be done, so that a run ends within its time. A ``start`` is whatever
#: sets a job up: also Flink, when it restores one.
AT_FIRST = {"stopped": 1, "start": 4, "portion": 5, "runner": 2, "outage": 2, "belief": 1, "home": 1}


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the jobs of a run are set up."""

    runner: str = "prism"  # ``prism``, or ``flink``: a cluster, by a command that has its REST address
    source: str = "files"  # ``files`` or ``kafka``
    sink: str = "files"  # the same
    ledger: str = "sqlite"  # ``sqlite`` or ``postgres``
    grouped: bool = False  # whether groups are published, and not series
    shards: int = 3  # of the series
    lateness_h: int = 0  # hours that readings may be late
    batches: int = 3  # files, or batches of messages, that a portion of readings comes in
    poll_ms: int = 100  # interval of polling
    partitions: int = 1  # of the source's topic
    budget: float = 1.0  # of the domain; the schedule costs 1
    beam: str = "2.77"  # version of Beam at the first start
    checkpoint_ms: int = 2000  # on Flink, from one checkpoint to the next
    bundle: int = 1  # on Flink, elements of a bundle at most
    bundle_ms: int = 100  # on Flink, how long a bundle lasts at most

    @property
    def facts(self) -> Counter[str]:
        """What holds before the first step."""
        return Counter(AT_FIRST) + Counter({self.runner, self.source, self.sink, self.ledger})


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and the number that decides whatever is random in it."""

    action: str
    number: int


def steps(*names: str, number: int = 3) -> tuple[Step, ...]:
    """Steps of these actions, in this order, with one number."""
    return tuple(Step(name, number) for name in names)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done.

    Attributes:
        seed: of the readings, and of the plan.
        configuration: of the jobs.
        steps: in their order.
    """

    seed: int
    configuration: Configuration
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        names = ", ".join(step.action for step in self.steps)
        return f"seed {self.seed}: {json.dumps(asdict(self.configuration))}: {names}"


def may(action: Action, facts: Counter[str]) -> bool:
    """Whether an action can be done."""
    return all(facts[one] > 0 for one in action.needs)


def after(action: Action, facts: Counter[str]) -> Counter[str]:
    """What holds after it."""
    return (facts - Counter(action.takes)) | Counter(action.gives)


def possible(steps: Iterable[Step], facts: Counter[str]) -> tuple[Step, ...]:
    """The steps that can be done in their order; those that cannot are passed over."""
    found: list[Step] = []
    for step in steps:
        if may(ACTIONS[step.action], facts):
            facts = after(ACTIONS[step.action], facts)
            found.append(step)
    return tuple(found)


def plan_of(seed: int, length: int = 10, beams: Sequence[str] = ("2.77",), runner: str = "prism") -> Plan:
    """The plan of a seed.

    Args:
        seed: decides it.
        length: steps at most.
        beams: versions of Beam that are there for Prism.
        runner: ``prism`` or ``flink``.
    """
    source = random.Random(seed)
    configuration = Configuration(
        source=source.choice(["files", "kafka"]),
        sink=source.choice(["files", "kafka"]),
        ledger=source.choice(["sqlite", "postgres"]),
        grouped=source.random() < 0.3,
        shards=source.randint(1, 5),
        lateness_h=source.choice([0, 3, 6]),
        batches=source.choice([1, 2, 3, 8]),
        poll_ms=source.choice([50, 100, 400]),
        partitions=source.randint(1, 3),
        budget=source.choice([0.6, 1.0, 4.0, 4.0]),
        beam=source.choice([*beams]),
    )
    if runner == "flink":
        configuration = replace(
            configuration,
            runner=runner,
            ledger="postgres",  # in a file it is refused there
            beam=FLINK_BEAM,
            checkpoint_ms=source.choice([500, 2000, 8000]),
            bundle=source.choice([1, 1, 1, 10]),
            bundle_ms=source.choice([100, 1000]),
        )
    facts, steps = configuration.facts, list[Step]()
    while len(steps) < length:
        can = [one for one in ACTIONS.values() if may(one, facts)]
        action = source.choices(can, [one.weight for one in can])[0]
        steps.append(Step(action.name, source.randrange(1 << 30)))
        facts = after(action, facts)
    return Plan(seed, configuration, tuple(steps))
