from __future__ import annotations

import numpy as np
import pytest

from quiltstream.privacy.estimation.diagnosis import diagnose, outside
from quiltstream.privacy.estimation.transition_counts import TransitionCounts
from quiltstream.privacy.models.classes import MixingBounds

SOUND = np.array([[900, 100], [90, 410]])


def test_a_sound_history_has_facts_and_no_warning() -> None:
    found = diagnose(SOUND)
    assert found.warnings() == ()
    assert (found.states, found.transitions, found.rarest_visits) == (2, 1500, 510)
    assert (found.never_visited, found.never_left) == ((), ())
    assert (found.irreducible, found.period, found.multiplicity) == (True, 1, 1)
    # P = [[.9, .1], [.18, .82]]: pi = (9, 5) / 14, eigenvalue .72
    assert found.pi_min == pytest.approx(5 / 14)
    assert found.gap == pytest.approx(1 - 0.72**2)


def test_a_rare_state_is_warned_of_with_its_visits_and_the_limit() -> None:
    counts = np.array([[900, 1], [1, 0]])
    (warning,) = diagnose(counts).warnings()
    assert "visited 1 times" in warning
    assert "about 100" in warning
    assert "give more history" in warning


def test_a_reducible_product_is_found_though_the_chain_is_irreducible_and_aperiodic() -> None:
    found = diagnose(np.array([[0, 500, 0], [0, 0, 800], [500, 300, 0]]))
    assert (found.irreducible, found.period, found.multiplicity, found.gap) == (True, 1, 2, 0.0)
    (warning,) = found.warnings()
    assert "P P* is reducible though P is not" in warning
    assert "Lemma 4.8 is void" in warning


def test_a_state_never_visited_is_named_and_the_rest_described() -> None:
    counts = np.zeros((4, 4), dtype=np.int64)
    counts[np.ix_([0, 2], [0, 2])] = SOUND
    found = diagnose(counts)
    assert found.never_visited == (1, 3)
    assert found.pi_min == pytest.approx(5 / 14)
    (warning,) = found.warnings()
    assert "never visited: state 1, 3" in warning


def test_a_series_is_outside_if_it_mixes_worse_or_visits_too_little() -> None:
    tables = {
        "inside": SOUND,
        "rarer": np.array([[990, 10], [10, 1]]),
        "slower": np.array([[990, 10], [10, 990]]),
        "one state": np.array([[900, 0], [0, 0]]),
        "never left": np.array([[900, 1], [0, 0]]),
        "reducible": np.array([[900, 1], [0, 900]]),
    }
    counts = np.stack(list(tables.values()))
    visits = np.maximum(counts.sum(axis=1), counts.sum(axis=2))
    strays = outside(MixingBounds(pi_min=0.3, gap=0.4), TransitionCounts(tuple(tables), counts, visits))
    assert strays == ("never left", "one state", "rarer", "reducible", "slower")
