"""What the decoders share about Arrow arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

#: ``pyarrow.compute``: its functions are made at import, where no type checker sees them.
pc: Any = pyarrow.compute


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array, its dictionaries made one."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()


def truths(array: pa.Array) -> npt.NDArray[np.bool_]:
    """A column of booleans in numpy; nulls are false."""
    filled = pc.fill_null(array, False) if array.null_count else array  # noqa: FBT003 - the fill value
    return filled.to_numpy(zero_copy_only=False)
