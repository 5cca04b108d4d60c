r"""The numbers that a schema registry has for the schemas of what is sent.

A message in the wire format of Confluent's begins with the number of its schema. A registry that keeps what it is told
gives a schema the same number for ever, so every worker, and every run, sends the same row as the same bytes.

>>> wire_head(258)
b'\x00\x00\x00\x01\x02'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .asking import AskedRegistry
from .client import KafkaUnavailableError


def wire_head(number: int) -> bytes:
    """What stands before an Avro body in the wire format of Confluent's."""
    return b"\0" + number.to_bytes(4, "big")


def subject_of(topic: str) -> str:
    """Where the schema of a topic's values is registered: Confluent calls it the strategy of the topic's name."""
    return f"{topic}-value"


def text_of(schema: Mapping[str, Any]) -> str:
    """A schema as it is registered: another text of the same schema might have another number."""
    return json.dumps(schema, separators=(",", ":"))


@dataclass
class RegistryNumbers(AskedRegistry):
    """Schema to number; a plain value that travels to any worker, where it has a client and a cache of its own.

    A schema that is there is only looked up, which needs no right to write.

    Attributes:
        auto_register: whether a schema that is not there is registered.
    """

    auto_register: bool = True
    _numbers: dict[tuple[str, str], int] = field(
        default_factory=dict[tuple[str, str], int], init=False, repr=False, compare=False
    )

    def __getstate__(self) -> dict[str, Any]:
        """Client and cache belong to a worker and do not travel."""
        return {**super().__getstate__(), "_numbers": {}}

    def number(self, subject: str, schema: Mapping[str, Any]) -> int:
        """The number of a schema under a subject; asked for once.

        Raises:
            KafkaUnavailableError: the registry is away or refuses the schema, or does not have it and is not to be
                given it.
        """
        place = (subject, text_of(schema))
        if place not in self._numbers:
            self._numbers[place] = self._asked(*place)
        return self._numbers[place]

    def _asked(self, subject: str, text: str) -> int:
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - an extra

        schema = Schema(text, "AVRO")
        try:
            return int(self.ask(lambda client: client.lookup_schema(subject, schema)).schema_id)
        except LookupError:
            if not self.auto_register:
                raise KafkaUnavailableError(
                    f"the schema registry {self.url}: it does not have the schema of the rows under {subject}, and "
                    "registry.auto_register is false; register it, or set that to true"
                ) from None
        try:
            return int(self.ask(lambda client: client.register_schema(subject, schema)))
        except LookupError:
            raise KafkaUnavailableError(
                f"the schema registry {self.url}: it does not take the schema of the rows under {subject}"
            ) from None


__all__ = ["RegistryNumbers", "subject_of", "text_of", "wire_head"]
