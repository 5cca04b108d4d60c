"""The records of the counting job, by number. Imports nothing, so that a test can work the truth out without Beam."""

from __future__ import annotations

BASE = 1_700_000_000  # the event time of the first record, a multiple of the window
WINDOW_SECONDS = 10
STEP_SECONDS = 0.1
DISORDER_SECONDS = 2.0  # how far behind its turn a record's event time may be


def record(partition: int, number: int) -> tuple[str, int, float]:
    """Key, value and event time (in seconds since BASE) of one record."""
    disorder = DISORDER_SECONDS * (number * 7919 % 11) / 10
    return f"p{partition}k{number % 3}", number * number % 1009 + partition, number * STEP_SECONDS - disorder
