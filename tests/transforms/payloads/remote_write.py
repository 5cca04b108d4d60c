"""Write requests of Prometheus, encoded byte by byte, and blocks of snappy that hold literals alone."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from .sparkplug import block, integer, varint

#: What says that a series has ended.
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0002))[0]


def written(*series: tuple[Mapping[str, str], Sequence[tuple[float, int]]]) -> bytes:
    """A request with series: their labels, and value and milliseconds of each sample."""
    return b"".join(
        block(
            1,
            b"".join(block(1, block(1, name.encode()) + block(2, value.encode())) for name, value in labels.items())
            + b"".join(block(2, b"\x09" + struct.pack("<d", value) + integer(2, at)) for value, at in samples),
        )
        for labels, samples in series
    )


def snappy(body: bytes) -> bytes:
    """A block of literals of up to sixty bytes, as the description of the format has them."""
    pieces = [body[at : at + 60] for at in range(0, len(body), 60)]
    return varint(len(body)) + b"".join(bytes([(len(one) - 1) << 2]) + one for one in pieces)
