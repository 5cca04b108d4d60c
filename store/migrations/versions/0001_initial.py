"""The first tables.

They say what the tables were when they were shipped, so they are not read from :mod:`quiltstream.store.tables`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "quiltstream_domains",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("frozen", sa.Text(), nullable=False),
        sa.Column("budget", sa.Double(), nullable=False),
        sa.Column("reserved_loss", sa.Double(), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("changed_loss", sa.Double()),
        sa.Column("changes", sa.Text()),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.Column("query_rows", sa.BigInteger(), nullable=False),
        sa.Column("event_rows", sa.BigInteger(), nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "quiltstream_meta",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("store_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String()),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("domain_rows", sa.BigInteger(), nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "quiltstream_rosters",
        sa.Column("id", _ID, nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("series", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "quiltstream_domain_events",
        sa.Column("id", _ID, nullable=False),
        sa.Column("domain_id", _ID, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("query", sa.String()),
        sa.Column("old", sa.Text(), nullable=False),
        sa.Column("new", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["domain_id"], ["quiltstream_domains.id"]),
    )
    op.create_index("ix_quiltstream_domain_events_domain_id", "quiltstream_domain_events", ["domain_id"])
    op.create_table(
        "quiltstream_queries",
        sa.Column("id", _ID, nullable=False),
        sa.Column("domain_id", _ID, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("scale", sa.Text(), nullable=False),
        sa.Column("release_epsilon_dp", sa.Double(), nullable=False),
        sa.Column("epsilon_dp", sa.Double(), nullable=False),
        sa.Column("mechanism", sa.String(), nullable=False),
        sa.Column("given_model", sa.Boolean(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("every", sa.BigInteger(), nullable=False),
        sa.Column("anchor", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger()),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.Column("roster_id", _ID, nullable=False),
        sa.Column("header", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("belief", sa.Integer(), nullable=False),
        sa.Column("successor", sa.String()),
        sa.Column("reservation_rows", sa.BigInteger(), nullable=False),
        sa.Column("version_rows", sa.BigInteger(), nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["domain_id"], ["quiltstream_domains.id"]),
        sa.ForeignKeyConstraint(["roster_id"], ["quiltstream_rosters.id"]),
        sa.UniqueConstraint("domain_id", "name", name="quiltstream_queries_name"),
    )
    op.create_table(
        "quiltstream_charges",
        sa.Column("id", _ID, nullable=False),
        sa.Column("entry_id", sa.String(), nullable=False),
        sa.Column("domain_id", _ID, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("query_id", _ID, nullable=False),
        sa.Column("roster_id", _ID, nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("window_stop", sa.BigInteger(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("query_digest", sa.String(), nullable=False),
        sa.Column("scale", sa.Text(), nullable=False),
        sa.Column("epsilon_dp", sa.Double(), nullable=False),
        sa.Column("loss_before", sa.Double(), nullable=False),
        sa.Column("loss_after", sa.Double(), nullable=False),
        sa.Column("budget", sa.Double(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("given_model", sa.Boolean(), nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.Column("drawn", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["domain_id"], ["quiltstream_domains.id"]),
        sa.ForeignKeyConstraint(["query_id"], ["quiltstream_queries.id"]),
        sa.ForeignKeyConstraint(["roster_id"], ["quiltstream_rosters.id"]),
        sa.UniqueConstraint("entry_id"),
        sa.CheckConstraint("decision = 'refused' OR loss_after <= budget", name="quiltstream_charges_budget"),
        sa.CheckConstraint("decision IN ('charged', 'refused')", name="quiltstream_charges_decision"),
        sa.UniqueConstraint("domain_id", "sequence", name="quiltstream_charges_sequence"),
        sa.UniqueConstraint("query_id", "window_start", name="quiltstream_charges_window"),
    )
    op.create_table(
        "quiltstream_reservations",
        sa.Column("id", _ID, nullable=False),
        sa.Column("query_id", _ID, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger()),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["query_id"], ["quiltstream_queries.id"]),
    )
    op.create_index("ix_quiltstream_reservations_query_id", "quiltstream_reservations", ["query_id"])
    op.create_table(
        "quiltstream_roster_versions",
        sa.Column("id", _ID, nullable=False),
        sa.Column("query_id", _ID, nullable=False),
        sa.Column("roster_id", _ID, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("joined", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["query_id"], ["quiltstream_queries.id"]),
        sa.ForeignKeyConstraint(["roster_id"], ["quiltstream_rosters.id"]),
    )
    op.create_index("ix_quiltstream_roster_versions_query_id", "quiltstream_roster_versions", ["query_id"])
    op.create_table(
        "quiltstream_releases",
        sa.Column("id", _ID, nullable=False),
        sa.Column("query_id", _ID, nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("charge_id", _ID, nullable=False),
        sa.Column("completeness", sa.String(), nullable=False),
        sa.Column("block", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["query_id"], ["quiltstream_queries.id"]),
        sa.ForeignKeyConstraint(["charge_id"], ["quiltstream_charges.id"]),
        sa.UniqueConstraint("query_id", "window_start", "shard", name="quiltstream_releases_block"),
    )
