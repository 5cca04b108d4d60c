"""The roster: which series exist, and in which groups. It is public, and a window's is fixed before it is counted.

>>> roster = Roster((("m1", "north"), ("m2", "north"), ("m3", "south")))
>>> roster.keys, roster.multiplicity, roster.members.tolist()
(('north', 'south'), 1, [2, 1])
"""

from __future__ import annotations

import csv
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from .digests import canonical_json, digest, stable_hashes
from .errors import ArgumentError
from .files import MOST_ROSTER_BYTES, mend_reading, open_table, reason
from .readings import LONGEST_NAME

KeyKind = Literal["series", "group"]


#: Series of a job unless its settings say otherwise: their cells of a day of half-hours take about 1 GB.
MOST_SERIES = 200_000


class RosterError(ArgumentError):
    """A roster that cannot be used, with what to do about it."""


def check_number(found: int, most: int, where: str, what: str = "series") -> None:
    """Refuse more series than a job is to hold.

    Raises:
        RosterError: there are more.
    """
    if found > most:
        raise RosterError(
            f"{where}: it has more than {most:,} {what}, the limit of most_series; if so many are meant, raise it, "
            "and give the workers memory for them, some kB for each series"
        )


@dataclass(frozen=True)
class Roster:
    """The series of a query, each with its group, or with none where histograms are per series.

    Attributes:
        entries: (series, group) pairs without doubles; their order does not matter, they are kept sorted. A series may
            be in several groups: a changed cell then moves several histograms, and a window costs so many times more.
        awaits: what the histograms will be of, for a roster that has no series yet; ``None`` for one that has.
    """

    entries: tuple[tuple[str, str | None], ...]
    awaits: KeyKind | None = None

    def __post_init__(self) -> None:
        # in their order, which is nearly sorted where some join
        ordered = tuple(sorted(dict.fromkeys(self.entries), key=lambda pair: (pair[0], pair[1] or "")))
        if ordered:
            object.__setattr__(self, "awaits", None)
        elif self.awaits is None:
            raise RosterError("roster: it lists no series; at least one is needed")
        grouped = sum(group is not None for _, group in ordered)
        if grouped not in (0, len(ordered)):
            raise RosterError(
                f"roster: {len(ordered) - grouped} of its {len(ordered)} rows have no group; group all of them or none"
            )
        if any(not series or group == "" for series, group in ordered):
            raise RosterError("roster: a series or group is an empty text; remove the row or name it")
        object.__setattr__(self, "entries", ordered)

    @property
    def emptied(self) -> Roster:
        """The roster of the same kind without a series."""
        return Roster((), self.kind)

    @property
    def kind(self) -> KeyKind:
        """Whether a histogram is of a series or of a group."""
        if self.awaits is not None:
            return self.awaits
        return "series" if self.entries[0][1] is None else "group"

    @cached_property
    def series(self) -> tuple[str, ...]:
        """The names of the series, sorted."""
        return tuple(dict.fromkeys(series for series, _ in self.entries))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The names that histograms are published under, sorted: the groups, or the series."""
        return tuple(sorted({group if group is not None else series for series, group in self.entries}))

    @cached_property
    def members(self) -> npt.NDArray[np.int64]:
        """How many series each key's histogram sums over, in the order of ``keys``, shape (n,)."""
        counts = Counter(group if group is not None else series for series, group in self.entries)
        return np.array([counts[key] for key in self.keys], dtype=np.int64)

    @cached_property
    def groups_of(self) -> dict[str, tuple[str, ...]]:
        """The keys that each series counts in."""
        groups: dict[str, list[str]] = {}
        for series, group in self.entries:
            groups.setdefault(series, []).append(series if group is None else group)
        return {series: tuple(names) for series, names in groups.items()}

    @cached_property
    def multiplicity(self) -> int:
        """In how many histograms of a window a cell counts at most."""
        return max((len(groups) for groups in self.groups_of.values()), default=1) if self.kind == "group" else 1

    @cached_property
    def digest(self) -> str:
        """Digest of the entries."""
        return digest([list(pair) for pair in self.entries] if self.awaits is None else self.to_dict())

    def shard_keys(self, shard: int, shards: int) -> tuple[str, ...]:
        """The keys whose histograms belong to a shard, sorted."""
        of_shard = stable_hashes(self.keys) % np.uint64(shards) == shard
        return tuple(self.keys[i] for i in np.flatnonzero(of_shard).tolist())

    @cached_property
    def packed(self) -> bytes:
        """The entries, compressed: names repeat much of each other."""
        return zlib.compress(canonical_json(self.to_dict()).encode())

    @classmethod
    def unpacked(cls, packed: bytes) -> Roster:
        """The inverse of ``packed``: equal bytes are one object, so what is derived from it is computed once.

        Raises:
            zlib.error, ValueError, KeyError, TypeError: they are not what ``packed`` made.
        """
        found = _UNPACKED.get(packed)
        if found is None:
            found = _UNPACKED[packed] = cls.from_dict(json.loads(zlib.decompress(packed)))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # every step of a pipeline has a copy of its own: hundreds of thousands of names are slow to pickle as texts
        _UNPACKED.setdefault(self.packed, self)
        return _unpacked, (self.packed,)

    def to_dict(self) -> dict[str, Any]:
        """Plain form for the store."""
        form: dict[str, Any] = {"entries": [list(pair) for pair in self.entries]}
        return form if self.awaits is None else form | {"awaits": self.awaits}

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> Roster:
        """The inverse of :meth:`to_dict`."""
        return cls(tuple((series, group) for series, group in form["entries"]), form.get("awaits"))

    def joined_by(self, entries: Iterable[tuple[str, str | None]], most: int | None = None) -> Roster:
        """The roster with the series among these that it does not have; the same one if it has all.

        Args:
            entries: series, each with its only group, or with none.
            most: how many series it may have then; the first ones find room. Any number if left out.
        """
        new = tuple(pair for pair in entries if pair[0] not in self.groups_of)
        new = new if most is None else new[: max(0, most - len(self.series))]
        return Roster((*self.entries, *new)) if new else self

    @classmethod
    def of(cls, series: Iterable[str]) -> Roster:
        """A roster of series without groups."""
        return cls(tuple((name, None) for name in series))

    @classmethod
    def read(cls, path: Path, *, series: str = "series", group: str | None = None, most: int = MOST_SERIES) -> Roster:
        """Read a CSV file with a header and so many rows at most; without a group, for histograms per series.

        Raises:
            RosterError: the file cannot be read, lacks a column or a name, or has more rows or too long a name.
        """
        try:
            with open_table(path, MOST_ROSTER_BYTES) as file:
                reader = csv.reader(file)
                columns = next(reader, [])
                for name in (series, *([] if group is None else [group])):
                    if name not in columns:
                        count = f"{len(columns)} column{'' if len(columns) == 1 else 's'}"
                        raise RosterError(
                            f"roster {path}: its first line must be a header; it has {count}, none of them {name!r}: "
                            "put commas between them, or name them with roster: {file: ..., series: ..., group: ...}"
                        )
                names = columns.index(series)
                groups = None if group is None else columns.index(group)
                entries: dict[tuple[str, str | None], None] = {}
                short = [""] * len(columns)
                for number, row in enumerate(filter(None, reader), 1):
                    check_number(number, most, f"roster {path}", "rows")
                    cells = row if len(row) >= len(columns) else row + short
                    if max(len(cells[names]), 0 if groups is None else len(cells[groups])) > LONGEST_NAME:
                        raise RosterError(
                            f"roster {path}: row {number} has a name of more than {LONGEST_NAME:,} characters, and "
                            "readings of such a name are rejected; give the series or group a shorter one"
                        )
                    entries[cells[names], None if groups is None else cells[groups]] = None
                return cls(tuple(entries))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            if isinstance(error, OSError):
                mend = mend_reading(error, "check the path")
                raise RosterError(f"roster {path}: cannot be read ({reason(error)}); {mend}") from error
            raise RosterError(
                f"roster {path}: cannot be read as CSV ({reason(error)}); save it as UTF-8 with commas"
            ) from error


def _unpacked(packed: bytes) -> Roster:
    return Roster.unpacked(packed)


#: The rosters of this process by their packed form.
_UNPACKED = WeakValueDictionary[bytes, Roster]()
