"""Where the ledger of record is, and which ledger it is.

The address is a URL that travels to the workers unresolved:

    sqlite:///out/ledger.db                                            one file, for jobs on one machine
    postgresql://${DB_USER}:${DB_PASSWORD}@db.internal/quilt           a server, with parts from the environment
    postgresql://quilt@db.internal/quilt?password_file=/run/secrets/db   the password from a file

``${NAME}`` stands in the user, the password, the host, the database and the values after the question mark, and is
filled in from the environment of the process that connects; what is filled in needs no percent-encoding. The first line
of ``password_file`` is the password. So a job graph that was written to disk or logged holds no secret. A password
written into the URL itself works too and is never shown, but it does travel with the job.

One store, one history: a ledger has a random name, its ``store_id``, and an older copy of it has the same name and
fewer rows. So a process insists on the name that it knows, and on every row that it has seen. What it has seen outlives
the connection: a runner that tries a bundle again opens the ledger anew.

>>> StoreAddress("postgresql://me:secret@host/db")
StoreAddress('postgresql+psycopg://me:***@host/db')
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..schemas.files import MOST_SECRET_BYTES, read_regular, reason
from ..schemas.settings.base import SettingsError
from ..schemas.settings.secrets import SecretError
from .errors import StoreReplaced

if TYPE_CHECKING:
    # a plan from a model file has no address, and SQLAlchemy takes as long as all of its imports
    from sqlalchemy.engine import URL

_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_FILE = re.compile(r"sqlite(?:\+pysqlite)?:///(.*)", re.DOTALL)
_PART = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_EXAMPLES = "sqlite:///ledger.db or postgresql+psycopg://user@host/database?password_file=FILE"
_SECRET = {"password", "sslpassword", "passfile", "oauth_client_secret", "scram_client_key", "scram_server_key"}


@dataclass(frozen=True, repr=False)
class StoreAddress:
    """The URL of a ledger; ``repr`` and ``str`` never show a password.

    Attributes:
        url: as given, except that a relative SQLite path is made absolute at once: a ledger that depends on the folder
            a process happens to run in would be a second budget for the same series.
        store_id: random name of the one ledger that may be there; ``None`` while it is not known. It travels to the
            workers with the URL. It is no part of the place: addresses of one place are equal.

    Raises:
        SettingsError: the URL cannot be used.
    """

    url: str
    store_id: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        parsed = _parsed(self.url)
        path = parsed.database or ""
        if parsed.drivername != "sqlite":
            if parsed.database is None:
                raise SettingsError(f"ledger: {_text(parsed)} names no database; write one as in {_EXAMPLES}")
        elif path in ("", ":memory:"):
            raise SettingsError(
                "ledger: an SQLite database in memory is forgotten with the process, and its budget with it; "
                "use a file: sqlite:///ledger.db"
            )
        elif parsed.host or parsed.query or path.startswith("file:") or "?" in path:
            raise SettingsError(
                "ledger: an SQLite URL is sqlite:/// and a path, without a host and without parameters; "
                "four slashes begin an absolute path"
            )
        elif not path.startswith("${"):
            parsed = parsed.set(database=str(Path(path).absolute()))
        object.__setattr__(self, "url", _text(parsed, hide=False))

    def pinned(self, store_id: str) -> StoreAddress:
        """The address of the one ledger of this name."""
        return replace(self, store_id=store_id)

    @property
    def is_sqlite(self) -> bool:
        """Whether the ledger is an SQLite file, which workers on several machines cannot share."""
        return _parsed(self.url).drivername == "sqlite"

    def resolve(self) -> URL:
        """The URL to connect to, filled in from this process's environment and files.

        Raises:
            SecretError: a variable is not set, or a password file cannot be read.
            SettingsError: the password is given twice, or the path is not absolute.
        """
        from sqlalchemy.engine import URL  # noqa: PLC0415 - see above

        parsed = _parsed(self.url)
        values = [one for value in parsed.query.values() for one in ([value] if isinstance(value, str) else value)]
        _check_set(parsed.username, parsed.password, parsed.host, parsed.database, *values)
        query = {
            name: _filled(value) if isinstance(value, str) else tuple(map(_filled, value))
            for name, value in parsed.query.items()
        }
        password = None if parsed.password is None else _filled(str(parsed.password))
        password_file = query.pop("password_file", None)
        if password_file is not None:
            if password is not None or not isinstance(password_file, str):
                raise SettingsError("ledger: give the password once, in the URL or by password_file")
            password = _first_line(Path(password_file))
        names = {name: _filled(getattr(parsed, name)) for name in ("username", "host", "database")}
        if parsed.drivername == "sqlite" and not Path(names["database"]).is_absolute():
            raise SettingsError(
                "ledger: the SQLite path is relative once its ${...} parts are filled in, and would be another file in "
                "another folder; give an absolute path there"
            )
        return URL.create(parsed.drivername, **names, password=password, port=parsed.port, query=query)

    def check_driver(self) -> None:
        """Refuse to connect where the database's driver is not installed.

        Raises:
            SettingsError: it is not.
        """
        if not self.is_sqlite and importlib.util.find_spec("psycopg") is None:
            raise SettingsError(
                "ledger: PostgreSQL needs the driver psycopg, which is not installed here; "
                "pip install 'quiltstream[postgres]' on every worker"
            )

    def __str__(self) -> str:
        return _text(_parsed(self.url))

    def __repr__(self) -> str:
        return f"StoreAddress({str(self)!r})"


def _text(parsed: URL, *, hide: bool = True) -> str:
    if parsed.drivername == "sqlite":
        return f"sqlite:///{parsed.database}"
    hidden = {name: "HIDDEN" for name in parsed.query if name.lower() in _SECRET} if hide else {}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=hide)


def _parsed(text: str) -> URL:
    from sqlalchemy.engine import URL, make_url  # noqa: PLC0415 - see above
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415 - see above

    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - programs give paths, too
        raise SettingsError(f"ledger is a {type(text).__name__}, and must be a URL as text; write it like {_EXAMPLES}")
    file = _FILE.fullmatch(text)
    if file is not None:
        # the path as it is written: versions of SQLAlchemy differ in what they do with a percent sign in it
        return URL.create("sqlite", database=file[1])
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError):
        # the parser's own text may quote the URL with its password
        raise SettingsError(
            f"ledger: the URL cannot be read; write it like {_EXAMPLES}, with %40 for an @ in a password, "
            f"?port=${{NAME}} for a port from the environment and ?host=A:5432&host=B:5432 for several servers"
        ) from None
    if parsed.drivername not in _DRIVERS:
        raise SettingsError(
            f"ledger: {parsed.drivername!r} is not a database that a ledger can be kept in; use {_EXAMPLES}"
        )
    return parsed.set(drivername=_DRIVERS[parsed.drivername])


def _filled(text: str | None) -> str:
    return _PART.sub(lambda match: os.environ[match[1]], text or "")


def _check_set(*texts: str | None) -> None:
    """See that every variable of some parts of a URL is set."""
    named = dict.fromkeys(name for text in texts for name in _PART.findall(str(text or "")))
    missing = [name for name in named if not os.environ.get(name)]
    if missing:
        variables, are, them = ("variable", "is", "it") if len(missing) == 1 else ("variables", "are", "them")
        raise SecretError(
            f"ledger: the environment {variables} {' and '.join(missing)} {are} not set in this process; set {them} on "
            "every worker"
        )


def _first_line(path: Path) -> str:
    try:
        lines = read_regular(path, MOST_SECRET_BYTES).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(
            f"ledger: password_file {path} cannot be read ({reason(error)}); it must be on every worker"
        ) from None
    if not lines or not lines[0]:
        raise SecretError(f"ledger: password_file {path} has no first line; write the password into it")
    return lines[0]


Seen = dict[str, tuple[int, bytes]]
"""By domain, the last row of its log that this process has seen: its number, and the digest of all up to it."""

_SEEN: defaultdict[tuple[str, str], Seen] = defaultdict(dict)


def seen_of(address: StoreAddress, store_id: str) -> Seen:
    """What this process has seen of a ledger, which the caller brings up to date."""
    return _SEEN[address.url, store_id]


def forget(address: StoreAddress) -> None:
    """Take what is at an address for whole from now on, by the operator's word that its history is lost."""
    for key in [key for key in _SEEN if key[0] == address.url]:
        del _SEEN[key]


def replaced(address: StoreAddress, what: str, known: str | None = None, found: str | None = None) -> StoreReplaced:
    """The error for a ledger that is not the one that was known, by its name."""
    ids = "" if known is None else f" The ledger of this job has the id {known}"
    ids += f", the one there {found}." if ids and found not in (None, known) else "." if ids else ""
    return StoreReplaced(
        f"ledger {address}: {what}. Stop all jobs that use it, put the ledger back with everything it held, and run "
        "again. The job stops for good before anything more is published, and no ledger is made: what the known one "
        "holds was charged, and would be drawn again; if it is lost for good, `quiltstream run --history-lost` goes on "
        f"without it and marks the account for ever.{ids}",
        known=known,
        found=found,
    )
