"""``quiltstream run --live``: a source that never ends to private histograms on record, window by window.

While it runs, what is on record is looked at every few seconds and printed; a watchdog says when the job has stopped
producing. A job that fails ends with an exit code that says whether a supervisor is to begin it again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ...schemas.settings.job import Accepted, Settings, read_settings
from ...schemas.slots import format_instant
from ...transforms.calibrating import model_of
from ...transforms.private_histograms import PrivateHistograms
from ..commands.run import summary_of
from ..connectors.files import labelled_so_far
from ..console import results
from ..on_record import with_ledger, with_newest
from ..preflight import Word, check_command
from ..runners import options_of
from .follow import LOOK_S, follow
from .job import LiveWay, live_job
from .watch import Cause, Health, Say, health_page


def run_live(
    path: Path,
    beam_options: Sequence[str],
    *,
    as_json: bool,
    every: bool = False,
    history_lost: bool = False,
    accepted: Accepted = Accepted(),  # noqa: B008 - a frozen value
) -> int:
    """Run a settings file until its schedule ends, its source ends, or somebody stops it; return the exit code."""
    settings = read_settings(path).accepting(accepted)
    way, word = LiveWay(), Word(history_lost=history_lost)
    check_command(settings, options_of(beam_options), way)
    say = event_printer(results(), as_json=as_json)
    with with_newest(settings), health_page(settings.live.metrics_port, say) as health:
        estimate = settings.estimate
        if estimate is None:
            histograms = PrivateHistograms(settings, model=labelled_so_far(settings, model_of(settings)))
        else:
            # what is on record is looked for before a job is built
            settings, emptied = with_ledger(settings, history_lost=history_lost)
            word = replace(word, emptied=emptied)
            from ..estimation import estimated_plan  # noqa: PLC0415 - with the command fit

            histograms = PrivateHistograms.of(estimated_plan(settings, estimate, way, word))
        return run_to_end(settings, histograms, beam_options, health, as_json=as_json, every=every, word=word)


def run_to_end(
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str],
    health: Health,
    *,
    as_json: bool = False,
    every: bool = False,
    word: Word = Word(),  # noqa: B008 - a frozen value
    look_s: float | None = None,
) -> int:
    """Run a live job until its end, print what it did, and return the exit code.

    Raises:
        QuiltstreamError: the job failed, did not publish what was due, or cannot be begun.
    """
    console = results()
    job = live_job(settings, histograms, beam_options, word)
    say = event_printer(console, as_json=as_json)
    with closing(job.follower):
        tallies, stopped = follow(job, say, health, look_s=LOOK_S if look_s is None else look_s)
        after = job.follower.record()
    summary = summary_of(settings, histograms, job.before, after, tallies, live=True)
    if as_json:
        _print_line(console, {"at": _now(), "kind": "summary", **summary.to_dict()})
    else:
        summary.show(console, every=every)
    return summary.code if stopped is None else stopped


def event_printer(console: Console, *, as_json: bool) -> Say:
    """What tells news: a line each, or a line of JSON each."""

    def line(kind: str, text: str, cause: Cause | None = None) -> None:
        named = "" if cause is None else f"{cause}: "
        console.print(f"{_now()}  {kind:8}{named}{text}", highlight=False, soft_wrap=True)

    def object_(kind: str, text: str, cause: Cause | None = None) -> None:
        named = {} if cause is None else {"cause": cause}
        _print_line(console, {"at": _now(), "kind": kind, **named, "text": text})

    return object_ if as_json else line


def _print_line(console: Console, value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _now() -> str:
    return format_instant(time.time_ns() // 1_000_000_000 * 1_000_000)
