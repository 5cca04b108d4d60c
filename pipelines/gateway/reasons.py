"""MQTT's reason codes: which of them time may mend, and which only an operator can."""

from __future__ import annotations

#: Reasons of a broker that stay until somebody changes the settings or the broker, and what to do.
_LASTING = {
    0x84: "the broker does not speak MQTT 5; use one that does",
    0x85: "the client id is not allowed; change it",
    0x86: "the user or the password is wrong; look at mqtt.user and mqtt.password",
    0x87: "not authorised; give this user the right to it at the broker, or set mqtt.user and mqtt.password",
    0x8A: "this client is banned at the broker; ask its operator",
    0x8C: "the broker wants another way of authentication than user and password or a certificate",
    0x8E: "another client has taken over the session: two use one client id; give each gateway its own",
    0x8F: "the broker does not allow this topic filter; change it",
    0x90: "the broker does not allow this topic; change the prefix",
    0x95: "a message is larger than the broker takes; raise its limit",
    0x9A: "the broker does not keep retained messages; set back.retain to no",
    0x9B: "the broker does not do QoS 1; use one that does",
    0x9E: "the broker does not do shared subscriptions; leave $share out",
    0xA1: "the broker does not do subscription identifiers",
    0xA2: "the broker does not allow wildcards; name each topic",
}

#: From here on a code tells of a failure.
FAILURE = 0x80

#: What the library ends a connection with that brought a packet it cannot read.
UNREADABLE = 0x82


def lasting(code: int) -> str | None:
    """What an operator has to do about a reason code, or ``None`` if it is no failure or may pass.

    >>> lasting(0x86)
    'the user or the password is wrong; look at mqtt.user and mqtt.password'
    >>> lasting(0x88) is None  # the server is unavailable
    True
    """
    return _LASTING.get(code)


__all__ = ["FAILURE", "UNREADABLE", "lasting"]
