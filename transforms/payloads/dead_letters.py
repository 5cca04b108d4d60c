"""Letters of a job: rejected messages encrypted to the operator's public key, before they leave the reader.

What a letter is says :mod:`...schemas.dead_letters`. Of what is read at once so many messages are kept, and of each so
many bytes: a flood of rejects costs no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...schemas.dead_letters import Content, Letters, check_sealing, letter_of
from ...schemas.readings import LETTER_SCHEMA
from .messages import Messages

#: Messages whose content is kept of those that are decoded at once; the others are told without.
MOST_LETTERS = 100

_SETTING, _WHERE = "rejects.encrypted", "on every worker"


def check_letters(letters: Letters) -> None:
    """See whether messages can be encrypted here.

    Raises:
        SettingsError: the library is missing, or the key is none that can be used.
    """
    check_sealing(letters, _SETTING, _WHERE)


def with_letters(rejects: pa.RecordBatch, messages: Messages, letters: Letters) -> pa.RecordBatch:
    """Rejects with the sizes of their messages, and the letters that hold them; ``LETTER_SCHEMA``.

    Args:
        rejects: of these messages, by their positions, which rise.
        messages: the messages.
        letters: to whom.

    Raises:
        SettingsError: the library is not installed on this machine.
    """
    positions = rejects.column("position").to_numpy(zero_copy_only=False)
    at = np.minimum(np.searchsorted(messages.positions, positions), len(messages) - 1)
    sizes: list[int] = []
    found: list[str | None] = []
    for number, row in zip(at.tolist(), rejects.to_pylist(), strict=True):
        payload = messages.payloads[number]
        size = 0 if payload is None else len(payload)
        sizes.append(size)
        if len(found) < MOST_LETTERS and int(messages.positions[number]) == row["position"]:
            try:
                found.append(letter_of(row | {"size": size}, _content(messages, number), letters))
            except ImportError:
                # says what to install
                check_letters(letters)
                raise
        else:
            found.append(None)
    columns = [rejects.column(name) for name in ("reason", "source", "position")]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(sizes, pa.int64()), pa.array(found, pa.utf8())], schema=LETTER_SCHEMA
    )


def sealed(
    rejects: Sequence[pa.RecordBatch], messages: Messages, letters: Letters | None
) -> tuple[pa.RecordBatch, ...]:
    """Batches of rejects, each with letters that hold its messages if the settings name a key.

    Args:
        rejects: of these messages.
        messages: the messages.
        letters: to whom; ``None`` without letters.
    """
    return tuple(rejects) if letters is None else tuple(with_letters(one, messages, letters) for one in rejects)


def _content(messages: Messages, number: int) -> Content:
    return Content(
        messages.payloads[number] or b"",
        messages.topics[number],
        int(messages.stamps_us[number]),
        messages.keys[number],
        messages.headers[number],
    )


__all__ = ["MOST_LETTERS", "check_letters", "sealed", "with_letters"]
