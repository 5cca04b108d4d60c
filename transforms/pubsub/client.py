"""Clients of Google Cloud Pub/Sub: how they are made, and what their errors mean.

google-cloud-pubsub is an extra. Credentials are the machine's own (Google calls them application default credentials):
the settings hold none. What an error says is our own text by the error's name: the service's may quote anything.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

from ..sources.contract import BrokerUnavailableError

#: Tells of trouble with the service.
LOG = logging.getLogger("quiltstream.pubsub")

#: What a worker held that is gone comes to another one after so many seconds.
LEASE_S = 30

#: The client keeps a message from others for so long at most while the runner does not keep it; then it comes again.
HELD_S = 24 * 3_600

#: Bytes of messages that the client lets wait to be acknowledged; from there on Pub/Sub holds others back.
MOST_BYTES = 512 << 20

_EXTRA = "Pub/Sub needs the package google-cloud-pubsub, which is not installed here; pip install 'quiltstream[gcp]'"

#: Errors by their class in google.api_core.exceptions or google.auth.exceptions: somebody must mend them.
_WRONG = {
    "NotFound": "it is not there; make it, or check its name",
    "PermissionDenied": "the account may not use it; give it roles/pubsub.subscriber, publisher or viewer",
    "Forbidden": "the account may not use it; give it roles/pubsub.subscriber, publisher or viewer",
    "Unauthenticated": "the credentials are not accepted",
    "Unauthorized": "the credentials are not accepted",
    "InvalidArgument": "the service refuses the request; a topic that has a schema takes only messages of it",
    "DefaultCredentialsError": "there are no credentials here; set GOOGLE_APPLICATION_CREDENTIALS, or use an account "
    "of the machine",
    "FailedPrecondition": "it is not in a state for that; a push subscription cannot be read",
    "MessageTooLargeError": "a message is larger than Pub/Sub takes",
}


class PubSubUnavailableError(BrokerUnavailableError):
    """A subscription or topic of Pub/Sub cannot be used."""


def unavailable(what: str, error: BaseException) -> PubSubUnavailableError:
    """An error as one that can be shown."""
    if isinstance(error, PubSubUnavailableError):
        return error
    name = type(error).__name__
    return PubSubUnavailableError(f"{what}: {_WRONG.get(name) or f'Pub/Sub says {name}'}", passing=name not in _WRONG)


def is_clients(error: BaseException) -> bool:
    """Whether an error is of the client, its transport or its credentials, and not a mistake of this program."""
    module = type(error).__module__
    return isinstance(error, (PubSubUnavailableError, TimeoutError)) or module.startswith(
        ("google.", "grpc", "concurrent.futures")
    )


def _library() -> Any:
    try:
        return importlib.import_module("google.cloud.pubsub_v1")
    except ImportError:
        raise PubSubUnavailableError(_EXTRA) from None


def new_subscriber() -> Any:
    """A subscriber of google-cloud-pubsub."""
    return _library().SubscriberClient()


def new_publisher() -> Any:
    """A publisher of google-cloud-pubsub, which retries by itself."""
    return _library().PublisherClient()


def stream_of(client: Any, subscription: str, callback: Callable[[Any], None], messages: int) -> Any:
    """Have the messages of a subscription streamed; the client keeps those that are not acknowledged from others."""
    limits = _library().types.FlowControl(
        max_messages=messages,
        max_bytes=MOST_BYTES,
        max_lease_duration=HELD_S,
        max_duration_per_lease_extension=LEASE_S,
    )
    return client.subscribe(subscription, callback=callback, flow_control=limits, await_callbacks_on_shutdown=True)
