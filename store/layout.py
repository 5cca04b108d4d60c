"""The layout of a ledger's tables: made from :mod:`.tables` on first use, its version checked on every other.

Two processes may create a ledger at the same moment: the one that waits for the lock finds it made.

Which schema of a database tables are made in depends on the ``search_path``, which a role or a server may set. A ledger
beside another one would be a second budget for the same series, so it is made only where the address names its schema.
"""

from __future__ import annotations

import re
import secrets
from importlib import metadata as packages

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from . import tables
from .address import StoreAddress
from .codec import now_us
from .errors import SchemaVersionError, StoreDamaged, StoreMisplaced, StoreUnavailable
from .integrity import damaged, put

VERSION_TABLE = "quiltstream_version"

#: The only version there is.
VERSION = "0001"

# Any number will do, so long as every process uses the same one.
_ADVISORY_LOCK = 7_016_996_765_293_437_281

_version = sa.Table(
    VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)


def version_of(connection: Connection, address: StoreAddress) -> str | None:
    """The version of the tables; ``None`` where there are none."""
    inspector = sa.inspect(connection)
    if inspector.has_table(VERSION_TABLE):
        versions = connection.scalars(sa.select(_version.c.version_num)).all()
        if len(versions) != 1:
            raise damaged(f"table {VERSION_TABLE}", f"has {len(versions)} rows and not one")
        return versions[0]
    if address.is_sqlite and inspector.get_table_names():
        raise StoreDamaged(f"ledger {address}: the file is a database of something else; name another file")
    return None


def check(version: str, address: StoreAddress) -> None:
    """Refuse tables of another version."""
    if version != VERSION:
        raise SchemaVersionError(
            f"ledger {address}: its tables have version {version}, which this program does not know (it writes "
            f"{VERSION}); use the quiltstream that wrote it"
        )


def make(connection: Connection, address: StoreAddress) -> None:
    """Make the tables inside the caller's transaction where there are none."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    version = version_of(connection, address)
    if version is not None:
        check(version, address)
        return
    if connection.dialect.name == "postgresql":
        _check_schema(connection, address)
    tables.metadata.create_all(connection, checkfirst=False)
    _version.create(connection)
    connection.execute(_version.insert(), {"version_num": VERSION})
    values = {"id": 1, "store_id": secrets.token_hex(16), "mode": None, "domain_rows": 0}
    put(connection, tables.meta, values | {"created_us": now_us(), "created_by": library_version()})


#: Schemas with a ledger; the catalogue is read by every role, whatever it may do with the tables.
_LEDGERS = sa.text(
    "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relname = :name AND c.relkind IN ('r', 'p') ORDER BY 1"
)

#: The schema that a new table would be in, the search path, and what set that: ``client`` is the address or PGOPTIONS.
_PATH = sa.text("SELECT current_schema(), setting, source FROM pg_settings WHERE name = 'search_path'")

_SCHEMAS_OF_A_PATH = re.compile(r'"(?:[^"]|"")*"|[^",\s]+')


def _check_schema(connection: Connection, address: StoreAddress) -> None:
    """See that a ledger may be made in the schema that the server chose; the caller holds the lock."""
    here, path, source = connection.execute(_PATH).one()
    if here is None:
        raise StoreUnavailable(
            f"ledger {address}: no schema of this user's search_path is there, or it may use none; create the schema, "
            "or grant the right to it. Nothing was charged or published"
        )
    others = connection.scalars(_LEDGERS, {"name": tables.meta.name}).all()
    if not others or (source == "client" and len(_SCHEMAS_OF_A_PATH.findall(path)) == 1):
        return
    raise StoreMisplaced(
        f"ledger {address}: there is none in the schema {here!r}, which the server chose by the user's search_path, "
        f"and this database has one in {' and '.join(map(repr, others))}. A second one would be a second budget for "
        "the same series, so none is made. To use one that is there, set that user's search_path to its schema, or "
        "name it by itself in the address by the option options=-csearch_path%3DNAME. If a new ledger is wanted, name "
        "its schema there. Nothing was charged or published"
    )


def library_version() -> str:
    """The version of this package, for the record."""
    try:
        return packages.version("quiltstream")
    except packages.PackageNotFoundError:
        return "not installed"
