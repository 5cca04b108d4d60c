"""What the ledger has on record for a job, and what is remembered of that ledger between two runs.

Looking never creates a ledger. A run that finds another ledger than the one that is remembered, an older copy or none
stops before it publishes anything, and so does the same command when it is begun again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile

from ..schemas.roster import Roster
from ..schemas.settings.base import SettingsError
from ..schemas.settings.job import Settings
from ..schemas.slots import format_instant
from ..store.address import StoreAddress
from ..store.answers import DomainSummary
from ..store.errors import StoreConflict, StoreReplaced
from ..store.log import Head
from ..store.registration import Sharing
from ..store.specs import Registration
from ..store.store import Store
from ..transforms.aggregate.memory import Memory, MemoryUnreadableError, Remembered
from ..transforms.formats.paths import everywhere, is_local
from ..transforms.plan import Plan, ledger_address, open_ledger
from .console import listed, plural
from .errors import CommandError, ExitCode, explain

_FEW = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """What a ledger says about a domain."""

    exists: bool  # whether there is a ledger
    loss: float = 0.0  # what the domain has lost, epsilon
    reserved: float = 0.0  # loss when everything promised is published
    budget: float | None = None  # the budget in force; ``None`` for a domain that is not on record
    charged: int = 0
    refused: int = 0
    naive: float | None = 0.0  # the epsilons of the charged windows added up
    history_lost: bool = False  # whether charges are missing, by an operator's word
    shares: tuple[Sharing, ...] = ()  # other domains that have some of its series

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
    """A query and its domain as the ledger knows them."""

    account: Standing
    registration: Registration | None = None  # of the query; ``None`` if it is not on record
    complete: frozenset[int] = frozenset()  # starts of the windows whose rows are all on record
    refused: frozenset[int] = frozenset()  # starts of the windows that were refused
    charged: frozenset[int] = frozenset()  # starts of the windows that were charged, complete or not


def on_record(address: StoreAddress, domain: str, query: str) -> OnRecord:
    """Look at a ledger."""
    with Store(address) as store:
        if not store.is_there():
            return OnRecord(Standing(exists=False))
        registration = store.registered(domain, query)
        return OnRecord(standing_in(store, domain)) if registration is None else _recorded(store, registration)


def _recorded(store: Store, held: Registration) -> OnRecord:
    """All that is on record of a query, up to its last window that has an entry."""
    entries = [entry for entry in store.entries(held.domain.name) if entry.query == held.query.name]
    charged = frozenset(entry.window_start for entry in entries if entry.decision == "charged")
    refused = frozenset(entry.window_start for entry in entries if entry.decision == "refused")
    last = max(charged, default=None)
    lacking = () if last is None else takewhile(lambda found: found[0].start <= last, store.missing(held))
    missing = {window.start for window, _ in lacking}
    return OnRecord(standing_in(store, held.domain.name), held, charged - missing, refused, charged)


@dataclass(frozen=True, slots=True)
class LiveProgress:
    """Where a live job stands."""

    until: str | None  # end of the last window before the first that is missing; ``None`` if none is on record
    first_missing: int | None  # slot where the first missing window starts; ``None`` when the schedule is finished
    refused: int  # windows of the domain that were refused
    loss: float  # of the domain, epsilon
    budget: float | None  # of the domain

    @property
    def text(self) -> str:
        """It in words."""
        until = "no window is on record yet" if self.until is None else f"on record until {self.until}"
        refused = f", {plural(self.refused, 'window')} refused" if self.refused else ""
        budget = "" if self.budget is None else f" of {self.budget:g}"
        return f"{until}{refused}; loss {self.loss:.9g}{budget}"


class Follower:
    """Looks at what is on record for a live job, each time from where the last look stopped."""

    def __init__(self, plan: Plan, registration: Registration) -> None:
        self._plan, self.registration = plan, registration
        self.store = Store(plan.address)
        self._start = registration.query.schedule.first

    def first_missing(self) -> int | None:
        """Slot where the first missing window starts; ``None`` when the schedule is finished."""
        found = next(self.store.missing(self.registration, start=self._start), None)
        if found is None:
            return None
        self._start = found[0].start
        return self._start

    def begin_us(self) -> int:
        """Windows that end by this instant are on record or refused."""
        schedule, first = self.registration.query.schedule, self.first_missing()
        if first is None:
            return self._plan.grid.time_of(schedule.covered.stop)
        return self._plan.grid.time_of(schedule.window_at(first).stop - 1)  # the window itself ends later

    def due_us(self, start: int) -> int:
        """End of the window that starts at a slot."""
        return self._plan.grid.time_of(self.registration.query.schedule.window_at(start).stop)

    def look(self) -> LiveProgress:
        """Where the job stands now."""
        schedule, first = self.registration.query.schedule, self.first_missing()
        done = len(schedule) if first is None else schedule.number_of(first) - schedule.number_of(schedule.first)
        until = self._plan.grid.time_of(schedule.over_at(schedule.number_of(schedule.first) + done - 1))
        account = standing_in(self.store, self._plan.domain.name)
        shown = format_instant(until) if done else None
        return LiveProgress(shown, first, account.refused, account.loss, account.budget)

    def record(self) -> OnRecord:
        """All that is on record now, by the rosters on record now."""
        return _recorded(self.store, self.store.current(self.registration))

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def check_ledger(address: StoreAddress, *, undone: bool = False) -> None:
    """Find out before anything is read whether the ledger can be written; what is tried may be undone."""
    with Store(address) as store:
        store.check_writable(undone=undone)


def series_of(store: Store, domain: str) -> frozenset[str]:
    """Every series that a query of a domain has or ever had."""
    held = (store.registered(domain, query.name) for query in store.summary(domain).queries)
    return frozenset(name for one in held if one is not None for name in one.series)


def standing_in(store: Store, domain: str) -> Standing:
    """The account of a domain of a ledger that is there."""
    if domain not in store.domains():
        return Standing(exists=True)
    said: DomainSummary = store.summary(domain)
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
    """The account of a plan's domain, as far as there is one, and what it will share with others."""
    with Store(plan.address) as store:
        if not store.is_there():
            return Standing(exists=False)
        account = standing_in(store, plan.domain.name)
        held = store.registered(plan.domain.name, plan.query_name)
        if roster is None or (held is not None and held.query.roster == roster):
            return account
        with suppress(StoreConflict):  # a registration says so, behind what a job looks at before it
            account = replace(account, shares=store.check_apart(plan.domain, roster.series))
    return account


@dataclass(frozen=True, slots=True)
class Unknown:
    """Releases of the sink that the ledger has forgotten or never knew."""

    names: tuple[str, ...] = ()  # their release ids, sorted
    of: int = 0  # how many releases the sink holds
    why: str = ""  # what is wrong with the ledger, in words


def unknown_releases(settings: Settings, ids: list[str]) -> Unknown:
    """Look for releases that are not on record."""
    if not ids:
        return Unknown()
    with Store(ledger_address(settings)) as store:
        names, why = frozenset(ids), "is missing"
        if store.is_there():
            names = store.unknown_releases(ids)
            why = "is an older copy, a restored backup or another one"
    return Unknown(tuple(sorted(names)), len(ids), why)


def check_history(settings: Settings, unknown: Unknown, lost: str | None) -> None:
    """Refuse to go on when something was published that is not on record (contract of the store)."""
    if unknown.names:
        why = unknown.why
        detail = (
            f"sink: it holds {len(unknown.names):,} of {plural(unknown.of, 'release')} that are not on record: "
            f"{listed(unknown.names, _FEW)}"
        )
    elif lost is not None:
        why, _, detail = lost.partition(": ")
    else:
        return
    place = str(StoreAddress(settings.ledger_url)).removeprefix("sqlite:///")
    raise ReplacedError(
        f"the ledger {why}: put {place} back with everything it held, and run again, or point ledger to where it is. "
        "Publishing without it would spend the budget twice; if it is lost for good, --history-lost goes on and marks "
        f"the account for ever{detail and f'. Known: {detail}'}"
    )


def known_history(
    settings: Settings, ids: Iterable[str], *, history_lost: bool = False, emptied: bool = False
) -> int | None:
    """Look for what was published and is not on record, then for what is wrong with the ledger.

    Returns:
        How many releases the account lacks, which is to be marked as one that charges are missing from; ``None`` where
        nothing is wrong, and no ledger was made in the place of one that was ``emptied``.

    Raises:
        ReplacedError: something is not on record, and the operator says nothing of it.
    """
    unknown = unknown_releases(settings, list(ids))
    lost = lost_ledger(settings, history_lost=history_lost)
    if not history_lost:
        check_history(settings, unknown, lost)
    elif unknown.names:
        give_up(settings)
    return len(unknown.names) if unknown.names or lost or emptied else None


def note_lost_history(plan: Plan, lacking: int | None) -> bool:
    """Mark a domain's account for ever as one that so many charges are missing from; False if it is not on record."""
    if lacking is None:
        return True
    with Store(plan.address) as store:
        if not (store.is_there() and plan.domain.name in store.domains()):
            return False
        store.note_history_lost(plan.domain.name, releases=lacking)
    return True


#: How the file is named; no pattern of a source or of a sink's reader finds it.
_SUFFIX = ".quiltstream.json"


class ReplacedError(CommandError):
    """The ledger is not the one that was known."""

    def __init__(self, text: str) -> None:
        super().__init__(text, ExitCode.STORE)


def with_ledger(settings: Settings, *, history_lost: bool = False) -> tuple[Settings, bool]:
    """The settings with the name of the ledger that is at their address, if there is one; the first look of a command.

    By an operator's word a new one is made in the place of one that was emptied; then the second value is true.
    """
    address, made = ledger_address(settings), False
    try:
        with Store(address) as store:
            if not store.is_there():
                return settings, False
            found = store.store_id
    except StoreReplaced:
        if not history_lost or address.store_id is not None:
            raise
        give_up(settings)
        found, made = open_ledger(address, over=True).store_id, True
    return settings.changed({"ledger_id": found}), made


def memory_of(settings: Settings) -> Memory:
    """The file that remembers a job's ledger: where the settings say, or beside a local sink.

    Raises:
        SettingsError: there is no such place.
    """
    sink = settings.sink
    if settings.memory is not None:
        return Memory(everywhere(settings.path(settings.memory)))
    path = None if sink is None or not sink.is_files else settings.path(sink.path)
    if path is None or not is_local(path):
        raise SettingsError(
            "memory is missing: the sink is no file of this machine, so name one here that remembers the ledger, for "
            "example memory: ledger-memory.json, on a disk that outlives the ledger's and that all workers share; by "
            "it the next run notices a ledger that was lost, and publishes nothing again"
        )
    # beside a folder too: what reads all files of a folder may fail of one that is not of releases
    folder, slash, name = path.rstrip("/").rpartition("/")
    return Memory(everywhere(f"{folder}{slash}.{name}{_SUFFIX}"))


def lost_ledger(settings: Settings, *, history_lost: bool) -> str | None:
    """What is wrong with the ledger, by what is remembered of it, in words; ``None`` if it has all of that."""
    memory = memory_of(settings)
    try:
        remembered = memory.read()
    except MemoryUnreadableError as error:
        if not history_lost:
            raise ReplacedError(str(error)) from None
        why: str | None = str(error)
    else:
        why = None if remembered is None else _lost(settings, remembered)
        why = None if why is None else f"{why}, as {memory.place} remembers"
    if why is not None and history_lost:
        give_up(settings)
    return why


def give_up(settings: Settings) -> None:
    """Let go, by an operator's word, of what is remembered."""
    memory_of(settings).give_up(settings.domain, str(StoreAddress(settings.ledger_url)))


def begin_memory(settings: Settings, store: Store) -> Memory:
    """The file, which knows the ledger from here on."""
    memory = memory_of(settings)
    memory.begin(store, settings.domain, marked=standing_in(store, settings.domain).history_lost)
    return memory


@contextmanager
def with_newest(settings: Settings) -> Generator[None]:
    """Add the sink's newest release to the message where the ledger was found to be another one, or gone.

    Raises:
        ReplacedError: it was.
    """
    try:
        yield
    except Exception as error:
        failure = explain(error)
        if failure.kind not in (StoreReplaced.__name__, ReplacedError.__name__):
            raise
        newest = ""
        with suppress(SettingsError, MemoryUnreadableError):
            remembered = memory_of(settings).read()
            newest = "" if remembered is None else f". The newest release that is remembered: {remembered.text}"
        raise ReplacedError(f"{failure.text}{'' if newest in failure.text else newest}") from error


def _lost(settings: Settings, remembered: Remembered) -> str | None:
    """What is wrong with the ledger, in words; ``None`` if it has what is remembered."""
    domain = settings.domain
    owed = domain in remembered.owed
    with Store(StoreAddress(settings.ledger_url)) as store:
        if not store.is_there():
            gone = f"is missing: the job's had the id {remembered.store_id or 'unknown'}"
            return gone if remembered.heads or owed else None
        if owed and not standing_in(store, domain).history_lost:
            return f"was given up by --history-lost, and domain {domain!r} is not marked for it yet"
        if remembered.heads and store.store_id != remembered.store_id:
            return f"is another one: it has the id {store.store_id}, and the job's had {remembered.store_id}"
        held = all(store.holds(name, Head.parse(head)) for name, head in remembered.heads.items())
        older = f"it lacks rows that left the job, up to {remembered.newest}"
        return None if held else f"is an older copy or a restored backup: {older}"
