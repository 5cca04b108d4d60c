"""Beam as the commands use it: which runner, with which options, and what it says when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions, TypeOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from ..schemas.settings.base import SettingsError
from ..schemas.settings.job import Settings
from ..transforms.checks import check_modes
from ..transforms.common.batches import METRICS
from ..transforms.formats.rows import Labels
from ..transforms.readings.slots import words_of
from ..transforms.sources.files import ReadReadings
from .commands import keep_quiet
from .errors import CommandError


def options_of(given: Sequence[str]) -> PipelineOptions:
    """Beam's options from the words after ``--``.

    Raises:
        CommandError: a word is not an option, so it was most likely meant for this program.
    """
    for word in given[:1]:
        if not word.startswith("-"):
            raise CommandError(f"{word!r} is not a Beam option; they begin with --, for example --runner=FlinkRunner")
    options = PipelineOptions(list(given))
    check_modes(options)
    return options


def runner_name(options: PipelineOptions) -> str | None:
    """The runner that the options name."""
    return options.view_as(StandardOptions).runner


def on_prism(options: PipelineOptions) -> bool:
    """Whether the job runs on Prism: that is where it runs if no runner is named."""
    return (runner_name(options) or "PrismRunner").lower() == "prismrunner"


def reads_here(options: PipelineOptions) -> bool:
    """Whether the source is read in this process: Prism's workers are threads of it by default."""
    kind = options.view_as(PortableOptions).environment_type
    return kind == "LOOPBACK" or (kind is None and on_prism(options))


def new_pipeline(options: PipelineOptions) -> beam.Pipeline:
    """A pipeline on the runner that is named, or on FnApiRunner by name: nothing is downloaded silently."""
    # the graph is this package's own and its edges are checked by its tests: looking at every type takes longer than
    # a hundred thousand readings
    options.view_as(TypeOptions).pipeline_type_check = False
    keep_quiet()
    name = runner_name(options)
    if name is None or name.lower() == "fnapirunner":  # which Beam 2.62 does not know by its short name
        return beam.Pipeline(runner=FnApiRunner(), options=options)
    return beam.Pipeline(options=options)


def read_source(settings: Settings, group: str | None = None) -> ReadReadings:
    """The reading of the settings' source; its files are found and their headers checked now.

    Raises:
        SettingsError: there is no source, a pattern names no file, or a file lacks a column.
        SourceFileError: a file cannot be read.
    """
    source, readings = settings.source, settings.readings
    if source is None or readings is None:
        raise SettingsError(["source is missing: it names the files to read, e.g. {csv: readings.csv}"])
    if source.stdin:
        raise SettingsError(["source.stdin is read as it comes: use quiltstream run --live"])
    if source.broker is not None:
        raise SettingsError(
            [
                f"{source.broker} is read as it comes: use quiltstream run --live; quiltstream check looks at its "
                "messages, and a history to fit is files, such as a gateway writes: name them in other settings' source"
            ]
        )
    return ReadReadings(
        source,
        readings,
        timezone=settings.slots.timezone,
        group=group,
        resolve=settings.path,
        labels=Labels.of(settings.space),
        words=words_of(readings, settings.slots.of),
    )


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
