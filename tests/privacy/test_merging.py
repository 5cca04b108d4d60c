"""Accounts united by the ids of their charges, and accounts written down and read back."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import AnyInitial, BudgetExceeded, FiniteClass, Ledger, MarkovChain, MixingBounds
from quiltstream.privacy.entries import Entry, united
from quiltstream.privacy.ledger_records import ACCOUNT_AVRO, from_record, to_record
from quiltstream.privacy.merging import merged

from .strategies import windows

QUICK = MixingBounds(pi_min=0.5, gap=2.0)
CHAIN = MarkovChain([[0.6, 0.4], [0.3, 0.7]])
PERIODIC = MarkovChain([[0.0, 1.0], [1.0, 0.0]])
BELIEFS = pytest.mark.parametrize("belief", [QUICK, CHAIN, PERIODIC], ids=["bounds", "chain", "periodic"])
ROUNDING = 1e-13


def entries(charges, ids):
    return [Entry(name, f"key-{name}", *charge) for name, charge in zip(ids, charges, strict=False)]


def account(belief, listed, budget=None):
    ledger = Ledger(belief, budget)
    ledger.replay(listed)
    return ledger


@BELIEFS
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_merge_is_the_account_of_all_charges_whatever_its_order_and_may_be_repeated(belief, data):
    listed = entries(data.draw(windows(60, most=8)), "abcdefgh")
    parts = [data.draw(st.lists(st.sampled_from(listed), unique=True)) for _ in range(3)]
    accounts = [account(belief, part) for part in parts]
    every = account(belief, {entry for part in parts for entry in part})
    one = merged(merged(accounts[0], accounts[1]), accounts[2])
    other = merged(accounts[2], merged(accounts[1], accounts[0]))
    assert one.loss == other.loss == every.loss == merged(one, other).loss == merged(one, accounts[1]).loss
    assert set(one.entries) == set(other.entries) == set(every.entries)
    assert one.runs == every.runs
    assert not one.conflicts
    assert not one.upper_bound


def test_equal_keys_under_different_ids_are_added_and_shown():
    one, other = Ledger(QUICK), Ledger(QUICK)
    for ledger in (one, other):
        ledger.charge(0, 100, 0.05, key="weekly-load/0")
    both = merged(one, other)
    assert len(both.entries) == 2
    assert both.loss == Ledger(QUICK).loss_of([(0, 100, 0.05)] * 2)
    ((first, second),) = both.doubled
    assert {first.entry_id, second.entry_id} == {one.entries[0].entry_id, other.entries[0].entry_id}
    assert merged(one, one).loss == one.loss
    assert not merged(one, one).doubled


def test_conflicting_rows_are_all_kept_and_flagged():
    rows = [Entry("a", "w", 0, 100, rate) for rate in (0.05, 0.02, 0.03)]
    ledgers = [account(QUICK, [row]) for row in rows]
    both = merged(ledgers[0], ledgers[1])
    assert len(both.entries) == len(both.conflicts) == 2
    assert both.loss == Ledger(QUICK).loss_of([(0, 100, 0.05), (0, 100, 0.02)])
    for again in (merged(both, ledgers[0]), merged(ledgers[1], both), merged(both, both)):
        assert set(again.entries) == set(both.entries)
    orders = [merged(merged(ledgers[i], ledgers[j]), ledgers[k]) for i, j, k in ((0, 1, 2), (2, 0, 1), (1, 2, 0))]
    assert len({frozenset(ledger.entries) for ledger in orders}) == 1
    assert len(orders[0].conflicts) == 3
    assert not both.doubled


def test_a_merged_loss_above_the_budget_closes_the_account():
    one, other = Ledger(QUICK, budget=1.0), Ledger(QUICK, budget=1.5)
    density = one.density_for(0.9)
    for ledger in (one, other):
        ledger.charge(0, 300, density)
    both = merged(one, other)
    assert both.budget == 1.0
    assert both.loss > 1.0
    assert both.closed
    assert not one.closed
    assert both.remaining == 0
    with pytest.raises(BudgetExceeded):
        both.charge(10**6, 10**6 + 1, 1e-12)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (Ledger(QUICK), Ledger(CHAIN), "different beliefs"),
        (Ledger(QUICK), Ledger(QUICK, bound="spectral"), "the bound lemma-4.8 and the other on spectral"),
        (
            Ledger(MarkovChain([[0.5, 0.5], [0.5, 0.5]], [1, 0]), start=3),
            Ledger(MarkovChain([[0.5, 0.5], [0.5, 0.5]], [1, 0]), start=4),
            "starts at slot 3 in one account and at 4",
        ),
    ],
)
def test_accounts_that_do_not_belong_together_are_not_merged(one, other, message):
    with pytest.raises(ValueError, match=message):
        merged(one, other)


@BELIEFS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_folded_accounts_merge_to_no_less_than_the_truth(belief, data):
    listed = entries([(2 * s, 2 * s + t - s, e) for s, t, e in data.draw(windows(100, most=8))], "abcdefgh")
    parts = [data.draw(st.lists(st.sampled_from(listed), unique=True)) for _ in range(2)]
    accounts = [account(belief, part) for part in parts]
    for ledger in accounts:
        if data.draw(st.booleans()):
            ledger.fold(data.draw(st.integers(0, 300)))
    every = account(belief, {entry for part in parts for entry in part})
    both, turned = merged(*accounts), merged(*accounts[::-1])
    assert both.loss == turned.loss
    assert both.loss >= every.loss * (1 - ROUNDING)
    later = (400, 420, 0.3)
    both.charge(*later, entry_id="later")
    every.charge(*later, entry_id="later")
    assert both.loss >= every.loss * (1 - ROUNDING)
    if set(parts[0]) == set(parts[1]):
        assert both.loss <= every.loss * (1 + ROUNDING) + 1e-11


def test_copies_of_one_account_that_went_on_apart_merge_exactly_behind_the_fold():
    past = [(40 * number, 40 * number + 30, 0.02) for number in range(20)]
    common = Ledger(QUICK)
    common.replay(past)
    common.fold(800)
    copies = [from_record(to_record(common)) for _ in range(2)]
    extra = [(800, 850, 0.1), (820, 900, 0.2)]
    for copy, charge in zip(copies, extra, strict=True):
        copy.charge(*charge)
    both = merged(*copies)
    assert both.loss == pytest.approx(Ledger(QUICK).loss_of([*past, *extra]), rel=1e-11)
    assert not both.upper_bound
    assert both.state.forgotten == common.state.forgotten
    apart = Ledger(QUICK)
    apart.replay(past)
    apart.fold(800)
    assert merged(common, apart).upper_bound


def avro_round_trip(record):
    schema = fastavro.parse_schema(json.loads(json.dumps(ACCOUNT_AVRO)))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    stream.seek(0)
    read: Any = fastavro.schemaless_reader(stream, schema, schema)
    return read


@BELIEFS
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_an_account_comes_back_from_avro_and_json_bit_for_bit(belief, data):
    ledger = Ledger(belief, data.draw(st.sampled_from([None, 1e6])), keep=data.draw(st.sampled_from([None, 30])))
    charges = [(2 * start, 2 * start + stop - start, rate) for start, stop, rate in data.draw(windows(100, most=6))]
    for start, stop, rate in sorted(charges):
        if ledger.horizon is None or start >= ledger.horizon:
            ledger.charge(start, stop, rate, key=f"load/{start}")
    if data.draw(st.booleans()):
        ledger.fold(150)
    if data.draw(st.booleans()):
        ledger.charge(0, 10, 0.25, behind="bound")
    if data.draw(st.booleans()):
        ledger.join(FiniteClass([CHAIN, MarkovChain([[0.2, 0.8], [0.5, 0.5]])]))
    if data.draw(st.booleans()):
        ledger.switch(500, AnyInitial([[[0.6, 0.4], [0.5, 0.5]]]))
    record = to_record(ledger)
    for again in (avro_round_trip(record), json.loads(json.dumps(record))):
        read = from_record(again)
        assert read.loss == ledger.loss
        assert to_record(read) == record
        assert read.state.lives == ledger.state.lives
        late = (400, 430, 0.1)
        assert read.would_cost(*late) == ledger.would_cost(*late)
        assert read.bounds() == ledger.bounds()
        assert read.worlds == ledger.worlds
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version is 2, but this program reads 1"),
        ({"version": None}, "version is None"),
        ({"loss": 0.2}, "loss is 0.2, but the charges of the record cost"),
        ({"entries": []}, "the charges of the record cost 0.0"),
        ({"peak": None}, "lacks the field peak"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(change, message):
    ledger = Ledger(QUICK)
    ledger.charge(0, 50, 0.1)
    record = {**to_record(ledger), **change}
    with pytest.raises(ValueError, match=message):
        from_record({key: value for key, value in record.items() if key != "peak" or value is not None})


def test_a_slot_that_no_record_holds_is_refused():
    ledger = Ledger(QUICK)
    ledger.charge(2**63, 2**63 + 5, 0.1)
    with pytest.raises(ValueError, match="a slot beyond 64 bits"):
        to_record(ledger)


@pytest.mark.parametrize("name", ["", "a~b"])
def test_names_are_checked_and_taken_once(name):
    ledger = Ledger(QUICK)
    with pytest.raises(ValueError, match="must be a name without ~"):
        ledger.charge(0, 10, 0.1, entry_id=name)
    made = ledger.charge(0, 10, 0.1, entry_id="mine")
    assert made.entry_id == "mine"
    before = ledger.loss
    for call in (
        lambda: ledger.charge(5, 20, 0.1, entry_id="mine"),
        lambda: ledger.replay([Entry("mine", "", 5, 20, 0.1)]),
        lambda: ledger.replay([Entry("new", "", 5, 20, 0.1), Entry("new", "", 5, 20, 0.1)]),
    ):
        with pytest.raises(ValueError, match="is taken"):
            call()
    assert (ledger.loss, len(ledger.entries)) == (before, 1)


def test_uniting_is_a_function_of_the_set_of_rows():
    rows = [Entry("a", "w", 0, 5, 0.2), Entry("a", "w", 0, 5, 0.1), Entry("b", "w", 0, 5, 0.1)]
    found = united(rows[:2], rows[1:])
    assert {entry.base_id for entry in found.values()} == {"a", "b"}
    assert found["a"].epsilon_dp == 0.1
    assert found["a"].conflict
    assert not found["b"].conflict
    assert united(found.values(), rows) == found == united(rows, ())
