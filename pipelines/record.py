"""What is on record for a job, before and after it ran. Looking never creates a ledger."""

from __future__ import annotations

from dataclasses import dataclass

from ..schemas.settings import Settings
from ..store.address import StoreAddress
from ..store.errors import StoreMissing, UnknownNameError
from ..store.reading import DomainSummary
from ..store.records import Store
from ..store.specs import Registration
from ..transforms.plan import Plan
from .console import plural
from .exits import ExitCode
from .failures import CommandError

_FEW = 3


@dataclass(frozen=True, slots=True)
class Account:
    """What a ledger says about a domain.

    Attributes:
        exists: whether there is a ledger.
        loss: what the domain has lost, epsilon.
        reserved: loss when everything promised is published.
        budget: the budget in force; ``None`` for a domain that is not on record.
        charged: windows charged.
        refused: windows refused.
        naive: the epsilons of the charged windows added up.
    """

    exists: bool
    loss: float = 0.0
    reserved: float = 0.0
    budget: float | None = None
    charged: int = 0
    refused: int = 0
    naive: float | None = 0.0

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
    """

    account: Account
    registration: Registration | None = None
    complete: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()


def on_record(address: StoreAddress, domain: str, query: str) -> OnRecord:
    """Look at a ledger.

    Raises:
        StoreError: there is one and it cannot be read.
    """
    with Store(address, create=False) as store:
        try:
            account = account_in(store, domain)
            registration = store.registered(domain, query)
        except StoreMissing:
            return OnRecord(Account(exists=False))
        if registration is None or registration.query.schedule.stop is None:
            return OnRecord(account, registration)  # of an endless schedule no window is the last
        refused = frozenset(
            entry.window_start
            for entry in store.entries(domain)
            if entry.query == query and entry.decision == "refused"
        )
        missing = {window.start for window, _ in store.missing(registration)}
        windows = {window.start for window in registration.query.schedule.windows()}
        return OnRecord(account, registration, frozenset(windows - missing - refused), refused)


def account_in(store: Store, domain: str) -> Account:
    """The account of a domain of a ledger that is there."""
    try:
        said: DomainSummary = store.summary(domain)
    except UnknownNameError:
        return Account(exists=True)
    return Account(
        exists=True,
        loss=said.loss,
        reserved=said.reserved_loss,
        budget=said.budget,
        charged=said.charged,
        refused=said.refused,
        naive=said.naive,
    )


def account_of(plan: Plan) -> Account:
    """The account of a plan's domain, as far as there is one."""
    with Store(plan.address, create=False) as store:
        try:
            return account_in(store, plan.domain.name)
        except StoreMissing:
            return Account(exists=False)


def check_history(settings: Settings, ids: list[str]) -> None:
    """Refuse to go on when the sink holds releases that the ledger has forgotten or never knew (contract of the store).

    Args:
        settings: the job.
        ids: the release ids in the sink.

    Raises:
        CommandError: some of them are not on record.
    """
    if not ids:
        return
    address = StoreAddress(settings.ledger_url)
    with Store(address, create=False) as store:
        try:
            unknown = store.unknown_releases(ids)
        except StoreMissing:
            unknown = frozenset(ids)
            store_is = "is not there"
        else:
            store_is = "does not know them"
    if not unknown:
        return
    shown = ", ".join(sorted(unknown)[:_FEW]) + (" and others" if len(unknown) > _FEW else "")
    raise CommandError(
        f"sink: it holds {len(unknown):,} of {plural(len(ids), 'release')} that are not on record ({shown}): "
        f"the ledger {address} {store_is}, so what they cost is in no account and publishing now would "
        "spend the budget again; point ledger to the store they came from, or sink to another file, or say "
        "--history-lost if that store is lost for good",
        ExitCode.STORE,
    )
