"""What all tests of the gateway have: connections that are made again at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from quiltstream.pipelines.gateway import connection


@pytest.fixture(scope="module", autouse=True)
def _soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "Backoff", partial(connection.Backoff, longest=0.01))
        yield
