"""A belief of any kind from its plain form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .classes import Belief, belief_from_dict, read_by
from .dobrushin import DobrushinBounds, Neighbourhood
from .periodic import PeriodicChain

#: Kinds of this folder; the others are read by ``classes.belief_from_dict``.
KINDS: Mapping[str, type[DobrushinBounds | Neighbourhood | PeriodicChain]] = MappingProxyType(
    {"dobrushin-bounds": DobrushinBounds, "neighbourhood": Neighbourhood, "periodic-chain": PeriodicChain}
)


def read_belief(data: Mapping[str, Any]) -> Belief | DobrushinBounds | Neighbourhood | PeriodicChain:
    """Read any belief by its ``kind``.

    Raises:
        ChainError: The kind is not known, or the fields do not make such a belief.
    """
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return belief_from_dict(data)
    return read_by(KINDS[kind].from_dict, data)
