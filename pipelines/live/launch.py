"""A live job handed to a cluster and left there: nobody watches it from here.

For launchers that must build a graph and return, such as Dataflow's Flex Templates. What ``quiltstream run --live``
does while it watches is left out: restarts, the watchdog, and models that are estimated in the stream. Everything that
is checked before a job begins is checked here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ...schemas.settings import Settings, SettingsError, read_settings
from ...store.address import StoreAddress
from ...transforms.files import is_local
from ...transforms.histograms import PrivateHistograms
from ...transforms.hosts import check_hosts
from ...transforms.plan import model_of
from ..engine import options_of, runner_name
from ..places.files import check_apart
from ..places.origins import labelled_so_far
from .build import live_job
from .course import LiveJob


def graph_of(settings: Settings, beam_options: Sequence[str]) -> LiveJob:
    """The graph of a live job for workers elsewhere.

    Args:
        settings: the job.
        beam_options: Beam's, as words.

    Raises:
        SettingsError: the settings do not make a live job, or one that cannot be left alone.
        CommandError: the runner or the sink cannot be used.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    check_hosts(runner_name(options_of(beam_options)), StoreAddress(settings.ledger_url))
    check_apart(settings)
    _check_elsewhere(settings)
    histograms = PrivateHistograms(settings, model=labelled_so_far(settings, model_of(settings)))
    return live_job(settings, histograms, beam_options)


def launch(path: Path, beam_options: Sequence[str]) -> Any:
    """Build the graph of a settings file, hand it to the runner, and return what the runner says at once.

    Raises:
        SettingsError: the settings do not make a live job, or one that cannot be left alone.
        CommandError: the runner or the sink cannot be used.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    job = graph_of(read_settings(path), beam_options)
    with closing(job.follower):
        return job.pipeline.run()


def _check_elsewhere(settings: Settings) -> None:
    problems: list[str] = []
    if settings.estimate is not None:
        problems.append(
            "model.estimate is begun anew with each estimate by whoever watches the job, and nobody watches this one: "
            "name a model file, or run it with quiltstream run --live"
        )
    for field, sink in (("sink", settings.sink), ("rejects", settings.rejects)):
        if sink is not None and sink.is_files and is_local(settings.path(sink.path)):
            problems.append(
                f"{field}: {sink.path} is a folder of each worker's own disk, where nobody would find it; name a "
                "topic, or a folder of a bucket"
            )
    source = settings.source
    if source is not None and (source.stdin or any(is_local(settings.path(one)) for one in source.patterns)):
        problems.append(f"{source.setting} is of this machine, and the workers are others; name a topic or a bucket")
    if problems:
        raise SettingsError(problems)


__all__ = ["graph_of", "launch"]
