"""Beam as the commands use it: which runner, with which options, and what it says when it is done."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PrismRunnerOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from ..schemas.settings import Settings, SettingsError
from ..transforms import decode_csv
from ..transforms.decode import FileDecoder, ReadReadings
from ..transforms.feeds import ArrivingFiles, Feed, StandardInput
from ..transforms.files import is_local
from ..transforms.live import Pace, ReadLive
from ..transforms.rejects import METRICS
from .exits import ExitCode
from .failures import CommandError
from .prism import prism_program

#: Runners that would never close a window of an endless source, or close it wrongly.
_NOT_LIVE = ("fnapirunner", "directrunner", "bundlebaseddirectrunner", "switchingdirectrunner")


def options_of(given: Sequence[str]) -> PipelineOptions:
    """Beam's options from the words after ``--``.

    Raises:
        CommandError: a word is not an option, so it was most likely meant for this program.
    """
    for word in given[:1]:
        if not word.startswith("-"):
            raise CommandError(f"{word!r} is not a Beam option; they begin with --, for example --runner=FlinkRunner")
    return PipelineOptions(list(given))


def runner_name(options: PipelineOptions) -> str | None:
    """The runner that the options name."""
    return options.view_as(StandardOptions).runner


def new_pipeline(options: PipelineOptions) -> beam.Pipeline:
    """A pipeline on the runner that is named, or on FnApiRunner by name: nothing is downloaded silently."""
    name = runner_name(options)
    if name is None or name.lower() == "fnapirunner":  # which Beam 2.62 does not know by its short name
        return beam.Pipeline(runner=FnApiRunner(), options=options)
    return beam.Pipeline(options=options)


def live_pipeline(options: PipelineOptions) -> beam.Pipeline:
    """A pipeline for an endless job: on the runner that is named, or on Prism by name.

    Raises:
        CommandError: no runner is named and Prism is not here, or the runner cannot run an endless job.
    """
    options.view_as(StandardOptions).streaming = True
    name = runner_name(options)
    if name is None or name.lower() == "prismrunner":
        given = options.view_as(PrismRunnerOptions)
        if given.prism_location is None:
            given.prism_location = str(prism_program())
        return beam.Pipeline(runner=PrismRunner(), options=options)
    if name.lower() in _NOT_LIVE:
        raise CommandError(
            f"--runner={name} cannot run an endless job: it ignores watermarks or stops at the first pause; leave it "
            "out for Prism, or name FlinkRunner, PortableRunner or DataflowRunner"
        )
    return beam.Pipeline(options=options)


def live_source(settings: Settings, pace: Pace, group: str | None = None) -> ReadLive:
    """The following of the settings' source.

    Raises:
        SettingsError: there is no source, or its columns cannot be read so.
    """
    source, readings = settings.source, settings.readings
    if source is None or readings is None:
        raise SettingsError(["source is missing: it names the files to follow, e.g. {jsonl: inbox/*.jsonl}"])
    decode_csv.check_delimiter(source.delimiter)
    decoder = FileDecoder(source.format, source.delimiter, readings, settings.slots.timezone, group)
    try:
        decoder.rows()
    except ValueError as error:
        raise SettingsError([f"readings.time_format: {error}"]) from None
    feed: Feed
    if source.stdin:
        feed = StandardInput(decoder)
    else:
        patterns = tuple(settings.path(pattern) for pattern in source.patterns)
        for pattern in patterns:
            folder = Path(pattern).parent
            if is_local(pattern) and not glob.has_magic(str(folder)) and not folder.is_dir():
                raise SettingsError([f"{source.setting}: the folder {folder} is not there; make it, or check its name"])
        feed = ArrivingFiles(decoder, patterns)
    return ReadLive(feed, pace, grouped=group is not None)


def read_source(settings: Settings, group: str | None = None) -> ReadReadings:
    """The reading of the settings' source; its files are found and their headers checked now.

    Raises:
        SettingsError: there is no source, a pattern names no file, or a file lacks a column.
        CommandError: a file cannot be read.
    """
    source, readings = settings.source, settings.readings
    if source is None or readings is None:
        raise SettingsError(["source is missing: it names the files to read, e.g. {csv: readings.csv}"])
    if source.stdin:
        raise SettingsError(["source.stdin is read as it comes: use quiltstream run --live"])
    try:
        return ReadReadings(source, readings, timezone=settings.slots.timezone, group=group, resolve=settings.path)
    except SettingsError as error:
        if all(problem.startswith(f"{source.setting}: file ") for problem in error.problems):
            raise CommandError(str(error), ExitCode.SOURCE) from error  # the settings are right, the files are not
        raise


def counters(result: Any) -> dict[str, int] | None:
    """The counters of this package that a finished job reports; ``None`` where the runner reports none."""
    try:
        found = result.metrics().query()["counters"]
    except (NotImplementedError, AttributeError, KeyError, ValueError):
        return None
    tallies: dict[str, int] = {}
    for one in found:
        if one.key.metric.namespace == METRICS:
            value = one.committed if one.committed is not None else one.attempted
            tallies[one.key.metric.name] = tallies.get(one.key.metric.name, 0) + int(value)
    return tallies
