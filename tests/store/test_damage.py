"""Damage that only an SQLite ledger has: of any byte of the file."""

from __future__ import annotations

import random
import secrets
import shutil
import sqlite3
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from quiltstream.store import Store, StoreDamaged, StoreError

from ..depth import NIGHT
from .damage import everything, fill, windows_of
from .integrity_contract import Done, done_of, run_again
from .samples import drafts

#: Bits of the file that are flipped, and the seed of a push. Nightly each run has a seed of its own.
FLIPS = 5_000 if NIGHT else 24
SEED = 12


def address(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.mark.night
def test_a_bit_flipped_anywhere_in_the_file_is_detected_or_has_no_effect(tmp_path: Path) -> None:
    """A job that begins again publishes what is on record and draws nothing for it, or stops with an error of ours."""
    path = tmp_path / "whole" / "ledger.db"
    with Store(address(path), create=True) as store:
        done, before = done_of(store, fill(store)), everything(store)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")  # everything is in the file
    data = path.read_bytes()
    seed = secrets.randbits(32) if NIGHT else SEED
    print(f"seed {seed}")  # noqa: T201 - of a random test
    chance = random.Random(seed)
    written = [place for place, byte in enumerate(data) if byte]
    outcomes: Counter[str] = Counter()
    for number in range(FLIPS):
        # half of them where something is written: much of a small file is empty
        place = chance.choice(written) if number % 2 else chance.randrange(len(data))
        bit = chance.randrange(8)
        with with_flipped(data, place, bit, tmp_path / f"{number}") as damaged:
            outcomes[begun_again(damaged, done, before, f"seed {seed}: byte {place}, bit {bit}")] += 1
    assert outcomes["told"] > FLIPS / 10, outcomes
    assert outcomes["without effect"] > FLIPS / 10, outcomes


def test_a_damaged_schema_text_is_reported_as_damage(tmp_path: Path) -> None:
    """SQLite's message quotes that text, and its driver cannot decode the message."""
    path = tmp_path / "ledger.db"
    with Store(address(path), create=True) as store:
        store.domains()
    data = path.read_bytes()
    assert data.count(b"CREATE TABLE quiltstream_heads") == 1
    path.write_bytes(data.replace(b"CREATE TABLE quiltstream_heads", b"CREATE \xe8ABLE quiltstream_heads"))
    with Store(address(path), create=True) as store, pytest.raises(StoreDamaged, match="the file is damaged"):
        store.domains()


@contextmanager
def with_flipped(data: bytes, place: int, bit: int, folder: Path) -> Generator[Path]:
    """A ledger of these bytes with one bit flipped, in a folder that is removed afterwards."""
    flipped = bytearray(data)
    flipped[place] ^= 1 << bit
    folder.mkdir()
    path = folder / "ledger.db"
    path.write_bytes(flipped)
    yield path
    shutil.rmtree(folder)


def begun_again(path: Path, done: Done, before: dict[str, object], what: str) -> str:
    """Begin jobs again on a damaged ledger; whether the damage is told."""
    try:
        with Store(address(path), create=True) as store:
            run_again(store, done)
            assert everything(store) == before, what
            (held, *_) = (one for one, _ in done)
            window = windows_of(held)[-1]
            store.publish(held, drafts(held, [window]))
            rows = everything(store)["rows"]
            for names, batches in rows.items():
                kept = [row for batch in before["rows"][names] for row in batch]  # type: ignore[index]
                assert [row for batch in batches for row in batch][: len(kept)] == kept, what
    except StoreError:
        return "told"
    return "without effect"
