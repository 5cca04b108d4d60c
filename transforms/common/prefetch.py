"""Work that runs ahead in a thread of its own while the caller prepares the next piece, and memory that is kept for it.

numpy and Arrow let go of Python's lock while they work on whole batches, so decoding one batch and encoding another
overlap inside one worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np

#: glibc's limit for its own threshold, less what the block's header takes.
_LARGEST_KEPT = (32 << 20) - (64 << 10)


Given = TypeVar("Given")
Made = TypeVar("Made")


class Ahead(Generic[Given, Made]):
    """Applies a function to pieces in a thread, and gives the results back in the order of the pieces.

    Args:
        function: what to do; it must not touch what its caller changes.
        waiting: how many pieces may wait or lie finished, so that memory stays bounded.
    """

    def __init__(self, function: Callable[[Given], Made], *, waiting: int = 3) -> None:
        self._function = function
        self._waiting = waiting
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="quiltstream-ahead")
        self._pieces: deque[Future[Made]] = deque()

    def give(self, piece: Given) -> Iterator[Made]:
        """Hand a piece over; yields results only where too many pieces wait.

        Raises:
            Exception: what the function raised for an earlier piece.
        """
        self._pieces.append(self._pool.submit(self._function, piece))
        while len(self._pieces) > self._waiting:
            yield self._pieces.popleft().result()

    def rest(self) -> Iterator[Made]:
        """The results of all that was handed over.

        Raises:
            Exception: what the function raised.
        """
        while self._pieces:
            yield self._pieces.popleft().result()

    def forget(self) -> None:
        """Drop what was handed over: its bundle failed."""
        for piece in self._pieces:
            piece.cancel()
        self._pieces.clear()

    def close(self) -> None:
        """End the thread."""
        self.forget()
        self._pool.shutdown(wait=True)


def read_ahead(source: Iterator[Made], *, waiting: int = 2) -> Iterator[Made]:
    """The items of an iterator, of which a thread takes the next ones while the caller works on one.

    Args:
        source: what is read; its errors are raised where its next item would be.
        waiting: how many items may lie ready.
    """
    end = object()
    pieces: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="quiltstream-read") as pool:
        try:
            while True:
                while len(pieces) <= waiting:
                    pieces.append(pool.submit(next, source, end))
                item = pieces.popleft().result()
                if item is end:
                    return
                yield item
        finally:
            for piece in pieces:
                piece.cancel()


def keep_large_blocks() -> None:
    """Have the C library keep the memory of large arrays for the next ones.

    Until a program has freed a large block, glibc returns each one to the kernel, and the page faults of the next one
    cost as much as the work on it. It raises its threshold to the largest block it has seen freed. Elsewhere this does
    nothing.
    """
    np.empty(_LARGEST_KEPT, dtype=np.uint8)


__all__ = ["Ahead", "keep_large_blocks", "read_ahead"]
