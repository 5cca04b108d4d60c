"""Random actions against live jobs in a Flink cluster, and that they find what only Flink could do wrong.

About five minutes where little else runs.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from .flink import FlinkCluster
from .kafka import KafkaBroker
from .postgres import PostgresServer
from .random_actions import beams, run
from .random_jobs import Servers, WrongError
from .random_plans import ACTIONS, FLINK_BEAM, Configuration, Plan, Step, plan_of, possible, steps

#: Plans of every night, which do all that can be done on Flink alone; one of another seed joins them.
NIGHT = (944, 1049)


@pytest.fixture
def there(prism: Path, postgres_server: PostgresServer, kafka: KafkaBroker, flink_cluster: FlinkCluster) -> Servers:
    return Servers(prism, postgres_server, kafka, beams(), flink_cluster)


@pytest.mark.parametrize("seed", [*NIGHT, None])
def test_results_after_random_actions_on_flink_equal_plain_counting(there: Servers, seed: int | None) -> None:
    plan = plan_of(random.randrange(10**9) if seed is None else seed, runner="flink")
    sys.stdout.write(f"{plan}\n")
    sys.stdout.write(f"{run(plan, there):.0f} s\n")


@pytest.mark.parametrize(
    ("planted", "done", "said"),
    [
        # however slow the machine, no checkpoint comes before the kill: the restored job releases what is on record
        (
            "drawn by a restore",
            steps("begin", "send", "await rows", "kill taskmanager"),
            "the ledger: .*differing=[1-9]",
        ),
        (
            "halved by a restore",
            steps("begin", "send", "await rows", "savepoint", "send", "take up"),
            "on record, and .* is true",
        ),
        ("savepoint ignored", steps("begin", "savepoint", "take up"), "did not take its savepoint"),
        (
            "late in silence elsewhere",
            steps("begin", "send", "await rows", "late"),
            "0 readings were told as late, of 20",
        ),
        ("left in the cluster", steps("begin", "send", "await rows", "stop"), "a command left in the cluster"),
    ],
)
def test_a_fault_planted_in_a_job_on_flink_is_found(
    there: Servers, planted: str, done: tuple[Step, ...], said: str
) -> None:
    configuration = Configuration(runner="flink", ledger="postgres", beam=FLINK_BEAM, checkpoint_ms=600_000)
    assert possible(done, configuration.facts) == done
    with pytest.raises(WrongError, match=said):
        run(Plan(5, configuration, done), there, ("--plant", planted))


def test_the_nightly_plans_on_flink_cover_every_action_specific_to_flink() -> None:
    done = {step.action for seed in NIGHT for step in plan_of(seed, runner="flink").steps}
    assert done >= {name for name, one in ACTIONS.items() if {"flink", "saved"} & {*one.needs}}
