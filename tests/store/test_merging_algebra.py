"""Uniting ledgers in any order, grouping or repetition gives the same ledger."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiltstream.store import Store
from quiltstream.store.merge import Charge, place_charges

from ..depth import examples
from .merges import address, content, fill, recomputed, united

LEDGERS = st.lists(
    st.tuples(
        st.sampled_from([None, 0]),  # begun anew, or a copy of the first
        st.lists(
            st.tuples(st.sampled_from(["weekly", "other"]), st.integers(0, 4), st.sampled_from([(0,), (1,), (0, 1)])),
            min_size=1,
            max_size=2,
        ),
        st.sampled_from([None, 1.5]),  # a raised budget
    ),
    min_size=3,
    max_size=3,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return (tmp_path_factory.mktemp("merge") for _ in itertools.count())


@pytest.mark.night
@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LEDGERS)
def test_merging_is_associative_commutative_and_idempotent(folders: Iterator[Path], scripts: Any) -> None:
    folder = next(folders)
    paths: list[Path] = []
    for number, (copied, steps, raised) in enumerate(scripts):
        path = folder / f"{number}.db"
        if copied is not None and paths:
            shutil.copy(paths[copied], path)
        for name, windows, shards in steps:
            fill(path, windows=windows, name=name, shards=shards, share=0.3)
        if raised is not None:
            with Store(address(path), create=True) as store:
                if store.summary("homes").budget < raised:
                    store.raise_budget("homes", raised)
        paths.append(path)
    counter = itertools.count()

    def joined(*sources: Path) -> Path:
        return united(folder / f"m{next(counter)}.db", *sources)

    a, b, c = paths
    ab, bc = joined(a, b), joined(b, c)
    everything = content(joined(a, b, c))
    assert content(joined(b, a)) == content(ab)
    assert content(joined(ab, c)) == content(joined(a, bc)) == content(joined(c, ab)) == everything
    assert content(joined(ab, ab, a)) == content(ab)
    assert content(joined(ab, bc)) == everything
    assert content(joined(a)) == content(a)
    final = joined(ab, c)
    with Store(address(final), create=True) as store:
        assert store.summary("homes").loss == recomputed(final)
        assert store.summary("homes").closed == (recomputed(final) > store.summary("homes").budget)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=8))
def test_every_window_has_one_charge_of_record_and_every_charge_a_unique_name(
    drawn: list[tuple[int, int, int, bool]],
) -> None:
    charges = [
        Charge(
            *(f"id{base}", "homes", "weekly", start, start + 1, "refused" if refused else "charged"),
            *("digest", "roster", "1/2", 0.1, 0.0, 0.1, 1.0, "rule", created, False),
        )
        for base, start, created, refused in drawn
    ]
    kept = place_charges(charges, lambda _: True)
    assert set(kept) == set(charges)
    assert kept == place_charges(list(kept)[::-1], lambda _: True)
    assert len({one.name for one in kept.values()}) == len(kept)
    for start in {charge.window_start for charge in charges}:
        of_window = [charge for charge in kept if charge.window_start == start]
        (record,) = [charge for charge in of_window if kept[charge].reason is None]
        assert record.decision == min(charge.decision for charge in of_window)
