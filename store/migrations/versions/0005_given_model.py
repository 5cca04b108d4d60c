"""Whether a window's loss holds only given a model, on record with its charge: a domain's belief may join later."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, as the query has it."""
    for table in ("quiltstream_charges", "quiltstream_flagged_charges"):
        op.add_column(table, sa.Column("given_model", sa.Boolean(), nullable=False, server_default=sa.false()))
        charges = sa.table(table, sa.column("query_id"), sa.column("given_model"))
        queries = sa.table("quiltstream_queries", sa.column("id"), sa.column("given_model"))
        given = sa.select(queries.c.given_model).where(queries.c.id == charges.c.query_id).scalar_subquery()
        op.execute(charges.update().values(given_model=given))
