"""Random actions against live jobs on Prism: every night other ones; and that they find what is planted."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from .kafka import KafkaBroker
from .postgres import PostgresServer
from .random_actions import beams, run
from .random_jobs import Servers, WrongError
from .random_plans import ACTIONS, Configuration, Plan, Step, plan_of, possible, steps

#: Plans of a night: about five minutes where little else runs.
NIGHT = 8


@pytest.fixture
def there(prism: Path, postgres_server: PostgresServer, kafka: KafkaBroker) -> Servers:
    return Servers(prism, postgres_server, kafka, beams())


@pytest.mark.parametrize("night", range(NIGHT))
def test_results_after_random_actions_equal_plain_counting(there: Servers, night: int) -> None:
    del night
    plan = plan_of(random.randrange(10**9), beams=[*there.beams])
    sys.stdout.write(f"{plan}\n")
    sys.stdout.write(f"{run(plan, there):.0f} s\n")


def test_results_after_a_short_run_of_actions_equal_plain_counting(there: Servers) -> None:
    configuration = Configuration(source="kafka", ledger="postgres", partitions=2)
    done = steps("begin", "send", "await rows", "late", "kill worker", "duplicate", "stop")
    assert possible(done, configuration.facts) == done
    run(Plan(1, configuration, done), there)


@pytest.mark.parametrize(
    ("planted", "done", "said"),
    [
        ("counted twice", steps("begin", "send", "duplicate"), "on record, and .* is true"),
        (
            "drawn again",
            steps("begin", "send", "await rows", "read sink", "kill worker", number=2),
            "rows in the sink are not those on record",
        ),
        ("late in silence", steps("begin", "send", "await rows", "late"), "were counted, on record or late"),
        ("left running", steps("begin", "send", "kill worker"), "processes that a job left"),
    ],
)
def test_a_fault_planted_in_a_job_is_found(there: Servers, planted: str, done: tuple[Step, ...], said: str) -> None:
    plan = Plan(5, Configuration(), done)
    assert possible(done, plan.configuration.facts) == done
    with pytest.raises(WrongError, match=said):
        run(plan, there, ("--plant", planted))


# Plans are data


@pytest.mark.parametrize("runner", ["prism", "flink"])
def test_every_step_of_a_plan_has_its_preconditions(runner: str) -> None:
    seen: set[str] = set()
    for seed in range(300):
        plan = plan_of(seed, beams=["2.77", "2.62"], runner=runner)
        assert possible(plan.steps, plan.configuration.facts) == plan.steps
        assert len(plan.steps) == 10
        seen |= {step.action for step in plan.steps}
    of_another = {name for name, one in ACTIONS.items() if {"prism", "flink"} - {runner} & {*one.needs}}
    assert seen == ACTIONS.keys() - of_another - ({"take up"} if runner == "prism" else set())
