"""Accounts as records: a plain dictionary with a version, and the Avro schema it fits.

Exact sums are written as fractions in text, floats as doubles, beliefs as the JSON of their plain form, so that an
account comes back as it was and its loss is the same float.

>>> from quiltstream.privacy.classes import MixingBounds
>>> from quiltstream.privacy.ledger import Ledger
>>> ledger = Ledger(MixingBounds(pi_min=0.2, gap=0.75), budget=2.0)
>>> charge = ledger.charge(0, 336, 0.03, key="weekly-load/0")
>>> again = from_record(to_record(ledger))
>>> again.loss == ledger.loss, to_record(again) == to_record(ledger)
(True, True)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from .accounting.constant import ACCURACY
from .branches import joined_world
from .entries import Entry, Forgotten
from .influence import Bound
from .ledger import Ledger
from .models.belief import AnyBelief
from .models.reading import read_belief
from .states import AccountState
from .worlds import World

RECORD_VERSION = 1
"""Version of the record; a reader refuses what is newer."""

_LONG = 2**63


def _record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


_OPTIONAL_LONG = ["null", "long"]

ACCOUNT_AVRO: dict[str, Any] = {
    **_record(
        "LedgerAccount",
        ("version", "int"),
        (
            "worlds",
            {
                "type": "array",
                "items": _record(
                    "LedgerWorld",
                    (
                        "beliefs",
                        {
                            "type": "array",
                            "items": _record("LedgerBelief", ("start", _OPTIONAL_LONG), ("belief", "string")),
                        },
                    ),
                    ("lags", _OPTIONAL_LONG),
                    ("settled", "double"),
                    ("live", _OPTIONAL_LONG),
                ),
            },
        ),
        ("budget", ["null", "double"]),
        ("bound", "string"),
        ("rule", "string"),
        ("start", _OPTIONAL_LONG),
        ("keep", _OPTIONAL_LONG),
        ("horizon", _OPTIONAL_LONG),
        ("floor", _OPTIONAL_LONG),
        ("peak", "string"),
        ("upper_bound", "boolean"),
        ("loss", "double"),
        (
            "forgotten",
            _record(
                "LedgerForgotten",
                ("count", "long"),
                ("mass", "string"),
                ("digest", "string"),
                (
                    "shapes",
                    {
                        "type": "array",
                        "items": _record("LedgerShape", ("slots", "long"), ("epsilon_dp", "double"), ("count", "long")),
                    },
                ),
            ),
        ),
        (
            "entries",
            {
                "type": "array",
                "items": _record(
                    "LedgerCharge",
                    ("entry_id", "string"),
                    ("key", "string"),
                    ("start", "long"),
                    ("stop", "long"),
                    ("epsilon_dp", "double"),
                    ("conflict", "boolean"),
                ),
            },
        ),
    ),
    "namespace": "quiltstream.v1",
}
"""The Avro schema of a record."""


def to_record(ledger: Ledger) -> dict[str, Any]:
    """The account as a plain dictionary that fits ``ACCOUNT_AVRO``, and JSON as well.

    Raises:
        ValueError: If a slot does not fit into 64 bits.
    """
    state = ledger.state
    forgotten = state.forgotten
    slots = [entry.start for entry in state.entries] + [entry.stop for entry in state.entries]
    if any(not -_LONG <= slot < _LONG for slot in slots):
        raise ValueError("a charge lies at a slot beyond 64 bits, which a record cannot hold: use a later origin")
    return {
        "version": RECORD_VERSION,
        "worlds": [
            {
                "beliefs": [
                    {"start": part.start, "belief": json.dumps(part.belief.to_dict(), sort_keys=True)}
                    for part in world.segments
                ],
                "lags": world.shortened,
                "settled": settled,
                "live": live,
            }
            for world, settled, live in zip(state.worlds, state.settled, state.lives, strict=True)
        ],
        "budget": state.budget,
        "bound": state.bound,
        "rule": state.rule,
        "start": state.start,
        "keep": state.keep,
        "horizon": state.horizon,
        "floor": state.floor,
        "peak": str(state.peak),
        "upper_bound": state.upper_bound,
        "loss": ledger.loss,
        "forgotten": {
            "count": forgotten.count,
            "mass": str(forgotten.mass),
            "digest": f"{forgotten.digest:064x}",
            "shapes": [
                {"slots": slots, "epsilon_dp": rate, "count": count}
                for (slots, rate), count in sorted(forgotten.shapes.items())
            ],
        },
        "entries": [
            {
                "entry_id": entry.entry_id,
                "key": entry.key,
                "start": entry.start,
                "stop": entry.stop,
                "epsilon_dp": entry.epsilon_dp,
                "conflict": entry.conflict,
            }
            for entry in state.entries
        ],
    }


def from_record(record: Mapping[str, Any]) -> Ledger:
    """The account that a record describes.

    Raises:
        ChainError: If a belief cannot be read.
        ValueError: If the record is of a newer version, lacks a field, or its charges do not give the loss it names.
    """
    version = record.get("version")
    if version != RECORD_VERSION:
        raise ValueError(
            f"version is {version!r}, but this program reads {RECORD_VERSION}: use the quiltstream that wrote it"
        )
    try:
        ledger = Ledger.from_state(_state(record))
        named = float(record["loss"])
    except KeyError as missing:
        raise ValueError(f"the record lacks the field {missing.args[0]}: it is damaged or no account") from None
    if not math.isclose(ledger.loss, named, rel_tol=ACCURACY):
        raise ValueError(
            f"loss is {named!r}, but the charges of the record cost {ledger.loss!r}: it is damaged, or was computed by "
            "another version; restore an undamaged copy"
        )
    return ledger


def _state(record: Mapping[str, Any]) -> AccountState:
    forgotten, worlds, bound = record["forgotten"], record["worlds"], record["bound"]
    return AccountState(
        worlds=tuple(_world(world, bound) for world in worlds),
        bound=bound,
        rule=record["rule"],
        budget=record["budget"],
        start=record["start"],
        keep=record["keep"],
        horizon=record["horizon"],
        floor=record["floor"],
        peak=Fraction(record["peak"]),
        upper_bound=record["upper_bound"],
        settled=tuple(world["settled"] for world in worlds),
        lives=tuple(world["live"] for world in worlds),
        forgotten=Forgotten(
            count=forgotten["count"],
            mass=Fraction(forgotten["mass"]),
            digest=int(forgotten["digest"], 16),
            shapes={(shape["slots"], shape["epsilon_dp"]): shape["count"] for shape in forgotten["shapes"]},
        ),
        entries=tuple(
            Entry(
                entry["entry_id"],
                entry["key"],
                entry["start"],
                entry["stop"],
                entry["epsilon_dp"],
                conflict=entry["conflict"],
            )
            for entry in record["entries"]
        ),
    )


def _world(record: Mapping[str, Any], bound: Bound) -> World:
    first, *others = ((part["start"], _belief(part["belief"])) for part in record["beliefs"])
    lags = record["lags"]
    world = joined_world(first[1], None if lags is None else 2 * lags, bound)
    for start, belief in others:
        world = world.switched(start, belief, bound)
    return world


def _belief(text: str) -> AnyBelief:
    return read_belief(json.loads(text))
