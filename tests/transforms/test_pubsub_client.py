"""Clients of Pub/Sub: what is said where the package is missing, and which errors are theirs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from quiltstream.transforms import pubsub_client
from quiltstream.transforms.pubsub_client import PubSubUnavailableError, is_clients, unavailable

from .pubsub_fake import clients_error


@pytest.mark.parametrize(
    "make",
    [
        pubsub_client.new_subscriber,
        pubsub_client.new_publisher,
        lambda: pubsub_client.stream_of(None, "s", print, 1),
    ],
)
def test_a_missing_package_is_told_with_how_to_get_it(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(PubSubUnavailableError, match=r"pip install 'quiltstream\[gcp\]'") as raised:
        make()
    assert not raised.value.passing


@pytest.mark.parametrize(
    ("error", "theirs"),
    [
        (clients_error("NotFound"), True),
        (TimeoutError(), True),
        (PubSubUnavailableError("x"), True),
        (KeyError("x"), False),
        (RuntimeError("x"), False),
    ],
)
def test_the_clients_errors_are_known_by_where_they_come_from(error: Exception, *, theirs: bool) -> None:
    assert is_clients(error) == theirs


def test_an_error_is_shown_once_and_without_the_services_words() -> None:
    told = unavailable("topic t", clients_error("InvalidArgument"))
    assert str(told).startswith("topic t: the service refuses the request")
    assert "quote" not in str(told)
    assert unavailable("again", told) is told
