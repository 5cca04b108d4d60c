"""Plain data, rosters and blocks as the bytes of a row's blob."""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import metadata as packages
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..schemas.digests import canonical_json
from ..schemas.roster import Roster
from .errors import damaged


def plain(value: Any) -> Any:
    """Plain data as it comes back from the store: tuples become lists."""
    return json.loads(canonical_json(value))


def now_us() -> int:
    """The wall clock: microseconds since the epoch, UTC."""
    return time.time_ns() // 1_000


def library_version() -> str:
    """The version of this package, for the record."""
    try:
        return packages.version("quiltstream")
    except packages.PackageNotFoundError:
        return "not installed"


def scale_text(scale: Fraction) -> str:
    """An exact scale as text."""
    return f"{scale.numerator}/{scale.denominator}"


def packed(value: Any) -> bytes:
    """Plain data, compressed: what may not be shown with a row's body."""
    return zlib.compress(canonical_json(value).encode())


def unpacked(blob: bytes | None) -> Any:
    """The inverse of :func:`packed`."""
    return json.loads(zlib.decompress(blob or b""))


def delta_bytes(before: Roster | None, after: Roster) -> bytes:
    """What a roster has that the one before it had not, and the other way round."""
    earlier = () if before is None else before.entries
    old, new = set(earlier), set(after.entries)
    joined, left = ([one for one in of if one not in other] for of, other in ((after.entries, old), (earlier, new)))
    return packed({"joined": joined, "left": left})


def after_delta(before: Roster, delta: bytes) -> tuple[Roster, list[str]]:
    """The roster that a delta makes of the one before it, and the series that joined, in the order of their names."""
    changed = unpacked(delta)
    joined = [(name, group) for name, group in changed["joined"]]
    left = {(name, group) for name, group in changed["left"]}
    kept = before.entries if not left else [pair for pair in before.entries if pair not in left]
    return Roster((*kept, *joined), before.kind), list(dict.fromkeys(name for name, _ in joined))


@dataclass(frozen=True, slots=True)
class NoisyBlock:
    """The noisy histograms of one shard in one window."""

    keys: tuple[str, ...]  # names of the n series or groups
    totals: npt.NDArray[np.int64]  # cells counted per key, shape (n,); meaningful only where that number is public
    counts: npt.NDArray[np.int64]  # noisy counts, shape (n, k)
    completeness: str = "live"  # ``live``, ``replayed``, ``silent`` or ``unavailable``

    def as_public(self, *, with_totals: bool) -> NoisyBlock:
        """The block as everyone reads it from the record: totals that are not public are 0."""
        return self if with_totals else replace(self, totals=np.zeros_like(self.totals))


_VERSION = {"quiltstream.block": b"1"}

# a pool of threads is of no use for a few columns of some kilobytes, and takes longer than they do
_READ = pa.ipc.IpcReadOptions(use_threads=False)
_WRITE = pa.ipc.IpcWriteOptions(compression="zstd" if pa.Codec.is_available("zstd") else None, use_threads=False)

#: What decoders raise, of Arrow and of values.
_UNDECODED = (ValueError, LookupError, TypeError, AttributeError, OSError, StopIteration, pa.ArrowException)


def block_bytes(block: NoisyBlock, *, with_totals: bool) -> bytes:
    """A block as an Arrow stream; numbers of cells that are not public never reach the store."""
    n, k = block.counts.shape
    schema = pa.schema(
        [
            pa.field("key", pa.utf8(), nullable=False),
            pa.field("total", pa.int64()),
            pa.field("counts", pa.list_(pa.int64(), k), nullable=False),
        ],
        metadata=_VERSION,
    )
    totals = pa.array(block.totals, pa.int64()) if with_totals else pa.nulls(n, pa.int64())
    counts = pa.FixedSizeListArray.from_arrays(pa.array(block.counts.reshape(-1), pa.int64()), k)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_WRITE) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(block.keys, pa.utf8()), totals, counts], schema=schema))
    return sink.getvalue().to_pybytes()


def block_from_bytes(data: bytes, completeness: str) -> NoisyBlock:
    """The inverse of :func:`block_bytes`; totals that are not public come back as 0."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data), options=_READ) as reader:
            batch = next(iter(reader))
            if (reader.schema.metadata or {}).get(b"quiltstream.block") != b"1":
                raise damaged("a block", "is of a version that this program does not know")
        width = batch.schema.field("counts").type.list_size
        flat = batch.column("counts").flatten().to_numpy(zero_copy_only=False)
        totals = batch.column("total").fill_null(0).to_numpy(zero_copy_only=False)
        keys: tuple[str, ...] = tuple(batch.column("key").to_pylist())
        counts: npt.NDArray[np.int64] = flat.astype(np.int64).reshape(len(keys), width)
        return NoisyBlock(keys, totals.astype(np.int64), counts, completeness)
    except _UNDECODED as error:
        raise damaged("a block", f"cannot be decoded ({type(error).__name__})") from None
