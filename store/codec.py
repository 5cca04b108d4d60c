"""Specifications and blocks as the values of table rows, and back.

A block is one binary value, an Arrow stream with the columns ``key``, ``total`` and ``counts``: whatever the noise
was, it is bytes to the database, so that no value of it can make a write fail.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from fractions import Fraction
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..schemas.calendars import Calendar
from ..schemas.digests import canonical_json
from ..schemas.ledger import Decision, LedgerEntry
from ..schemas.roster import Roster
from ..schemas.slots import Schedule, SlotGrid
from .errors import StoreDamaged
from .integrity import Chain, Row, damaged
from .specs import LENGTHS, BeliefChange, DomainSpec, NoisyBlock, QuerySpec

BLOCK_VERSION = b"1"

#: Name of the calendar in a query's header on record.
_CALENDAR = "calendar"

_Given = ParamSpec("_Given")
_Read = TypeVar("_Read")


def _decoding(read: Callable[_Given, _Read]) -> Callable[_Given, _Read]:
    """Tell what cannot be decoded as damage; the decoder's own text may quote it."""

    @wraps(read)
    def told(*args: _Given.args, **kwargs: _Given.kwargs) -> _Read:
        try:
            return read(*args, **kwargs)
        except _UNDECODED as error:
            what = read.__name__.removesuffix("_from_row").removesuffix("_from_bytes").replace("_", " ")
            raise damaged(f"a value on record ({what})", f"cannot be decoded ({type(error).__name__})") from None

    return told


#: What decoders raise: of JSON and UTF-8, zlib, fractions, schedules and rosters, and Arrow.
_UNDECODED = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    OSError,
    zlib.error,
    pa.ArrowException,
)


def plain(value: Any) -> Any:
    """Plain data as it comes back from the store: tuples become lists."""
    return json.loads(canonical_json(value))


def now_us() -> int:
    """Microseconds since the epoch, UTC; for people, nothing is decided by it."""
    return time.time_ns() // 1_000


def scale_text(scale: Fraction) -> str:
    """An exact scale as text."""
    return f"{scale.numerator}/{scale.denominator}"


@lru_cache(maxsize=8)
def _frozen_of(text: str) -> dict[str, Any]:
    """What a domain has frozen, shared by all callers: each charge needs it, and a certified model is a megabyte."""
    return json.loads(text)


@_decoding
def domain_from_row(row: Row) -> DomainSpec:
    """The domain of record, with the budget now in force."""
    frozen = _frozen_of(row["frozen"])
    return DomainSpec(
        name=row["name"],
        grid=deepcopy(frozen["slots"]),
        states=deepcopy(frozen["states"]),
        belief=frozen["belief"],
        model_id=frozen["model_id"],
        guarantee=frozen["guarantee"],
        budget=float(row["budget"]),
        missing=frozen["missing"],
        reading=deepcopy(frozen["readings"]),
        changes=changes_from_text(row["changes"]),
    )


def domain_values(domain: DomainSpec) -> dict[str, Any]:
    """The columns of a domain that nothing is charged or promised of yet."""
    return {
        "name": domain.name,
        "frozen": canonical_json(domain.frozen_fields()),
        "budget": domain.budget,
        "reserved_loss": 0.0,
        "last_sequence": 0,
        "changes": changes_text(domain.changes),
        "head": Chain(domain.name).head,
        "query_rows": 0,
        "event_rows": 0,
    }


def changes_text(changes: Sequence[BeliefChange]) -> str | None:
    """Changes of a belief as text; ``None`` for none."""
    return canonical_json([asdict(one) for one in changes]) if changes else None


@_decoding
@lru_cache(maxsize=8)
def changes_from_text(text: str | None) -> tuple[BeliefChange, ...]:
    """The inverse of :func:`changes_text`."""
    return () if text is None else tuple(_change(plain) for plain in json.loads(text))


def _change(plain: dict[str, Any]) -> BeliefChange:
    plain["series_hashes"] = tuple(plain.get("series_hashes", ()))  # those of older ledgers tell none
    return BeliefChange(**plain)


def query_values(query: QuerySpec) -> dict[str, Any]:
    """The columns of a query that come from its specification alone."""
    schedule = query.schedule
    # the bounds of windows that are a calendar's have no columns
    calendar = {} if schedule.calendar is None else {_CALENDAR: schedule.calendar.to_dict()}
    return {
        "name": query.name,
        "scale": scale_text(query.scale),
        "release_epsilon_dp": query.release_epsilon_dp,
        "epsilon_dp": query.epsilon_dp,
        "mechanism": query.mechanism,
        "given_model": query.given_model,
        "size": schedule.size,
        "every": schedule.every,
        "anchor": schedule.anchor,
        "start": schedule.start,
        "stop": schedule.stop,
        "shards": query.shards,
        "header": canonical_json(query.header | calendar),
    }


@lru_cache(maxsize=16)
def _header_of(text: str) -> tuple[dict[str, Any], Calendar | None]:
    header = json.loads(text)
    calendar = header.pop(_CALENDAR, None)
    return header, None if calendar is None else Calendar.from_dict(calendar)


@_decoding
def query_from_row(row: Row, domain: str, roster: Roster) -> QuerySpec:
    """The query of record; its schedule and roster count as given."""
    return QuerySpec(
        name=row["name"],
        domain=domain,
        scale=Fraction(row["scale"]),
        release_epsilon_dp=float(row["release_epsilon_dp"]),
        mechanism=row["mechanism"],
        schedule=query_schedule(row),
        schedule_given=True,
        roster=roster,
        roster_given=True,
        shards=row["shards"],
        header=deepcopy(_header_of(row["header"])[0]),
        given_model=bool(row["given_model"]),
        multiplicity=round(float(row["epsilon_dp"]) / float(row["release_epsilon_dp"])),
    )


@_decoding
def query_schedule(row: Row) -> Schedule:
    """The windows of a query of record."""
    columns = row["size"], row["every"], row["start"], row["stop"], row["anchor"]
    return Schedule(*columns, _header_of(row["header"])[1])


@_decoding
def query_losses(row: Row) -> float | dict[int, float]:
    """What windows of a query of record are charged per slot: ``QuerySpec.losses``."""
    charged, released = float(row["epsilon_dp"]), float(row["release_epsilon_dp"])
    lengths = _header_of(row["header"])[0].get(LENGTHS)
    if lengths is None:
        return charged
    return {int(slots): float(own["epsilon_dp"]) * round(charged / released) for slots, own in lengths.items()}


def as_recorded(query: QuerySpec) -> QuerySpec:
    """A query as it will be read back, so that the first registration returns what every later one does."""
    return replace(query, schedule_given=True, roster_given=True, header=plain(query.header), multiplicity=query.most)


@_decoding
def roster_from_bytes(data: bytes) -> Roster:
    """The roster that ``packed`` made these bytes of."""
    return Roster.unpacked(bytes(data))


def names_bytes(names: Sequence[str]) -> bytes:
    """Names of series in their order, compressed."""
    return zlib.compress(canonical_json(list(names)).encode())


@_decoding
def names_from_bytes(data: bytes) -> list[str]:
    """The inverse of :func:`names_bytes`."""
    return json.loads(zlib.decompress(data))


@_decoding
def entry_from_row(row: Row, domain: DomainSpec, query: Row) -> LedgerEntry:
    """A charge or refusal in its public form."""
    return entry_reader(domain, query)(row, b"")


def entry_reader(domain: DomainSpec, query: Row) -> Callable[[Row, bytes], LedgerEntry]:
    """What makes the public form of a query's charges and refusals: of its row and the head of the chain up to it."""
    grid, name, mechanism = SlotGrid(**domain.grid), query["name"], query["mechanism"]
    model_id = domain.beliefs[query["belief"]][1]

    @_decoding
    def entry(row: Row, chain: bytes) -> LedgerEntry:
        start, stop = row["window_start"], row["window_stop"]
        return LedgerEntry(
            entry_id=row["entry_id"],
            sequence=row["sequence"],
            domain=domain.name,
            query=name,
            query_digest=row["query_digest"],
            window_start=start,
            window_stop=stop,
            start_us=grid.time_of(start),
            stop_us=grid.time_of(stop),
            decision=cast("Decision", row["decision"]),
            epsilon_dp=float(row["epsilon_dp"]),
            loss_before=float(row["loss_before"]),
            loss_after=float(row["loss_after"]),
            budget=float(row["budget"]),
            rule=row["rule"],
            mechanism=mechanism,
            model_id=model_id,
            given_model=bool(row["given_model"]),
            row_digest=row["row_digest"].hex(),
            chain=chain.hex(),
        )

    return entry


_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)


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


@_decoding
def block_from_bytes(data: bytes, completeness: str) -> NoisyBlock:
    """The inverse of :func:`block_bytes`; totals that are not public come back as 0."""
    with pa.ipc.open_stream(pa.py_buffer(data), options=_ONE_THREAD) as reader:
        batch = next(iter(reader), None)
        version = (reader.schema.metadata or {}).get(b"quiltstream.block")
    if version != BLOCK_VERSION or batch is None:
        raise StoreDamaged("ledger: a block of another version; use the quiltstream that wrote it, or a later one")
    width = batch.schema.field("counts").type.list_size
    flat = batch.column("counts").flatten().to_numpy(zero_copy_only=False)
    totals = batch.column("total").fill_null(0).to_numpy(zero_copy_only=False)
    keys: tuple[str, ...] = tuple(batch.column("key").to_pylist())
    counts: npt.NDArray[np.int64] = flat.astype(np.int64).reshape(len(keys), width)
    return NoisyBlock(keys=keys, totals=totals.astype(np.int64), counts=counts, completeness=completeness)
