"""``quiltstream init``: a commented settings file from a look at a data file, or at messages of a broker.

What it guesses is said, and what its author has to decide is explained beside it; its belief is a stand-in.
"""

from __future__ import annotations

import csv
import io
import math
import os
import shlex
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...schemas.files import check_replaceable, write_whole
from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings, load_settings
from ..connectors.job_io import JobPath, check_output, job_paths
from ..console import facts, heading, plural, results
from ..errors import CommandError, ExitCode, writing
from ..init.brokers import from_topic
from ..init.look import look_at
from ..init.write import (
    SETTINGS_FILE,
    Guess,
    fit_command,
    guess,
    relative,
    roster_of,
    zone_of,
)
from ..runners import read_source
from .fit import USUAL, usual_cover
from .schema import SCHEMA_FILE, is_schema_of_settings, schema_file

#: Kinds of characters that no comment of the settings can have: control characters, bytes that are not UTF-8, and line
#: breaks.
_NO_TEXT = frozenset({"Cc", "Cs", "Zl", "Zp"})


_ELSEWHERE = "choose another place with -o"
_OTHER_FOLDER = "write the settings into another folder, with -o OTHERFOLDER/settings.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line gives: one of ``data`` and ``from_topic``, and what says more of it."""

    data: Path | None  # file, folder or pattern
    output: Path  # settings file to write
    hold_out: float  # share of the series of ``data`` that are not published
    model: str | None  # a belief that comes with the package
    value: str | None  # column, or path, of the value; guessed if left out
    timezone: str  # of times without an offset, and of days
    from_topic: str | None  # a Kafka topic
    servers: str | None  # its brokers
    options: tuple[str, ...]  # of librdkafka: NAME=VALUE, a secret by its place as ``{env: KAFKA_PASSWORD}``
    registry: str | None  # URL of the schema registry
    messages: int  # how many are looked at, at most
    force: bool  # whether files that are there are replaced


def write_settings(options: Options) -> None:
    """Write a settings file, and what goes beside it, from a look; say what was guessed."""
    output, data = options.output, options.data
    if (data is None) is (options.from_topic is None):
        raise CommandError("give one of DATA and --from-topic TOPIC", ExitCode.SETTINGS)
    if output.is_dir():
        raise CommandError(f"-o {output}: it is a folder; name a file in it, such as {output / 'settings.yaml'}")
    if options.model is not None and (data is None or options.hold_out):
        raise CommandError(f"--model {options.model}: it is for DATA, and takes the place of --hold-out: give one")
    if data is None:
        check_places(output, force=options.force)  # a look lasts, so what would stop its end stops its begin
        name = options.from_topic or ""
        guessed = from_topic(name, options)
        said, held = write(guessed, output, force=options.force)
    else:
        for field, text in (("DATA", relative(data, output)), ("-o", output.name), ("--value", options.value or "")):
            if any(unicodedata.category(character) in _NO_TEXT for character in text):
                raise CommandError(
                    f"{field}: {text!r} has a line break, a control character or a byte that is not UTF-8, and the "
                    "settings can have none of these; give it another name"
                )
        zone_of(options.timezone)
        look = look_at(data, options.value, options.timezone)
        command = partial(_init_command, relative(look.rows.files, output), output.name, options)
        guessed, name = guess(look, output, command, options.model), data.name
        said, held = write(guessed, output, force=options.force, hold_out=options.hold_out)
    console = results()
    heading(console, f"{output}: written from a look at {name}")
    facts(console, [*guessed.said, *said])
    console.print(f"\nRead it, {_following(options, guessed, held)}", soft_wrap=True)


def _following(options: Options, guessed: Guess, held: int) -> str:
    """What to do next, with a command that works."""
    output = options.output
    count = len(set(guessed.questions))
    asked = f"answer {plural(count, 'question')}, the keys whose value is ???, " if count else ""
    first = f"{asked}then: quiltstream check {output}"
    if held:
        return f"{first}\nand then: {fit_command(output, roster_of(output), held)}"
    if guessed.with_history is not None and options.model is None and not asked:
        then = "take a belief of others" if "--model" in guessed.way else "hold a history for its model out"
        return f"{first}\nand then {then}: {_init_command(str(options.data), str(output), options, guessed.way)}"
    begin = " see its model, a stand-in, which run refuses" if options.model is None else ""
    return f"{first}\nand then{begin}: quiltstream run --dry-run {output}"


def _init_command(data: str, output: str, options: Options, way: Sequence[str]) -> str:
    """The command that writes the settings of the same data anew, with further options."""
    given = {
        "-o": output if output != SETTINGS_FILE else None,
        "--value": options.value,
        "--timezone": options.timezone if options.timezone != "UTC" else None,
    }
    more = [word for option, text in given.items() if text is not None for word in (option, text)]
    return shlex.join(["quiltstream", "init", data, *way, "--force", *more])


def check_places(output: Path, *beside: Path, force: bool) -> tuple[Path, ...]:
    """Find what is there where settings are to be written, their schema and what else goes beside them.

    Raises:
        CommandError: something is, and is not to be replaced.
    """
    schema = output.with_name(SCHEMA_FILE)
    there = [path for path in (output, schema, *beside) if os.path.lexists(path)]
    there = [path for path in there if not (path == schema and is_schema_of_settings(path))]
    if there and not force:
        names = " and ".join(map(str, there))
        are, them = ("it exists", "it") if len(there) == 1 else ("they exist", "them")
        raise CommandError(f"{names}: {are} already; give another folder with -o, or --force to replace {them}")
    for path in there:  # before the first is replaced
        with writing(path, _ELSEWHERE):
            check_replaceable(path)
    return tuple(there)


def write(guessed: Guess, output: Path, *, force: bool, hold_out: float = 0.0) -> tuple[list[tuple[str, str]], int]:
    """Write the settings file with its JSON Schema, and a roster with the published series in one group.

    A share of the series may be held out: the history that a model is fitted on, chosen by the order of names alone.

    Returns:
        What is said of what was written beside the settings, and how many series are held out.
    """
    files = {output.with_name(SCHEMA_FILE): schema_file(), output: guessed.text}
    roster, with_history = roster_of(output), guessed.with_history
    beside = [roster] if with_history is not None else []
    settings = load_settings(guessed.answered or guessed.text, folder=output.parent)
    sources = [one for one in job_paths(settings) if one.field.startswith("source")]
    for path in (*files, *beside):
        _check_no_data(path, sources)  # first, as nothing replaces data
    there = check_places(output, *beside, force=force)
    replaced = [("replaced", ", ".join(path.name for path in there))] if there else []
    if with_history is None:
        if hold_out and guessed.questions:
            raise CommandError(
                f"--hold-out: which are the series is open: {', '.join(guessed.questions)}; write the settings without "
                "it, and answer there"
            )
        if hold_out:
            why = (text for name, text in guessed.said if name in ("at once", "nested"))
            raise CommandError(
                "; ".join(["--hold-out: the data are one series, so none can be held out of what is published", *why])
            )
        _write(files)
        return replaced, 0
    with writing(output, _ELSEWHERE):
        # the data are named from this folder, by a path that may lead out of it again
        output.parent.mkdir(parents=True, exist_ok=True)
    every = series_of(settings)
    names = _published(every, hold_out)
    held = len(every) - len(names)
    made = io.StringIO(newline="")
    csv.writer(made, lineterminator="\n").writerows([("series", "group"), *((name, "all") for name in names)])
    _write(files | {output: with_history(held) if held else guessed.text, roster: made.getvalue()})
    published = [(roster.name, f"{len(names):,} series, in one group")] if names else []
    return [*published, *([("held out", _said_held(held))] if held else []), *replaced], held


def _said_held(held: int) -> str:
    """What a history of so many series is, and is worth where it is short."""
    few = f"; a further series is covered with probability {held}/{held + 1} at most"
    return f"{held:,} series, the history of the model{'' if usual_cover(held) == USUAL else few}"


def _published(every: Sequence[str], hold_out: float) -> list[str]:
    """The names that are published: evenly by their order, so that neighbours differ."""
    names = [one for at, one in enumerate(every) if math.floor((at + 1) * hold_out) == math.floor(at * hold_out)]
    if hold_out and (not names or len(names) == len(every)):
        raise CommandError(
            f"--hold-out {hold_out:g}: of {len(every)} series that leaves {len(every) - len(names)} for the history "
            f"and {len(names)} to publish; give a share that leaves some of both"
        )
    return names


def _check_no_data(path: Path, sources: Sequence[JobPath]) -> None:
    """Check that a file that is to be written is no data, and that no pattern would find it from then on."""
    try:
        check_output(path, sources, path.name)
    except SettingsError as error:
        if os.path.lexists(path):
            raise CommandError(f"{error}: {_OTHER_FOLDER}") from error
        raise CommandError(
            f"{sources[0].field}: {sources[0].path} would read {path.name}, too, which is written beside the settings; "
            f"{_OTHER_FOLDER}"
        ) from error


def _write(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        with writing(path, _ELSEWHERE):
            write_whole(path, text)


def series_of(settings: Settings) -> list[str]:
    """The names of all series in the files of a source, sorted.

    Raises:
        CommandError: there is none, because every row is rejected.
    """
    names, lost = set[str](), Counter[RejectReason]()
    for _, decoded in read_source(settings).decoded():
        for one in decoded.rejects:
            lost[one.reason] += len(one.positions)
        if decoded.readings is not None:
            names.update(decoded.readings.column("series").unique().to_pylist())
    if not names:
        why = "; ".join(f"{rows:,} rejected: {one.text}" for one, rows in lost.items())
        raise CommandError(f"a run has no reading of the data: {why}", ExitCode.SOURCE)
    return sorted(names)
