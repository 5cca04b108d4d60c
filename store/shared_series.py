"""Series that several domains of one ledger have: a budget belongs to the series, not to the name of a domain.

Two domains that see the same state process of a series are one domain under two names: every window would be published
twice, each account would show half of what is lost, and so the second one is refused. Two domains over different state
processes of the same series are allowed where a job says so. What they tell together is in no account: the two
processes may depend on each other in any way, and the loss of both together is not bounded by the sum of their losses
(two sequences of independent fair coins, of which each slot of the second is the first slot of the first plus another
one modulo 2, lose 0.5 each and 2.56 together after 14 slots).

Every series that a roster ever had counts, also after it left: what was published of it stays published.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from .codec import Row, domain_from_row, plain
from .errors import SharedSeries
from .lookups import domain_rows, events_of, events_of_all, series_of_all
from .specs import DomainSpec, first_difference

#: Kind of the event that keeps an operator's word that two domains share series.
SHARING = "series-shared"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Series that a domain shares with another one of the ledger.

    Attributes:
        domain: name of the other domain.
        series: how many series.
        declared: whether a job of either said so, by ``shares_series_with``.
    """

    domain: str
    series: int
    declared: bool

    @property
    def text(self) -> str:
        """What is to be known of it, in words."""
        return (
            f"{self.series:,} series of this domain {'is' if self.series == 1 else 'are'} in domain {self.domain} of "
            "the ledger too: what the two tell together is in no account, and their losses do not add up to it"
        )


def check_apart(connection: Connection, domain: DomainSpec, series: Collection[str]) -> None:
    """Refuse series of a domain that another domain of the ledger has, unless it may have them as well.

    Raises:
        SharedSeries: there are such series.
    """
    domains = domain_rows(connection)
    said = _declared(connection, domains, domain.name) | set(domain.shares_with)
    for row, theirs in _others(connection, domains, domain.name):
        shared = len(theirs.intersection(series))
        if not shared:
            continue
        differs = process_difference(domain_from_row(row), domain)
        if differs is None or row["name"] not in said:
            raise SharedSeries(domain.name, row["name"], shared, differs)


def left_alone(connection: Connection, domain: DomainSpec, series: Iterable[str]) -> set[str]:
    """Those of some series that may not join a domain, because another one of the ledger has them."""
    asked, found = set(series), set[str]()
    domains = domain_rows(connection)
    said = _declared(connection, domains, domain.name) | set(domain.shares_with)
    for row, theirs in _others(connection, domains, domain.name):
        if row["name"] not in said or process_difference(domain_from_row(row), domain) is None:
            found |= asked & theirs
    return found


def sharings(
    connection: Connection, name: str, more: Iterable[str] = (), said: Iterable[str] = ()
) -> tuple[Sharing, ...]:
    """What a domain shares with each other one, by name; none where it shares nothing.

    Args:
        connection: a transaction.
        name: the domain, which may not be on record yet.
        more: series that it is about to have.
        said: domains that it is about to name.
    """
    domains = domain_rows(connection)
    if all(row["name"] == name for row in domains):
        return ()
    series = series_of_all(connection, domains)
    own = set(more).union(*(series[row["id"]] for row in domains if row["name"] == name))
    said = _declared(connection, domains, name) | set(said)
    found = ((row["name"], len(own & series[row["id"]])) for row in domains if row["name"] != name)
    return tuple(Sharing(other, count, other in said) for other, count in found if count)


def declared_by(connection: Connection, domain: Row) -> set[str]:
    """The domains that jobs of one domain named as ones that it may share series with."""
    return _named(events_of(connection, domain))


def _named(events: Iterable[Row]) -> set[str]:
    return {json.loads(event["new"]) for event in events if event["kind"] == SHARING}


# What follows reads all domains of a ledger, in as many statements for many as for one.


def _declared(connection: Connection, domains: Sequence[Row], name: str) -> set[str]:
    """The domains with which one may share series: by its own word, or by theirs."""
    events = events_of_all(connection, domains)
    pairs = [(row["name"], other) for row in domains for other in _named(events[row["id"]])]
    return {other for one, other in pairs if one == name} | {one for one, other in pairs if other == name}


def _others(connection: Connection, domains: Sequence[Row], name: str) -> Iterator[tuple[Row, frozenset[str]]]:
    """Every other domain, by name, with its series."""
    series = series_of_all(connection, domains)
    return ((row, series[row["id"]]) for row in domains if row["name"] != name)


def process_difference(one: DomainSpec, other: DomainSpec) -> str | None:
    """The field in which the state processes of two domains differ, named as in the settings; ``None`` for the same."""
    found = first_difference(plain(one.process), plain(other.process))
    return None if found is None else found[0]


__all__ = [
    "SHARING",
    "Sharing",
    "check_apart",
    "declared_by",
    "left_alone",
    "process_difference",
    "sharings",
]
