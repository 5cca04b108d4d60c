"""The tables of the ledger of record, as SQLAlchemy Core sees them; :mod:`.layout` makes them.

Every row has a ``row_digest`` of its key and content, and a parent row the number of its children in the columns that
end in ``_rows``: :mod:`.integrity` makes and checks them.

``quiltstream_meta``
    One row. ``store_id``: random name of this ledger. ``mode``: ``private`` or ``none`` (noise-free rows of tests),
    set by the first registration. ``created_us``, ``created_by``: when, and by which version.
``quiltstream_domains``
    One row a domain: the fields that are frozen, the budget in force, the loss of everything reserved so far, and the
    sequence number of its last entry. A charge or a reservation locks this row first. ``changes``: the
    beliefs that joined the first one or followed it, in their order. ``changed_loss``: the loss of all charges when one
    of these raised it, which is in no entry. ``head``: of the chain of its charges.
``quiltstream_domain_events``
    What an operator decided: budgets raised, schedules extended or ended, rosters and beliefs changed, series that may
    be shared with another domain, and history declared lost (with the number of releases found that are not on record);
    with the time and both values. And every model that a job estimated, with what became of it; and the id of a topic
    that a job reads, when it is first seen and when it is another one.
``quiltstream_rosters``
    Rosters by digest: the series and groups, compressed. A charge names the roster it was made for. One that nothing
    names any more is removed.
``quiltstream_queries``
    One row a query: the fields that are frozen, the schedule, the shards, the roster and the header of its rows. The
    roster is the one of all windows that have no charge yet. ``belief``: for which of the domain's beliefs its noise
    was calibrated, 0 for the first.
``quiltstream_roster_versions``
    Only for queries whose roster was ever changed: one row a version, the first included, in their order. ``start``:
    first slot of the first window it is for; a later version from the same start on replaces it. Where series joined
    by that one, it names the empty roster from then on. ``created_us``: when its roster was put on record, also where a
    charge of a running job moved its start. ``joined``: the series that no earlier version has, compressed.
``quiltstream_reservations``
    The parts of a query's schedule that budget is reserved for: windows inside ``[start, stop)``. A second part exists
    only after an extension or a raised budget.
``quiltstream_charges``
    One row a window of a query: what it cost, or that it was refused; in the order of the schedule, and never changed
    but for ``drawn``: the shards whose blocks were drawn, each with the block's digest. A charged row never exceeds its
    budget: the database checks that as well.
``quiltstream_releases``
    One row a window and shard: the noisy histograms as one binary Arrow value; never changed.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData()

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SLOT = sa.BigInteger
_TIME = sa.BigInteger
_EPSILON = sa.Double


class _Bytes(sa.LargeBinary):
    """Bytes as the driver gives them: what is none of them in a damaged row is found by its digest."""

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> None:  # noqa: ARG002 - as in the base class
        return None


def _key() -> sa.Column[Any]:
    return sa.Column("id", _ID, primary_key=True)


def _of(parent: sa.Table, name: str, *, index: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.ForeignKey(parent.c.id), nullable=False, index=index or None)


def _filled(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Columns of one type that are never empty."""
    return [sa.Column(name, kind, nullable=False) for name in names]


meta = sa.Table(
    "quiltstream_meta",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    *_filled(sa.String, "store_id"),
    sa.Column("mode", sa.String),
    *_filled(_TIME, "created_us"),
    *_filled(sa.String, "created_by"),
    *_filled(sa.BigInteger, "domain_rows"),
    *_filled(_Bytes, "row_digest"),
)

domains = sa.Table(
    "quiltstream_domains",
    metadata,
    _key(),
    sa.Column("name", sa.String, nullable=False, unique=True),
    *_filled(sa.Text, "frozen"),
    *_filled(_EPSILON, "budget", "reserved_loss"),
    *_filled(sa.BigInteger, "last_sequence", "created_us"),
    sa.Column("changed_loss", _EPSILON),
    sa.Column("changes", sa.Text),
    *_filled(_Bytes, "head"),
    *_filled(sa.BigInteger, "query_rows", "event_rows"),
    *_filled(_Bytes, "row_digest"),
)

domain_events = sa.Table(
    "quiltstream_domain_events",
    metadata,
    _key(),
    _of(domains, "domain_id", index=True),
    *_filled(sa.String, "kind"),
    sa.Column("query", sa.String),
    *_filled(sa.Text, "old", "new"),
    *_filled(_TIME, "at_us"),
    *_filled(_Bytes, "row_digest"),
)

rosters = sa.Table(
    "quiltstream_rosters",
    metadata,
    _key(),
    sa.Column("digest", sa.String, nullable=False, unique=True),
    *_filled(sa.BigInteger, "series"),
    *_filled(_Bytes, "entries"),
    *_filled(_TIME, "created_us"),
    *_filled(_Bytes, "row_digest"),
)

queries = sa.Table(
    "quiltstream_queries",
    metadata,
    _key(),
    _of(domains, "domain_id"),
    *_filled(sa.String, "name", "digest"),
    *_filled(sa.Text, "scale"),
    *_filled(_EPSILON, "release_epsilon_dp", "epsilon_dp"),
    *_filled(sa.String, "mechanism"),
    *_filled(sa.Boolean, "given_model"),
    *_filled(_SLOT, "size", "every", "anchor", "start"),
    sa.Column("stop", _SLOT),
    *_filled(sa.Integer, "shards"),
    _of(rosters, "roster_id"),
    *_filled(sa.Text, "header"),
    *_filled(_TIME, "created_us"),
    *_filled(sa.Integer, "belief"),
    *_filled(sa.BigInteger, "reservation_rows", "version_rows"),
    *_filled(_Bytes, "row_digest"),
    sa.UniqueConstraint("domain_id", "name", name="quiltstream_queries_name"),
)

reservations = sa.Table(
    "quiltstream_reservations",
    metadata,
    _key(),
    _of(queries, "query_id", index=True),
    *_filled(_SLOT, "start"),
    sa.Column("stop", _SLOT),
    *_filled(_TIME, "created_us"),
    *_filled(_Bytes, "row_digest"),
)

charges = sa.Table(
    "quiltstream_charges",
    metadata,
    _key(),
    sa.Column("entry_id", sa.String, nullable=False, unique=True),
    _of(domains, "domain_id"),
    *_filled(sa.BigInteger, "sequence"),
    _of(queries, "query_id"),
    _of(rosters, "roster_id"),
    *_filled(_SLOT, "window_start", "window_stop"),
    *_filled(sa.String, "decision", "query_digest"),
    *_filled(sa.Text, "scale"),
    *_filled(_EPSILON, "epsilon_dp", "loss_before", "loss_after", "budget"),
    *_filled(sa.Text, "rule"),
    *_filled(_TIME, "created_us"),
    *_filled(sa.Boolean, "given_model"),
    *_filled(_Bytes, "row_digest"),
    sa.Column("drawn", _Bytes),
    sa.UniqueConstraint("domain_id", "sequence", name="quiltstream_charges_sequence"),
    sa.UniqueConstraint("query_id", "window_start", name="quiltstream_charges_window"),
    sa.CheckConstraint("decision IN ('charged', 'refused')", name="quiltstream_charges_decision"),
    sa.CheckConstraint("decision = 'refused' OR loss_after <= budget", name="quiltstream_charges_budget"),
)

releases = sa.Table(
    "quiltstream_releases",
    metadata,
    _key(),
    _of(queries, "query_id"),
    *_filled(_SLOT, "window_start"),
    *_filled(sa.Integer, "shard"),
    _of(charges, "charge_id"),
    *_filled(sa.String, "completeness"),
    *_filled(_Bytes, "block"),
    *_filled(_TIME, "created_us"),
    *_filled(_Bytes, "row_digest"),
    sa.UniqueConstraint("query_id", "window_start", "shard", name="quiltstream_releases_block"),
)

roster_versions = sa.Table(
    "quiltstream_roster_versions",
    metadata,
    _key(),
    _of(queries, "query_id", index=True),
    _of(rosters, "roster_id"),
    *_filled(_SLOT, "start"),
    *_filled(_Bytes, "joined"),
    *_filled(_TIME, "created_us"),
    *_filled(_Bytes, "row_digest"),
)
