"""A ledger rewritten by a program that may write to it and knows how: all digests and heads are made anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy.engine import Connection

from quiltstream.store.log import begin_of, heads, link, log, text_of

from .damage import rows_of, this

Row = dict[str, Any]


def forge(connection: Connection, change: Callable[[str, Row], Row | None]) -> None:
    """Rewrite the log: ``change`` gives the body for each key and body, or ``None`` for a row that goes."""
    rows = rows_of(connection, log)
    connection.execute(log.delete())
    for head in rows_of(connection, heads):
        seq, digest = 0, begin_of(head["store_id"], head["domain"])
        for row in rows:
            body = change(row["key"], json.loads(row["body"])) if row["domain"] == head["domain"] else None
            if body is not None:
                body.pop("blob", None)
                seq, text = seq + 1, text_of(body, row["blob"])
                digest = link(digest, seq, row["key"], text)
                connection.execute(log.insert(), {**row, "seq": seq, "body": text})
        connection.execute(heads.update().where(this(heads, head)).values(seq=seq, digest=digest))


def said(kind: str, **values: Any) -> Callable[[str, Row], Row]:
    """Values of every row of a kind that has them in its body."""

    def change(key: str, body: Row) -> Row:
        return body | {name: value for name, value in values.items() if key.startswith(kind) and name in body}

    return change
