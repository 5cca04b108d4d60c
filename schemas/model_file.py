"""The model file: a belief about the data, its source, and its states and interval.

The file is JSON. Its ``belief`` is the canonical form of a belief class of ``quiltstream.privacy``; here it is
plain data, so that this portion needs nothing else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from .digests import canonical_json, digest, stable_hash
from .errors import ArgumentError
from .files import MOST_MODEL_BYTES, mend_reading, read_regular, reason, write_whole
from .slots import format_duration, parse_duration
from .states import StateSpace

MODEL_FORMAT = "quiltstream-model"

#: How a model file begins, as :meth:`Model.to_json` writes it.
MODEL_BEGIN = f'{{\n  "format": "{MODEL_FORMAT}"'.encode()
MODEL_VERSION = 1


def hash_of_series(name: str) -> str:
    """The hash under which a model remembers a series it was estimated from."""
    return f"{stable_hash(name):016x}"


def _refused(text: str) -> float:
    raise ValueError(text)


def _finite(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _refused(text)


def _bounded(text: str) -> int:
    return int(text) if len(text) <= _DIGITS else int(_refused(text))


#: Digits of the largest whole number that a model may hold, with its sign.
_DIGITS = 20


#: What the fields of a provenance are in a file.
_KINDS: dict[str, tuple[type, ...]] = {
    "method": (str,),
    "source": (str,),
    "series": (int,),
    "transitions": (int,),
    "outside": (int, type(None)),
    "smoothing": (int, float),
    "from_protected": (bool,),
    "odds": (int, float, type(None)),
    "series_hashes": (list,),
    "source_digests": (list,),
    "notes": (list,),
}


#: The method of a belief that stands in for one, as every released row says it in ``model_provenance``.
STAND_IN_METHOD = "stand-in: not fitted to any data"


class ModelError(ArgumentError):
    """A model file that cannot be used, with what to do about it."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a belief comes from.

    Attributes:
        method: for example ``pooled transition counts`` or ``given by hand``.
        source: what was read, in words; no path and no name of a file.
        series: how many series were used.
        transitions: how many transitions were counted.
        outside: how many of these series lie outside the belief by plug-in, where that is known.
        smoothing: additive smoothing per cell of a row.
        odds: about how likely a further series is covered by the belief; ``None`` where nothing says.
        from_protected: whether series of the protected domain were used: the loss is then 'given the model'.
        series_hashes: a stable hash of each series used, to find those that a roster protects as well.
        source_digests: BLAKE2 digests of the files that were read, to find a run that reads them again.
        notes: warnings of the diagnostics.
    """

    method: str
    source: str = ""
    series: int = 0
    transitions: int = 0
    outside: int | None = None
    smoothing: float = 0.0
    odds: float | None = None
    from_protected: bool = False
    series_hashes: tuple[str, ...] = field(default=(), repr=False)
    source_digests: tuple[str, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = field(default=())

    @property
    def stand_in(self) -> bool:
        """Whether nothing is known about the data, and the belief stands in for one."""
        return self.method == STAND_IN_METHOD

    def used(self, series: Iterable[str]) -> int:
        """How many of these series the belief was estimated from."""
        hashes = set(self.series_hashes)
        return sum(hash_of_series(name) in hashes for name in series) if hashes else 0

    @property
    def text(self) -> str:
        """One line for a released row: without the exact statistics of the history, which no ledger counts.

        A source that may be a path or the name of a file, which may say whose the history is, is left out: one with a
        slash, or a letter or digit after a dot. What the model is stands in the row as its digest, ``model_id``.
        """
        is_said = self.source and re.search(r"[/\\]|\.\w", self.source) is None
        text = f"{self.method}; {self.source}" if is_said else self.method
        return text if self.odds is None else f"{text}; covers a further series with probability about {self.odds:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> Provenance:
        """The inverse of :meth:`to_dict`.

        Raises:
            TypeError: a field is missing, unknown or of another type.
        """
        values: dict[str, Any] = {**form}
        for name, value in values.items():
            kinds = _KINDS.get(name)
            if kinds is None or not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise TypeError(name)
            if isinstance(value, list) and not all(isinstance(one, str) for one in value):
                raise TypeError(name)
        for name in ("notes", "series_hashes", "source_digests"):
            values[name] = tuple(form.get(name, ()))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Model:
    """A belief with the states and the interval it is about.

    Attributes:
        belief: canonical form of the belief, a dictionary with a ``kind``.
        states: the state space; ``None`` for bounds given by hand, which hold for any.
        interval_us: length of a slot in microseconds; ``None`` likewise.
        provenance: where it comes from.
        diagnostics: what the estimation found, for people.
        bounds: canonical form of bounds on pi_min and the gap that hold for the same series, for the mechanisms that
            read such bounds; ``None`` where the belief itself gives them, or nothing does.

    Raises:
        ModelError: the belief is not the canonical form of one.
    """

    belief: dict[str, Any]
    states: StateSpace | None
    interval_us: int | None
    provenance: Provenance
    diagnostics: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._check(self.belief)
        if self.bounds is not None:
            self._check(self.bounds)

    def _check(self, given: Any) -> None:
        if not isinstance(given, dict) or not isinstance(cast("dict[str, Any]", given).get("kind"), str):
            then = "give belief.to_dict()" if hasattr(given, "to_dict") else "belief.to_dict() gives it"
            raise ModelError(
                f"belief is of the type {type(given).__name__}, and must be a dictionary with a kind: {then}"
            )
        try:
            canonical_json(given)
        except (TypeError, ValueError) as error:
            raise ModelError(f"belief is not plain JSON data ({error}): belief.to_dict() gives it") from None

    @property
    def model_id(self) -> str:
        """Digest of what the guarantee depends on: the belief, the bounds, the states and the interval."""
        bounds = {} if self.bounds is None else {"bounds": self.bounds}
        return digest(
            {
                "belief": self.belief,
                **bounds,
                "states": None if self.states is None else self.states.to_dict(),
                "interval_us": self.interval_us,
            }
        )

    def read_as(self, reads: str) -> dict[str, Any]:
        """The belief for a mechanism that reads ``bounds``, ``chains`` or ``directions``."""
        return self.bounds if reads == "bounds" and self.bounds is not None else self.belief

    def check_fits(self, states: StateSpace, interval_us: int) -> None:
        """Refuse a model of other states or another interval than the query's.

        Raises:
            ModelError: the edges, the missing rule or the interval differ.
        """
        if self.interval_us is not None and self.interval_us != interval_us:
            raise ModelError(
                f"model: its interval is {format_duration(self.interval_us)} and slots.interval is "
                f"{format_duration(interval_us)}; fit a model on slots of the same length"
            )
        if self.states is not None and self.states.to_dict() != states.to_dict():
            raise ModelError(
                f"model: it has the states {', '.join(self.states.labels)} and the settings have "
                f"{', '.join(states.labels)}; fit a model with the settings' edges or categories, unit and missing rule"
            )

    def to_json(self) -> str:
        """The text of a model file."""
        form = {
            "format": MODEL_FORMAT,
            "version": MODEL_VERSION,
            "model_id": self.model_id,
            "states": None if self.states is None else {**self.states.to_dict(), "labels": list(self.states.labels)},
            "interval": None if self.interval_us is None else format_duration(self.interval_us),
            "belief": self.belief,
            "bounds": self.bounds,
            "provenance": self.provenance.to_dict(),
            "diagnostics": self.diagnostics,
        }
        form["digest"] = digest(form)
        return json.dumps(form, indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str = "model") -> Model:
        """Read the text of a model file.

        Raises:
            ModelError: it is not a model file of this version, or it was changed after it was written.
        """
        try:
            form = json.loads(text, parse_constant=_refused, parse_float=_finite, parse_int=_bounded)
        except (ValueError, RecursionError):
            raise ModelError(f"{name}: not JSON, or no numbers of a model; write one with `quiltstream fit`") from None
        if not isinstance(form, dict) or form.get("format") != MODEL_FORMAT:
            raise ModelError(
                f"{name}: not a model file (format is not {MODEL_FORMAT!r}); write one with `quiltstream fit`"
            )
        if form.get("version") != MODEL_VERSION:
            raise ModelError(
                f"{name}: version {form.get('version')!r}, and this program reads version {MODEL_VERSION}; fit it again"
            )
        try:
            states = None if form["states"] is None else StateSpace.from_dict(form["states"])
            interval = None if form["interval"] is None else parse_duration(form["interval"])
            model = cls(
                belief=dict(form["belief"]),
                states=states,
                interval_us=interval,
                provenance=Provenance.from_dict(form["provenance"]),
                diagnostics=dict(form.get("diagnostics", {})),
                bounds=form.get("bounds"),
            )
            content = {key: value for key, value in form.items() if key != "digest"}
            whole = form.get("model_id") == model.model_id and form.get("digest") == digest(content)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ModelError(f"{name}: damaged or incomplete ({type(error).__name__}); fit it again") from error
        if not whole:
            raise ModelError(
                f"{name}: its digest does not match its content: it was edited or damaged; "
                f"fit it again, or give bounds by hand as model: {{pi_min: ..., gap: ...}}"
            )
        return model

    def save(self, path: Path) -> None:
        """Write the model file, whole or not at all, and for its owner alone: it holds statistics of a history.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(path, self.to_json(), private=True)

    @classmethod
    def load(cls, path: Path) -> Model:
        """Read a model file.

        Raises:
            ModelError: there is no such file, or it cannot be used.
        """
        try:
            text = read_regular(path, MOST_MODEL_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            mend = mend_reading(error, "write one with `quiltstream fit`")
            raise ModelError(f"model {path}: cannot be read ({reason(error)}); {mend}") from error
        return cls.from_json(text, str(path))
