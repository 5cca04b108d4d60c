"""What is on record for a job, before and after it ran. Looking never creates a ledger."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..schemas.roster import Roster
from ..schemas.settings.job import Settings
from ..store.address import StoreAddress
from ..store.errors import StoreMissing, UnknownNameError
from ..store.queries import DomainSummary
from ..store.registration import Sharing
from ..store.specs import Registration
from ..store.store import Store
from ..transforms.plan import Plan, ledger_address
from .console import plural
from .continuity import ReplacedError

_FEW = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """What a ledger says about a domain.

    Attributes:
        exists: whether there is a ledger.
        loss: what the domain has lost, epsilon.
        reserved: loss when everything promised is published.
        budget: the budget in force; ``None`` for a domain that is not on record.
        charged: windows charged.
        refused: windows refused.
        naive: the epsilons of the charged windows added up.
        history_lost: whether charges are missing, by an operator's word.
        shares: other domains that have some of its series.
    """

    exists: bool
    loss: float = 0.0
    reserved: float = 0.0
    budget: float | None = None
    charged: int = 0
    refused: int = 0
    naive: float | None = 0.0
    history_lost: bool = False
    shares: tuple[Sharing, ...] = ()

    @property
    def text(self) -> str:
        """The account in words."""
        if not self.exists:
            return "there is none yet; the first run creates it"
        if self.budget is None:
            return "the domain is not on record yet"
        windows = f"{plural(self.charged, 'window')} charged" + (f", {self.refused:,} refused" if self.refused else "")
        return f"the domain has lost {self.loss:.9g} of {self.budget:g} ({windows}); {self.reserved:.9g} is promised"


@dataclass(frozen=True, slots=True)
class OnRecord:
    """A query and its domain as the ledger knows them.

    Attributes:
        account: of the domain.
        registration: of the query; ``None`` if it is not on record.
        complete: starts of the windows whose rows are all on record.
        refused: starts of the windows that were refused.
        charged: starts of the windows that were charged, complete or not.
    """

    account: Standing
    registration: Registration | None = None
    complete: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    charged: frozenset[int] = frozenset()


def on_record(address: StoreAddress, domain: str, query: str) -> OnRecord:
    """Look at a ledger.

    Raises:
        StoreError: there is one and it cannot be read.
    """
    with Store(address) as store:
        try:
            account = standing_in(store, domain)
            registration = store.registered(domain, query)
        except StoreMissing:
            return OnRecord(Standing(exists=False))
        if registration is None or registration.query.schedule.stop is None:
            return OnRecord(account, registration)  # of an endless schedule no window is the last
        entries = [entry for entry in store.entries(domain) if entry.query == query]
        refused = frozenset(entry.window_start for entry in entries if entry.decision == "refused")
        charged = frozenset(entry.window_start for entry in entries if entry.decision == "charged")
        missing = {window.start for window, _ in store.missing(registration)}
        windows = {window.start for window in registration.query.schedule.windows()}
        return OnRecord(account, registration, frozenset(windows - missing - refused), refused, charged)


def check_ledger(address: StoreAddress) -> None:
    """Find out before anything is read whether the ledger can be written.

    Raises:
        StoreError: it cannot, or it is damaged or of another version.
    """
    with Store(address) as store:
        store.check_writable()


def series_of(store: Store, domain: str) -> frozenset[str]:
    """Every series that a query of a domain has or ever had.

    Raises:
        UnknownNameError: there is no such domain.
    """
    held = (store.registered(domain, query.name) for query in store.summary(domain).queries)
    return frozenset(name for one in held if one is not None for name in one.series)


def standing_in(store: Store, domain: str) -> Standing:
    """The account of a domain of a ledger that is there."""
    try:
        said: DomainSummary = store.summary(domain)
    except UnknownNameError:
        return Standing(exists=True)
    return Standing(
        exists=True,
        loss=said.loss,
        reserved=said.reserved_loss,
        budget=said.budget,
        charged=said.charged,
        refused=said.refused,
        naive=said.naive,
        history_lost=said.history_lost,
        shares=said.shares,
    )


def standing_of(plan: Plan, roster: Roster | None) -> Standing:
    """The account of a plan's domain, as far as there is one, and what it will share with others.

    Args:
        plan: the plan.
        roster: the series that it publishes, if they are known.

    Raises:
        SharedSeries: the run would be refused, because of series that another domain has.
        StoreError: there is a ledger and it cannot be read.
    """
    with Store(plan.address) as store:
        try:
            account = standing_in(store, plan.domain.name)
            held = store.registered(plan.domain.name, plan.query_name)
            if roster is None or (held is not None and held.query.roster == roster):
                return account
            return replace(account, shares=store.check_apart(plan.domain, roster.series))
        except StoreMissing:
            return Standing(exists=False)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Releases of the sink that the ledger has forgotten or never knew.

    Attributes:
        names: their release ids, sorted.
        of: how many releases the sink holds.
        why: what is wrong with the ledger, in words.
    """

    names: tuple[str, ...] = ()
    of: int = 0
    why: str = ""

    def without(self, names: frozenset[str]) -> Unknown:
        """The same but for some of them."""
        return replace(self, names=tuple(name for name in self.names if name not in names))


def unknown_releases(settings: Settings, ids: list[str]) -> Unknown:
    """Look for releases that are not on record.

    Args:
        settings: the job.
        ids: the release ids in the sink.

    Raises:
        StoreError: there is a ledger and it cannot be read.
    """
    if not ids:
        return Unknown()
    with Store(ledger_address(settings)) as store:
        try:
            return Unknown(
                tuple(sorted(store.unknown_releases(ids))),
                len(ids),
                "does not know them: it is an older copy, a restored backup or another one",
            )
        except StoreMissing:
            return Unknown(tuple(sorted(set(ids))), len(ids), "is not there")


def check_history(settings: Settings, unknown: Unknown, lost: str | None) -> None:
    """Refuse to go on when something was published that is not on record (contract of the store).

    Args:
        settings: the job.
        unknown: releases of the sink that are not on record.
        lost: what is wrong with the ledger, by what is remembered of it.

    Raises:
        CommandError: it was.
    """
    names = unknown.names
    if not names:
        if lost is not None:
            raise ReplacedError(
                f"ledger {StoreAddress(settings.ledger_url)} {lost}. What it was charged is in no account here, and "
                "publishing now would spend the budget again: put the ledger back with everything it held, or point "
                "ledger to where it is now; if it is lost for good, say --history-lost, which marks the account for "
                "ever"
            )
        return
    shown = ", ".join(names[:_FEW]) + (" and others" if len(names) > _FEW else "")
    raise ReplacedError(
        f"sink: it holds {len(names):,} of {plural(unknown.of, 'release')} that are not on record ({shown}): "
        f"the ledger {StoreAddress(settings.ledger_url)} {unknown.why}, so what they cost is in no account and "
        "publishing now would spend the budget again; point ledger to the store they came from, or sink to another "
        "file, or say --history-lost if that store is lost for good, which marks the account for ever",
    )


def note_lost_history(plan: Plan, unknown: Unknown) -> bool:
    """Mark a domain's account for ever as one that charges are missing from.

    Returns:
        Whether the domain is on record, so that it could be marked.

    Raises:
        StoreError: the ledger cannot be written.
    """
    with Store(plan.address) as store:
        try:
            store.note_history_lost(plan.domain.name, releases=len(unknown.names))
        except (StoreMissing, UnknownNameError):
            return False
    return True
