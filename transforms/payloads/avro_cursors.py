"""Cursors in the bodies of many Avro messages: what a single value is, read for all of them at once.

A cursor never goes back and never further than just behind the last body, so whatever the bytes are, reading ends, and
a message whose cursor does not stand at its end when all is read was not read as it was meant.

>>> cursors = Cursors([b"head" + bytes([7, 2, 97]), b"head" + bytes([0x80, 1])], head=4)
>>> numbers, at = cursors.long(cursors.begin, np.arange(2))
>>> numbers.tolist(), (cursors.end - at).tolist()
([-4, 64], [2, 0])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

#: Behind the last body: no value is looked at further than so many bytes from where a cursor stands.
_PAD = bytes(32)

_WORD = 8
_MORE = 0x80

#: Of eight bytes of a number of variable length: their highest bits, their lowest, and what is left without the first.
_HIGHEST, _LOWEST, _REST = (np.uint64(int(one * _WORD, 16)) for one in ("80", "01", "7f"))
#: How groups of bits move together: which stay, and which move by how many.
_CLOSER = tuple(
    (np.uint64(int(stay, 16)), np.uint64(int(move, 16)), np.uint64(by))
    for stay, move, by in (
        ("007f007f007f007f", "7f007f007f007f00", 1),
        ("00003fff00003fff", "3fff00003fff0000", 2),
        ("000000000fffffff", "0fffffff00000000", 4),
    )
)
_ONE, _TOP_BYTE = np.uint64(1), np.uint64(56)


class Cursors:
    """Where reading stands in each of n messages; it belongs to one call.

    Args:
        payloads: the messages, n of them.
        head: bytes before each body.

    Attributes:
        begin: where the bodies begin, shape (n,).
        end: where they end.
        odd: messages that are not read as they are meant.
    """

    def __init__(self, payloads: Sequence[bytes], head: int) -> None:
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        data = b"".join((*payloads, _PAD))
        self.end = np.cumsum(sizes)
        self.begin = self.end - sizes + head
        self.odd = np.zeros(len(payloads), dtype=np.bool_)
        # behind every end, so that nothing that goes on for too long stops at one
        self._last = len(data) - len(_PAD) + 1
        self._bytes = np.frombuffer(data, np.uint8)
        places = (len(data) - _WORD + 1,)
        # a value may begin at any byte
        self._words: npt.NDArray[np.uint64] = np.ndarray(places, "<u8", data, strides=(1,))
        self._doubles: npt.NDArray[np.float64] = np.ndarray(places, "<f8", data, strides=(1,))
        self._floats: npt.NDArray[np.float32] = np.ndarray(places, "<f4", data, strides=(1,))

    def doubt(self, who: Ints, bad: Bools) -> bool:
        """Mark some of the messages as odd; whether there are any."""
        if not bad.any():
            return False
        self.odd[who[bad]] = True
        return True

    def on(self, at: Ints, size: int | Ints) -> Ints:
        """Go on by so many bytes."""
        return np.minimum(at + size, self._last)

    def long(self, at: Ints, who: Ints) -> tuple[Ints, Ints]:
        """Numbers of variable length.

        Args:
            at: where they begin, shape (m,).
            who: of which messages they are.

        Returns:
            The numbers, and where what is behind them begins.
        """
        first = self._bytes[at]
        if first.max(initial=0) < _MORE:
            number = first.astype(np.int64)
            return (number >> 1) ^ -(number & 1), self.on(at, 1)
        words = self._words[at]
        last = ~words & _HIGHEST
        # all bits below the highest one of the first byte behind which there is no other; all where there is none
        mine = (last & (~last + _ONE)) - _ONE
        found = words & mine & _REST
        for stay, move, by in _CLOSER:
            found = (found & stay) | ((found & move) >> by)
        size = (((mine & _LOWEST) * _LOWEST) >> _TOP_BYTE).astype(np.int64)
        if not last.all():
            found, size = self._longer(at, who, last == 0, found, size)
        number = (found >> _ONE).astype(np.int64) ^ -(found & _ONE).astype(np.int64)
        return number, self.on(at, size)

    def _longer(
        self, at: Ints, who: Ints, long: Bools, found: npt.NDArray[np.uint64], size: Ints
    ) -> tuple[npt.NDArray[np.uint64], Ints]:
        """The same with the ninth and tenth byte of those that have them."""
        ninth, tenth = (self._bytes[at + _WORD + one].astype(np.uint64) for one in (0, 1))
        more = long & (ninth >= _MORE)
        self.doubt(who, more & (tenth > 1))
        high = ((ninth & np.uint64(0x7F)) << np.uint64(56)) | np.where(more, tenth << np.uint64(63), np.uint64(0))
        return found | np.where(long, high, np.uint64(0)), size + long + more

    def double(self, at: Ints) -> npt.NDArray[np.float64]:
        """Numbers of eight bytes."""
        return self._doubles[at]

    def float(self, at: Ints) -> npt.NDArray[np.float64]:
        """Numbers of four bytes."""
        # of an odd message it may be any bytes, and there are some for which a processor may ask for attention
        with np.errstate(invalid="ignore"):
            return self._floats[at].astype(np.float64)

    def counted(self, at: Ints, who: Ints) -> tuple[Ints, Ints, Ints]:
        """Bytes behind their number: where they begin, how many they are, and where what is behind them begins."""
        size, begin = self.long(at, who)
        bad = (size < 0) | (size > self._last - begin)
        if self.doubt(who, bad):
            size = np.where(bad, 0, size)
        return begin, size, begin + size

    def joined(self, begin: Ints, size: Ints) -> Bytes:
        """Some parts of the bytes in a row."""
        before = np.cumsum(size) - size
        return self._bytes[np.repeat(begin - before, size) + np.arange(int(size.sum()))]

    def check_texts(self, begin: Ints, size: Ints, who: Ints) -> None:
        """Mark messages as odd that have other than UTF-8 in a text.

        Args:
            begin: where the texts begin, shape (m,).
            size: their bytes.
            who: of which messages they are.
        """
        high = self.joined(begin, size) >= _MORE
        if not high.any():
            return
        # what is not ASCII is looked at one by one: texts that are no UTF-8 may be when they are joined
        for one in np.unique(np.repeat(np.arange(len(size)), size)[high]).tolist():
            first = int(begin[one])
            try:
                self._bytes[first : first + int(size[one])].tobytes().decode("utf-8")
            except UnicodeDecodeError:
                self.odd[who[one]] = True


__all__ = ["Bools", "Bytes", "Cursors", "Ints"]
