"""What public functions and constructors say of an argument of another kind: its name, never an error of Python's."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from quiltstream.privacy import (
    AnyInitial,
    BinaryInterval,
    DobrushinBounds,
    FiniteClass,
    JointTable,
    LaplaceHistogram,
    Ledger,
    MarkovChain,
    MixingBounds,
    PeriodicChain,
    Planner,
    Schedule,
    accounting,
    analysis,
    belief_from_dict,
    estimation,
    exact_loss,
    forward_backward,
    mechanisms,
    models,
    mqm_approx,
    mqm_exact,
    pairwise,
    project_to_total,
    quilts,
)
from quiltstream.privacy.analysis import METHODS
from quiltstream.privacy.models import ChainError
from quiltstream.privacy.validation import LEAST_EPSILON, MOST_SLOTS

MATRIX = [[0.9, 0.1], [0.4, 0.6]]
CHAIN, OTHER = MarkovChain(MATRIX), MarkovChain([[0.8, 0.2], [0.4, 0.6]])
BOUNDS = MixingBounds(0.2, 0.75)
TABLE = np.array([[90, 10], [9, 41]])
HISTORY = estimation.TransitionCounts(("a",), TABLE[np.newaxis], np.array([[100, 51]]))
RELEASED = estimation.NoisyCounts(TABLE, Fraction(4), 0, 200)
NETWORK = models.BayesianNetwork.from_chain(CHAIN, 3)
JOINT = JointTable.from_chain(CHAIN, 2)
SCHEDULE = Schedule(4, 4, 0, None, 0.01)
WINDOW = accounting.QuiltRelease.of(mqm_approx(BOUNDS, 1.0, 20))
TABLES = quilts.sided_influence(CHAIN)
CURVE = quilts.table_curve(CHAIN)
NOISE = mechanisms.DiscreteLaplace(Fraction(5))
ROWS = np.array([[8050, 2031], [7990, 2071]])


class Unknown:
    """Of a type that nothing here knows."""


#: Refused wherever they are given.
NEVER = (Unknown(), 1 + 2j, np.complex64(1j))
#: Refused of arguments of these names.
REFUSED: list[tuple[set[str], tuple[object, ...]]] = [
    (
        {"alpha", "bins", "budget", "density", "epsilon", "epsilon_dp", "epsilons", "every", "gap", "group", "groups"}
        | {"left", "length", "level", "look", "pi_min", "right", "scale", "sigma", "slots", "window", "windows"},
        (math.nan, -math.inf, -3, 0),
    ),
    ({"every", "horizon", "length", "left", "slot", "slots", "start", "stop", "window"}, (2.5, True)),
    ({"length", "slot", "start"}, (10**40, -(10**40))),
    ({"level"}, (1.0,)),
    ({"bound", "guarantee", "kind", "mechanism", "method", "statistic"}, ("abc",)),
]
#: Refused, or taken where they fit.
ODD = (
    None,
    "abc",
    True,
    math.nan,
    math.inf,
    -math.inf,
    -3,
    0,
    1.0,
    2.5,
    10**40,
    -(10**40),
    10**400,
    [],
    [1.5, 2.5],
    [[1, 2], [3]],
    [Unknown()],
    {"a": 1},
    np.array(1.0),
    np.array([1.0, 2.0]),
    np.ones((2, 2, 2)),
    np.array(MATRIX) + 0j,
    np.ma.masked_array(MATRIX, mask=[[False, True], [False, False]]),
    np.array([["a", "b"], ["c", "d"]]),
    np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"),
    CHAIN,
    BOUNDS,
)


def ledger(name):

    def called(**given):
        return getattr(Ledger(CHAIN, 1.0), name)(**given)

    return called


#: By what it is called: what is called, and arguments that it takes.
CASES = {
    "MarkovChain": (MarkovChain, {"transition": MATRIX, "initial": [0.5, 0.5]}),
    "PeriodicChain": (PeriodicChain, {"transitions": [MATRIX, MATRIX]}),
    "FiniteClass": (FiniteClass, {"chains": [CHAIN]}),
    "AnyInitial": (AnyInitial, {"transitions": [MATRIX]}),
    "MixingBounds": (MixingBounds, {"pi_min": 0.2, "gap": 0.5, "kind": "unknown"}),
    "MixingBounds.of": (MixingBounds.of, {"chains": [CHAIN]}),
    "MixingBounds.covers": (BOUNDS.covers, {"chain": CHAIN}),
    "BinaryInterval": (BinaryInterval, {"stay_0": (0.1, 0.4), "stay_1": (0.1, 0.4)}),
    "BinaryInterval.contains": (BinaryInterval((0.1, 0.4), (0.1, 0.4)).contains, {"chain": CHAIN}),
    "DobrushinBounds": (DobrushinBounds, {"forward": {1: 0.5}, "backward": {1: 0.5}}),
    "DobrushinBounds.of": (DobrushinBounds.of, {"chains": [CHAIN], "steps": (1, 2)}),
    "DobrushinBounds.covers": (DobrushinBounds({1: 0.5}, {1: 0.5}).covers, {"chain": CHAIN}),
    "smooth_zeros": (models.smooth_zeros, {"chain": CHAIN, "tau": 1e-5}),
    "mixing_bounds": (models.mixing_bounds, {"belief": CHAIN}),
    "belief_from_dict": (belief_from_dict, {"data": CHAIN.to_dict()}),
    "JointTable": (JointTable, {"outcomes": [[0], [1]], "probabilities": [0.5, 0.5]}),
    "JointTable.from_array": (JointTable.from_array, {"probabilities": [0.5, 0.5]}),
    "JointTable.from_chain": (JointTable.from_chain, {"chain": CHAIN, "length": 3}),
    "JointTable.states_of": (JOINT.states_of, {"record": 1}),
    "JointTable.law_given": (JOINT.law_given, {"values": [0, 1, 1, 2], "record": 1, "state": 0}),
    "BayesianNetwork": (models.BayesianNetwork, {"parents": {"a": []}, "tables": {"a": [0.5, 0.5]}}),
    "BayesianNetwork.from_chain": (models.BayesianNetwork.from_chain, {"chain": CHAIN, "length": 3}),
    "BayesianNetwork.separated_from": (NETWORK.separated_from, {"name": "X3", "given": ["X2"]}),
    "mqm_approx": (mqm_approx, {"belief": CHAIN, "epsilon": 1.0, "length": 20, "bound": "spectral"}),
    "mqm_exact": (mqm_exact, {"belief": CHAIN, "epsilon": 1.0, "length": 20}),
    "pairwise": (pairwise, {"belief": CHAIN, "epsilon": 1.0, "length": 20}),
    "forward_backward": (forward_backward, {"belief": CHAIN, "epsilon": 1.0, "length": 20}),
    "Quilt": (quilts.Quilt, {"left": 1, "right": 2}),
    "sided_influence": (quilts.sided_influence, {"belief": CHAIN}),
    "chain_influence": (quilts.chain_influence, {"chain": CHAIN}),
    "slot_influence": (quilts.slot_influence, {"belief": CHAIN, "slot": 3, "length": 6}),
    "lemma_4_8": (quilts.lemma_4_8, {"bounds": BOUNDS, "lags": [1, 2]}),
    "lemma_4_9_reach": (quilts.lemma_4_9_reach, {"bounds": BOUNDS, "epsilon": 1.0}),
    "spectral_influence": (quilts.spectral_influence, {"bounds": BOUNDS, "lags": [1, 2]}),
    "mixing_influence": (quilts.mixing_influence, {"bounds": BOUNDS, "lags": 20, "bound": "lemma-4.8"}),
    "max_influence": (quilts.max_influence, {"network": NETWORK, "node": "X1", "quilt": ["X2"]}),
    "network_mqm": (quilts.network_mqm, {"networks": NETWORK, "epsilon": 1.0, "quilts": None, "size": 1}),
    "network_quilts": (quilts.network_quilts, {"network": NETWORK, "node": "X1", "epsilon": 1.0, "quilts": [["X2"]]}),
    "InfluenceCurve": (quilts.InfluenceCurve, {"values": [2.0, 1.0], "basis": "none"}),
    "InfluenceCurve.best": (CURVE.best, {"epsilon_dp": 0.01, "length": 20}),
    "InfluenceCurve.epsilon_dp": (CURVE.epsilon_dp, {"epsilon": 0.5, "length": 20}),
    "InfluenceCurve.composed": (CURVE.composed, {"releases": [0.01, 0.02], "length": 20}),
    "binary_curve": (quilts.binary_curve, {"p": 0.1, "q": 0.2, "size": 20}),
    "composed_points": (quilts.composed_points, {"points": [((1, 0.2), 0.1)]}),
    "Ledger": (Ledger, {"belief": MarkovChain(MATRIX, [0.5, 0.5]), "budget": 1.0, "start": 0}),
    "Ledger.charge": (ledger("charge"), {"start": 0, "stop": 5, "epsilon_dp": 0.01}),
    "Ledger.replay": (ledger("replay"), {"charges": [(0, 5, 0.01)]}),
    "Ledger.loss_of": (ledger("loss_of"), {"charges": [(0, 5, 0.01)]}),
    "Ledger.add_belief": (ledger("add_belief"), {"belief": BOUNDS}),
    "Ledger.switch": (ledger("switch"), {"slot": 3, "belief": BOUNDS}),
    "Ledger.event_loss": (ledger("event_loss"), {"slots": 3, "schedules": [SCHEDULE]}),
    "Ledger.longest_event": (ledger("longest_event"), {"epsilon": 0.5, "schedules": [SCHEDULE]}),
    "Ledger.ceiling": (ledger("ceiling"), {"density": 0.05}),
    "Ledger.density_for": (ledger("density_for"), {"epsilon": 0.5}),
    "Ledger.extended_loss": (ledger("extended_loss"), {"schedules": [SCHEDULE]}),
    "Ledger.admitted_prefix": (ledger("admitted_prefix"), {"schedule": SCHEDULE, "reserved": [SCHEDULE]}),
    "Schedule": (Schedule, {"size": 4, "every": 4, "start": 0, "stop": 40, "epsilon_dp": 0.1}),
    "Schedule of ends": (
        Schedule,
        {"size": 1, "every": 1, "start": 0, "stop": 9, "epsilon_dp": 0.1, "ends": (4, 9), "densities": (0.1, 0.05)},
    ),
    "Schedule.steps": (SCHEDULE.steps, {"horizon": 20}),
    "endless": (accounting.endless, {"belief": CHAIN, "epsilon": 1.0}),
    "lower_bound": (accounting.lower_bound, {"chain": CHAIN, "epsilon": 1.0}),
    "joint_divergence": (accounting.joint_divergence, {"chain": CHAIN, "gap": 3}),
    "nearly_independent": (accounting.nearly_independent, {"first": 0.1, "second": 0.2, "divergence": 0.1}),
    "QuiltRelease": (accounting.QuiltRelease, {"start": 0, "stop": 20, "epsilon": 1.0, "quilts": WINDOW.quilts}),
    "QuiltRelease.of": (accounting.QuiltRelease.of, {"calibration": mqm_approx(BOUNDS, 1.0, 20), "start": 0}),
    "same_quilts": (accounting.same_quilts, {"releases": [WINDOW, WINDOW]}),
    "sequential": (accounting.sequential, {"releases": [WINDOW, WINDOW]}),
    "two_segments": (accounting.two_segments, {"first": (0, 5, 0.01), "second": (20, 25, 0.01), "influence": TABLES}),
    "LaplaceHistogram": (LaplaceHistogram, {"bins": 2, "scale": Fraction(3)}),
    "LaplaceHistogram.from_sigma": (LaplaceHistogram.from_sigma, {"bins": 2, "sigma": 3.0}),
    "LaplaceHistogram.randomise": (LaplaceHistogram(2, Fraction(3)).randomise, {"counts": TABLE}),
    "LaplaceHistogram.half_width": (LaplaceHistogram(2, Fraction(3)).half_width, {"level": 0.95}),
    "project_to_total": (project_to_total, {"noisy": [[3, -1, 5]], "total": [7]}),
    "DiscreteLaplace.pmf": (NOISE.pmf, {"value": 3}),
    "DiscreteLaplace.passed_by": (NOISE.passed_by, {"share": Fraction(1, 20)}),
    "ExponentialTopK.shortfall": (mechanisms.ExponentialTopK(3, 1, Fraction(1)).shortfall, {"level": 0.95}),
    "WassersteinMechanism": (mechanisms.WassersteinMechanism, {"distance": 1.0, "epsilon": 1.0}),
    "WassersteinMechanism.half_width": (mechanisms.WassersteinMechanism(1.0, 1.0).half_width, {"level": 0.95}),
    "wasserstein_infinity": (mechanisms.wasserstein_infinity, {"p": [0.5, 0.5], "q": [0.4, 0.6], "support": [0, 1]}),
    "wasserstein_of_count": (mechanisms.wasserstein_of_count, {"belief": CHAIN, "state": 0, "length": 4}),
    "wasserstein_of_table": (mechanisms.wasserstein_of_table, {"belief": JOINT, "query": [0, 1, 1, 2]}),
    "chain_from_counts": (estimation.chain_from_counts, {"counts": TABLE, "smoothing": 0.5, "floor": 0.01}),
    "confidence_class": (estimation.confidence_class, {"counts": TABLE, "level": 0.95, "floor": 0.0}),
    "ConfidenceClass.contains": (estimation.confidence_class(TABLE).contains, {"chain": CHAIN}),
    "diagnose": (estimation.diagnose, {"counts": TABLE, "visits": [100, 51]}),
    "outside": (estimation.outside, {"bounds": BOUNDS, "counts": HISTORY}),
    "TransitionCounts": (
        estimation.TransitionCounts,
        {"series": ("a",), "counts": TABLE[np.newaxis], "visits": [[100, 51]]},
    ),
    "TransitionCounts.merge": (HISTORY.merge, {"other": HISTORY}),
    "TransitionCounts.merged": (estimation.TransitionCounts.merged, {"parts": [HISTORY]}),
    "TransitionCounts.subset": (HISTORY.subset, {"names": ["a"]}),
    "TransitionCounts.empty": (estimation.TransitionCounts.empty, {"states": 2}),
    "release_counts": (estimation.release_counts, {"counts": HISTORY, "epsilon_dp": 1.0, "start": 0, "stop": 200}),
    "NoisyCounts": (estimation.NoisyCounts, {"table": TABLE, "scale": Fraction(4), "start": 0, "stop": 200}),
    "NoisyCounts.chain": (RELEASED.chain, {"floor": 0.01, "transitions": 150}),
    "NoisyCounts.confidence_class": (RELEASED.confidence_class, {"level": 0.95, "floor": 0.0}),
    "spent_alpha": (estimation.spent_alpha, {"alpha": 0.01, "look": 2}),
    "drift_test": (
        estimation.drift_test,
        {
            "belief": CHAIN,
            "counts": ROWS,
            "scale": Fraction(87),
            "totals": [10080, 10080],
            "members": [30, 30],
            "slots": 336,
            "windows": 1,
            "alpha": 0.001,
            "look": 1,
        },
    ),
    "bounds_of_released": (
        estimation.bounds_of_released,
        {"counts": ROWS, "scale": Fraction(87), "totals": [10080, 10080], "level": 0.95, "gap": 0.4, "windows": 1},
    ),
    "AuditRelease": (analysis.AuditRelease, {"start": 0, "stop": 2, "scale": 3.0, "statistic": "count", "state": 1}),
    "exact_loss": (exact_loss, {"chain": CHAIN, "length": 3, "releases": [analysis.AuditRelease(0, 2, 3.0)]}),
    "group_dp": (analysis.group_dp, {"epsilon": 1.0, "lengths": [3, 4]}),
    "entry_dp": (analysis.entry_dp, {"epsilon": 1.0}),
    "gk16_influence": (analysis.gk16_influence, {"chain": CHAIN, "length": 5}),
    "adversary_divergence": (analysis.adversary_divergence, {"adversary": OTHER, "belief": CHAIN, "length": 3}),
    "Planner.at": (
        lambda window, **given: Planner(**given).at(window),
        {
            "belief": CHAIN,
            "epsilon": 1.0,
            "window": 20,
            "group": 3,
            "bins": 2,
            "method": "mqm-approx",
            "guarantee": "stream",
        },
    ),
    "Purpose": (
        analysis.Purpose,
        {"window": 48, "mechanism": "mqm-exact", "windows": (1,), "groups": (1,), "epsilons": (1.0,)},
    ),
    "Odds.at": (analysis.Odds.at, {"epsilon": 1.0, "priors": (0.5,)}),
    "AggregationRule.parse": (analysis.AggregationRule.parse, {"text": "15/15"}),
}

#: Arguments that make a second value refused, which has another name; what a class calls its own members.
ALSO = {
    "transition": ("initial",),
    "transitions": ("chain",),
    "data": ("belief",),
    "belief": ("MixingBounds",),
    "epsilon": ("density",),
    "values": ("query",),
    "name": ("variable",),
    "given": ("variable",),
    "node": ("variable",),
    "quilt": ("variable",),
    "quilts": ("variable",),
    "networks": ("network",),
    "reserved": ("schedule",),
    "stop": ("slot",),
    "text": ("rule",),
    "sigma": ("scale",),
    "distance": ("scale",),
    "epsilon_dp": ("scale", "epsilon"),
    "states": ("odds",),
    "first": ("epsilons",),
    "second": ("epsilons",),
    "probabilities": ("outcomes",),
    "counts": ("visits",),
}


def refusal(called, given) -> Exception | None:
    try:
        called(**given)
    except Exception as error:  # noqa: BLE001 - which kind it is, is what is asked
        return error
    return None


def is_refused(case: str, name: str, value: object) -> bool:
    if (case, name, value) == ("Odds.at", "epsilon", 0) or not isinstance(value, int | float | str):
        return False
    return any(name in names and value in values for names, values in REFUSED)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
def test_an_argument_of_another_kind_is_refused_by_its_name(case):
    called, fitting = CASES[case]
    assert refusal(called, fitting) is None
    for name in fitting.keys() - {"basis"}:
        for value in (*NEVER, *ODD):
            error = refusal(called, {**fitting, name: value})
            said = f"{name} = {value!r:.60}: {error!r:.200}"
            assert error is not None or not (any(value is one for one in NEVER) or is_refused(case, name, value)), said
            assert error is None or isinstance(error, TypeError | ValueError), said
            words = (name, name.removesuffix("s"), *ALSO.get(name, ()))
            assert error is None or any(word in str(error) for word in words), said


@pytest.mark.parametrize("method", METHODS)
def test_every_calibration_takes_the_same_epsilons(method):
    calibrate = METHODS[method].calibrate
    chain = MarkovChain([[0.55, 0.45], [0.5, 0.5]])
    for epsilon in (LEAST_EPSILON * (1 - 2**-52), 1e-300, 5e-324):
        with pytest.raises(ValueError, match=r"epsilon is \S+, but must be at least 2\^-46 = 1\.42e-14"):
            calibrate(chain, epsilon, 10)
    assert calibrate(chain, LEAST_EPSILON, 10).sigma >= 2.0**46


@pytest.mark.parametrize("belief", [CHAIN, BOUNDS, AnyInitial([MATRIX]), DobrushinBounds({1: 0.5}, {1: 0.5})])
def test_an_epsilon_near_0_has_noise_or_is_refused_in_words(belief):
    assert forward_backward(belief, 1e-9).sigma >= 1e9
    for epsilon in (1e-12, LEAST_EPSILON):
        with pytest.raises(ChainError, match="too near to 0 for double precision"):
            forward_backward(belief, epsilon)


@pytest.mark.parametrize("slot", [MOST_SLOTS + 1, -MOST_SLOTS - 1, 10**40], ids=["above", "below", "far"])
def test_a_ledger_refuses_slots_that_no_float_holds(slot):
    ledger = Ledger(BOUNDS, 1.0)
    with pytest.raises(ValueError, match=r"(start|stop) is .* but must be at (least|most) -?9007199254740992"):
        ledger.charge(min(slot, 0), max(slot, 1), 0.01)
    with pytest.raises(ValueError, match=r"but must be at (least|most) -?9007199254740992"):
        ledger.switch(slot, BOUNDS)
    with pytest.raises(ValueError, match=r"but must be at (least|most) -?9007199254740992"):
        ledger.extended_loss([Schedule(1, 1, 0, max(slot, MOST_SLOTS + 1), 0.01)])
    assert ledger.charge(-MOST_SLOTS, MOST_SLOTS, 0.001).loss_after < 1


def test_a_charge_of_two_or_four_numbers_is_named_by_its_place():
    wrong: list[tuple[Any, str]] = [
        ([(0, 5, 0.01), (0, 10)], r"charges\[1\] has 2 values, but must be three numbers: give the first slot"),
        ([(0, 10, 0.01, 1)], r"charges\[0\] has 4 values"),
        ([5], r"charges\[0\] is a int"),
        (5, "charges is a int, but must be a list of charges"),
    ]
    for charges, said in wrong:
        for entered in (Ledger(BOUNDS).loss_of, Ledger(BOUNDS).replay):
            with pytest.raises(TypeError, match=said):
                entered(charges)


@pytest.mark.parametrize("made", [MarkovChain, lambda matrix: PeriodicChain([matrix]), lambda one: AnyInitial([one])])
def test_nothing_of_a_matrix_is_dropped_in_silence(made):
    masked = np.ma.masked_array(MATRIX, mask=[[False, True], [False, False]])
    for matrix, said in (
        (np.array(MATRIX) + 0j, "must be an array of numbers with rows of equal length, not of complex128"),
        ((np.array(MATRIX) + 0j).astype(object), "not of complex"),
        (np.array(MATRIX) + 0j, "not of complex128"),
        (masked, "not a masked array, whose mask would be dropped: fill it first"),
    ):
        with pytest.raises(ChainError, match=said):
            made(matrix)
    counts = np.ma.masked_array(TABLE, mask=[[False, True], [False, False]])
    with pytest.raises(TypeError, match="counts is a masked array, whose mask would be dropped"):
        LaplaceHistogram(2, Fraction(3)).randomise(counts)


def test_chains_may_stand_for_their_matrices():
    started = MarkovChain(MATRIX, [1, 0])
    no_matrices: Any = BOUNDS
    assert AnyInitial([CHAIN]) == AnyInitial(CHAIN) == AnyInitial([started]) == AnyInitial([MATRIX])
    assert PeriodicChain([CHAIN, started]) == PeriodicChain([MATRIX, MATRIX])
    with pytest.raises(ChainError, match=r"transitions is a MixingBounds, but must be a list of transition matrices"):
        AnyInitial(no_matrices)
    with pytest.raises(ChainError, match=r"transitions\[0\]: transition has shape \(2,\)"):
        AnyInitial(MATRIX)


def test_lists_are_as_good_as_arrays_in_projections_and_estimates():
    rows, totals = [[50, -6, 10], [3, -1, 5]], [48, 7]
    projected = project_to_total(np.array(rows), np.array(totals))
    assert project_to_total(rows, totals).tobytes() == projected.tobytes()
    assert project_to_total(rows[1], 7).tobytes() == projected[1].tobytes()
    table: Any = TABLE.tolist()
    names: Any = ["a"]
    visits: Any = [[100, 51]]
    assert estimation.chain_from_counts(table) == estimation.chain_from_counts(TABLE)
    assert estimation.diagnose(table, [100, 51]) == estimation.diagnose(TABLE, np.array([100, 51]))
    assert estimation.TransitionCounts(names, np.array([table]).tolist(), visits) == HISTORY


def test_an_interval_that_is_none_is_answered_with_an_example():
    one: Any = (0.4, 0.1)
    with pytest.raises(ChainError, match=r"stay_0 is 0.4, but must be two numbers: .*for example \(0.8, 0.95\)"):
        BinaryInterval(*one)
