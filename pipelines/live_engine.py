"""Beam for live jobs: which runner can follow a source that never ends, and how the settings' source is followed."""

from __future__ import annotations

import glob
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PrismRunnerOptions, StandardOptions
from apache_beam.runners.portability.prism_runner import PrismRunner

from ..schemas.settings import Settings, SettingsError
from ..transforms.decode import FileDecoder
from ..transforms.feeds import ArrivingFiles, Feed, StandardInput
from ..transforms.files import is_local
from ..transforms.live import Pace, ReadLive
from .engine import runner_name
from .failures import CommandError
from .prism import prism_program

#: Runners that would never close a window of an endless source, or close it wrongly.
_NOT_LIVE = ("fnapirunner", "directrunner", "bundlebaseddirectrunner", "switchingdirectrunner")


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
    decoder = FileDecoder.of(source, readings, timezone=settings.slots.timezone, group=group)
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
