"""A look at what an MQTT broker sends, by a session that leaves nothing behind there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...transforms.payloads.messages import Messages
from ..errors import CommandError, ExitCode
from .connection import Arrived, BrokerError, Connection, Session

__all__ = ["RETAINED", "listen"]

#: The header of messages that the broker had kept, as the gateway writes it.
RETAINED = ("mqtt-retain", b"1")

#: Bytes of all messages of a look, and seconds until the broker has answered.
_MOST_BYTES = 1 << 26
_ANSWER_S = 10.0
#: Seconds of one turn of the connection.
_TURN_S = 0.1


def listen(
    session: Session, most: int, seconds: float, clock: Callable[[], int] = lambda: time.time_ns() // 1_000
) -> Messages:
    """The messages that a broker sends to a new subscriber: those that it has kept, and those that come meanwhile.

    The session ends with the connection, so the broker keeps nothing for it. Stamps are when a message arrived here.

    Args:
        session: where and who; it is not patient, and its session does not outlive the connection.
        most: how many messages end the look.
        seconds: how long it lasts at most, from the answer to the subscriptions on.
        clock: microseconds since 1970; the tests' own.

    Raises:
        CommandError: the broker cannot be reached or refuses, or does not answer in time.
    """
    heard: list[tuple[Arrived, int]] = []
    held = 0

    def take(message: Arrived) -> None:
        nonlocal held
        if message.qos:
            connection.ack(message.mid)
        if len(heard) < most and held < _MOST_BYTES and not message.malformed:
            held += len(message.payload)
            heard.append((message, clock()))

    connection = Connection(replace(session, expiry=0, send_retained=True, patient=False), take)
    try:
        until = time.monotonic() + _ANSWER_S
        while not connection.ready:
            if time.monotonic() > until:
                raise CommandError(f"{connection.where} does not answer within {_ANSWER_S:g} s", ExitCode.SOURCE)
            connection.turn(_TURN_S)
        until = time.monotonic() + seconds
        while len(heard) < most and held < _MOST_BYTES and time.monotonic() < until:
            connection.turn(_TURN_S)
    except BrokerError as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    finally:
        connection.close()
    return Messages(
        payloads=[one.payload for one, _ in heard],
        topics=[one.name.decode("utf-8", "replace") for one, _ in heard],
        keys=[None] * len(heard),
        headers=[(RETAINED,) if one.retain else () for one, _ in heard],
        stamps_us=np.array([stamp for _, stamp in heard], dtype=np.int64),
        positions=np.arange(len(heard), dtype=np.int64),
    )
