"""Beliefs that change: what joined a domain's belief or follows it, and which query goes on with another noise."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("quiltstream_domains", sa.Column("changes", sa.Text()))
    op.add_column("quiltstream_queries", sa.Column("belief", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("quiltstream_queries", sa.Column("successor", sa.String()))
