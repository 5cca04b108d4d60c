"""What an estimated model needs of the other settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .slots import format_duration

if TYPE_CHECKING:
    from .estimates import Estimate
    from .settings import Settings


def check_estimate(settings: Settings) -> None:
    """See that a model can be estimated as the settings say.

    Raises:
        ValueError: it cannot; the message names the setting.
    """
    estimate = settings.estimate
    if estimate is None:
        return
    if estimate.origin == "outside" and settings.roster_file is None:
        raise ValueError(
            "model.estimate.from names files of other series, and without a roster file nobody knows which series are "
            "others: name one in roster"
        )
    if estimate.origin == "released" and settings.histogram != settings.space:
        raise ValueError(
            "model.estimate.from is released, and bins makes one count of several states: rows do not show the states "
            "then; leave bins out, or estimate from counts or outside"
        )
    source = settings.source
    if estimate.origin in ("counts", "readings") and (source is None or not source.patterns):
        raise ValueError(
            f"model.estimate.from is {estimate.origin}, for which the readings are read once more, and only files can "
            "be: write the readings to files, or estimate from outside or released"
        )
    if estimate.origin == "counts" and settings.roster_file is None:
        raise ValueError(
            "model.estimate.from is counts: which series are counted must be public before they are; name a roster file"
        )
    every = estimate.slots(settings.grid)
    if every is not None:
        _check_every(settings, estimate, every)


def _check_every(settings: Settings, estimate: Estimate, every: int) -> None:
    """An estimate in the stream ends a query between two windows, so it needs to know where these are."""
    grid, schedule = settings.grid, settings.schedule
    step = schedule.every
    if every % step or every < schedule.size:
        raise ValueError(
            f"model.estimate.every is {estimate.every}, and windows begin every "
            f"{format_duration(step * grid.interval_us)}: it must be a multiple of that, and a window or more"
        )
    if schedule.start is None:
        raise ValueError("model.estimate.every counts from windows.start: set it")
    if settings.privacy.mechanism != "mqm-approx" or settings.privacy.guarantee != "stream":
        raise ValueError(
            "model.estimate.every needs privacy.mechanism mqm-approx and privacy.guarantee stream: bounds hold for "
            "every chain that mixes so fast, but a chain that is estimated anew is another belief each time"
        )
    if settings.source is not None and settings.source.stdin:
        raise ValueError(
            "model.estimate.every begins the job anew at every estimate, and source.stdin cannot be read again: follow "
            "files or a broker, or leave every out"
        )
    if settings.source is not None and settings.source.pubsub is not None and settings.source.pubsub.reread is None:
        raise ValueError(
            "model.estimate.every begins the job anew at every estimate, and what it has acknowledged of the window "
            "that is open then does not come again: set source.pubsub.reread, or leave every out"
        )


__all__ = ["check_estimate"]
