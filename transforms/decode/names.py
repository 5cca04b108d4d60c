"""Columns of names (series, groups) to dictionaries: each distinct name once, and int32 numbers per row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.pseudonyms import PseudonymKey, Pseudonyms
from ...schemas.readings import RejectReason
from ..arrow_tools import pc
from ..rejects import Problem

#: Names whose pseudonyms are remembered, and the characters of these names; with more they are made again.
_REMEMBERED, _CHARACTERS = 1 << 18, 1 << 24


class PseudonymsOf:
    """Replaces names by pseudonyms, each distinct name once; it belongs to one worker.

    Args:
        place: where the key is; it is read at the first name.
    """

    def __init__(self, place: Pseudonyms) -> None:
        self._place = place
        self._key: PseudonymKey | None = None
        self._known: dict[str, str] = {"": ""}  # an empty name is a reject, and stays one
        self._characters = 0

    def of(self, names: pa.DictionaryArray) -> pa.DictionaryArray:
        """The same rows under pseudonyms.

        Raises:
            SettingsError: the key is not on this machine.
        """
        if self._key is None:
            self._key = self._place.key()
        if len(self._known) > _REMEMBERED or self._characters > _CHARACTERS:
            self._known, self._characters = {"": ""}, 0
        known, made = self._known, list[str]()
        for name in names.dictionary.to_pylist():
            if name not in known:
                known[name] = self._key.name(name)
                self._characters += len(name)
            made.append(known[name])
        return pa.DictionaryArray.from_arrays(names.indices, pa.array(made, pa.utf8()))


def constant_names(name: str, rows: int) -> pa.DictionaryArray:
    """The same name for every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), pa.array([name], pa.utf8()))


def read_names(column: pa.Array, empty: RejectReason) -> tuple[pa.DictionaryArray, list[Problem]]:
    """Read a column of names.

    Args:
        column: text, numbers, or a dictionary of them, shape (n,).
        empty: the reason for rows whose name is null or empty.

    Returns:
        The names, shape (n,), and the rows without one.
    """
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names, broken = _as_text(encoded.dictionary)
    # the numbers of names that cannot be one; the dictionary is small next to the rows
    absent = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(names), ""), fill_value=True).to_numpy(zero_copy_only=False)
    indices = encoded.indices
    numbers = (indices.fill_null(0) if indices.null_count else indices).to_numpy(zero_copy_only=False)
    problems: list[Problem] = []
    if broken.any():
        problems.append(Problem(broken[numbers], RejectReason.MALFORMED_ROW))
    if len(names) == 0:
        names, numbers, absent = pa.array([""], pa.utf8()), np.zeros(len(column), dtype=np.int32), np.ones(1, np.bool_)
    if indices.null_count or absent.any():
        rows = absent[numbers]
        if indices.null_count:
            rows = rows | pc.is_null(indices).to_numpy(zero_copy_only=False)
        problems.append(Problem(rows, empty))
        names = names.fill_null("")
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32, copy=False)), names), problems


def _as_text(dictionary: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Names as text, and which of them are not UTF-8."""
    try:
        names = dictionary.cast(pa.utf8())
        names.validate(full=True)
    except pa.ArrowInvalid:
        whole = [_is_text(one) for one in dictionary.cast(pa.binary()).to_pylist()]
        kept = pa.array(
            [one if good else b"" for one, good in zip(dictionary.cast(pa.binary()).to_pylist(), whole, strict=True)],
            pa.binary(),
        )
        return kept.cast(pa.utf8()), ~np.array(whole, dtype=np.bool_)
    return names, np.zeros(len(names), dtype=np.bool_)


def _is_text(name: bytes | None) -> bool:
    if name is None:
        return True
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
