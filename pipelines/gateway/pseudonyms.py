"""Pseudonyms at the gateway: levels of topics, and the command that writes a roster under pseudonyms.

What goes on is the pseudonym that a job with the same key makes of the level (``readings.pseudonyms``). The payload and
the content type are the publisher's own and stay as they are.

``quiltstream pseudonyms``: a roster under the pseudonyms that the gateway makes, for a job that has no key.

It runs where the key is, beside the gateway. The rows of the new file are sorted by the pseudonyms: the order of
the old names would tell the owner of a row to a reader who knows that order.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...schemas.files import MOST_ROSTER_BYTES, open_table, reason, whole_file
from ...schemas.roster import RosterError
from ...schemas.settings.gateway import GatewaySettings, TopicPseudonyms
from ...schemas.settings.secrets import PseudonymKey
from ..console import facts, heading, plural, results
from ..errors import CommandError


class TopicNames:
    """Replaces levels of topics, counted from 1, by pseudonyms.

    >>> TopicNames(PseudonymKey(b"a secret of at least 16 bytes"), [2]).of("meters/meter 7/kwh")
    'meters/931fa1428d64447fb552cd7c270c790d/kwh'
    """

    __slots__ = ("_key", "_places")

    def __init__(self, key: PseudonymKey, levels: Sequence[int]) -> None:
        self._key = key
        self._places = [level - 1 for level in levels]

    @classmethod
    def read(cls, given: TopicPseudonyms) -> TopicNames:
        """Read the key where the settings say.

        Raises:
            SettingsError: it is not there, too short or too long.
        """
        return cls(given.key("forward.pseudonyms"), given.level)

    def of(self, topic: str) -> str:
        """A topic under pseudonyms; levels that it does not have, and blank ones, are skipped.

        Nothing is remembered: a name is hashed in less time than it takes to read its message.
        """
        levels = topic.split("/")
        for place in self._places:
            # to a job a blank name is none, and is to stay none
            if place < len(levels) and levels[place].strip():
                levels[place] = self.level(levels[place])
        return "/".join(levels)

    def level(self, name: str) -> str:
        """What a level that has a name goes on as, and what a roster has to hold for it."""
        return self._key.name(name)

    def __repr__(self) -> str:
        return "TopicNames(...)"


#: What no level of a topic that is published to can hold.
_NEVER = frozenset("/+#\0")


@dataclass(frozen=True)
class Table:
    """A roster's file as text."""

    columns: tuple[str, ...]  # its header
    rows: tuple[tuple[str, ...], ...]  # its rows, each as long as the header
    lines: tuple[int, ...]  # the line of the file on which each row ends


@dataclass(frozen=True)
class Choice:
    """What is to become of a roster."""

    series: str = "series"  # its column with the names
    # which parts of a name, between slashes and counted from 1, are levels under a pseudonym; none: a name is one level
    parts: tuple[int, ...] = ()
    drop: tuple[str, ...] = ()  # columns that are left out


def write_pseudonyms(settings: Path, roster: Path, out: Path, choice: Choice) -> None:
    """Write a roster under pseudonyms, whole or not at all, and say what it holds; a file that is there is replaced.

    Raises:
        SettingsError: the settings are wrong, or the key is not there.
        RosterError: the roster cannot be used.
        CommandError: the settings name no pseudonyms, or the file cannot be written.
    """
    given = GatewaySettings.read(settings).forward
    if given.pseudonyms is None:
        raise CommandError(
            f"{settings}: it has no forward.pseudonyms, so the gateway passes names on as they are; the roster that "
            "the job has is right"
        )
    key = given.pseudonyms.file
    if any(out.resolve() == one.resolve() for one in (roster, settings, *([] if key is None else [Path(key)]))):
        raise CommandError(f"--out {out}: this file is read here, and would be replaced; name another")
    table = read_table(roster)
    made = under_pseudonyms(table, TopicNames.read(given.pseudonyms), choice, str(roster))
    try:
        with whole_file(out, private=True) as part, part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(made.columns)
            writer.writerows(made.rows)
    except OSError as error:
        raise CommandError(f"--out {out}: cannot be written ({reason(error)})") from None
    at = made.columns.index(choice.series)
    kept = [column for column in made.columns if column != choice.series]
    console = results()
    heading(console, f"{out}: written")
    facts(
        console,
        [
            ("series", f"{plural(len({row[at] for row in made.rows}), 'pseudonym')} in column {choice.series!r}"),
            ("kept as they are", ", ".join(map(repr, kept)) or "no other columns"),
        ],
    )


def read_table(path: Path) -> Table:
    """Read a CSV file with a header.

    Raises:
        RosterError: it cannot be read, a row is longer or shorter than the header, or two columns have one name.
    """
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    try:
        with open_table(path, MOST_ROSTER_BYTES) as file:
            reader = csv.reader(file)
            columns = tuple(next(reader, ()))
            for row in reader:
                if row:
                    rows.append(tuple(row))
                    lines.append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RosterError(f"roster {path}: cannot be read as CSV ({reason(error)})") from None
    if len(set(columns)) < len(columns):
        raise RosterError(f"roster {path}: its header has two columns of one name; name each once")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(columns):
            raise RosterError(
                f"roster {path}: line {line} has {len(row)} cells and the header {len(columns)}; mend the line"
            )
    return Table(columns, tuple(rows), tuple(lines))


def under_pseudonyms(table: Table, names: TopicNames, choice: Choice, where: str) -> Table:
    """A roster with the names that the gateway passes on, sorted by them; its other columns as they are.

    Raises:
        RosterError: a column is not there, or a name can be no level of a topic or stands in another column.
    """
    said = f"roster {where}:"
    _check_columns(table, choice, said)
    at = table.columns.index(choice.series)
    kept = [place for place, column in enumerate(table.columns) if column not in choice.drop]
    real = {row[at] for row in table.rows}
    made: dict[str, str] = {}
    rows: list[tuple[str, ...]] = []
    for row, line in zip(table.rows, table.lines, strict=True):
        for place in kept:
            if place != at and row[place] in real:
                raise RosterError(
                    f"{said} line {line} has the name of a series in column {table.columns[place]!r}, where it would "
                    f"stay; leave the column out with --drop {table.columns[place]}"
                )
        name = row[at]
        if name not in made:
            made[name] = _pseudonym(name, names, choice.parts, f"{said} line {line}")
        rows.append(tuple(made[name] if place == at else row[place] for place in kept))
    ordered = sorted(rows, key=lambda row: (row[kept.index(at)], row))
    return Table(tuple(table.columns[place] for place in kept), tuple(ordered), tuple(range(2, len(rows) + 2)))


def _check_columns(table: Table, choice: Choice, said: str) -> None:
    for name in (choice.series, *choice.drop):
        if name not in table.columns:
            raise RosterError(
                f"{said} its first line must be a header; it has {len(table.columns)} columns, none of them {name!r}: "
                "name the column of the series with --series, and others with --drop"
            )
    if choice.series in choice.drop:
        raise RosterError(f"{said} --drop names {choice.series!r}, which is the column of the series")
    if not table.rows:
        raise RosterError(f"{said} it lists no series; at least one is needed")


def _pseudonym(name: str, names: TopicNames, parts: Sequence[int], said: str) -> str:
    """What a job takes from the topic instead of a name."""
    if not parts:
        if not name.strip() or _NEVER & set(name):
            raise RosterError(
                f"{said}: its series can be no level of a topic, which has text and no /, + or #; if it is put "
                "together from several levels, say with --part which of its parts have a pseudonym"
            )
        return names.level(name)
    levels = name.split("/")
    if any(not level.strip() or _NEVER & set(level) for level in levels) or min(parts) > len(levels):
        raise RosterError(
            f"{said}: its series is not put together from levels of a topic, or has none of the parts that --part "
            "names; write it as LEVEL/LEVEL/..."
        )
    return "/".join(names.level(level) if place in parts else level for place, level in enumerate(levels, 1))
