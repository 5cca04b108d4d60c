"""What can go wrong with the ledger of record: every message says what was found, the limit and the next step.

No message carries a password, a noisy count or the text of a database driver, which may quote either. All of these can
be pickled, because workers send them to the process that started the job, and made of a message alone, as Beam does to
name the step: attributes then have their defaults.
"""

from __future__ import annotations

import math
import shlex
from typing import Any, ClassVar, Self

from ..privacy.validation import rounded_up
from ..schemas.errors import QuiltstreamError


class StoreError(QuiltstreamError, RuntimeError):
    """The ledger of record cannot do what was asked; nothing was changed by the call that raised it."""


class AddressError(StoreError):
    """The ledger's URL cannot be used on this machine."""


class AddressUnset(AddressError):  # noqa: N818 - the name says what happened
    """Variables that the ledger's URL names are not set in this process."""


class StoreUnavailable(StoreError):  # noqa: N818 - the public name says what happened
    """The ledger cannot be reached or opened.

    Attributes:
        passing: whether the same call may go well later, with nothing done about the ledger's address or content.
    """

    passing: ClassVar[bool] = False


class StoreAway(StoreUnavailable):
    """The ledger's server does not answer, or cut the connection: it may be restarting, or the network is away."""

    passing = True


class StoreMissing(StoreUnavailable):
    """There is no ledger at the address, and none was to be created."""


class StoreReplaced(StoreError):  # noqa: N818 - the public name says what happened
    """The ledger that was known is not at its address: it vanished or is empty, or another or an older one is there.

    It is never waited for and never made anew: what it holds was charged, and a new one would draw it again.
    """


class StoreMisplaced(StoreError):  # noqa: N818 - the public name says what happened
    """A ledger is where there would be two histories of it, by SQLite or in two schemas: it is not made or opened."""


class StoreDamaged(StoreUnavailable):
    """The ledger's file is not a ledger, or is damaged."""


class StoreReadOnly(StoreUnavailable):
    """The ledger cannot be written."""


class StoreStandby(StoreReadOnly):
    """The ledger's server takes no writes now: it is a standby, or was the primary until a failover."""

    passing = True


class StoreFull(StoreUnavailable):
    """There is no room left for the ledger."""

    passing = True


class StoreBusy(StoreUnavailable):
    """Another process kept the ledger locked for too long."""

    passing = True


class NotDurableError(StoreError):
    """The server may forget what it has confirmed, so that a published row could be drawn a second time."""


class SchemaVersionError(StoreError):
    """The ledger was written by another version of the program."""


class ModeError(StoreError):
    """Noisy rows and the noise-free rows of tests never share a ledger."""


class UnknownNameError(StoreError):
    """No domain or query of that name is on record."""


class BlockError(StoreError):
    """A draft does not belong to its query: another window, shard, key or shape."""


class ExportError(StoreError):
    """An export or backup cannot be written as asked."""


class RegistrationConflict(StoreError):  # noqa: N818 - the public name says what happened
    """A name on record has other content: the field, as in the settings, with both values and the next step."""

    name: str = ""
    field: str = ""
    recorded: Any = None
    given: Any = None
    advice: str = ""

    @classmethod
    def of(cls, name: str, field: str, recorded: Any, given: Any, advice: str) -> Self:
        """The error, with its message."""
        error = cls(f"{name}: {field} is {shown(given)}, but on record it is {shown(recorded)}; {advice}")
        error.name, error.field, error.recorded, error.given, error.advice = name, field, recorded, given, advice
        return error


class SharedSeries(StoreError):  # noqa: N818 - the public name says what happened
    """Series of a domain are in another domain of the ledger, and their budget is there."""

    domain: str = ""
    other: str = ""
    series: int = 0  # how many they are; their names are inside the trust boundary
    # the field in which the two state processes differ, named as in the settings; ``None`` where they are the same
    differs: str | None = None

    @classmethod
    def of(cls, domain: str, other: str, series: int, differs: str | None) -> Self:
        """The error, with its message."""
        found = f"domain {domain!r}: {series:,} of its series {'are' if series > 1 else 'is'} in domain {other!r}"
        apart = "; if they are other series that happen to have these names, name them apart or use another ledger"
        if differs is None:
            message = (
                f"{found} of this ledger, with the same slots, states and readings: it is the same domain under "
                f"another name, and series have one budget whatever it is called; set domain to {other!r}{apart}"
            )
        else:
            message = (
                f"{found} of this ledger, whose state process is another one ({differs} differs): what the two tell "
                f"together is in no account, and their losses do not add up to it; to publish both all the same, set "
                f"shares_series_with: [{other}], which is kept on record{apart}"
            )
        error = cls(message)
        error.domain, error.other, error.series, error.differs = domain, other, series, differs
        return error


class ChargeMismatch(StoreError):  # noqa: N818 - the public name says what happened
    """A release would not be what the recorded charge paid for; the job must stop."""

    _message: ClassVar[str] = (
        "query {query!r}: the charge on record has {field} {recorded} and this job has {given}; stop the job and "
        "register the query again: a row drawn now would not be the one that was charged"
    )

    query: str = ""
    field: str = ""
    recorded: Any = None
    given: Any = None

    @classmethod
    def of(cls, query: str, field: str, recorded: Any, given: Any) -> Self:
        """The error, with its message."""
        error = cls(cls._message.format(query=query, field=field, recorded=shown(recorded), given=shown(given)))
        error.query, error.field, error.recorded, error.given = query, field, recorded, given
        return error


class RosterChanged(ChargeMismatch):
    """The roster of a window is another than the registration says: it was changed since; nothing was changed now."""

    _message = (
        "query {query!r}: {field} is {recorded} on record and {given} for this job, because the roster was changed "
        "since; stop the job, or read the registration again and count the window anew"
    )


#: What to do where a query on record has other content.
QUERY_ADVICE = "a query keeps what its numbers depend on: set it back, or use a new query name, which is charged anew"

_NOTHING = 1e-9


def enough_for(loss: float) -> str:
    """A budget for a loss that is finite and above 0, in four digits where these are enough."""
    found = rounded_up(loss, 4)
    return found if float(found) >= loss else repr(loss)


class BudgetRefused(StoreError):  # noqa: N818 - the public name says what happened
    """The domain's budget does not allow what a registration asks for; nothing was recorded.

    Attributes:
        reserved: loss of everything promised so far, epsilon.
        asked: what this would add to it, epsilon.
        remaining: budget less reserved, at least 0.
        budget: the domain's budget, epsilon.
        domain: the domain's name; empty where it is on no record yet.
    """

    what: str = ""
    reserved: float = math.nan
    asked: float = math.nan
    remaining: float = math.nan
    budget: float = math.nan
    domain: str = ""

    @classmethod
    def of(cls, what: str, reserved: float, asked: float, budget: float, domain: str = "") -> Self:
        """The error, with its message."""
        remaining = max(0.0, budget - reserved)
        # what rounding leaves of a budget that is used up
        left = remaining if remaining > _NOTHING * budget else 0.0
        needed = reserved + asked
        enough = enough_for(needed) if budget < needed < math.inf else ""
        raised = f" to at least {enough}" if enough else ""
        decided = f"the domain's budget{raised} by an explicit decision"
        if enough and not domain:  # it is on no record yet
            decided = f"privacy.budget{raised}"
        elif enough:
            name = f"{'-- ' * domain.startswith('-')}{shlex.quote(domain)}"
            command = f"quiltstream ledger budget LEDGER {name} {enough}"
            decided = f"the domain's budget{raised} by `{command}`, an explicit decision"
        cost = f"{asked:.9g} epsilon" if math.isfinite(asked) else "more epsilon than any bound is known of"
        error = cls(
            f"{what} would cost {cost}, but {reserved:.9g} of the budget {budget:.9g} is reserved and "
            f"{left:.9g} remains; add noise (a smaller privacy.epsilon), or raise {decided}"
        )
        error.what, error.reserved, error.asked, error.budget, error.domain = what, reserved, asked, budget, domain
        error.remaining = remaining
        return error


class Words(str):
    """What a message says in the place of a value: it has no quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The words."""
        return str(self)


def shown(value: Any, limit: int = 80) -> str:
    """A value for a message, cut where it is long; a setting that is not there is left out."""
    text = "left out" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
