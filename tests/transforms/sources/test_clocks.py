"""The clock of a part that mixes several sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.transforms.completeness import StateError
from quiltstream.transforms.sources.progress import (
    Activity,
    PartitionState,
    Reach,
    Restriction,
    SpanCoder,
    activity_of,
    waited_for,
    watermark_of,
)

END, BEHIND, UNKNOWN, UNSEEN = Reach.END, Reach.BEHIND, Reach.UNKNOWN, Reach.UNSEEN


def clock(
    heard: dict[str, Activity], sources: dict[str, Reach], now: int = 1000, idle: int | None = None
) -> int | None:
    return watermark_of(heard, sources, now_us=now, lateness_us=10, idle_us=idle)


def test_the_silence_of_a_source_restarts_after_it_was_unreachable():
    before = {"a": Activity(5, 10)}
    away = activity_of(before, {"a": UNKNOWN}, 1000)
    assert away == {"a": Activity(5, 1000)}
    back = activity_of(away, {"a": END}, 1050)
    assert clock(back, {"a": END}, now=1050, idle=100) == -5
    assert clock(back, {"a": END}, now=1100, idle=100) == 1100 - 100 - 10


def test_a_partition_at_its_end_at_an_earlier_poll_is_not_idle_now():
    silent = {"a": Activity(500, 980), "b": Activity(200, 0, 900)}
    assert clock(silent, {"a": END, "b": END}, idle=100) == 490
    assert clock(silent, {"a": END, "b": UNSEEN}, idle=100) == 190
    assert waited_for({"b": Activity(None, 0, 900)}, {"b": UNSEEN}, now_us=1000, idle_us=100) == ("b",)
    assert activity_of(silent, {"a": END, "b": UNSEEN}, 990)["b"] == silent["b"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10_000)), max_size=40), st.integers(0, 500))
def test_no_reading_within_the_lateness_is_ever_behind_the_watermark(said: list[tuple[str, int]], lateness: int):
    """Each source's readings rise but for the lateness: none may be older than the clock before it."""
    sources = dict.fromkeys("abc", BEHIND)
    heard, came, top = activity_of({}, sources, 0), None, dict.fromkeys("abc", 0)
    for name, jump in said:
        top[name] += jump
        reading = top[name] - jump % (lateness + 1)
        assert came is None or reading >= came
        heard = activity_of(heard, sources, 0, (name, reading))
        come = watermark_of(heard, sources, now_us=10**9, lateness_us=lateness, idle_us=None)
        came = come if came is None or come is None else max(came, come)


def test_a_restriction_keeps_its_sources_and_is_read_from_recorded_bytes():
    coder = SpanCoder()
    span = Restriction(
        PartitionState("7", 5, followed=True, sources={"load/0": Activity(None, 3), "load/1": Activity(4, 5)})
    )
    assert coder.decode(coder.encode(span)) == span
    recorded = (
        b'{"version": 1, "start": {"position": "7", "clock_us": 5, "followed": true, "over": false, "sources": '
        b'{"load/0": {"latest_us": null, "heard_us": 3, "seen_us": null}, "load/1": {"latest_us": 4, "heard_us": 5, '
        b'"seen_us": null}}, "lost_us": null}, "stop": null}'
    )
    assert coder.decode(recorded) == span
    with pytest.raises(StateError, match="version 0"):
        coder.decode(recorded.replace(b'"version": 1, ', b""))
