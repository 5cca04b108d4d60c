"""Random actions against a live job: planned by a seed, done to a real one, and compared with plain counting.

A plan is data (``random_plans.py``); what is done to a job, and what must come of it, is in ``random_jobs.py``, and for
a job in a Flink cluster in ``random_jobs_flink.py``. At which moment of the job a step falls is the machine's, so a
failure may need several replays:

    python -m tests.e2e.random_actions SEED [--runner flink] [--times N]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from .flink import FlinkCluster, find_flink
from .installed import ROOT
from .kafka import KafkaBroker, find_kafka
from .postgres import PostgresServer, find_binaries
from .prism import find_prism
from .random_jobs import Run, Servers, WrongError
from .random_jobs_flink import FlinkRun
from .random_plans import Plan, plan_of

#: What does a plan, by its runner.
RUNS: dict[str, type[Run]] = {"prism": Run, "flink": FlinkRun}


def beams() -> dict[str, str]:
    """The Python of each version of Beam that is here: the tests' own, and that of ``.ci/run lower``."""
    lower = ROOT / ".venv-beam-2.62" / "bin" / "python"
    return {"2.77": sys.executable} | ({"2.62": str(lower)} if lower.exists() else {})


@contextmanager
def servers(runner: str) -> Generator[Servers]:
    """Servers of one's own, for jobs on a runner."""
    with ExitStack() as stack:
        postgres = PostgresServer(find_binaries())
        stack.callback(postgres.close)
        kafka = KafkaBroker(find_kafka())
        stack.callback(kafka.close)
        kafka.start()
        flink = None
        if runner == "flink":
            flink = FlinkCluster(find_flink())
            stack.callback(flink.close)
        yield Servers(find_prism(), postgres, kafka, beams(), flink)


def run(plan: Plan, servers: Servers, words: tuple[str, ...] = ()) -> float:
    """Run a plan in a folder of its own; seconds that it took.

    Of one that fails QUILTSTREAM_KEEP_LOGS names a folder that its files are copied to.

    Raises:
        WrongError: it did not come to what plain counting says.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quiltstream-actions-", ignore_cleanup_errors=True) as folder:
        one = RUNS[plan.configuration.runner](plan, servers, Path(folder), words)
        try:
            one.all()
        except WrongError:
            if keep := os.environ.get("QUILTSTREAM_KEEP_LOGS"):
                shutil.copytree(folder, Path(keep) / Path(folder).name)
            raise
        finally:
            one.close()
    return time.monotonic() - begun


@click.command()
@click.argument("seeds", type=int, nargs=-1, required=True)
@click.option("--runner", type=click.Choice([*RUNS]), default="prism", help="Where the jobs run.")
@click.option("--length", default=10, help="Steps of a plan.")
@click.option("--times", default=1, help="How often each plan is run, because it may fail now and then only.")
def main(seeds: tuple[int, ...], *, runner: str, length: int, times: int) -> None:
    """Run the plans of some seeds."""
    with servers(runner) as there:
        for seed in seeds:
            plan = plan_of(seed, length, [*there.beams], runner)
            click.echo(plan)
            try:
                for _ in range(times):
                    click.echo(f"passed in {run(plan, there):.0f} s")
            except WrongError as error:
                click.echo(f"FAILED {error}")


if __name__ == "__main__":
    main()
