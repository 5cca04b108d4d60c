"""The first steps of a job: what the readings say of themselves, and the query put on record.

A graph opens no ledger. Its first step does, of one element, and every step that uses the ledger waits for the answer,
a side input of the global window: no worker charges before it, and all count by the same rosters. A side input, and no
registration by each worker: the roster may change while workers start, two of them would count one window by two
rosters, and one that comes late would put the old roster on record once more. The step is idempotent: a bundle that
runs again, or a template, finds the same record. The side input is ready before the first reading, and holds no
watermark afterwards (tried on FnApiRunner and Prism).

Flink with Beam 2.62 fails at each checkpoint while readings wait for a side input (``[B cannot be cast to
WindowedValue``). There the query is put on record before the graph is built, which has the answer then: a command does
so, and :meth:`.PrivateHistograms.register`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry

from ..schemas.errors import ExitCode, QuiltstreamError
from ..schemas.files import keep_memory_private
from ..schemas.readings import RejectReason
from ..schemas.roster import MOST_SERIES, Roster
from ..schemas.roster import check_number as check_series
from ..schemas.states import StateSpace
from ..store.errors import StoreConflict
from ..store.specs import BeliefChange, DomainSpec, QuerySpec, Registration, RosterVersion
from .aggregate.ledger_access import PatientStore
from .common.batches import READINGS, counter_name, reading_columns
from .completeness import check_version
from .plan import Plan, ledger_at
from .readings.slots import Words
from .registration import Discovered, Outcomes, Registered, register, registered, sum_outcomes, words_of


class LedgerStep(beam.DoFn):
    """A step whose workers use the ledger, which they know once the query is on record."""

    def __init__(self, plan: Plan, *, live: bool) -> None:
        self._plan, self._live = plan, live
        self._record: Registered | None = None
        self._opened: PatientStore | None = None

    def setup(self) -> None:
        """What belongs to the worker."""
        keep_memory_private()

    def teardown(self) -> None:
        """Close the ledger."""
        if self._opened is not None:
            self._opened.close()

    def _known(self) -> Registered:
        """The query on record, which each element brings."""
        if self._record is None:
            raise RuntimeError("nothing is known of the query before the first element")
        return self._record

    def _ledger(self) -> PatientStore:
        """The ledger that the query is on record in, and no other one."""
        if self._opened is None:
            store = ledger_at(self._plan.address.pinned(self._known().store_id))
            self._opened = PatientStore(store, live=self._live, memory=self._plan.memory)
        return self._opened


class Register(beam.DoFn):
    """What the readings say of themselves, where it is needed, to the query on record; see :func:`.registered`."""

    def __init__(self, plan: Plan, *, live: bool, goes_on: bool = False) -> None:
        self._plan, self._live, self._goes_on = plan, live, goes_on

    def process(self, seen: Discovered | bytes) -> Iterator[Registered]:
        """Register."""
        found = seen if isinstance(seen, Discovered) else None
        yield registered(self._plan, found, live=self._live, goes_on=self._goes_on)


class NothingCountsError(QuiltstreamError):
    """No reading of the source counts in any window, and nothing is charged for nothing."""

    exit_code = ExitCode.SOURCE

    @classmethod
    def of(cls, tally: Outcomes) -> NothingCountsError:
        """The error of readings with these outcomes."""
        return cls(
            f"source: no reading counts in any window of any series ({words_of(tally)}), so no window was charged or "
            "published; check how readings tells to read the source, windows.start, windows.stop and roster, or run "
            "with --even-if-empty to publish windows without readings"
        )


class RegisterCounted(beam.DoFn):
    """The tally of all readings that end to the query on record, for which the step that charges waits.

    Where no reading counts nothing is put on record: a wrong delimiter, unit of time or roster would be charged the
    whole budget for rows of noise, and its settings could not be corrected any more. What is on record already comes
    out as it is.
    """

    def __init__(self, plan: Plan, *, even_if_empty: bool) -> None:
        self._plan = plan
        self._even_if_empty = even_if_empty

    def process(self, tally: Outcomes, planned: Registered, seen: Discovered | None = None) -> Iterator[Registered]:
        """Register the query.

        Raises:
            NothingCountsError: no reading counts, and something is not published yet.
            StoreError: the store cannot be used, or another job was first with another content.
        """
        plan = replace(self._plan, address=self._plan.address.pinned(planned.store_id))
        with ledger_at(plan.address) as store:
            if not tally.get(READINGS) and not self._even_if_empty:
                held = store.registered(plan.domain.name, plan.query_name)
                alike = held is not None and _counted_by(held) == _counted_by(planned.now)
                if held is None or not alike or next(store.missing(held), None) is not None:
                    raise NothingCountsError.of(tally)
            made = register(plan, seen)
            if plan.lost is not None:
                store.note_history_lost(plan.domain.name, releases=plan.lost)
        if _counted_by(made) != _counted_by(planned.now):
            raise StoreConflict(
                f"query {plan.query_name!r}: another job put it on record meanwhile, with other series, windows or "
                "shards than this one counted by; nothing was charged by this job: run it again"
            )
        yield replace(planned, now=made)


def _counted_by(held: Registration) -> tuple[object, ...]:
    """What cells are encoded by: those of two registrations that agree in it are the same."""
    query = held.query
    return held.digest, query.schedule, query.shards, query.roster, held.versions, held.series


class DiscoverSchedule(beam.CombineFn):
    """Record batches of readings to one :class:`Discovered`, of those that may count.

    Args:
        most: how many series, each with a group, the data may have where they are the roster.
        grouped: whether the readings name groups.
        roster: the series, where they are given.
        space: the states; readings of none do not count.
        words: what is said of several readings of a series.
    """

    def __init__(
        self,
        most: int = MOST_SERIES,
        *,
        grouped: bool = False,
        roster: Roster | None = None,
        space: StateSpace | None = None,
        words: Words | None = None,
    ) -> None:
        super().__init__()
        self._most = most
        self._words = words
        self._grouped = grouped
        self._series = None if roster is None else frozenset(roster.series)
        self._space = space

    def get_accumulator_coder(self) -> Coder:
        """No pickle."""
        return DiscoveredCoder()

    def _check(self, seen: Discovered) -> Discovered:
        what = "series, each with a group that its readings name" if self._grouped else "series"
        check_series(len(seen.spans), self._most, "source, whose series are the roster", what)
        return seen

    def create_accumulator(self) -> Discovered:
        """Nothing seen."""
        return Discovered()

    def add_input(self, mutable_accumulator: Discovered, element: pa.RecordBatch) -> Discovered:
        """Look at a batch."""
        seen = mutable_accumulator
        held = self._words is not None and self._words.hold_us is not None
        columns = reading_columns(element, grouped=self._grouped, marks=held)
        names, good, rejects = columns.names.to_pylist(), columns.good, dict(columns.problems)
        if self._series is not None:
            # one more, for a batch without any name
            known = np.array([*(name in self._series for name in names), False])[columns.series]
            rejects[RejectReason.NOT_IN_ROSTER], good = good & ~known, good & known
        if self._space is not None and self._space.categories:
            labelled = self._space.are_states(columns.values) | np.isnan(columns.values)
            rejects[RejectReason.UNKNOWN_LABEL], good = good & ~labelled, good & labelled
        tally = {counter_name(reason): int(np.count_nonzero(bad)) for reason, bad in rejects.items()}
        seen.tally = sum_outcomes((seen.tally, tally, {READINGS: int(np.count_nonzero(good))}))
        if not good.any():
            return seen
        times, pairs = columns.times[good], columns.series[good]
        # the last instant that a reading is about
        ends = times if self._words is None or columns.lengths is None else times + columns.lengths[good] - 1
        if self._series is not None:
            seen.extend((int(times.min()), int(ends.max())))
            return seen
        groups = [""]
        if columns.groups is not None and columns.group is not None:
            groups = columns.groups.to_pylist()
            pairs = pairs * len(groups) + columns.group[good]
        found, place = np.unique(pairs, return_inverse=True)
        first, last = np.full((2, len(found)), times[0])
        np.minimum.at(first, place, times)
        np.maximum.at(last, place, ends)
        # a name that stands in a dictionary twice is sighted twice
        for pair, *span in zip(found.tolist(), first.tolist(), last.tolist(), strict=True):
            seen.sight(names[pair // len(groups)], groups[pair % len(groups)], (span[0], span[1]))
        return self._check(seen)

    def merge_accumulators(self, accumulators: Iterable[Discovered]) -> Discovered:
        """Unite what several workers saw."""
        merged = Discovered()
        for one in accumulators:
            if one.span is not None:
                merged.extend(one.span)
            for (series, group), span in one.spans.items():
                merged.sight(series, group, span)
            merged.tally = sum_outcomes((merged.tally, one.tally))
            self._check(merged)
        return merged

    def extract_output(self, accumulator: Discovered) -> Discovered:
        """What was seen."""
        return accumulator


#: Of these forms; others get another number.
VERSION = 1


def _written(plain: Any) -> bytes:
    """A version and compressed JSON: no pickle, which a renamed class would break."""
    return bytes([VERSION]) + zlib.compress(json.dumps(plain).encode())


def _read(encoded: bytes) -> Any:
    """The inverse.

    Raises:
        StateError: it is of another version.
    """
    check_version(encoded[0], VERSION)
    return json.loads(zlib.decompress(encoded[1:]))


class DiscoveredCoder(Coder):
    """Coder of :class:`Discovered`."""

    def encode(self, value: Discovered) -> bytes:
        """Write a value."""
        return _written([value.span, [(*names, *span) for names, span in value.spans.items()], value.tally])

    def decode(self, encoded: bytes) -> Discovered:
        """Read a value."""
        span, spans, tally = _read(encoded)
        seen = {(series, group): (first, last) for series, group, first, last in spans}
        return Discovered(None if span is None else (span[0], span[1]), seen, tally)

    def is_deterministic(self) -> bool:
        """It is."""
        return True

    def to_type_hint(self) -> Any:
        """What the coder is registered for."""
        return Discovered


class RegisteredCoder(Coder):
    """Coder of :class:`Registered`; what was decoded last is remembered, as a side input is decoded for each bundle."""

    def encode(self, value: Registered) -> bytes:
        """Write a value."""
        before = None if value.before is None else _plain(value.before)
        return _written([value.store_id, _plain(value.now), before])

    def decode(self, encoded: bytes) -> Registered:
        """Read a value."""
        return _registered(encoded)

    def is_deterministic(self) -> bool:
        """It is."""
        return True

    def to_type_hint(self) -> Any:
        """What the coder is registered for."""
        return Registered


@lru_cache(maxsize=4)
def _registered(encoded: bytes) -> Registered:
    store_id, now, before = _read(encoded)
    return Registered(store_id, _registration(now), None if before is None else _registration(before))


#: Plain fields of a registration.
_FIELDS = ("digest", "admitted_stop", "reserved_loss", "fresh", "revision", "belief")


def _plain(made: Registration) -> dict[str, Any]:
    return {
        **{name: getattr(made, name) for name in _FIELDS},
        "domain": asdict(made.domain),
        "query": {"name": made.query.name, **made.query.to_row()},
        "roster": _entries(made.query.roster),
        "versions": [(one.start, _entries(one.roster), one.number, one.created_us) for one in made.versions],
        "settling": [(one.start, _entries(one.roster), one.number, one.created_us) for one in made.settling],
        "joined": made.joined,
    }


def _entries(roster: Roster) -> tuple[Any, ...]:
    return roster.entries, roster.kind


def _roster(plain: Any) -> Roster:
    entries, kind = plain
    return Roster(tuple((series, group) for series, group in entries), kind)


def _registration(plain: dict[str, Any]) -> Registration:
    domain, query = plain["domain"], plain["query"]
    changes = tuple(BeliefChange(**one | {"series_hashes": tuple(one["series_hashes"])}) for one in domain["changes"])
    domain |= {"changes": changes, "shares_with": tuple(domain["shares_with"])}

    def versions(name: str) -> tuple[RosterVersion, ...]:
        return tuple(RosterVersion(start, _roster(roster), *rest) for start, roster, *rest in plain[name])

    return Registration(
        **{name: plain[name] for name in _FIELDS},
        domain=DomainSpec(**domain),
        query=replace(QuerySpec.of_row(domain["name"], query["name"], query), roster=_roster(plain["roster"])),
        versions=versions("versions"),
        settling=versions("settling"),
        joined=tuple(plain["joined"]),
    )


registry.register_coder(Discovered, DiscoveredCoder)
registry.register_coder(Registered, RegisteredCoder)
