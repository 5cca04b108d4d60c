"""Joint laws of a few discrete variables: a table of every outcome, and a Bayesian network with exact inference.

*The table* lists every database that can occur, and how likely it is. The distance of two quantile functions jumps when
two cumulative sums that ought to be equal differ in the last bit, so its probabilities are fractions. A float is read
as the simple fraction that it stands for: 0.1 in a table means one tenth, and 0.3333333333333333 one third. Where a row
of such numbers misses 1 by rounding, its largest entry takes the difference.

>>> [str(value) for value in exact_distribution("row", [1 / 3, 2 / 3])]
['1/3', '2/3']
>>> table = JointTable([(0, 0), (0, 1), (1, 1)], [0.5, 0.25, 0.25])
>>> table.records, table.size
(2, 3)
>>> [str(value) for value in table.law_given([10, 11, 12], record=0, state=0)[1]]
['2/3', '1/3']

*The network* is the product of tables P(X | parents).

>>> network = BayesianNetwork(
...     parents={"rain": [], "sprinkler": ["rain"], "grass": ["rain", "sprinkler"]},
...     tables={
...         "rain": [0.8, 0.2],
...         "sprinkler": [[0.6, 0.4], [0.99, 0.01]],
...         "grass": [[[1.0, 0.0], [0.1, 0.9]], [[0.2, 0.8], [0.01, 0.99]]],
...     },
... )
>>> network.separated_from("rain", given=["sprinkler"])
()

Marginals are found by variable elimination, in logarithms, because probabilities of many rare events multiply to
numbers below the range of floats, while only their ratios decide about influence.

>>> network = BayesianNetwork.from_chain(MarkovChain([[0.9, 0.1], [0.4, 0.6]], [0.8, 0.2]), length=3)
>>> np.exp(log_marginal(network, ["X3"])).round(6).tolist()
[0.8, 0.2]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import SupportsFloat, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from ..validation import PrivacyError, as_array, as_list, instance, number, numbers, power_exceeds, whole
from .markov_chain import EXACT_SUM, SUM_TOLERANCE, FloatArray, MarkovChain, check_chain, frozen

LARGEST_JOINT = 2**17
"""The most databases that a table may list."""

_SIMPLE = 10**6
"""The largest denominator of a fraction that a float is taken to stand for."""

_ROUNDING = Fraction(1, 2**51)
"""How far, relatively, it may be from the float: two roundings, its own and that of a division by a row's sum."""

Row: TypeAlias = tuple[int, ...]
Query: TypeAlias = "Callable[[Row], SupportsFloat | Fraction] | Sequence[SupportsFloat | Fraction]"
"""A number for each database: a function of its row of states, or the numbers in the order of the table."""


@dataclass(frozen=True, init=False)
class JointTable:
    """The joint law of the records of a database, each record in a state.

    Attributes:
        outcomes: The databases, each a row of one state per record, all different.
        weights: Their probabilities as fractions that sum to 1 (see the module for how floats are read).

    Raises:
        ValueError: A row of another length or twice, a probability that is none, a wrong sum, or too many rows.
    """

    outcomes: tuple[Row, ...]
    weights: tuple[Fraction, ...]

    def __init__(
        self, outcomes: Iterable[Iterable[SupportsIndex]], probabilities: Iterable[SupportsFloat | Fraction]
    ) -> None:
        given = as_list("outcomes", outcomes, "rows, each of one state per record")
        rows = tuple(
            tuple(whole("outcomes", state, "give states", least=0) for state in as_list("outcomes", row, "rows"))
            for row in given
        )
        weights = exact_distribution("probabilities", probabilities)
        if len(rows) != len(weights):
            raise ValueError(
                f"probabilities has {len(weights)} entries, but outcomes has {len(rows)} rows: give one for each row"
            )
        if len(rows) > LARGEST_JOINT:
            raise ValueError(
                f"outcomes has {len(rows)} rows, but at most {LARGEST_JOINT} are written out: use fewer records or "
                "states, or a method that needs no table"
            )
        lengths = {len(row) for row in rows}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"outcomes has rows of {sorted(lengths)} records: give every record a state in every row")
        if len(set(rows)) != len(rows):
            raise ValueError("outcomes has a row twice: add the probabilities up and give it once")
        object.__setattr__(self, "outcomes", rows)
        object.__setattr__(self, "weights", weights)

    def __repr__(self) -> str:
        return f"JointTable(records={self.records}, size={self.size})"

    @classmethod
    def from_array(cls, probabilities: npt.ArrayLike) -> JointTable:
        """Make the table of an array with one axis per record: entry [x1, x2, ...] is the probability of that row."""
        array = as_array("probabilities", probabilities)
        return cls(np.ndindex(array.shape), array.ravel().tolist())

    @classmethod
    def from_chain(cls, chain: MarkovChain, length: int) -> JointTable:
        """Write out every sequence of a chain, one record per slot.

        Raises:
            ChainError: If the chain is meant to be stationary and is reducible.
            ValueError: If the length is out of range or there are too many sequences.
        """
        check_chain("chain", chain)
        slots = whole("length", length, "give the slots of a window", least=1, most=LARGEST_JOINT)
        if power_exceeds(chain.states, slots, LARGEST_JOINT):
            raise ValueError(
                f"length is {slots}: a chain of {chain.states} states has {chain.states}^{slots} sequences of that "
                f"length, but at most {LARGEST_JOINT} are written out: give a shorter one"
            )
        start, rows = exact_chain(chain)
        outcomes = list(itertools.product(range(chain.states), repeat=slots))
        weights: list[Fraction] = []
        for outcome in outcomes:
            weight = start[outcome[0]]
            for before, after in itertools.pairwise(outcome):
                weight *= rows[before][after]
            weights.append(weight)
        return cls(outcomes, weights)

    @property
    def members(self) -> tuple[JointTable, ...]:
        """The table itself."""
        return (self,)

    @property
    def records(self) -> int:
        """Number of records d."""
        return len(self.outcomes[0])

    @property
    def size(self) -> int:
        """Number of rows n."""
        return len(self.outcomes)

    def states_of(self, record: int) -> tuple[int, ...]:
        """The states of a record that have positive probability, sorted."""
        self._check_record(record)
        return tuple(
            sorted({row[record] for row, weight in zip(self.outcomes, self.weights, strict=True) if weight > 0})
        )

    def values_of(self, query: Query) -> tuple[Fraction, ...]:
        """The query's value for each database, exactly.

        Raises:
            ValueError: If a value is not finite, or a sequence has another length than the table.
        """
        if callable(query):
            values = [query(row) for row in self.outcomes]
        else:
            values = as_list("query", query, "numbers, one for each row of the table")
        if len(values) != self.size:
            raise ValueError(
                f"query has {len(values)} values, but the table has {self.size} rows: give one for each row"
            )
        return tuple(exact_number(f"query[{place}]", value) for place, value in enumerate(values))

    def law_given(
        self, values: Sequence[SupportsFloat | Fraction], record: int, state: int
    ) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
        """The law of a query given the state of one record: its support in rising order, and the probabilities.

        Args:
            values: The query's value for each database.
            record: Which record, from 0.
            state: Its state; must have positive probability.

        Raises:
            ValueError: If the state has probability 0, or there is no such record.
        """
        self._check_record(record)
        state = whole("state", state, "see states_of")
        masses: dict[Fraction, Fraction] = {}
        for row, weight, value in zip(self.outcomes, self.weights, self.values_of(values), strict=True):
            if row[record] == state and weight > 0:
                masses[value] = masses.get(value, Fraction(0)) + weight
        if not masses:
            raise ValueError(f"state is {state}, but record {record} is never in it: see states_of")
        total = sum(masses.values())
        support = tuple(sorted(masses))
        return support, tuple(masses[value] / total for value in support)

    def _check_record(self, record: int) -> None:
        number = whole("record", record, "give the number of a record")
        if not 0 <= number < self.records:
            raise ValueError(f"record is {record}, but the table has the records 0 to {self.records - 1}")


def exact_chain(chain: MarkovChain) -> tuple[tuple[Fraction, ...], list[tuple[Fraction, ...]]]:
    """A chain's start and transition rows as fractions; a stationary start is solved for exactly."""
    rows = [exact_distribution(f"transition row {state}", row.tolist()) for state, row in enumerate(chain.transition)]
    if chain.initial is not None:
        return exact_distribution("initial", chain.initial.tolist()), rows
    chain.stationary  # noqa: B018 - says why where the chain is reducible
    return exact_stationary(rows), rows


def exact_number(name: str, value: SupportsFloat | Fraction) -> Fraction:
    """Read a number as a fraction.

    Whole numbers and fractions stay as they are. A float within a relative 2^-51 of a fraction with a denominator up to
    10^6 is that fraction; any other float is the decimal that it prints as.
    """
    if isinstance(value, int | Fraction) and not isinstance(value, bool):
        return Fraction(value)
    found = number(name, value, "give an int, a float or a Fraction")
    if not math.isfinite(found):
        raise ValueError(f"{name} is {found!r}, but must be finite: mend the entry")
    simple = Fraction(found).limit_denominator(_SIMPLE)
    return simple if abs(simple - Fraction(found)) <= _ROUNDING * abs(Fraction(found)) else Fraction(repr(found))


def exact_distribution(name: str, values: Iterable[SupportsFloat | Fraction]) -> tuple[Fraction, ...]:
    """Read probabilities as fractions that sum to exactly 1; the largest of them takes what the sum misses.

    Raises:
        ValueError: If there is no entry, an entry is no probability, or the sum is off by more than ``SUM_TOLERANCE``.
    """
    listing = as_list(name, values, "probabilities, one for each outcome")
    row = [exact_number(f"{name}[{place}]", value) for place, value in enumerate(listing)]
    if not row:
        raise ValueError(f"{name} is empty, but must have at least one probability: give one for each outcome")
    for place, value in enumerate(row):
        if value < 0:
            raise ValueError(
                f"{name}[{place}] is {number(name, value, '')!r}, but a probability is not negative: mend it"
            )
    missing = 1 - sum(row)
    if abs(missing) > SUM_TOLERANCE:
        raise ValueError(
            f"{name} sums to {number(name, 1 - missing, '')!r}, but must sum to 1 within {SUM_TOLERANCE:g}: "
            "divide it by its sum if that is what was meant"
        )
    row[max(range(len(row)), key=row.__getitem__)] += missing
    return tuple(row)


def exact_stationary(transition: list[tuple[Fraction, ...]]) -> tuple[Fraction, ...]:
    """The stationary distribution of an irreducible chain, by the elimination of Grassmann, Taksar and Heyman."""
    work = [list(row) for row in transition]
    for state in range(len(work) - 1, 0, -1):
        leave = sum(work[state][:state], Fraction(0))
        for row in work[:state]:
            row[state] /= leave
            for other in range(state):
                row[other] += row[state] * work[state][other]
    weights = [Fraction(1)]
    for state in range(1, len(work)):
        weights.append(sum((weights[other] * work[other][state] for other in range(state)), Fraction(0)))
    total = sum(weights)
    return tuple(weight / total for weight in weights)


class NetworkError(PrivacyError):
    """A graph that is not acyclic, a table that does not fit it, or a variable that is not in it."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class BayesianNetwork:
    """Variables X_1..X_n, each with parents and a table P(X | parents).

    The joint law is the product of the tables. Values are immutable and survive pickling.

    Attributes:
        names: The variables, in the order in which they were given.
        parents: The parents of every variable.
        tables: The tables, read-only.
        order: The variables with parents before children.
    """

    names: tuple[str, ...]
    parents: Mapping[str, tuple[str, ...]]
    tables: Mapping[str, FloatArray]
    order: tuple[str, ...]

    def __init__(self, parents: Mapping[str, Sequence[str]], tables: Mapping[str, npt.ArrayLike]) -> None:
        """Check and keep.

        Args:
            parents: The parents of every variable, in the order of the axes of its table; the order of the variables
                is that of this mapping.
            tables: The table of every variable: one axis per parent, then one for the variable itself, along which it
                sums to 1 (within 1e-9; it is then divided by its sum).

        Raises:
            NetworkError: If a parent is unknown or repeated, there is a cycle, a table is missing, or has the wrong
                shape, or an entry that is no probability, or a wrong sum.
        """
        instance("parents", parents, Mapping, advice="give the parents of each variable by its name")
        instance("tables", tables, Mapping, advice="give the table of each variable by its name")
        if not parents:
            raise NetworkError("parents is empty, but a network has at least one variable: name one")
        unknown = sorted(set(tables) ^ set(parents), key=str)
        if unknown:
            raise NetworkError(f"tables and parents differ in {', '.join(map(repr, unknown))}: give both for each")
        above = {name: _checked_parents(name, parents[name], tuple(parents)) for name in parents}
        order = _sorted(above)
        kept: dict[str, FloatArray] = {}
        for name in order:
            kept[name] = _table(name, tables[name], [kept[parent].shape[-1] for parent in above[name]])
        object.__setattr__(self, "names", tuple(parents))
        object.__setattr__(self, "parents", above)
        object.__setattr__(self, "tables", {name: kept[name] for name in parents})
        object.__setattr__(self, "order", order)

    def __repr__(self) -> str:
        return f"BayesianNetwork({', '.join(self.names)})"

    def __reduce__(self) -> tuple[type[BayesianNetwork], tuple[object, ...]]:
        # rebuilt by the constructor: a pickled array comes back writable
        return BayesianNetwork, (self.parents, self.tables)

    @classmethod
    def from_chain(cls, chain: MarkovChain, length: int) -> BayesianNetwork:
        """The chain X1 -> X2 -> ... of a window of slots.

        Raises:
            ChainError: If the chain is meant to be stationary and is reducible.
        """
        check_chain("chain", chain)
        slots = whole("length", length, "give the slots of a window", least=1, most=LARGEST_JOINT)
        names = [f"X{slot}" for slot in range(1, slots + 1)]
        start = chain.stationary if chain.initial is None else chain.initial
        return cls(
            {name: names[place - 1 : place] if place else [] for place, name in enumerate(names)},
            {name: chain.transition if place else start for place, name in enumerate(names)},
        )

    @cached_property
    def _children(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(other for other in self.names if name in self.parents[other]) for name in self.names}

    def states(self, name: str) -> int:
        """How many states a variable has."""
        return self.tables[self.checked(name)].shape[-1]

    def checked(self, name: str) -> str:
        """The name itself, if the network has such a variable.

        Raises:
            NetworkError: If it has not.
        """
        # what is no name may have no hash either
        if not isinstance(name, str) or name not in self.tables:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise NetworkError(
                f"variable {name!r:.40} is not in the network: it has {', '.join(map(repr, self.names))}"
            )
        return name

    def ancestors(self, names: Iterable[str]) -> frozenset[str]:
        """Some variables with all variables above them."""
        found: set[str] = set()
        stack = [self.checked(name) for name in as_list("names", names, "names of variables")]
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack.extend(self.parents[name])
        return frozenset(found)

    def separated_from(self, name: str, given: Iterable[str]) -> tuple[str, ...]:
        """All variables that the graph makes independent of one variable, given others (d-separation).

        By the ball that travels along trails ("Bayes ball"): from a variable entered from below it goes on to parents
        and children, unless the variable is given; from one entered from above it goes on to the children unless the
        variable is given, and to the parents if it or a descendant is given (a collider). What the ball cannot reach is
        separated.

        Args:
            name: The variable.
            given: The variables that are known; must not contain it.

        Returns:
            The separated variables in the order of the network; none of the given ones among them.

        Raises:
            NetworkError: If a variable is unknown, or is given itself.
        """
        known = {self.checked(other) for other in as_list("given", given, "names of variables")}
        if self.checked(name) in known:
            raise NetworkError(f"given contains the variable {name!r} itself: leave it out")
        opened = self.ancestors(known)
        reached: set[str] = set()
        seen: set[tuple[str, bool]] = set()
        stack = [(name, True)]  # a variable, and whether the ball comes from below
        while stack:
            here, from_below = stack.pop()
            if (here, from_below) in seen:
                continue
            seen.add((here, from_below))
            if here not in known:
                reached.add(here)
                stack.extend((child, False) for child in self._children[here])
            if (from_below and here not in known) or (not from_below and here in opened):
                stack.extend((parent, True) for parent in self.parents[here])
        return tuple(other for other in self.names if other not in reached and other not in known)

    def joint(self) -> JointTable:
        """The joint law as a table of every combination of states.

        Raises:
            NetworkError: If there are too many combinations.
        """
        sizes = [self.states(name) for name in self.names]
        if math.prod(sizes) > LARGEST_JOINT:
            raise NetworkError(
                f"the network has {math.prod(sizes)} combinations of states, but at most {LARGEST_JOINT} are written "
                "out: use a smaller one"
            )
        place = {name: axis for axis, name in enumerate(self.names)}
        weights = np.ones(sizes)
        for name, table in self.tables.items():
            axes = [place[other] for other in (*self.parents[name], name)]
            shape = [sizes[axis] if axis in axes else 1 for axis in range(len(sizes))]
            weights = weights * np.transpose(table, np.argsort(axes)).reshape(shape)
        return JointTable.from_array(weights / weights.sum())


def check_table(name: str, table: object) -> None:
    """Refuse what is no table by a TypeError."""
    instance(name, table, JointTable)


def check_network(name: str, network: object) -> None:
    """Refuse what is no network by a TypeError."""
    instance(name, network, BayesianNetwork)


def _checked_parents(name: str, given: Sequence[str], names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(as_list(f"parents of {name!r}", given, "names of variables"))
    for parent in found:
        if parent not in names:
            raise NetworkError(f"parents of {name!r}: {parent!r} is not a variable: add it, or mend the name")
    if len(set(found)) != len(found):
        raise NetworkError(f"parents of {name!r} has one of them twice: name each once")
    return found


def _sorted(parents: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    order: list[str] = []
    waiting = list(parents)
    while waiting:
        ready = [name for name in waiting if set(parents[name]) <= set(order)]
        if not ready:
            raise NetworkError(
                f"parents has a cycle among {', '.join(map(repr, waiting))}: "
                "a network has none, turn an arrow or leave one out"
            )
        order += ready
        waiting = [name for name in waiting if name not in ready]
    return tuple(order)


def _table(name: str, values: npt.ArrayLike, parents: list[int]) -> FloatArray:
    try:
        array = numbers(f"table of {name!r}", values)
    except TypeError as error:
        raise NetworkError(str(error)) from None
    if array.ndim != len(parents) + 1 or list(array.shape[:-1]) != parents or not array.size:
        raise NetworkError(
            f"table of {name!r} has shape {array.shape}, but must have one axis per parent, of {parents} states, and "
            "one for the variable itself"
        )
    bad = np.argwhere(~np.isfinite(array) | (array < 0))
    if bad.size:
        where = tuple(int(index) for index in bad[0])
        raise NetworkError(
            f"table of {name!r}{list(where)} is {float(array[where])!r}, but a probability is finite and not negative: "
            "mend the entry"
        )
    sums = array.sum(axis=-1, keepdims=True)
    if np.abs(sums - 1).max() > SUM_TOLERANCE:
        where = next(
            place for place in itertools.product(*map(range, parents)) if abs(sums[place][0] - 1) > SUM_TOLERANCE
        )
        raise NetworkError(
            f"table of {name!r}{list(where)} sums to {float(sums[where][0])!r}, but must sum to 1 within "
            f"{SUM_TOLERANCE:g} along the last axis: divide it by its sum if that is what was meant"
        )
    return frozen(np.where(np.abs(sums - 1) <= EXACT_SUM, array, array / sums))


LARGEST_FACTOR = 2**22
"""The most entries of a table that elimination may form."""


@dataclass(frozen=True, slots=True)
class _Factor:
    """A table of logarithms over some variables, one axis each."""

    names: tuple[str, ...]
    values: FloatArray

    def spread(self, names: Sequence[str]) -> FloatArray:
        """The same table with the axes of a longer list of variables."""
        order = sorted(range(len(self.names)), key=lambda axis: names.index(self.names[axis]))
        sizes = dict(zip(self.names, self.values.shape, strict=True))
        return np.transpose(self.values, order).reshape([sizes.get(name, 1) for name in names])


def log_marginal(network: BayesianNetwork, names: Sequence[str]) -> FloatArray:
    """The logarithm of P(X_names), one axis per name in the given order; minus infinity where the probability is 0.

    Only the variables and their ancestors matter. The others are summed out one by one, each time the one that makes
    the smallest table. Without names it is an array of one entry, 0.

    Raises:
        NetworkError: If a variable is unknown or repeated, or a table would have more than `LARGEST_FACTOR` entries.
    """
    kept = tuple(names)
    if len(set(kept)) != len(kept):
        raise NetworkError(f"names has a variable twice: {', '.join(map(repr, kept))}")
    needed = network.ancestors(kept)
    with np.errstate(divide="ignore"):
        factors = [
            _Factor((*network.parents[name], name), np.log(network.tables[name]))
            for name in network.names
            if name in needed
        ]
    hidden = sorted(needed - set(kept), key=network.names.index)
    while hidden:
        name = min(hidden, key=lambda candidate: _size(network, _scope(factors, candidate)))
        hidden.remove(name)
        touched = [factor for factor in factors if name in factor.names]
        scope = _scope(factors, name)
        product = _multiply(network, touched, (*scope, name))
        factors = [factor for factor in factors if name not in factor.names]
        factors.append(_Factor(scope, log_sum(product)))
    return _multiply(network, factors, kept)


def log_sum(values: FloatArray) -> FloatArray:
    """The logarithm of the sum of exponentials along the last axis."""
    top = values.max(axis=-1, keepdims=True)
    shift = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(values - shift).sum(axis=-1)) + shift[..., 0]


def _scope(factors: Sequence[_Factor], name: str) -> tuple[str, ...]:
    """The variables that summing one out brings together."""
    scope = dict.fromkeys(other for factor in factors if name in factor.names for other in factor.names)
    scope.pop(name, None)
    return tuple(scope)


def _size(network: BayesianNetwork, names: Sequence[str]) -> int:
    return math.prod(network.states(name) for name in names)


def _multiply(network: BayesianNetwork, factors: Sequence[_Factor], names: Sequence[str]) -> FloatArray:
    size = _size(network, names)
    if size > LARGEST_FACTOR:
        raise NetworkError(
            f"exact inference needs a table over {len(names)} variables with {size} entries, but at most "
            f"{LARGEST_FACTOR} are formed: use smaller quilts, or a network with fewer states or parents"
        )
    product = np.zeros([network.states(name) for name in names])
    for factor in factors:
        product = product + factor.spread(names)
    return product
