"""The charges of an account under their names, and how two accounts' charges are united.

A charge carries a random id, minted when it is made, and a key that says what was charged. Two accounts are united by
id. Equal keys under different ids are two releases, and both count. One id with different contents is a conflict: every
version is kept, counts, and is flagged. Uniting does not depend on the order of the accounts and may be repeated.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby
from typing import TypeAlias

Shape: TypeAlias = tuple[int, float]
"""Slots of a charge, and its loss per slot."""

_MARK = "~"
_WORDS = 2**256


@dataclass(frozen=True, slots=True)
class Entry:
    """One charge of an account.

    Attributes:
        entry_id: Random name.
        key: What was charged, free text; empty where nobody said.
        start: First slot.
        stop: Slot after the last.
        epsilon_dp: Loss per slot.
        conflict: Whether another charge came under the same id.
    """

    entry_id: str
    key: str
    start: int
    stop: int
    epsilon_dp: float
    conflict: bool = False

    @property
    def content(self) -> tuple[str, int, int, float]:
        """All but the name."""
        return self.key, self.start, self.stop, self.epsilon_dp

    @property
    def mass(self) -> Fraction:
        """Loss per slot summed over the slots."""
        return Fraction(self.epsilon_dp) * (self.stop - self.start)

    @property
    def shape(self) -> Shape:
        """What it costs alone depends on this."""
        return self.stop - self.start, self.epsilon_dp

    @property
    def base_id(self) -> str:
        """The id it came under."""
        return self.entry_id.split(_MARK, 1)[0]

    @property
    def digest(self) -> int:
        """A number in place of the whole entry, 256 bits."""
        text = json.dumps([self.base_id, self.key, self.start, self.stop, self.epsilon_dp.hex()])
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=32).digest(), "big")

    @classmethod
    def new(cls, start: int, stop: int, epsilon_dp: float, *, entry_id: str | None = None, key: str = "") -> Entry:
        """An entry with a random id, or the one given.

        Raises:
            ValueError: If the id is empty or holds a tilde, which marks conflicts.
        """
        if entry_id is not None and (not entry_id or _MARK in entry_id):
            raise ValueError(
                f"entry_id is {entry_id!r}, but must be a name without {_MARK}: leave it out for a new one"
            )
        return cls(secrets.token_hex(16) if entry_id is None else entry_id, key, start, stop, epsilon_dp)


@dataclass(frozen=True)
class Forgotten:
    """What is kept of charges that lie behind the horizon.

    Attributes:
        count: How many there are.
        mass: Their loss per slot, summed over their slots.
        digest: Sum of their digests modulo 2**256: equal for equal charges, in whatever order they were forgotten.
        shapes: How many there are of each length and loss per slot.
    """

    count: int = 0
    mass: Fraction = Fraction(0)
    digest: int = 0
    shapes: Mapping[Shape, int] = field(default_factory=dict[Shape, int])

    def plus(self, entries: Iterable[Entry]) -> Forgotten:
        """With more charges forgotten."""
        listed = list(entries)
        shapes = Counter(self.shapes)
        shapes.update(entry.shape for entry in listed)
        return Forgotten(
            self.count + len(listed),
            self.mass + sum((entry.mass for entry in listed), Fraction(0)),
            (self.digest + sum(entry.digest for entry in listed)) % _WORDS,
            dict(shapes),
        )

    def united(self, other: Forgotten) -> Forgotten:
        """Both: once where they are the same charges, else all of them, as if none were in common."""
        if (self.count, self.digest) == (other.count, other.digest):
            return self
        return Forgotten(
            self.count + other.count,
            self.mass + other.mass,
            (self.digest + other.digest) % _WORDS,
            dict(Counter(self.shapes) + Counter(other.shapes)),
        )


def united(first: Iterable[Entry], second: Iterable[Entry]) -> dict[str, Entry]:
    """All entries of two accounts by id.

    Of several contents under one id the smallest keeps it, the others are renamed.
    """
    every = {(entry.base_id, entry.content) for entry in (*first, *second)}
    found: dict[str, Entry] = {}
    for base, group in groupby(sorted(every), key=lambda pair: pair[0]):
        versions = [content for _, content in group]
        for number, content in enumerate(versions):
            entry = Entry(base, *content, conflict=len(versions) > 1)
            if number:
                entry = replace(entry, entry_id=f"{base}{_MARK}{entry.digest:064x}")
            found[entry.entry_id] = entry
    return found


def doubled(entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], ...]:
    """Entries of one key and window under different ids: each was released, so each counts."""
    ordered = sorted((entry for entry in entries if entry.key), key=lambda entry: (entry.key, entry.start, entry.stop))
    groups = (tuple(group) for _, group in groupby(ordered, key=lambda entry: (entry.key, entry.start, entry.stop)))
    return tuple(group for group in groups if len({entry.base_id for entry in group}) > 1)
