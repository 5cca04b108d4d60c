"""Names that are the same on every machine and in every process.

Python's ``hash`` is salted per process, so shards, release ids and digests all come from BLAKE2 instead.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt


def canonical_json(value: Any) -> str:
    """Write plain data as JSON with sorted keys, no blanks and shortest round-trip floats: equal data, equal text.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value is not plain JSON data.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any) -> str:
    """BLAKE2b of the canonical JSON of ``value``, as 32 hexadecimal digits."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=16).hexdigest()


def stable_hash(name: str) -> int:
    """BLAKE2b of a UTF-8 name as an unsigned 64-bit integer: the hash that assigns series and groups to shards."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=4)
def stable_hashes(names: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """The stable hash of each name, shape (n,), read-only: every part of a job asks for those of one roster."""
    hashes = np.array([stable_hash(name) for name in names], dtype=np.uint64)
    hashes.flags.writeable = False
    return hashes
