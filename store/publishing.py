"""Publishing: charge windows and keep blocks, in one transaction under the domain's lock.

The first write wins for ever: a later attempt at the same window and shard gets the first block back, and its own noise
is never even drawn (theory, section 7, items 2 and 3).

A job that needs a window charges all earlier ones of the query as well, so the entries of a query are always the first
so many windows of its schedule, whatever arrived first. A window that is charged has the roster that was the newest
then, for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from ..schemas.releases import COMPLETENESS
from ..schemas.slots import Window
from .codec import NoisyBlock, block_bytes, block_from_bytes, now_us, scale_text
from .database import Writing
from .domain import Domain, Query
from .errors import StoreConflict, damaged, shown
from .registration import Registrar
from .specs import BlockKey, BlockToPublish, Record, Registration, layout_of, total_is_public

#: Windows charged in one transaction at most: a late start must not keep the other writers of a domain waiting.
MOST_AT_ONCE = 1_000


@dataclass(frozen=True)
class Publisher:
    """Publishes drafts of one query inside a transaction that holds the domain's lock."""

    writing: Writing
    registration: Registration

    def publish(self, drafts: Sequence[BlockToPublish]) -> list[Record] | None:
        """Put the drafts on record, or find what is.

        Returns:
            One record a draft, in their order; ``None`` where so many windows came before these that only some of them
            were charged: the caller commits and calls again.
        """
        held, query = self._held()
        for window in {draft.window for draft in drafts}:
            self._check_roster(query, window)
        if not self._charge_through(held, query, max(draft.window for draft in drafts)):
            return None
        wanted: dict[BlockKey, BlockToPublish] = {}
        for draft in drafts:
            start = draft.window.start
            if start not in query.entries:
                raise damaged(f"query {query.spec.name!r}", "has no entry for windows before the last one charged")
            if query.entries[start].charged:
                wanted.setdefault((start, draft.shard), draft)  # of two of one place, the first is on record
        there = {place: query.blocks[place] for place in wanted if place in query.blocks}
        read = self.writing.blobs(held.name)({one.seq: one.digest for one in there.values()}) if there else {}
        blocks = {place: block_from_bytes(read[one.seq], one.completeness) for place, one in there.items()}
        for place, draft in wanted.items():
            if place not in there:
                blocks[place] = self._draw(held, query, draft)
        reader = held.reader(query)
        entries = {start: reader(query.entries[start]) for start in {draft.window.start for draft in drafts}}

        def record(draft: BlockToPublish) -> Record:
            place = draft.window.start, draft.shard
            fresh = place not in there and wanted.get(place) is draft
            return Record(draft.window, draft.shard, entries[place[0]], blocks.get(place), fresh)

        return [record(draft) for draft in drafts]

    def charge_windows(self, last: Window, begun: Registration | None = None) -> bool:
        """Charge all windows up to one, which fixes their rosters, whatever the registration says of them.

        ``begun`` is what was on record when the job began, if its rosters are to be those of
        :meth:`.Registration.as_begun`; the newest if left out.

        Returns:
            Whether the window is on record then; else the caller commits and calls again.
        """
        held, query = self._held()
        settled = self.registration.settled_from(query.versions[-1].created_us) <= query.next_start
        if begun is None or query.revision <= begun.revision or settled:
            return self._charge_through(held, query, last)
        return self._charge_as_begun(begun, held, query, last)

    def _held(self) -> tuple[Domain, Query]:
        """Domain and query on record, which are those of the registration."""
        names = self.registration.domain.name, self.registration.query.name
        held = self.writing.domain(names[0])
        query = None if held is None else held.queries.get(names[1])
        if held is None or query is None:
            raise StoreConflict(
                f"query {names[1]!r} of domain {names[0]!r} is not on record here: another ledger, or an older copy of "
                "it? register the query again, or restore the newer copy"
            )
        _check_same(self.registration, query)
        return held, query

    def _charge_as_begun(self, begun: Registration, held: Domain, query: Query, last: Window) -> bool:
        """Charge the next windows up to one that have one roster, as a job counts them that began earlier.

        Windows that are not charged have the newest roster. So an older one holds from the first of these windows on,
        and the newest again from behind the last of them.
        """
        windows = query.ahead(last, MOST_AT_ONCE)
        if not windows:
            return True
        now = held.registration(query, self.writing.blobs(held.name))
        seen, newest, created_us = now.as_begun(begun), now.query.roster, query.versions[-1].created_us
        roster = seen.roster_of(windows[0])
        alike = list(takewhile(lambda window: seen.roster_of(window) == roster, windows))
        registrar = Registrar(self.writing, held.name)
        if roster != newest:
            registrar.add_version(query, newest, roster, windows[0].start, created_us=created_us, keep=True)
        self._charge_through(held, query, alike[-1])
        if roster != newest:
            registrar.add_version(query, roster, newest, query.next_start, created_us=created_us, keep=True)
        return alike[-1] == last

    def _charge_through(self, held: Domain, query: Query, last: Window) -> bool:
        """Charge or refuse the windows up to one that are not on record yet; whether it is on record then."""
        windows = query.ahead(last, MOST_AT_ONCE)
        for window in windows:
            body = held.decide(query, window) | {"at": now_us()}
            self.writing.add(held, f"entry/{window.start}/{query.spec.name}", body)
        return not windows or windows[-1].start >= last.start

    def _draw(self, held: Domain, query: Query, draft: BlockToPublish) -> NoisyBlock:
        """Draw a block and put it on record; it comes back as everyone reads it from there."""
        block, public = draft.draw(), total_is_public(self.registration)
        _check_block(self.registration, draft, block)
        body = {"at": now_us(), "completeness": block.completeness}
        key = f"block/{draft.window.start}/{draft.shard}/{query.spec.name}"
        self.writing.add(held, key, body, block_bytes(block, with_totals=public))
        return block.as_public(with_totals=public)

    def _check_roster(self, query: Query, window: Window) -> None:
        """See that a window has the roster that the registration says: it was changed since, or the job is wrong."""
        recorded, given = query.roster_at(window.start), self.registration.roster_of(window).digest
        if recorded != given:
            advice = (
                f"because the roster of window {window} was changed since; stop the job, or read the registration "
                "again and count the window anew: `Store.charge_windows` gives it"
            )
            raise _mismatch(query.spec.name, "roster", recorded[:8], given[:8], advice)


def check_drafts(registration: Registration, windows: Iterable[Window], shards: Iterable[int] = ()) -> None:
    """Refuse windows or shards that the query does not have, before anything is locked.

    To charge up to a window that is none would put refusals on record, for ever.
    """
    query = registration.query
    for window in windows:
        if not query.schedule.contains(window):
            raise StoreConflict(
                f"query {query.name!r}: window {window} is not in its schedule; publish the windows of the "
                f"registration only"
            )
    for shard in shards:
        if not 0 <= shard < query.shards:
            raise StoreConflict(
                f"query {query.name!r}: shard {shard} is not one of its {query.shards}; take the number of shards from "
                "the registration"
            )


_STOP = "stop the job and register the query again: a row drawn now would not be the one that was charged"


def _mismatch(query: str, field: str, recorded: Any, given: Any, advice: str = _STOP) -> StoreConflict:
    """The error for a release that would not be what the recorded charge paid for; the job must stop."""
    what = f"{field} is {shown(given)} for this job and {shown(recorded)} in the charge on record"
    return StoreConflict(f"query {query!r}: {what}; {advice}", field=field, recorded=recorded, given=given)


def _check_same(registration: Registration, held: Query) -> None:
    """A release needs digest and scale equal to what is on record, or it would not be what its charge pays for."""
    query, spec = registration.query, held.spec
    for field, recorded, given in (
        ("digest", held.digest, registration.digest),
        ("scale", scale_text(spec.scale), scale_text(query.scale)),
        ("epsilon_dp", spec.epsilon_dp, query.epsilon_dp),
        ("shards", spec.shards, query.shards),
        ("scales", spec.scales, query.scales),
    ):
        if recorded != given:
            raise _mismatch(query.name, field, recorded, given)
    # an extension since then is fine, its windows are only more
    stop, recorded_stop = query.schedule.stop, held.schedule.stop
    if recorded_stop is not None and (stop is None or stop > recorded_stop):
        raise _mismatch(query.name, "windows.stop", recorded_stop, stop)


def _check_block(registration: Registration, draft: BlockToPublish, block: Any) -> None:
    where = f"query {registration.query.name!r}, window {draft.window}, shard {draft.shard}"
    layout = layout_of(registration, draft.window)
    keys = layout.keys(draft.shard)
    if tuple(block.keys) != keys:
        raise StoreConflict(
            f"{where}: its block has {len(block.keys)} keys that are not the {len(keys)} of the shard in their order; "
            f"take them from the registration's roster"
        )
    for name, shape in (("counts", (len(keys), layout.columns)), ("totals", (len(keys),))):
        found = getattr(block, name)
        if found.dtype != np.int64 or found.shape != shape:
            raise StoreConflict(
                f"{where}: its {name} are {found.dtype} of shape {found.shape}; they must be int64 of shape {shape}"
            )
    if block.completeness not in COMPLETENESS:
        raise StoreConflict(
            f"{where}: completeness is {block.completeness!r} and must be one of {', '.join(COMPLETENESS)}"
        )
