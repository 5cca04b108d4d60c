"""What the store keeps comes back as it was, and its errors can travel."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from quiltstream.store import Registration, errors
from quiltstream.store.specs import TRANSITIONS, total_is_public

from .samples import domain, query


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
