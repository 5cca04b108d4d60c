"""Every ledger of record: windows that are days or months of a time zone, whose bounds are on record."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace
from typing import Any

import pytest

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.privacy.mechanisms.histogram import LaplaceHistogram
from quiltstream.schemas.calendars import Calendar, Unit, local_calendar, shifts_of
from quiltstream.schemas.slots import Schedule, Window, parse_instant
from quiltstream.store import BudgetRefused, Store, StoreError
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import QuerySpec

from ..present import present
from .engines import OnLedger
from .proofs import prices, replayed
from .samples import BELIEF, GRID, SPACE, domain, drafts, query, seen


def slot(instant: str) -> int:
    return GRID.slots_of(parse_instant(instant, "Europe/London"))


def by_calendar(
    unit: Unit = "day", first: str = "2013-03-28", last: str | None = "2013-04-03", zone: str = "Europe/London"
) -> Schedule:
    calendar = local_calendar(unit, zone, GRID.interval_us)
    return Schedule.of_calendar(calendar, slot(first), None if last is None else slot(last))


def edges(schedule: Schedule) -> tuple[int | None, int | None]:
    return schedule.start, schedule.stop


#: Zone data by which the clock stays where it is from 2020 on.
SUMMERLESS = tuple(
    one for one in shifts_of("Europe/London") if one[0] < (dt.date(2020, 1, 1) - dt.date(1970, 1, 1)).days
)


def days(schedule: Schedule | None = None, **changes: Any) -> QuerySpec:
    return replace(query(**changes), schedule=by_calendar() if schedule is None else schedule)


def with_own_noise(schedule: Schedule, **changes: Any) -> QuerySpec:
    """A query whose windows have noise in proportion to their slots, as group privacy has it."""
    made = days(schedule, **changes)
    own = {slots: LaplaceHistogram.from_sigma(SPACE.size, slots / 4) for slots in schedule.lengths}
    columns = {
        str(slots): {
            "scale": float(noisy.scale),
            "scale_exact": f"{noisy.scale.numerator}/{noisy.scale.denominator}",
            "half_width_95": noisy.half_width(0.95),
            "epsilon_dp": noisy.epsilon_dp,
            "quilt": [None, None],
            "sigma": slots / 4,
        }
        for slots, noisy in own.items()
    }
    most = own[max(own)]
    lengths = {"lengths": columns} if len(own) > 1 else {}
    return replace(
        made,
        scale=most.scale,
        release_epsilon_dp=most.epsilon_dp,
        mechanism="group-dp",
        header=made.header | columns[str(max(own))] | lengths,
    )


class CalendarContract(OnLedger):
    """What a query by the calendar promises."""

    def test_days_of_any_length_are_charged_and_published_in_their_order(self, store: Store, url: str) -> None:
        held = store.register(domain(budget=2.0), days())
        windows = list(held.query.schedule.windows())
        assert [len(one) for one in windows] == [48, 48, 48, 46, 48, 48]
        done = store.publish(held, drafts(held, windows[3:4]))
        assert [record.entry.decision for record in done] == ["charged"] * 2
        entries = store.entries()
        assert [Window(one.window_start, one.window_stop) for one in entries] == windows[:4]
        rows = [batch.to_pylist() for batch in store.releases("homes", "weekly")]
        assert {row["slots"] for batch in rows for row in batch} == {46}
        assert all((row["window_stop"] - row["window_start"]).total_seconds() == 23 * 3600 for row in rows[0])
        store.publish(held, drafts(held))
        prices(store.entries(), 2.0)
        with Store(url, create=True) as other:
            again = present(other.registered("homes", "weekly"))
            assert again == replace(held, fresh=False)
            assert "calendar" not in again.query.header
            assert seen(other.publish(again, replayed(again))) == seen(store.publish(held, replayed(held)))
            assert other.verify().defects == ()
            assert list(other.missing(again)) == []

    def test_a_day_or_month_that_is_not_of_the_calendar_is_not_published(self, store: Store) -> None:
        held = store.register(domain(), days())
        first = held.query.schedule.first
        for window in (Window(first, first + 46), Window(first + 2, first + 50), Window(first - 48, first)):
            with pytest.raises(StoreConflict, match="is not in its schedule"):
                store.publish(held, drafts(held, [window]))
        assert store.entries() == []

    def test_the_reserved_loss_of_calendar_days_is_that_of_all_their_slots(self, store: Store) -> None:
        held = store.register(domain(budget=2.0), days())
        windows = list(held.query.schedule.windows())
        alone = Ledger(BELIEF).loss_of([(one.start, one.stop, held.query.epsilon_dp) for one in windows])
        assert held.reserved_loss == pytest.approx(alone, rel=1e-12)
        later = store.register(domain(budget=2.0), days(by_calendar(last="2013-05-02")))
        assert later.reserved_loss >= held.reserved_loss
        store.publish(later, drafts(later))
        assert store.summary("homes").loss == pytest.approx(later.reserved_loss, rel=1e-12)
        endless = store.register(domain("others", budget=2.0), days(by_calendar(last=None), domain="others"))
        assert 2.0 >= endless.reserved_loss >= later.reserved_loss

    def test_a_budget_admits_only_whole_calendar_days(self, store: Store) -> None:
        asked = days(by_calendar(first="2013-03-30", last="2013-05-30"), share=2.0)
        ends = list(asked.schedule.ends)
        ledger = Ledger(BELIEF)
        losses = [ledger.charge(one.start, one.stop, asked.epsilon_dp).loss_after for one in asked.schedule.windows()]
        assert losses[1] < losses[-1]
        budget = losses[1] * (1 + 1e-9)
        held = store.register(domain(budget=budget), asked)
        assert held.admitted_stop == ends[1]
        done = store.publish(held, drafts(held, list(held.query.schedule.windows())[:4]))
        assert [record.entry.decision for record in done if record.shard == 0] == ["charged"] * 2 + ["refused"] * 2
        store.raise_budget("homes", losses[-1] * 1.01)
        wider = present(store.registered("homes", "weekly"))
        assert wider.admitted_stop is None
        assert store.verify().defects == ()
        with pytest.raises(BudgetRefused):
            store.register(domain("small", budget=losses[0] * 0.5), days(asked.schedule, domain="small", share=2.0))

    def test_bounds_of_other_zone_data_are_refused_and_change_nothing(self, store: Store) -> None:
        held = store.register(domain(), days())
        before = store.entries()
        assert held.query.schedule.calendar is not None
        other = Calendar("day", "Europe/London", ((0, 0),), GRID.interval_us)
        asked = Schedule.of_calendar(other, held.query.schedule.start, held.query.schedule.stop)
        with pytest.raises(StoreConflict, match=r"others from 2013-03-31 on.*another edition"):
            store.register(domain(), days(asked))
        assert store.entries() == before
        assert store.registered("homes", "weekly") == replace(held, fresh=False)
        # as long as its own windows agree, an edition may differ elsewhere, and what is on record holds
        winter = by_calendar(first="2013-01-02", last="2013-01-09")
        first = store.register(domain("winter"), days(winter, name="w", domain="winter"))
        plain = Schedule.of_calendar(other, winter.start, winter.stop)
        again = store.register(domain("winter"), days(plain, name="w", domain="winter"))
        assert again == replace(first, fresh=False)
        longer = Schedule.of_calendar(other, winter.start, slot("2013-04-05"))
        with pytest.raises(StoreConflict, match="others from 2013-03-31 on"):
            store.register(domain("winter"), days(longer, name="w", domain="winter"))

    def test_an_endless_query_ends_at_changed_zone_data_and_a_successor_continues(self, store: Store) -> None:
        held = store.register(domain(), days(by_calendar(last=None)))
        windows = list(itertools.islice(held.query.schedule.windows(), 2))
        store.publish(held, drafts(held, windows))
        law = Calendar("day", "Europe/London", SUMMERLESS, GRID.interval_us)
        endless = Schedule.of_calendar(law, present(held.query.schedule.start))
        with pytest.raises(StoreConflict, match=r"others from 2020-03-29 on.*set windows\.stop"):
            store.register(domain(), days(endless))
        with pytest.raises(StoreError, match="are charged already"):
            store.register(domain(), days(replace(endless, stop=windows[0].stop)))
        assert store.registered("homes", "weekly") == replace(held, fresh=False)
        ended = store.register(domain(), days(replace(endless, stop=slot("2020-03-01"))))
        assert ended.query.schedule.covered.stop == slot("2020-03-01")
        assert store.verify().defects == ()
        assert store.register(domain(), days(replace(endless, stop=slot("2020-03-01")))) == ended
        going = store.register(domain(), days(replace(endless, start=slot("2020-03-01")), name="later"))
        assert going.reserved_loss <= held.reserved_loss * (1 + 1e-12)
        assert next(going.query.schedule.windows()).start == ended.query.schedule.covered.stop
        assert store.summary("homes").events[-1][0] == "schedule-ended"
        assert store.verify().defects == ()

    def test_windows_with_noise_by_length_are_charged_and_published_by_it(self, store: Store, url: str) -> None:
        months = by_calendar("month", "2013-01-01", "2013-06-01")
        asked = with_own_noise(months)
        held = store.register(domain(budget=30.0, guarantee="window"), asked)
        store.publish(held, drafts(held))
        entries = store.entries()
        assert [len(window) / 48 for window in months.windows()] == [31, 28, 31 - 1 / 24, 30, 31]
        for one in entries:
            own = asked.of_length(one.window_stop - one.window_start)
            assert one.epsilon_dp == own.epsilon_dp
            assert (one.window_stop - one.window_start) * one.epsilon_dp == pytest.approx(4.0, rel=1e-3)
        spans = [one.span for one in entries]
        assert store.summary("homes").loss == pytest.approx(Ledger(BELIEF).loss_of(spans), rel=1e-12)
        assert held.reserved_loss == pytest.approx(Ledger(BELIEF).loss_of(spans), rel=1e-12)
        assert "by the length of a window" in store.summary("homes").queries[0].charged_text
        rows = [row for batch in store.releases("homes", "weekly") for row in batch.to_pylist()]
        assert {row["scale_exact"] for row in rows} == {asked.scales[row["slots"]] for row in rows}
        assert len({(row["half_width_95"], row["epsilon_dp"]) for row in rows}) == 4
        prices(entries, 30.0)
        with Store(url, create=True) as other:
            again = other.registered("homes", "weekly")
            assert again == replace(held, fresh=False)
            assert other.verify().defects == ()
        longer = store.register(
            domain(budget=30.0, guarantee="window"), with_own_noise(by_calendar("month", "2013-01-01", "2014-01-01"))
        )
        every = [(one.start, one.stop, asked.of_length(len(one)).epsilon_dp) for one in longer.query.schedule.windows()]
        assert longer.reserved_loss == pytest.approx(Ledger(BELIEF).loss_of(every), rel=1e-12)

    def test_noise_by_length_continues_with_zone_data_of_equal_windows(self, store: Store) -> None:
        """Winter days are the same by any edition, whatever days an edition has elsewhere; so are their rows."""
        winter = by_calendar(first="2013-01-02", last="2013-01-09")
        first = store.register(domain(budget=30.0), with_own_noise(winter))
        plain = Schedule.of_calendar(Calendar("day", "Europe/London", ((0, 0),), GRID.interval_us), *edges(winter))
        again = with_own_noise(plain)
        assert (first.query.lengths, again.lengths) == ((46, 48, 50), ())
        assert store.register(domain(budget=30.0), again) == replace(first, fresh=False)
        assert again.digest(domain(budget=30.0)) == first.digest
        noisier = replace(again, scale=2 * again.scale, release_epsilon_dp=again.release_epsilon_dp / 2)
        with pytest.raises(StoreConflict, match="scale"):
            store.register(domain(budget=30.0), noisier)
        changed = with_own_noise(winter)
        changed.header["lengths"]["46"]["scale_exact"] = "7/2"
        with pytest.raises(StoreConflict, match=r"scales\.46"):
            store.register(domain(budget=30.0), changed)
