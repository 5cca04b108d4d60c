"""What ``slots.of`` and the words of ``readings`` make of a series, beside a literal reading of their definitions.

The truth below is written in plain Python over all rows at once, with fractions, and shares nothing with the product.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiltstream.pipelines.runners import read_source
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Settings
from quiltstream.transforms.readings.slots import Words, slot_readings, words_of

from ..depth import examples
from .test_cases import REST

SLOT = 1_800
GAP = 7_200
ORIGIN = 1_704_067_200
READINGS = {"series": "meter", "time": "ts", "value": "v", "time_unit": "s"}

#: (series, begin in seconds, value or a mark, length in seconds, rank)
Row = tuple[str, int, str, int, int]
Truth = dict[tuple[str, int], Fraction]

WORDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sum": ({"length": "len"}, {"of": "sum"}),
    "sum of ends": ({"length": "len", "stamps": "end"}, {"of": "sum"}),
    "mean": ({"length": "len"}, {"of": "mean"}),
    "mean until the next": ({"hold": "50min"}, {"of": "mean"}),
    "hold": ({"hold": "100min"}, {}),
    "register": ({"register": {"most": 40, "gap": "2h"}}, {}),
    "register with an end": ({"register": {"most": 40, "gap": "2h", "over_end": 100}}, {}),
    "net register": ({"register": "net"}, {}),
    "rank": ({"cell": "rank"}, {}),
    "latest filled": ({"fill": "before", "absent": 5}, {}),
    "register filled": ({"register": {"most": 40, "gap": "2h"}, "fill": "before", "absent": 5}, {}),
}


def rows_of(seed: int, *, counter: bool) -> list[Row]:
    """Two series with gaps, marks, two deliveries of some rows, and bad or wrapped stands of a counter."""
    chance = random.Random(seed)
    rows: list[Row] = []
    for series in "ab":
        at, stand = ORIGIN + chance.randrange(0, 4_000), 0
        for _ in range(chance.randrange(3, 25)):
            length = chance.choice([300, 900, 1_800, 3_600, 5_000])
            stand += chance.choice([0, 1, 3, 17, 60])
            shown = stand % 100 if counter and seed % 2 else stand
            value = str(shown - (chance.random() < 0.15) * 5) if counter else str(chance.randrange(-9, 99) / 4)
            if chance.random() < 0.1:
                value = chance.choice(["", "unavailable"])
            rows.append((series, at, value, length, 0))
            if chance.random() < 0.2:
                rows.append((series, at, str(chance.randrange(50)), length, chance.randrange(3)))
            at += length if chance.random() < 0.7 else chance.choice([1_000, 9_000, 20_000])
    return rows


def number(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except ValueError:
        return None


def united(rows: list[Row]) -> dict[str, list[tuple[int, Fraction | None, int]]]:
    """The rows of each series by begin: of one begin that of the highest value."""
    best: dict[tuple[str, int], tuple[Any, ...]] = {}
    for series, begin, text, length, _ in rows:
        value = number(text)
        # a mark stands above every value
        key = (value is None, value or 0, length)
        if (series, begin) not in best or key > best[series, begin][0]:
            best[series, begin] = (key, value, length)
    found: dict[str, list[tuple[int, Fraction | None, int]]] = {}
    for (series, begin), (_, value, length) in sorted(best.items(), key=lambda one: one[0]):
        found.setdefault(series, []).append((begin, value, length))
    return found


def overlaps(begin: int, end: int) -> Iterator[tuple[int, int]]:
    for slot in range(begin // SLOT, (end - 1) // SLOT + 1):
        yield slot, min(end, (slot + 1) * SLOT) - max(begin, slot * SLOT)


def truth_of(word: str, rows: list[Row]) -> Truth:
    cells = unfilled_of(word, rows)
    if "fill" not in WORDS[word][0]:
        return cells
    found = dict(cells)
    for ahead in range(1, 26 * 3_600 // SLOT + 1):
        for (series, slot), value in cells.items():
            last = max(one for name, one in cells if name == series and one <= slot + ahead)
            if last == slot:
                found[series, slot + ahead] = value
    return found


def unfilled_of(word: str, rows: list[Row]) -> Truth:
    readings, slots = WORDS[word]
    if readings.get("stamps") == "end":
        rows = [(series, begin - length, value, length, rank) for series, begin, value, length, rank in rows]
    if word == "rank":
        return ranked(rows)
    if word == "latest filled":
        return ranked([(*row[:4], 0) for row in rows])
    if "hold" not in readings:
        rows = [row for row in rows if number(row[2]) is not None]
    held: Truth = {}
    sums: dict[tuple[str, int], list[tuple[Fraction, int]]] = {}
    is_mean = slots.get("of") == "mean"
    for series, found in united(rows).items():
        for begin, end, value in pieces(found, readings):
            if word == "hold":
                held |= {(series, slot): value for slot in range(-(-begin // SLOT), (end - 1) // SLOT + 1)}
                continue
            for slot, seconds in overlaps(begin, end):
                share = value if is_mean else value / (end - begin)
                sums.setdefault((series, slot), []).append((share * seconds, seconds))
    return held | {
        cell: sum((value for value, _ in parts), Fraction(0)) / (sum(seconds for _, seconds in parts) if is_mean else 1)
        for cell, parts in sums.items()
    }


def ranked(rows: list[Row]) -> Truth:
    cells: dict[tuple[str, int], tuple[tuple[int, int, Fraction], Fraction]] = {}
    for series, begin, text, _, rank in rows:
        if (value := number(text)) is not None:
            key = (rank, begin, value)
            if (series, begin // SLOT) not in cells or key > cells[series, begin // SLOT][0]:
                cells[series, begin // SLOT] = (key, value)
    return {cell: value for cell, (_, value) in cells.items()}


def pieces(found: list[tuple[int, Fraction | None, int]], readings: Any) -> Iterator[tuple[int, int, Fraction]]:
    """Begin, end and value of what is known of a series."""
    if "register" in readings:
        yield from rises(found, readings["register"])
        return
    most = {"50min": 3_000, "100min": 6_000}.get(readings.get("hold", ""))
    for at, (begin, value, length) in enumerate(found):
        following = found[at + 1][0] if at + 1 < len(found) else math.inf
        if value is not None:
            yield begin, begin + length if most is None else int(min(begin + most, following)), value


def rises(found: list[tuple[int, Fraction | None, int]], given: Any) -> Iterator[tuple[int, int, Fraction]]:
    net = given == "net"
    stands = [(begin, value) for begin, value, _ in found if value is not None]
    if not net:
        stands = [
            stand
            for at, stand in enumerate(stands)
            if not (
                0 < at < len(stands) - 1
                and stand[1] < stands[at - 1][1] <= stands[at + 1][1]
                and stands[at + 1][0] - stands[at - 1][0] <= GAP
            )
        ]
    for (begin, low), (end, high) in pairwise(stands):
        rise = high - low
        if not net and rise < 0 and "over_end" in given:
            rise += given["over_end"]
        if end - begin <= GAP and (net or 0 <= rise <= given["most"]):
            yield begin, end, rise


def settings_of(folder: Path, word: str) -> Settings:
    readings, slots = WORDS[word]
    whole = REST | {
        "source": {"csv": "part*.csv"},
        "readings": READINGS | readings,
        "slots": {"interval": "30min"} | slots,
        "states": {"edges": [1, 2]},
    }
    return Settings.parse(whole if "absent" in readings else whole | {"missing": "state"}, folder)


def write(folder: Path, rows: list[Row], chance: random.Random) -> None:
    """The rows shuffled over a few files, some of them twice."""
    rows = [*rows, *chance.sample(rows, len(rows) // 4)]
    chance.shuffle(rows)
    parts = chance.randrange(1, 4)
    for part in range(parts):
        with (folder / f"part{part}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["meter", "ts", "v", "len", "rank"])
            writer.writerows(rows[part::parts])


def words_in(settings: Settings) -> Words:
    words = words_of(settings.readings, settings.slots.of)
    assert words is not None
    return words


def decoded(settings: Settings) -> list[pa.RecordBatch]:
    return [one.readings for _, one in read_source(settings).decoded() if one.readings is not None]


def cells_of(batches: list[Any]) -> dict[tuple[str, int], float]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = {(row["series"], int(row["time"].timestamp()) // SLOT): row["value"] for row in rows}
    assert len(found) == len(rows), "a slot has one reading"
    return found


@pytest.mark.parametrize("word", WORDS)
def test_a_word_means_what_its_definition_says_in_any_order_and_files(tmp_path: Path, word: str) -> None:
    for seed in range(examples(30)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        rows = rows_of(seed, counter="register" in word)
        write(folder, rows, random.Random(seed + 1))
        settings = settings_of(folder, word)
        found = cells_of(slot_readings(decoded(settings), settings.grid, words_in(settings)))
        right = truth_of(word, rows)
        assert found.keys() == right.keys(), f"seed {seed}"
        assert [found[cell] for cell in right] == pytest.approx([float(one) for one in right.values()], rel=1e-12), (
            f"seed {seed}"
        )


@pytest.mark.parametrize(
    ("readings", "slots", "more", "named"),
    [
        ({}, {"of": "sum"}, {}, "readings.length"),
        ({}, {"of": "mean"}, {}, "readings.length"),
        ({"stamps": "end"}, {}, {}, "readings.length"),
        ({"hold": "1h"}, {}, {"missing": "public"}, "missing: public"),
        ({"register": {"most": 9}}, {}, {"missing": {"break": "1h"}}, "missing: break"),
        ({"register": "net", "length": "5min"}, {}, {}, "readings.register"),
        ({"register": "net"}, {"of": "mean"}, {}, "readings.register"),
        ({"fill": "before"}, {}, {}, "readings.fill leaves no cell"),
        ({"absent": 0}, {}, {}, r"readings\.absent"),
        ({"absent": 0}, {}, {"missing": {"break": "2h"}}, r"readings\.absent"),
        ({"length": "5min"}, {"of": "sum"}, {"states": {"categories": ["a", "b"]}}, "categories"),
    ],
)
def test_words_that_do_not_fit_are_refused_by_name(
    readings: dict[str, Any], slots: dict[str, Any], more: dict[str, Any], named: str
) -> None:
    whole = REST | {
        "source": {"csv": "x.csv"},
        "readings": READINGS | readings,
        "slots": {"interval": "30min"} | slots,
        "states": {"edges": [1, 2]},
        "missing": "state",
    }
    with pytest.raises(SettingsError, match=named):
        Settings.parse(whole | more)
    # what counts leaves no cell without a value beside an absent one
    net = {"readings": READINGS | {"absent": 0, "register": "net"}, "slots": {"interval": "30min"}, "missing": "public"}
    assert Settings.parse(whole | {"states": {"edges": [1, 2]}} | net).space.gap_state == 0
