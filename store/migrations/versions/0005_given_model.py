"""Whether a window's loss holds only given a model, on record with its charge: a domain's belief may join later.

Of the charges that are there already nobody knows what had joined when they were made. So the loss of all of a domain
is said to hold only given a model where one of its changes is of an estimated one, which is never too little.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, as the query has it or a change of the domain's belief."""
    queries = sa.table("quiltstream_queries", sa.column("id"), sa.column("domain_id"), sa.column("given_model"))
    domains = sa.table("quiltstream_domains", sa.column("id"), sa.column("changes"))
    changed = op.get_bind().execute(sa.select(domains.c.id, domains.c.changes).where(domains.c.changes.is_not(None)))
    # there are few domains
    estimated = [domain for domain, changes in changed if any(one.get("given_model") for one in json.loads(changes))]
    for table in ("quiltstream_charges", "quiltstream_flagged_charges"):
        op.add_column(table, sa.Column("given_model", sa.Boolean(), nullable=False, server_default=sa.false()))
        charges = sa.table(table, sa.column("query_id"), sa.column("given_model"))
        given = sa.select(queries.c.given_model).where(queries.c.id == charges.c.query_id).scalar_subquery()
        op.execute(charges.update().values(given_model=given))
        for domain in estimated:
            of_domain = sa.select(queries.c.id).where(queries.c.domain_id == domain)
            op.execute(charges.update().where(charges.c.query_id.in_(of_domain)).values(given_model=sa.true()))
