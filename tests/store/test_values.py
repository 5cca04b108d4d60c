"""What the store keeps comes back as it was, and its errors can travel."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sqlalchemy.exc import DBAPIError

from quiltstream.store import NoisyBlock, Registration, StoreDamaged, errors
from quiltstream.store.address import StoreAddress
from quiltstream.store.codec import block_bytes, block_from_bytes
from quiltstream.store.engines import explained
from quiltstream.store.specs import TRANSITIONS, total_is_public

from .samples import domain, query

COUNTS = hnp.arrays(np.int64, st.tuples(st.integers(0, 4), st.integers(1, 4)))


@given(counts=COUNTS, with_totals=st.booleans())
def test_a_block_is_read_back_unchanged(counts: npt.NDArray[np.int64], with_totals: bool) -> None:
    keys = tuple(f"m{n}" for n in range(len(counts)))
    one = NoisyBlock(keys, np.arange(len(keys), dtype=np.int64), counts, "replayed")
    found = block_from_bytes(block_bytes(one, with_totals=with_totals), "replayed")
    assert (found.keys, found.completeness) == (keys, "replayed")
    assert found.counts.dtype == np.int64
    assert np.array_equal(found.counts, counts)
    assert np.array_equal(found.totals, one.totals if with_totals else np.zeros_like(one.totals))


@given(counts=COUNTS, cut=st.integers(0, 200))
def test_a_damaged_block_is_an_error_and_no_other_block(counts: npt.NDArray[np.int64], cut: int) -> None:
    keys = tuple(f"m{n}" for n in range(len(counts)))
    data = block_bytes(NoisyBlock(keys, np.zeros(len(keys), dtype=np.int64), counts), with_totals=True)
    with pytest.raises(StoreDamaged):
        block_from_bytes(data[:cut], "live")


def test_totals_that_are_not_public_are_not_in_the_block() -> None:
    marker = 0x5EC2E7
    one = NoisyBlock(("m1",), np.array([marker]), np.array([[1, 2]]))
    assert block_from_bytes(block_bytes(one, with_totals=False), "live").totals.tolist() == [0]
    assert marker.to_bytes(3, "little") not in block_bytes(one, with_totals=False)
    assert marker.to_bytes(3, "little") in block_bytes(one, with_totals=True)


def test_the_number_of_cells_is_public_by_the_rule_for_missing_ones() -> None:
    held = registration()
    rules = {"public": True, "state": True, "break 2h": True, "unheard of": False}
    for rule, public in rules.items():
        about = replace(held, domain=replace(held.domain, missing=rule))
        assert total_is_public(about) is public
        assert not total_is_public(replace(about, query=replace(about.query, mechanism=TRANSITIONS)))


def registration(**changes: Any) -> Registration:
    spec = query(**changes)
    return Registration(domain(), spec, spec.digest(domain()), None, 1.0, fresh=False)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("25006", errors.StoreAway),
        ("57P01", errors.StoreAway),
        ("53100", errors.StoreAway),
        ("28P01", errors.StoreConflict),
    ],
)
def test_a_servers_error_code_decides_whether_a_job_waits(state: str, kind: type[errors.StoreError]) -> None:
    class RefusedError(Exception):
        sqlstate = state

    found = explained(
        DBAPIError("INSERT", {}, RefusedError("secret")), StoreAddress("postgresql+psycopg://host/ledger")
    )
    assert type(found) is kind
    assert kind.exit_code == (4 if state == "28P01" else 75)
    assert f"(SQLSTATE {state})" in str(found)
    assert ("the job stops" in str(found)) is (state == "28P01")
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    "error",
    [
        errors.StoreAway("away"),
        errors.StoreConflict.of("query 'q'", "windows.size", 1, 2, "do this"),
        errors.BudgetRefused.of("the first window", 0.5, 1.0, 1.2),
    ],
)
def test_a_store_error_survives_pickling_and_a_runner(error: errors.StoreError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)
    # what Beam does to name the step
    again = type(error)(f"{error.args[0]} [while running 'it']", *error.args[1:])
    assert str(again) == f"{error} [while running 'it']"
