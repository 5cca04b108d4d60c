"""Which blocks of a query are missing: those of its schedule that should be on record and are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy.engine import Connection

from ..schemas.slots import Window
from . import lookups, reading
from .layout import layout_of
from .specs import Registration


def pages(registration: Registration, start: int | None) -> Iterator[list[Window]]:
    """The windows of a query, some at a time; endlessly many of an endless schedule.

    Args:
        registration: the query.
        start: leave out windows that start before this slot.
    """
    schedule = registration.query.schedule
    if start is not None and start > schedule.first:
        schedule = replace(schedule, start=start)
    page: list[Window] = []
    for window in schedule.windows():
        page.append(window)
        if len(page) == reading.WINDOWS:
            yield page
            page = []
    if page:
        yield page


def places(connection: Connection, registration: Registration, windows: list[Window]) -> list[tuple[Window, int]]:
    """The (window, shard) of some windows that should have a block and do not, in order.

    Args:
        connection: sees one state of the ledger.
        registration: the query, as it is on record now.
        windows: consecutive windows of it, at least one.
    """
    names = (registration.domain.name, registration.query.name)
    awaited = registration.query.roster.awaits is not None
    refused, blocks = reading.finished(connection, *names, range(windows[0].start, windows[-1].start + 1))
    held = lookups.frozen_windows(connection, *names, [window.start for window in windows]) if awaited else {}
    found: list[tuple[Window, int]] = []
    for window in windows:
        if awaited and window.start not in held:
            found.append((window, 0))  # no series was seen yet; one may be before the window is over
        elif window.start not in refused:
            shards = layout_of(registration, window).occupied
            found += [(window, shard) for shard in shards if (window.start, shard) not in blocks]
    return found
