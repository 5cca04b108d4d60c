"""Values to and from the rows of the log: domains and queries as plain data, rosters and blocks as bytes."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable
from dataclasses import asdict, replace
from fractions import Fraction
from importlib import metadata as packages
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..schemas.calendars import Calendar
from ..schemas.digests import canonical_json
from ..schemas.roster import Roster
from ..schemas.slots import Schedule
from .log import damaged
from .specs import BeliefChange, DomainSpec, NoisyBlock, QuerySpec

BLOCK_VERSION = b"1"


def plain(value: Any) -> Any:
    """Plain data as it comes back from the store: tuples become lists."""
    return json.loads(canonical_json(value))


def now_us() -> int:
    """Microseconds since the epoch, UTC; for people, nothing is decided by it."""
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


def domain_body(domain: DomainSpec) -> tuple[dict[str, Any], bytes]:
    """What is written of a domain, and its blob: the belief may hold statistics of a history."""
    body = domain.frozen_fields() | {"budget": domain.budget}
    return body, packed(body.pop("belief"))


def domain_of(name: str, body: dict[str, Any], blob: bytes | None) -> DomainSpec:
    """The inverse of :func:`domain_body`."""
    return DomainSpec(
        name=name,
        grid=body["slots"],
        states=body["states"],
        belief=unpacked(blob),
        model_id=body["model_id"],
        guarantee=body["guarantee"],
        budget=float(body["budget"]),
        missing=body["missing"],
        reading=body["readings"],
    )


def query_body(query: QuerySpec) -> dict[str, Any]:
    """What is written of a query, but for its roster."""
    schedule = query.schedule
    return {
        "scale": scale_text(query.scale),
        "release_epsilon_dp": query.release_epsilon_dp,
        "mechanism": query.mechanism,
        "given_model": query.given_model,
        "most": query.most,
        "size": schedule.size,
        "every": schedule.every,
        "anchor": schedule.anchor,
        "start": schedule.start,
        "stop": schedule.stop,
        "calendar": None if schedule.calendar is None else schedule.calendar.to_dict(),
        "shards": query.shards,
        "kind": query.roster.kind,
        "header": query.header,
    }


def query_of(domain: str, name: str, body: dict[str, Any]) -> QuerySpec:
    """The inverse of :func:`query_body`, with a roster without series; schedule and roster count as given."""
    calendar = body["calendar"]
    numbers = body["size"], body["every"], body["start"], body["stop"], body["anchor"]
    return QuerySpec(
        name=name,
        domain=domain,
        scale=Fraction(body["scale"]),
        release_epsilon_dp=float(body["release_epsilon_dp"]),
        mechanism=body["mechanism"],
        schedule=Schedule(*numbers, None if calendar is None else Calendar.from_dict(calendar)),
        schedule_given=True,
        roster=Roster((), body["kind"]),
        roster_given=True,
        shards=body["shards"],
        header=body["header"],
        given_model=body["given_model"],
        multiplicity=body["most"],
    )


def change_body(change: BeliefChange) -> tuple[dict[str, Any], bytes]:
    """What is written of a change of belief, and its blob: hashes of series can be guessed from their names."""
    body = asdict(change)
    return body, packed({name: body.pop(name) for name in ("belief", "series_hashes")})


def change_of(body: dict[str, Any], blob: bytes | None) -> BeliefChange:
    """The inverse of :func:`change_body`."""
    hidden = unpacked(blob)
    return BeliefChange(**body, belief=hidden["belief"], series_hashes=tuple(hidden["series_hashes"]))


Entries = Iterable[tuple[str, str | None]]
"""Series, each with its group or with none."""


def delta_bytes(before: Roster | None, after: Roster) -> bytes:
    """What a roster has that the one before it had not, and the other way round, compressed."""
    old, new = set(() if before is None else before.entries), set(after.entries)
    changed = {"joined": _sorted(new - old), "left": _sorted(old - new)}
    return packed(changed)


def _sorted(entries: Entries) -> list[tuple[str, str | None]]:
    return sorted(entries, key=lambda pair: (pair[0], pair[1] or ""))


def after_delta(before: Roster, delta: bytes) -> tuple[Roster, list[str]]:
    """The roster that a delta makes of the one before it, and the series that joined, in the order of their names."""
    changed = unpacked(delta)
    joined = [(name, group) for name, group in changed["joined"]]
    left = {(name, group) for name, group in changed["left"]}
    kept = before.entries if not left else [pair for pair in before.entries if pair not in left]
    return Roster((*kept, *joined), before.kind), list(dict.fromkeys(name for name, _ in joined))


_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)

#: What decoders raise, of Arrow and of values.
_UNDECODED = (ValueError, LookupError, TypeError, AttributeError, OSError, pa.ArrowException)


def block_bytes(block: NoisyBlock, *, with_totals: bool) -> bytes:
    """A block as an Arrow stream; numbers of cells that are not public never reach the store."""
    n, k = block.counts.shape
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(block.keys, pa.utf8()),
            pa.array(block.totals, pa.int64()) if with_totals else pa.nulls(n, pa.int64()),
            pa.FixedSizeListArray.from_arrays(pa.array(block.counts.reshape(-1), pa.int64()), k),
        ],
        schema=pa.schema(
            [
                pa.field("key", pa.utf8(), nullable=False),
                pa.field("total", pa.int64()),
                pa.field("counts", pa.list_(pa.int64(), k), nullable=False),
            ],
            metadata={"quiltstream.block": BLOCK_VERSION},
        ),
    )
    sink = pa.BufferOutputStream()
    compression = "zstd" if pa.Codec.is_available("zstd") else None
    # a pool of threads is of no use for a few columns of some kilobytes, and takes longer than they do
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def block_from_bytes(data: bytes, completeness: str) -> NoisyBlock:
    """The inverse of :func:`block_bytes`; totals that are not public come back as 0."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data), options=_ONE_THREAD) as reader:
            batch = next(iter(reader))
            if (reader.schema.metadata or {}).get(b"quiltstream.block") != BLOCK_VERSION:
                raise damaged("a block", "is of a version that this program does not know")
        width = batch.schema.field("counts").type.list_size
        flat = batch.column("counts").flatten().to_numpy(zero_copy_only=False)
        totals = batch.column("total").fill_null(0).to_numpy(zero_copy_only=False)
        keys: tuple[str, ...] = tuple(batch.column("key").to_pylist())
        counts: npt.NDArray[np.int64] = flat.astype(np.int64).reshape(len(keys), width)
        return NoisyBlock(keys=keys, totals=totals.astype(np.int64), counts=counts, completeness=completeness)
    except (*_UNDECODED, StopIteration) as error:
        raise damaged("a block", f"cannot be decoded ({type(error).__name__})") from None


def as_public(block: NoisyBlock, *, with_totals: bool) -> NoisyBlock:
    """A block as everyone reads it from the record."""
    return block if with_totals else replace(block, totals=np.zeros_like(block.totals))
