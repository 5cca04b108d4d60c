"""Clients of Pub/Sub: what is said where the package is missing, and which errors are theirs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.pubsub import client as pubsub_client
from quiltstream.transforms.pubsub.client import PubSubUnavailableError, is_clients, unavailable
from quiltstream.transforms.pubsub.source import PubSubSubscription

from .fake import clients_error


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


def test_the_client_holds_no_more_messages_bytes_and_hours_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    types = SimpleNamespace(FlowControl=lambda **limits: limits)
    client = SimpleNamespace(subscribe=lambda *_, **options: given.append(options["flow_control"]))
    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(types=types))
    pubsub_client.stream_of(client, "s", print, 17)
    assert given == [
        {
            "max_messages": 17,
            "max_bytes": PubSubSubscription("s", PayloadDecoder(Readings(series="a", time="t", value="v"))).most_bytes,
            "max_lease_duration": 86_400,
            "max_duration_per_lease_extension": 30,
        }
    ]


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
