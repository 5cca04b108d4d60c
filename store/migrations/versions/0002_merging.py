"""What a merge of ledgers keeps: the loss of the united charges, and the charges and blocks beside those of record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns and the tables."""
    op.add_column("quiltstream_domains", sa.Column("merged_loss", sa.Double()))
    op.add_column("quiltstream_releases", sa.Column("paid_by", sa.String()))
    op.create_table(
        "quiltstream_flagged_charges",
        sa.Column("id", _ID, nullable=False),
        sa.Column("entry_id", sa.String(), nullable=False),
        sa.Column("domain_id", _ID, nullable=False),
        sa.Column("sequence", sa.BigInteger()),
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
        sa.Column("reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["domain_id"], ["quiltstream_domains.id"]),
        sa.ForeignKeyConstraint(["query_id"], ["quiltstream_queries.id"]),
        sa.ForeignKeyConstraint(["roster_id"], ["quiltstream_rosters.id"]),
        sa.UniqueConstraint("entry_id"),
        sa.UniqueConstraint("domain_id", "sequence", name="quiltstream_flagged_charges_sequence"),
        sa.CheckConstraint("decision IN ('charged', 'refused')", name="quiltstream_flagged_charges_decision"),
        sa.CheckConstraint("reason IN ('second', 'conflict')", name="quiltstream_flagged_charges_reason"),
    )
    op.create_table(
        "quiltstream_flagged_releases",
        sa.Column("id", _ID, nullable=False),
        sa.Column("query_id", _ID, nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("entry_id", sa.String(), nullable=False),
        sa.Column("completeness", sa.String(), nullable=False),
        sa.Column("block", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["query_id"], ["quiltstream_queries.id"]),
        sa.CheckConstraint("reason IN ('second', 'conflict')", name="quiltstream_flagged_releases_reason"),
    )
    op.create_index(
        "quiltstream_flagged_releases_place", "quiltstream_flagged_releases", ["query_id", "window_start", "shard"]
    )
