"""What the ledger has on record for a job, and what is remembered of that ledger between two runs.

Looking never creates a ledger. A ledger that is lost takes every charge with it, so which one it was, its newest charge
and the newest block that left are remembered elsewhere: in small files beside the sink, and beside the settings, under
the ledger's address. A run that finds another ledger there, an older copy or none stops before it publishes anything,
and so does the same command when it is begun again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from ..schemas.files import read_regular, reason, write_whole
from ..schemas.releases import release_ids
from ..schemas.roster import Roster
from ..schemas.settings.base import SettingsError
from ..schemas.settings.job import Settings
from ..schemas.slots import SlotGrid, Window, format_instant
from ..store.address import StoreAddress
from ..store.errors import SharedSeries, StoreMissing, StoreReplaced, UnknownNameError
from ..store.queries import DomainSummary
from ..store.registration import Sharing
from ..store.specs import Registration
from ..store.store import Store
from ..transforms.aggregate.ledger_access import BlockLog, LoggedBlock, compact, logged
from ..transforms.aggregate.ledger_access import begin as begin_log
from ..transforms.aggregate.ledger_access import read as read_log
from ..transforms.formats.paths import everywhere, file_systems, is_elsewhere, is_local
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
    """The account of a plan's domain, as far as there is one, and what it will share with others."""
    with Store(plan.address) as store:
        try:
            account = standing_in(store, plan.domain.name)
            held = store.registered(plan.domain.name, plan.query_name)
            if roster is None or (held is not None and held.query.roster == roster):
                return account
            with suppress(SharedSeries):  # a registration says so, behind what a job looks at before it
                account = replace(account, shares=store.check_apart(plan.domain, roster.series))
        except StoreMissing:
            return Standing(exists=False)
    return account


@dataclass(frozen=True, slots=True)
class Unknown:
    """Releases of the sink that the ledger has forgotten or never knew."""

    names: tuple[str, ...] = ()  # their release ids, sorted
    of: int = 0  # how many releases the sink holds
    why: str = ""  # what is wrong with the ledger, in words

    def without(self, names: frozenset[str]) -> Unknown:
        """The same but for some of them."""
        return replace(self, names=tuple(name for name in self.names if name not in names))


def unknown_releases(settings: Settings, ids: list[str]) -> Unknown:
    """Look for releases that are not on record."""
    if not ids:
        return Unknown()
    with Store(ledger_address(settings)) as store:
        try:
            names, why = (
                store.unknown_releases(ids),
                "does not know them: it is an older copy, a restored backup or another one",
            )
        except StoreMissing:
            names, why = set(ids), "is not there"
    return Unknown(tuple(sorted(names)), len(ids), why)


def check_history(settings: Settings, unknown: Unknown, lost: str | None) -> None:
    """Refuse to go on when something was published that is not on record (contract of the store)."""
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
    shown = listed(names, _FEW)
    raise ReplacedError(
        f"sink: it holds {len(names):,} of {plural(unknown.of, 'release')} that are not on record ({shown}): "
        f"the ledger {StoreAddress(settings.ledger_url)} {unknown.why}, so what they cost is in no account and "
        "publishing now would spend the budget again; point ledger to the store they came from, or sink to another "
        "file, or say --history-lost if that store is lost for good, which marks the account for ever"
    )


def known_history(
    settings: Settings,
    memory: Memory,
    ids: Iterable[str],
    *,
    history_lost: bool = False,
    forgiven: frozenset[str] = frozenset(),
) -> tuple[Unknown, str | None]:
    """What was published and is not on record, and what is wrong with the ledger: looked for in this order.

    Of ``forgiven`` releases the operator has said before to go on all the same.

    Raises:
        ReplacedError: something is not on record, and the operator says nothing of it.
    """
    unknown = unknown_releases(settings, list(ids)).without(forgiven)
    lost = memory.lost(history_lost=history_lost)
    if not history_lost:
        check_history(settings, unknown, lost)
    elif unknown.names:
        memory.give_up()
    return unknown, lost


def note_lost_history(plan: Plan, unknown: Unknown) -> bool:
    """Mark a domain's account for ever as one that charges are missing from; False if it is not on record yet."""
    with Store(plan.address) as store:
        try:
            store.note_history_lost(plan.domain.name, releases=len(unknown.names))
        except (StoreMissing, UnknownNameError):
            return False
    return True


#: How the files are named; no pattern of a source or of a sink's reader finds them.
_SUFFIX = ".quiltstream.json"
_LOG_SUFFIX = ".quiltstream.blocks"

_MOST_BYTES = 64 << 10


class ReplacedError(CommandError):
    """The ledger is not the one that was known. The job is not begun again."""

    def __init__(self, text: str) -> None:
        super().__init__(text, ExitCode.STORE)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is remembered of a ledger."""

    store_id: str  # its random name
    ledger: str  # its address, without secrets
    domain: str
    query: str
    # whether a run was under way when this was written: then there may be charges that it does not tell of
    underway: bool = True
    entry_id: str | None = None  # the newest charge of the query that was seen; ``None`` for none
    sequence: int = 0  # its number in the domain's account
    until: str | None = None  # end of its window
    release_id: str | None = None  # name of a row of its window
    # whether all this was given up by an operator's word for which the account of the domain was not marked yet
    owed: bool = False

    @property
    def text(self) -> str:
        """The newest release in words."""
        if self.until is None:
            return f"ledger {self.store_id}, before its first release"
        name = "" if self.release_id is None else f"{self.release_id}, "
        return (
            f"{name}window until {self.until} of query {self.query!r}, entry {self.sequence} of ledger {self.store_id}"
        )


def with_ledger(settings: Settings, *, history_lost: bool = False) -> tuple[Settings, bool]:
    """The settings with the name of the ledger that is at their address, if there is one; the first look of a command.

    By an operator's word a new one is made in the place of one that was emptied; then the second value is true.
    """
    address, made = ledger_address(settings), False
    try:
        with Store(address) as store:
            found = store.store_id
    except StoreMissing:
        return settings, False
    except StoreReplaced:
        if not history_lost or address.store_id is not None:
            raise
        Memory(settings).give_up()
        found, made = open_ledger(address, over=True).store_id, True
    return settings.changed({"ledger_id": found}), made


class Memory:
    """The files that remember a job's ledger."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._places = _places_of(settings)
        local = [everywhere(place) for place in self._places if is_local(place)]
        self._logs = tuple(place.removesuffix(_SUFFIX) + _LOG_SUFFIX for place in local)
        self._known: Remembered | None = None
        self._given_up = False
        self._unreadable: list[str] = []

    @property
    def newest(self) -> str:
        """The newest release that is remembered, as the end of a message; empty where nothing is."""
        known = self._known
        if known is None:
            with suppress(CommandError, SettingsError):
                known = next((one for place in self._places if (one := _read(place)) is not None), None)
        return "" if known is None else f". The sink's newest release that is remembered: {known.text}"

    @property
    def of_workers_elsewhere(self) -> str:
        """What a job's workers on other machines do not see to, in words."""
        return (
            f"workers on other machines log the blocks that leave only where {' and '.join(self._logs) or 'a file'} "
            "can be written at the same path, on a disk that they share with this command; elsewhere an older copy of "
            "the ledger that is put in place after this command's last look, every few seconds, is not noticed by the "
            "next run where the sink's last rows are gone, too"
        )

    def lost(self, *, history_lost: bool) -> str | None:
        """What is wrong with the ledger, by what is remembered of it, in words; ``None`` if it has all of that."""
        found = self._lost(history_lost=history_lost)
        if found is not None and history_lost:
            self.give_up()
        return found

    def _lost(self, *, history_lost: bool) -> str | None:
        for place in self._places:
            try:
                remembered = _read(place)
            except ReplacedError as error:
                if not history_lost:
                    raise
                return str(error)
            why = None if remembered is None else _lost(self._settings, remembered)
            if why is not None:
                return f"{why}, as {place} remembers"
        found: str | None = None
        for path in self._logs:
            try:
                why = _lacks(self._settings, _logged(path))
            except ReplacedError as error:
                if not history_lost:
                    raise
                self._unreadable.append(path)
                why = str(error)
            if why is not None and found is None:
                found = f"{why}, as {path} remembers"
        return found

    def give_up(self) -> None:
        """Let go, by an operator's word, of what is remembered; until the account is marked for it, the files say so.

        What is to be marked may be registered only when the data are read, and the run may end before that.
        """
        self._given_up = True
        address, domain = StoreAddress(self._settings.ledger_url), self._settings.domain
        none = Remembered("unknown", str(address), domain, self._settings.query, underway=False)
        for place in self._places:
            known = None
            with suppress(CommandError, SettingsError):
                known = _read(place)
            # what another domain's job wrote there is its own, and it has another place
            known = none if known is None or known.domain != domain else known
            with suppress(OSError):
                _write(place, replace(known, owed=True))

    def log(self, *, here: bool) -> BlockLog:
        """Where workers log blocks before their rows leave: the files of this machine that can be written."""
        for path in self._unreadable:
            with suppress(OSError):
                Path(path).unlink()
        return BlockLog(tuple(path for path in self._logs if begin_log(Path(path))), here)

    def note(self, store: Store, query: str, registration: Registration | None = None, *, underway: bool) -> None:
        """Remember the ledger and its newest charge; where no file can be written, nothing is."""
        domain, address = self._settings.domain, store.address
        head = store.newest(domain, query)
        self._check_kept(store, None if head is None else head.entry_id)
        if self._known is None or not underway:
            self._compact(store, query, registration)
        if self._given_up and not standing_in(store, domain).history_lost:
            return
        self._given_up = False
        now = Remembered(store.store_id, str(replace(address, store_id=None)), domain, query, underway)
        if head is not None:
            until = format_instant(self._settings.grid.time_of(head.stop))
            row = None if registration is None else _row_of(registration, Window(head.start, head.stop))
            now = replace(now, entry_id=head.entry_id, sequence=head.sequence, until=until, release_id=row)
        if now != self._known:
            self._known = now
            for place in self._places:
                with suppress(OSError):
                    _write(place, now)

    def _check_kept(self, store: Store, newest: str | None) -> None:
        """See that the charge that is remembered is on record, before another one takes its place."""
        known = self._known
        if known is None or known.entry_id in (None, newest) or store.has_entry(known.entry_id):
            return
        raise StoreReplaced(
            f"ledger {store.address}: an older copy or a restored backup is there: entry {known.sequence} of domain "
            f"{known.domain!r} (window until {known.until}) was on record, and is not any more. The job stops for good "
            "before anything more is published: stop all jobs that use the ledger and put it back with everything it "
            "held; if it is lost for good, `quiltstream run --history-lost` goes on without it and marks the account "
            "for ever"
        )

    def _compact(self, store: Store, query: str, registration: Registration | None) -> None:
        """Log the newest block, which stands for all on record: also for those of a worker that ended before it did."""
        newest = None if registration is None else store.newest_block(registration.domain.name, query)
        also = [] if newest is None or registration is None else [logged(registration, newest)]
        for path in self._logs:
            with suppress(OSError, ValueError):
                compact(Path(path), store, also=also, forget=self._given_up)

    def check(self) -> None:
        """Say where the loss of the ledger could not be noticed by the next run: no file remembers it."""
        if not any(self._kept(place) for place in self._places):
            click.echo(
                f"ledger: no file could be written that remembers it ({', '.join(self._places)}), so the next run "
                "cannot notice that it was lost, and would publish anew; write its id into the settings, "
                f"ledger_id: {None if self._known is None else self._known.store_id}, or let this user write there",
                err=True,
            )

    def _kept(self, place: str) -> bool:
        with suppress(CommandError, SettingsError):
            found = _read(place)
            return found is not None and (found == self._known or (self._given_up and found.owed))
        return False


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
        newest = Memory(settings).newest
        raise ReplacedError(f"{failure.text}{'' if newest in failure.text else newest}") from error


def _lost(settings: Settings, remembered: Remembered) -> str | None:
    """What is wrong with the ledger, in words; ``None`` if it has what is remembered."""
    address = StoreAddress(settings.ledger_url)
    owed = remembered.owed and remembered.domain == settings.domain
    entry = f"entry {remembered.sequence} of domain {remembered.domain!r} (window until {remembered.until})"
    try:
        with Store(address) as store:
            found = store.store_id
            if remembered.entry_id is not None:
                sound = store.has_entry(remembered.entry_id)
            elif owed:
                sound = standing_in(store, settings.domain).history_lost
            else:
                sound = found == remembered.store_id or not remembered.underway
            if sound:
                return None
            if remembered.entry_id is not None and found == remembered.store_id:
                return f"is an older copy or a restored backup: {entry} is not on record in it"
            if remembered.entry_id is None and owed:
                return f"was given up by --history-lost, and domain {settings.domain!r} is not marked for it yet"
            return f"is another one: it has the id {found}, and the job's had {remembered.store_id}"
    except StoreMissing:
        if remembered.entry_id is None and not remembered.underway and not owed:
            return None
        return f"is not there: the job's had the id {remembered.store_id}"


def _logged(path: str) -> list[LoggedBlock]:
    """The blocks that left a job."""
    try:
        return read_log(Path(path))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _lacks(settings: Settings, blocks: list[LoggedBlock]) -> str | None:
    """What is wrong with the ledger, in words; ``None`` if it has all blocks that left a job."""
    if not blocks:
        return None
    try:
        with Store(StoreAddress(settings.ledger_url)) as store:
            numbers = store.block_numbers([one.name for one in blocks])
    except StoreMissing:
        return "is not there"
    absent = [one for one, found in zip(blocks, numbers, strict=True) if found is None]
    if not absent:
        return None
    named = ", ".join(f"shard {one.shard} of the window until {one.until} of query {one.query!r}" for one in absent[:1])
    more = "" if len(absent) == 1 else f" and {len(absent) - 1:,} more"
    return f"is an older copy or a restored backup, or another one: it lacks rows that have left the job, {named}{more}"


def _row_of(registration: Registration, window: Window) -> str | None:
    keys = registration.roster_of(window).keys
    if not keys:
        return None
    grid = SlotGrid(**registration.domain.grid)
    names = (registration.domain.name, registration.query.name)
    times = (grid.time_of(window.start), grid.time_of(window.stop))
    return release_ids(*names, registration.digest, times, keys[:1])[0]


def _places_of(settings: Settings) -> tuple[str, ...]:
    """The files, the one beside the sink first."""
    sink, beside = settings.sink, _beside(settings, f"ledger {StoreAddress(settings.ledger_url)}")
    if sink is None:
        return (beside,)
    if not sink.is_files:
        return _beside(settings, f"sink {sink.text}"), beside
    # beside a folder too: what reads all files of a folder may fail of one that is not of releases
    folder, slash, name = settings.path(sink.path).rstrip("/").rpartition("/")
    return f"{folder}{slash}.{name}{_SUFFIX}", beside


def _beside(settings: Settings, key: str) -> str:
    """A file beside the settings for what has none beside itself."""
    return settings.path(f".{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}{_SUFFIX}")


def _read(place: str) -> Remembered | None:
    """What a file remembers; ``None`` if there is none."""
    try:
        if is_local(place):
            text = read_regular(Path(place), _MOST_BYTES).decode()
        else:
            if not is_elsewhere(place, "sink"):
                return None
            with file_systems().open(place) as file:
                text = file.read().decode()
        plain: dict[str, Any] = json.loads(text)
        return Remembered(**plain)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except SettingsError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(place, error) from None


def _unreadable(place: str, error: Exception) -> ReplacedError:
    mend = "let this user read and write it" if isinstance(error, PermissionError) else "put it back from a backup"
    return ReplacedError(
        f"ledger: {place} remembers which one it is, and cannot be read ({reason(error)}); {mend}, or say "
        "--history-lost, which marks the account for ever: it is written anew then"
    )


def _write(place: str, remembered: Remembered) -> None:
    text = json.dumps(asdict(remembered), indent=1) + "\n"
    if is_local(place):
        write_whole(Path(place), text)
        return
    with file_systems().create(place, mime_type="application/json") as file:
        file.write(text.encode())
