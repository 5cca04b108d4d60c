"""``quiltstream check SETTINGS FILE``: what the settings make of each message.

Messages come from a file, from standard input, or from the end of the topics of the job, of which nothing is committed;
readings are printed as they are, for the operator's eyes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from ...schemas.files import FileError, read_regular, reason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings, read_settings
from ...schemas.settings.secrets import located
from ...schemas.slots import format_instant, parse_instant
from ...transforms.formats.rows import Decoded
from ...transforms.payloads.avro import SchemaLookup
from ...transforms.payloads.decoder import PayloadDecoder
from ...transforms.payloads.messages import Messages, SourceAwayError
from ...transforms.sources.files import are_messages
from ..console import facts, heading, paragraph, plural, print_json, results
from ..errors import CommandError, ExitCode

#: Bytes of a file of messages, or of standard input.
_MOST = 1 << 26

_STDIN = "-"


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside the payload of messages from a file."""

    topic: str = ""  # of messages whose line does not say it
    key: str = ""  # the key; empty for none
    headers: tuple[str, ...] = ()  # each NAME=VALUE
    stamp: str = ""  # the broker's stamp as an instant; empty for now
    lines: bool = False  # whether each line is a message
    topics: bool = False  # whether each line is a topic, a blank and a payload, as ``mosquitto_sub -v`` prints them


def messages_of_file(given: str, beside: Beside) -> Messages:
    """The messages of a file, or of standard input."""
    body = _read(given)
    if not (beside.lines or beside.topics):
        payloads, topics = [body], [beside.topic]
    else:
        lines = [line for line in body.split(b"\n") if line.strip()]
        split = [line.partition(b" ") if beside.topics else (beside.topic.encode(), b"", line) for line in lines]
        payloads, topics = [one[2] for one in split], [one[0].decode("utf-8", "replace") for one in split]
    if not payloads or not body:
        raise CommandError(
            f"{given}: it holds no message; give a file with one, or lines with --lines", ExitCode.SOURCE
        )
    try:
        stamp = parse_instant(beside.stamp, "UTC") if beside.stamp else time.time_ns() // 1_000
    except ValueError as error:
        raise CommandError(f"--stamp: {error}") from None
    count = len(payloads)
    headers = tuple((name, value.encode()) for name, _, value in (one.partition("=") for one in beside.headers))
    return Messages(
        payloads=payloads,
        topics=topics,
        keys=[beside.key.encode() or None] * count,
        headers=[headers] * count,
        stamps_us=np.full(count, stamp, dtype=np.int64),
        positions=np.arange(count, dtype=np.int64),
    )


def _read(given: str) -> bytes:
    if given == _STDIN:
        body = sys.stdin.buffer.read(_MOST + 1)
        if len(body) > _MOST:
            raise CommandError(f"standard input has more than {_MOST:,} bytes; give fewer messages", ExitCode.SOURCE)
        return body
    try:
        return read_regular(Path(given), _MOST)
    except OSError as error:
        text = str(error) if isinstance(error, FileError) else f"{given}: cannot be read ({reason(error)})"
        raise CommandError(text, ExitCode.SOURCE) from None


def messages_of_topics(settings: Settings, count: int) -> Messages:
    """The last messages of the topics that the settings name; nothing is committed."""
    source = None if settings.source is None else settings.source.kafka
    if source is None:
        raise SettingsError(["--from-topic reads source.kafka, and the settings have none; give a FILE, or - "])
    from ...transforms.kafka.client import Cluster, KafkaUnavailableError  # noqa: PLC0415 - of an extra
    from ...transforms.kafka.messages import last_messages  # noqa: PLC0415

    cluster = Cluster(source.servers, located(source.options, settings.path))
    try:
        return last_messages(cluster, source.all_topics, count)
    except KafkaUnavailableError as error:
        raise CommandError(f"source.kafka: {error}", ExitCode.SOURCE) from error


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one message."""

    topic: str
    size: int
    # series, instant and value of each reading, values times ``readings.scale``
    readings: tuple[tuple[str, str, float], ...]
    passed: str | None  # why it was passed over; ``None`` if it was not
    rejected: str | None  # why it is a reject; ``None`` if it is none


class Trial:
    """Tries messages as a job reads them; it belongs to one command."""

    def __init__(self, settings: Settings) -> None:
        readings, source = settings.readings, settings.source
        if readings is None:
            raise SettingsError(["readings is missing: it says where the parts of a reading are in a message"])
        if source is not None and source.section is None and not are_messages(source.format, readings):
            readings.check_columns()  # as a run does
        group = settings.group_by if settings.roster is None and isinstance(settings.group_by, str) else None
        # names in clear, as the operator has them
        section = readings.model_copy(update={"pseudonyms": None})
        self._decoder = PayloadDecoder(section, settings.slots.timezone, group, schemas=schemas_of(settings))
        self._decoder.check()
        self._without = replace(self._decoder, readings=section.model_copy(update={"where": None}))

    def of(self, messages: Messages) -> Iterator[Tried]:
        """What becomes of each message, in order."""
        for number in range(len(messages)):
            message = messages.some([number])
            parts = self._decoder.decode(message)
            reasons = [one.reason for part in parts for one in part.rejects]
            rows = tuple(_rows(parts))
            yield Tried(
                topic=message.topics[0],
                size=len(message.payloads[0] or b""),
                readings=rows,
                passed=None if rows or reasons else self._why_passed(message),
                rejected=f"{reasons[0].value}: {reasons[0].text}" if reasons else None,
            )

    def _why_passed(self, message: Messages) -> str:
        if message.payloads[0] is None:
            return "it has no payload"
        where = self._decoder.readings.where
        if where is not None and any(one.readings is not None or one.rejects for one in self._without.decode(message)):
            return f"readings.where does not hold: {where}"
        return "readings.each finds nothing, or no value"


def _rows(parts: list[Decoded]) -> Iterator[tuple[str, str, float]]:
    for part in parts:
        if part.readings is not None:
            columns = [part.readings.column(name) for name in ("series", "time", "value")]
            times = columns[1].cast("int64").to_pylist()
            for series, time, value in zip(columns[0].to_pylist(), times, columns[2].to_pylist(), strict=True):
                yield series, format_instant(time), value


def schemas_of(settings: Settings) -> SchemaLookup | None:
    """Where the schemas of messages are; ``None`` where their payloads name none."""
    kafka = None if settings.source is None else settings.source.kafka
    if settings.readings is None or settings.readings.payload != "avro" or kafka is None or kafka.registry is None:
        return None
    from ...transforms.kafka.schema_registry import RegistrySchemas  # noqa: PLC0415 - of an extra

    return RegistrySchemas(kafka.registry.url, located(kafka.registry.options, settings.path))


def check_messages(path: Path, given: str | None, beside: Beside, *, from_topic: int | None, as_json: bool) -> int:
    """Try messages by a settings file, print what became of each, return the exit code."""
    if given is not None and from_topic is not None:
        raise CommandError("give a FILE of messages (- for standard input), or --from-topic N")
    settings = read_settings(path)
    trial = Trial(settings)
    messages = messages_of_file(given, beside) if given is not None else messages_of_topics(settings, from_topic or 1)
    try:
        tried = list(trial.of(messages))
    except SourceAwayError as error:
        raise CommandError(f"source.kafka.registry: {error}", ExitCode.SOURCE) from error
    if as_json:
        print_json([asdict(one) for one in tried])
    else:
        show_tried(results(), tried, settings)
    return ExitCode.OK if any(one.readings for one in tried) else ExitCode.SOURCE


#: Readings of one message that are printed.
_SHOWN_READINGS = 10


def show_tried(console: Console, tried: Sequence[Tried], settings: Settings) -> None:
    """Print what became of messages."""
    unit = f" {settings.states.unit}" if settings.states.unit else ""
    for place, one in enumerate(tried, 1):
        of = f" of {one.topic}" if one.topic else ""
        heading(console, f"Message {place}{of}, {plural(one.size, 'byte')}")
        shown = one.readings[:_SHOWN_READINGS]
        bins = [settings.space.labels[at] for at in settings.space.encode(np.array([value for *_, value in shown]))]
        rows = [
            ("reading", f"{series}  {instant}  {value:g}{unit}  (bin {label})")
            for (series, instant, value), label in zip(shown, bins, strict=True)
        ]
        rows += [("", f"and {more:,} more")] if (more := len(one.readings) - len(shown)) else []
        why = (("passed over", one.passed), ("rejected", one.rejected))
        facts(console, [*rows, *((name, text) for name, text in why if text is not None)])
    heading(console, "For the operator only, not to be published")
    found = sum(len(one.readings) for one in tried)
    passed, lost = sum(one.passed is not None for one in tried), sum(one.rejected is not None for one in tried)
    pseudonyms = settings.readings is not None and settings.readings.pseudonyms is not None
    paragraph(
        console,
        f"{plural(len(tried), 'message')}: {plural(found, 'reading')}, {passed:,} passed over, {lost:,} rejected. "
        + ("Names become pseudonyms in a run. " if pseudonyms else "")
        + "A counter is shown as it stands; a run takes what it rises in a slot. "
        + "Nothing was charged or published, and no ledger was opened.",
    )
