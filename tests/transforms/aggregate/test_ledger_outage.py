"""Workers of live jobs wait for a ledger that is away, for a while, and others do not."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest

from quiltstream.store import StoreConflict, StoreDamaged, StoreError
from quiltstream.store.errors import StoreAway
from quiltstream.transforms.aggregate.ledger_access import WAIT_S, Patience, PatientStore, give_up, wait_without_end
from quiltstream.transforms.sources.progress import LEDGER, Heartbeat


class Ledger:
    """One that is away until an instant of a clock that only waiting moves."""

    def __init__(self, until: float, error: StoreError | None = None) -> None:
        self.now, self.until, self.calls = 0.0, until, 0
        self.pauses: list[float] = []
        self._error = error or StoreAway("away")

    def pause(self, _over: threading.Event, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return False

    def ask(self) -> str:
        self.calls += 1
        if self.now < self.until:
            raise self._error
        return "here"

    def patience(self, seconds: float = WAIT_S) -> Patience:
        return Patience(seconds, clock=lambda: self.now, pause=self.pause)


@pytest.fixture(autouse=True)
def over() -> Any:
    yield
    give_up()


@pytest.mark.parametrize("seconds", [1, 30, 100])
def test_a_call_waits_for_a_ledger_unavailable_for_less_than_two_minutes(seconds: int) -> None:
    ledger = Ledger(seconds)
    assert ledger.patience().call(ledger.ask, threading.Event()) == "here"
    assert ledger.pauses == sorted(ledger.pauses)
    assert ledger.now < seconds + 16


@pytest.mark.parametrize("seconds", [150, 900])
def test_a_call_gives_up_after_two_minutes_unless_the_source_is_read_once(seconds: int) -> None:
    ledger = Ledger(seconds)
    with pytest.raises(StoreAway):
        ledger.patience().call(ledger.ask, threading.Event())
    assert ledger.now <= WAIT_S
    wait_without_end()
    ledger = Ledger(seconds, StoreAway("locked"))
    assert ledger.patience().call(ledger.ask, threading.Event()) == "here"


@pytest.mark.parametrize("error", [StoreDamaged("damaged"), StoreConflict("gone"), StoreError("x")])
def test_a_permanent_error_is_raised_at_once(error: StoreError) -> None:
    ledger = Ledger(1, error)
    with pytest.raises(type(error)):
        ledger.patience().call(ledger.ask, threading.Event())
    assert (ledger.calls, ledger.pauses) == (1, [])


@pytest.mark.parametrize("seconds", [3, 900])
def test_a_waiting_call_complains_of_the_ledger_until_it_ends(seconds: int) -> None:
    told = list[dict[str, str]]()

    class Full(Ledger):
        def pause(self, over: threading.Event, seconds: float) -> bool:
            told.append(Heartbeat.complaints())
            return super().pause(over, seconds)

        def publish(self, *_: Any) -> list[Any]:
            self.ask()
            return []

    ledger: Any = Full(seconds, StoreAway("no room left"))
    with pytest.raises(StoreAway) if seconds > WAIT_S else nullcontext():
        PatientStore(ledger, live=True, patience=ledger.patience()).publish(None, [])  # type: ignore[arg-type]
    assert told == [{f"{LEDGER}{threading.get_ident()}": "no room left"}] * len(ledger.pauses)
    assert len(told) > 1
    assert Heartbeat.complaints() == {}


def test_a_batch_job_does_not_wait_for_the_ledger() -> None:
    class Away:
        calls = 0

        def current(self, _registration: Any) -> Any:
            self.calls += 1
            raise StoreAway("away")

    away: Any = Away()
    with pytest.raises(StoreAway):
        PatientStore(away, live=False).current(None)  # type: ignore[arg-type]
    assert away.calls == 1


def test_the_end_of_a_job_ends_all_waiting_in_its_process() -> None:
    class Away:
        def current(self, _registration: Any) -> Any:
            raise StoreAway("away")

    away: Any = Away()
    wait_without_end()
    waits = PatientStore(away, live=True)
    timer = threading.Timer(0.05, give_up)
    timer.start()
    with pytest.raises(StoreAway):
        waits.current(None)  # type: ignore[arg-type]
    timer.join()
