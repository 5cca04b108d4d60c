"""A live job as a process of its own, without noise if asked: ``python live_job.py SETTINGS [OPTIONS] [-- BEAM]``.

It is ``quiltstream run --live --json`` but for what the tests need: the noise is left out by the hook of the
transform's constructor, which no setting reaches, or stamped; what leaves the job is noted beside the settings, in
``left``, and each call of the reader, in ``calls``; the wall clock of the source may be a file's content.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from quiltstream.pipelines.commands import Command

_FILE = click.Path(path_type=Path)


def clock_of(path: str) -> int:
    """Microseconds since the epoch, as a file says; it is replaced whole, never written to."""
    return int(Path(path).read_text(encoding="ascii"))


@click.command(cls=Command)
@click.argument("settings", type=_FILE)
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--noise", type=click.Choice(["private", "none", "stamped"]), default="private")
@click.option("--clock", type=_FILE)
@click.option("--end", type=float)
def main(
    settings: Path,
    beam_options: tuple[str, ...],
    *,
    noise: str,
    clock: Path | None,
    end: float | None,
) -> None:
    """Run a settings file."""
    # as the command line does: once its logs are quiet
    from quiltstream.pipelines.connectors import files  # noqa: PLC0415
    from quiltstream.pipelines.console import results  # noqa: PLC0415
    from quiltstream.pipelines.live import command as job  # noqa: PLC0415
    from quiltstream.pipelines.live import follow  # noqa: PLC0415
    from quiltstream.pipelines.live.watch import health_page  # noqa: PLC0415
    from quiltstream.schemas.settings.job import read_settings  # noqa: PLC0415
    from quiltstream.transforms import PrivateHistograms  # noqa: PLC0415
    from quiltstream.transforms.sources import reader  # noqa: PLC0415

    stamped: Any = import_module("stamped")  # by the name that the workers know it by
    files.WriteBlocks = partial(stamped.TappedBlocks, str(settings.absolute().with_name("left")))  # type: ignore[misc]
    calls = str(settings.absolute().with_name("calls"))
    timed = {} if clock is None else {"now": partial(clock_of, str(clock))}
    reader.ReadPart = partial(stamped.NotedPart, calls, **timed)  # type: ignore[assignment, misc]
    if end is not None:
        follow._END_S = end  # pyright: ignore[reportPrivateUsage] - how long a job is left alone whose work is done
    read = read_settings(settings)
    hidden = "private" if noise == "private" else "none"
    with health_page(read.live.metrics_port, job.event_printer(results(), as_json=True)) as health:
        histograms = PrivateHistograms(read, noise=hidden)
        if noise == "stamped":
            stamped.stamp(histograms)
        raise SystemExit(job.run_to_end(read, histograms, beam_options, health, as_json=True, look_s=0.3))


if __name__ == "__main__":
    main()
