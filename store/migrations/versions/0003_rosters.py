"""Rosters that change between windows: from which window on each version holds, and the series that it adds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "quiltstream_roster_versions",
        sa.Column("id", _ID, nullable=False),
        sa.Column("query_id", _ID, nullable=False),
        sa.Column("roster_id", _ID, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("joined", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["query_id"], ["quiltstream_queries.id"]),
        sa.ForeignKeyConstraint(["roster_id"], ["quiltstream_rosters.id"]),
    )
    op.create_index("ix_quiltstream_roster_versions_query_id", "quiltstream_roster_versions", ["query_id"])
