"""The tables of the ledger of record, as SQLAlchemy Core sees them; ``migrations`` brings older ledgers to them.

Every row has a ``row_digest`` of its key and content, and a parent row the number of its children in the columns that
end in ``_rows``: :mod:`.integrity` makes and checks them.

``quiltstream_meta``
    One row. ``store_id``: random name of this ledger. ``mode``: ``private`` or ``none`` (noise-free rows of tests),
    set by the first registration. ``created_us``, ``created_by``: when, and by which version.
``quiltstream_domains``
    One row a domain: the fields that are frozen, the budget in force, the loss of everything reserved so far, and the
    sequence number of its last entry. A charge or a reservation locks this row first. ``merged_loss``: where ledgers
    were united, the loss of all charges at that moment, because the losses that the entries name are those of the
    ledgers they were made in; above the budget the domain is closed. ``merged_sequence``: the last entry of those.
    ``changes``: the beliefs that joined the first one or followed it, in their order. ``head``: of the chain of its
    charges.
``quiltstream_domain_events``
    What an operator decided: budgets raised, schedules extended or ended, rosters and beliefs changed, series that may
    be shared with another domain, and history declared lost (with the number of releases found that are not on record);
    with the time and both values. And every model that a job estimated, with what became of it; and the id of a topic
    that a job reads, when it is first seen and when it is another one.
``quiltstream_rosters``
    Rosters by digest: the series and groups, compressed. A charge names the roster it was made for.
``quiltstream_queries``
    One row a query: the fields that are frozen, the schedule, the shards, the roster and the header of its rows. The
    roster is the one of all windows that have no charge yet. ``belief``: for which of the domain's beliefs its noise
    was calibrated, 0 for the first. ``successor``: the query that goes on where this one was ended.
``quiltstream_roster_versions``
    Only for queries whose roster was ever changed: one row a version, the first included, in their order. ``start``:
    first slot of the first window it is for; a later version from the same start on replaces it. ``joined``: the
    series that no earlier version has, compressed. Rows are only ever added.
``quiltstream_reservations``
    The parts of a query's schedule that budget is reserved for: windows inside ``[start, stop)``. A second part exists
    only after an extension or a raised budget.
``quiltstream_charges``
    One row a window of a query: what it cost, or that it was refused; in the order of the schedule, and never changed
    but for ``drawn``: the shards whose blocks were drawn, each with the block's digest. A charged row never exceeds its
    budget: the database checks that as well.
``quiltstream_releases``
    One row a window and shard: the noisy histograms as one binary Arrow value; never changed. ``paid_by``: name of the
    flagged charge that paid for it, where that is not the window's charge of record.
``quiltstream_flagged_charges``
    Charges that a merge found beside the one of record: of a window charged in two ledgers (``second``), or of other
    content or another draw under one id (``conflict``). They are part of the account, but for refusals, which have no
    ``sequence``.
``quiltstream_flagged_releases``
    Blocks that a merge found beside the one of record, each with the name of the charge that paid for it.
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


def _row_digest() -> sa.Column[Any]:
    return sa.Column("row_digest", _Bytes, nullable=False)


def _rows(name: str) -> sa.Column[Any]:
    """How many rows of another table belong to this one."""
    return sa.Column(f"{name}_rows", sa.BigInteger, nullable=False)


meta = sa.Table(
    "quiltstream_meta",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("store_id", sa.String, nullable=False),
    sa.Column("mode", sa.String),
    sa.Column("created_us", _TIME, nullable=False),
    sa.Column("created_by", sa.String, nullable=False),
    _rows("domain"),
    _row_digest(),
)

domains = sa.Table(
    "quiltstream_domains",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("name", sa.String, nullable=False, unique=True),
    sa.Column("frozen", sa.Text, nullable=False),
    sa.Column("budget", _EPSILON, nullable=False),
    sa.Column("reserved_loss", _EPSILON, nullable=False),
    sa.Column("last_sequence", sa.BigInteger, nullable=False),
    sa.Column("created_us", _TIME, nullable=False),
    sa.Column("merged_loss", _EPSILON),
    sa.Column("merged_sequence", sa.BigInteger),
    sa.Column("changes", sa.Text),
    sa.Column("head", _Bytes, nullable=False),
    _rows("query"),
    _rows("event"),
    _rows("flagged_charge"),
    _rows("flagged_release"),
    _row_digest(),
)

domain_events = sa.Table(
    "quiltstream_domain_events",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("domain_id", sa.ForeignKey(domains.c.id), nullable=False, index=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("query", sa.String),
    sa.Column("old", sa.Text, nullable=False),
    sa.Column("new", sa.Text, nullable=False),
    sa.Column("at_us", _TIME, nullable=False),
    _row_digest(),
)

rosters = sa.Table(
    "quiltstream_rosters",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("digest", sa.String, nullable=False, unique=True),
    sa.Column("series", sa.BigInteger, nullable=False),
    sa.Column("entries", _Bytes, nullable=False),
    sa.Column("created_us", _TIME, nullable=False),
    _row_digest(),
)

queries = sa.Table(
    "quiltstream_queries",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("domain_id", sa.ForeignKey(domains.c.id), nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("digest", sa.String, nullable=False),
    sa.Column("scale", sa.Text, nullable=False),
    sa.Column("release_epsilon_dp", _EPSILON, nullable=False),
    sa.Column("epsilon_dp", _EPSILON, nullable=False),
    sa.Column("mechanism", sa.String, nullable=False),
    sa.Column("given_model", sa.Boolean, nullable=False),
    sa.Column("size", _SLOT, nullable=False),
    sa.Column("every", _SLOT, nullable=False),
    sa.Column("anchor", _SLOT, nullable=False),
    sa.Column("start", _SLOT, nullable=False),
    sa.Column("stop", _SLOT),
    sa.Column("shards", sa.Integer, nullable=False),
    sa.Column("roster_id", sa.ForeignKey(rosters.c.id), nullable=False),
    sa.Column("header", sa.Text, nullable=False),
    sa.Column("created_us", _TIME, nullable=False),
    sa.Column("belief", sa.Integer, nullable=False),
    sa.Column("successor", sa.String),
    _rows("reservation"),
    _rows("version"),
    _row_digest(),
    sa.UniqueConstraint("domain_id", "name", name="quiltstream_queries_name"),
)

reservations = sa.Table(
    "quiltstream_reservations",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("query_id", sa.ForeignKey(queries.c.id), nullable=False, index=True),
    sa.Column("start", _SLOT, nullable=False),
    sa.Column("stop", _SLOT),
    sa.Column("created_us", _TIME, nullable=False),
    _row_digest(),
)


def _decided() -> list[sa.Column[Any]]:
    """What is on record of a window's charge or refusal, whether it is the one of record or flagged beside it."""
    return [
        sa.Column("query_id", sa.ForeignKey(queries.c.id), nullable=False),
        sa.Column("roster_id", sa.ForeignKey(rosters.c.id), nullable=False),
        sa.Column("window_start", _SLOT, nullable=False),
        sa.Column("window_stop", _SLOT, nullable=False),
        sa.Column("decision", sa.String, nullable=False),
        sa.Column("query_digest", sa.String, nullable=False),
        sa.Column("scale", sa.Text, nullable=False),
        sa.Column("epsilon_dp", _EPSILON, nullable=False),
        sa.Column("loss_before", _EPSILON, nullable=False),
        sa.Column("loss_after", _EPSILON, nullable=False),
        sa.Column("budget", _EPSILON, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("created_us", _TIME, nullable=False),
        sa.Column("given_model", sa.Boolean, nullable=False),
        _row_digest(),
    ]


charges = sa.Table(
    "quiltstream_charges",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("entry_id", sa.String, nullable=False, unique=True),
    sa.Column("domain_id", sa.ForeignKey(domains.c.id), nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    *_decided(),
    sa.Column("drawn", _Bytes),
    sa.UniqueConstraint("domain_id", "sequence", name="quiltstream_charges_sequence"),
    sa.UniqueConstraint("query_id", "window_start", name="quiltstream_charges_window"),
    sa.CheckConstraint("decision IN ('charged', 'refused')", name="quiltstream_charges_decision"),
    sa.CheckConstraint("decision = 'refused' OR loss_after <= budget", name="quiltstream_charges_budget"),
)

releases = sa.Table(
    "quiltstream_releases",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("query_id", sa.ForeignKey(queries.c.id), nullable=False),
    sa.Column("window_start", _SLOT, nullable=False),
    sa.Column("shard", sa.Integer, nullable=False),
    sa.Column("charge_id", sa.ForeignKey(charges.c.id), nullable=False),
    sa.Column("completeness", sa.String, nullable=False),
    sa.Column("block", _Bytes, nullable=False),
    sa.Column("created_us", _TIME, nullable=False),
    sa.Column("paid_by", sa.String),
    _row_digest(),
    sa.UniqueConstraint("query_id", "window_start", "shard", name="quiltstream_releases_block"),
)

roster_versions = sa.Table(
    "quiltstream_roster_versions",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("query_id", sa.ForeignKey(queries.c.id), nullable=False, index=True),
    sa.Column("roster_id", sa.ForeignKey(rosters.c.id), nullable=False),
    sa.Column("start", _SLOT, nullable=False),
    sa.Column("joined", _Bytes, nullable=False),
    sa.Column("created_us", _TIME, nullable=False),
    _row_digest(),
)

flagged_charges = sa.Table(
    "quiltstream_flagged_charges",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("entry_id", sa.String, nullable=False, unique=True),
    sa.Column("domain_id", sa.ForeignKey(domains.c.id), nullable=False),
    sa.Column("sequence", sa.BigInteger),
    *_decided(),
    sa.Column("reason", sa.String, nullable=False),
    sa.UniqueConstraint("domain_id", "sequence", name="quiltstream_flagged_charges_sequence"),
    sa.CheckConstraint("decision IN ('charged', 'refused')", name="quiltstream_flagged_charges_decision"),
    sa.CheckConstraint("reason IN ('second', 'conflict')", name="quiltstream_flagged_charges_reason"),
)

flagged_releases = sa.Table(
    "quiltstream_flagged_releases",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("query_id", sa.ForeignKey(queries.c.id), nullable=False),
    sa.Column("window_start", _SLOT, nullable=False),
    sa.Column("shard", sa.Integer, nullable=False),
    sa.Column("entry_id", sa.String, nullable=False),
    sa.Column("completeness", sa.String, nullable=False),
    sa.Column("block", _Bytes, nullable=False),
    sa.Column("created_us", _TIME, nullable=False),
    sa.Column("reason", sa.String, nullable=False),
    _row_digest(),
    sa.CheckConstraint("reason IN ('second', 'conflict')", name="quiltstream_flagged_releases_reason"),
    sa.Index("quiltstream_flagged_releases_place", "query_id", "window_start", "shard"),
)
