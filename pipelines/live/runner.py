"""Runners of live jobs: which can follow a source that never ends, and a dedicated Prism process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PrismRunnerOptions, StandardOptions
from apache_beam.runners.portability import prism_runner
from apache_beam.runners.portability.job_server import JobServer, StopOnExitJobServer
from apache_beam.runners.worker import worker_pool_main

from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings
from ...transforms.checks import NOT_LIVE
from ..errors import CommandError
from ..runners import on_prism, reads_here, runner_name
from .lifeline import keep_servers

#: Environment variable that names the program.
VARIABLE = "QUILTSTREAM_PRISM"


def prism_program(environment: Mapping[str, str] | None = None) -> Path:
    """The program, from the environment variable, the folder of caches, Go's folder or the path.

    Raises:
        CommandError: it is nowhere, or the variable names something else.
    """
    env = os.environ if environment is None else environment
    if (named := env.get(VARIABLE)) is not None:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise CommandError(f"{VARIABLE} names {named}, which is no program; let it name Prism, or unset it")
        return Path(named).absolute()
    home = Path(env.get("HOME", str(Path.home())))
    caches = Path(env.get("XDG_CACHE_HOME", str(home / ".cache"))) / "quiltstream"
    go = Path(env.get("GOBIN", str(Path(env.get("GOPATH", str(home / "go"))) / "bin")))
    found = shutil.which("prism", path=env.get("PATH", ""))
    places = [caches / f"prism-{beam.__version__}" / "prism", go / "prism"]
    for place in [*places, *([Path(found)] if found else [])]:
        if os.access(place, os.X_OK) and place.is_file():
            return place.absolute()
    raise CommandError(
        "a live run needs Prism, Beam's local runner, and it is not here. Get it with Go: go install "
        f"github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam.__version__} (or let {VARIABLE} name the program, or name "
        "another runner after --)"
    )


class PrismRunner(prism_runner.PrismRunner):
    """Prism as a process of one job's own: Beam would keep one for all jobs of this process, also when it is dead."""

    _server: StopOnExitJobServer | None = None

    @staticmethod
    def start_and_replace_loopback_environments(pipeline: Any, options: PipelineOptions) -> Any:
        """Start the workers of this process on the loopback address, for which Beam has no option."""
        names: dict[str, Any] = worker_pool_main.__dict__
        usual = names["grpc"]
        names["grpc"] = _OnLoopback(usual)
        try:
            return prism_runner.PrismRunner.start_and_replace_loopback_environments(pipeline, options)
        finally:
            names["grpc"] = usual

    def default_job_server(self, options: PipelineOptions) -> JobServer:
        """A dedicated Prism process, which ends with this one."""
        self._server = StopOnExitJobServer(prism_runner.PrismJobServer(options))
        return self._server

    def let_go(self) -> None:
        """End the process, if it was started and still runs."""
        if self._server is not None:
            self._server.stop()


class _OnLoopback:
    """The module ``grpc``, or a server of it, whose ports are on the loopback address only."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def server(self, *given: Any, **named: Any) -> _OnLoopback:
        return _OnLoopback(self._wrapped.server(*given, **named))

    def add_insecure_port(self, address: str) -> int:
        """Listen; the address is ``[::]:PORT`` as Beam gives it."""
        return self._wrapped.add_insecure_port(f"127.0.0.1:{address.rpartition(':')[2]}")


def live_pipeline(options: PipelineOptions) -> beam.Pipeline:
    """A pipeline for an endless job: on the runner that is named, or on Prism by name.

    Raises:
        CommandError: no runner is named and Prism is not here, or the runner cannot run an endless job.
    """
    options.view_as(StandardOptions).streaming = True
    keep_servers()
    if on_prism(options):
        given = options.view_as(PrismRunnerOptions)
        if given.prism_location is None:
            given.prism_location = str(prism_program())
        return beam.Pipeline(runner=PrismRunner(), options=options)
    name = str(runner_name(options))
    if name.lower() in NOT_LIVE:
        raise CommandError(
            f"--runner={name} cannot run an endless job: it ignores watermarks or stops at the first pause; leave it "
            "out for Prism, or name FlinkRunner, PortableRunner or DataflowRunner"
        )
    return beam.Pipeline(options=options)


def check_runner(settings: Settings, options: PipelineOptions) -> None:
    """See that the workers have the source: standard input is this process's, and Beam reads Pub/Sub on Dataflow.

    Raises:
        CommandError: standard input would be empty and ended to them.
        SettingsError: Beam has nothing for Python that reads Pub/Sub there.
    """
    source, runner = settings.source, runner_name(options)
    if source is not None and source.stdin and not reads_here(options):
        raise CommandError(
            f"source.stdin can be read in this process only, and the workers of --runner={runner} are other ones, to "
            "which it is empty: leave the runner out for Prism, or write the readings to files of a folder and follow "
            "these"
        )
    if source is not None and source.pubsub is not None and (runner or "").lower() != "dataflowrunner":
        told = f"source.pubsub: Beam reads Pub/Sub on Dataflow, and the runner is {runner or 'Prism'}: give "
        raise SettingsError([f"{told}--runner=DataflowRunner after --, or bring the messages to Kafka"])
