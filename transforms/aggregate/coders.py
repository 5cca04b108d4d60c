"""What Beam keeps and moves of a window, as bytes of a form of our own: no pickle, which a renamed class would break.

A version, the length of a header, the header as JSON, and the arrays that it names one after another. A savepoint of
another version is refused by name.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry

from ..completeness import WindowEnd, check_version
from ..readings.slots import Covering
from .cells import Cells
from .encode import CellBlock, ReadingBlock
from .gathered import Gathered

#: Of this form; another one gets another number.
VERSION = 2

#: The arrays of readings, and the plain fields of a declaration, in the order in which they are written.
_COLUMNS = ("codes", "begin_us", "values", "length_us", "rank")
_DECLARED = ("start", "part", "parts", "completeness")

_HEAD = struct.Struct("<BI")

Plain = dict[str, Any]
Arrays = Sequence[npt.NDArray[Any]]


class Part:
    """What one shard has in one window, on its way: its type says Beam which coder it has."""


class PartCoder(Coder):
    """Blocks, declarations, collected cells and tallies."""

    def encode(self, value: Any) -> bytes:
        """Write one of them."""
        kind = type(value).__name__
        header, arrays = _forms()[kind][0](value)
        header |= {"kind": kind, "arrays": [[one.dtype.str, one.shape] for one in arrays]}
        text = json.dumps(header, separators=(",", ":")).encode()
        return b"".join([_HEAD.pack(VERSION, len(text)), text, *(one.tobytes() for one in arrays)])

    def decode(self, encoded: bytes) -> Any:
        """Read one of them; its arrays point into ``encoded``.

        Raises:
            StateError: it is of another version.
        """
        version, length = _HEAD.unpack_from(encoded)
        check_version(version, VERSION)
        at = _HEAD.size + length
        header = json.loads(encoded[_HEAD.size : at])
        arrays = list[npt.NDArray[Any]]()
        for kind, shape in header["arrays"]:
            arrays.append(np.frombuffer(encoded, kind, prod(shape), at).reshape(shape))
            at += arrays[-1].nbytes
        return _forms()[header["kind"]][1](header, arrays)

    def to_type_hint(self) -> Any:
        """What the coder is registered for."""
        return Part


registry.register_coder(Part, PartCoder)


@cache
def _forms() -> dict[str, tuple[Callable[[Any], tuple[Plain, Arrays]], Callable[[Plain, Any], Any]]]:
    """How each of them is written and read, by the name of its class."""
    # both have a state of this coder
    from .collect import Collected  # noqa: PLC0415
    from .release import Tally  # noqa: PLC0415

    def collected(plain: Plain, arrays: Any) -> Collected:
        rest, steps = list(arrays), dict[int, Cells | Gathered]()
        for step, kind, readings in plain["steps"]:
            count = 1 if kind == Cells.__name__ else len(_COLUMNS)
            some, rest = rest[:count], rest[count:]
            steps[step] = (
                Cells(some[0], readings, owned=False)
                if kind == Cells.__name__
                else Gathered(Covering(*some), readings=readings)
            )
        return Collected(
            steps,
            dict(plain["closed"]),
            plain["parts"],
            dict(plain["read"]),
        )

    return {
        "CellBlock": (_of_cells, _cell_block),
        "ReadingBlock": (
            lambda one: ({"step": one.step, "count": one.count}, _columns(one.readings)),
            lambda plain, arrays: ReadingBlock(plain["step"], Covering(*arrays), plain["count"]),
        ),
        "WindowEnd": (
            lambda one: ({name: getattr(one, name) for name in _DECLARED}, ()),
            lambda plain, _: WindowEnd(**{name: plain[name] for name in _DECLARED}),
        ),
        "Collected": (_of_collected, collected),
        "Tally": (
            lambda one: (
                {"bits": list(one.parts), "needed": one.needed, "completeness": one.completeness},
                list(one.parts.values()),
            ),
            lambda plain, arrays: Tally(
                dict(zip(plain["bits"], arrays, strict=True)), plain["needed"], plain["completeness"]
            ),
        ),
    }


def _of_cells(one: CellBlock) -> tuple[Plain, Arrays]:
    plain = {name: getattr(one, name) for name in ("step", "rows", "width", "readings")}
    return plain, [one.packed] if one.index is None else [one.packed, one.index]


def _cell_block(plain: Plain, arrays: Any) -> CellBlock:
    index = arrays[1] if len(arrays) > 1 else None
    return CellBlock(plain["step"], plain["rows"], plain["width"], index, arrays[0], plain["readings"])


def _of_collected(one: Any) -> tuple[Plain, Arrays]:
    arrays, steps = list[npt.NDArray[Any]](), list[tuple[int, str, int]]()
    for step, held in one.steps.items():
        arrays += [held.packed] if isinstance(held, Cells) else _columns(held.united())
        steps.append((step, type(held).__name__, held.readings))
    return {
        "steps": steps,
        "closed": list(one.closed.items()),
        "parts": one.parts,
        "read": list(one.read.items()),
    }, arrays


def _columns(readings: Covering) -> list[npt.NDArray[Any]]:
    return [getattr(readings, name) for name in _COLUMNS]
