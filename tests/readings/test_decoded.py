"""What a decoder makes of messages, as data: ``decoded/*.yaml``.

A case has settings and messages; each message says its readings (series, instant, value, group) or why it is a reject,
both, or neither where it is passed over. Every message means the same alone and among the others of its case.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.slots import parse_instant
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Messages

from ..transforms.payloads.payloads import messages, outcome

CASES: list[dict[str, Any]] = [
    case
    for path in sorted((Path(__file__).parent / "decoded").glob("*.yaml"))
    for case in yaml.safe_load(path.read_text(encoding="utf-8"))
]


def made(case: dict[str, Any]) -> PayloadDecoder:
    schemas = {"schemas": case["schemas"].__getitem__} if "schemas" in case else {}
    return PayloadDecoder(Readings.model_validate(case["readings"]), **case.get("options", {}), **schemas)


def sent(some: list[dict[str, Any]]) -> Messages:
    return messages(
        *(one["bytes"].encode("latin-1") if "bytes" in one else one["payload"] for one in some),
        topics=[one.get("topic", "meters") for one in some],
        keys=[one["key"].encode() if "key" in one else None for one in some],
        headers=[[(name, value.encode()) for name, value in one.get("headers", ())] for one in some],
        stamps_us=[parse_instant(one["stamp"]) if "stamp" in one else -1 for one in some],
    )


def right(some: list[dict[str, Any]]) -> tuple[list[Any], list[tuple[int, str]], int]:
    """Rows, rejects by number, and how many are passed over."""
    rows = [(series, parse_instant(at), *rest) for one in some for series, at, *rest in one.get("rows", ())]
    rejects = [(number, one["rejected"]) for number, one in enumerate(some) if "rejected" in one]
    passed = [one for one in some if not {"rows", "rejected"} & one.keys()]
    return sorted(rows), rejects, len(passed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_messages_are_decoded_alike_alone_and_among_others(case: dict[str, Any]) -> None:
    decoder = made(case)
    decoder.check()
    for some in (case["messages"], *([one] for one in case["messages"])):
        given = sent(some)
        passed = sum(part.passed for part in decoder.decode(given))
        assert (*outcome(decoder, given), passed) == right(some)
