"""What the tests of mappings share: damaged payloads, that each message counts once, and steps that are counted."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from quiltstream.transforms.formats.rows import Decoded
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Messages

from .payloads import FIRST


def counted_once(made: Callable[[], PayloadDecoder], given: Messages) -> None:
    """Each message is a reject, or passed over, or has readings; some readings of a reject may count."""
    whole = made().decode(given)
    rejected = [at for part in whole for each in part.rejects for at in each.positions.tolist()]
    assert len(rejected) == len(set(rejected))
    alone_passed = 0
    for number in range(len(given)):
        alone = Messages(
            payloads=[given.payloads[number]],
            topics=[given.topics[number]],
            keys=[None],
            headers=[given.headers[number]],
            stamps_us=given.stamps_us[number : number + 1],
            positions=given.positions[number : number + 1],
        )
        parts = made().decode(alone)
        read = sum(part.readings.num_rows for part in parts if part.readings is not None)
        lost = {at for part in parts for each in part.rejects for at in each.positions.tolist()}
        passed = sum(part.passed for part in parts)
        assert lost <= {FIRST + number}
        assert (lost != set()) == (FIRST + number in rejected)
        assert passed <= 1
        assert not (passed and (read or lost))
        assert read or lost or passed
        alone_passed += passed
    assert alone_passed == sum(part.passed for part in whole)


def accounted_for(given: Messages, parts: Sequence[Decoded]) -> set[int]:
    """The same of all messages together: those with readings or a reject, and those passed over, are all there are.

    Returns:
        The numbers of the rejects.
    """
    rejected = [
        at - int(given.positions[0]) for part in parts for each in part.rejects for at in each.positions.tolist()
    ]
    assert len(rejected) == len(set(rejected))
    passed = sum(part.passed for part in parts)
    count = sum(payload is not None for payload in given.payloads)
    read = {at for part in parts if part.rows is not None for at in part.rows.tolist()}
    assert len(read.union(rejected)) + passed == count
    return set(rejected)


def damaged(payload: bytes, chance: random.Random) -> bytes:
    """A payload with bytes changed, cut, doubled, or with a value in it replaced."""
    body = bytearray(payload)
    for _ in range(chance.randint(0, 3)):
        at, kind = chance.randrange(len(body) + 1), chance.randrange(5)
        if kind == 0 and body:
            body[at % len(body)] = chance.randrange(256)
        elif kind == 1:
            del body[at : at + chance.randint(1, 20)]
        elif kind == 2:
            body[at:at] = chance.choice([b"null", b"1e999", b'"x"', b"[]", b"{}", b",", b"-", b"[[", b"\xff", b"[*]"])
        elif kind == 3:
            body[at:at] = body[at : at + chance.randint(1, 40)]
        else:
            body = bytearray(
                bytes(body).replace(b":", chance.choice([b":[", b": null,", b':"', b"::"]), chance.randint(1, 2))
            )
    return bytes(body)


class Steps:
    """Counts the lines of Python that run, which do not depend on the machine."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.count = 0
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            run()
        finally:
            sys.settrace(before)

    def _call(self, _frame: Any, _event: str, _given: Any) -> Any:
        self.count += 1
        return self._call
