"""Messages that stand for more than they hold, many at once, in a process with little memory and time."""

from __future__ import annotations

import pytest

from ...forked import forker

#: Decodes five messages within so much memory beyond what the imports take, and so much processor time.
LIMITED = """
import io, resource, struct, sys
import numpy as np
from quiltstream.schemas.settings.job import Readings
from quiltstream.transforms.payloads.messages import Messages
from quiltstream.transforms.payloads import PayloadDecoder
element = {"type": "record", "name": "E", "fields": [{"name": "on", "type": "boolean"}, {"name": "v", "type": "null"}]}
schema = {"type": "record", "name": "R", "fields": [
    {"name": "id", "type": "string"}, {"name": "ts", "type": "long"},
    {"name": "r", "type": {"type": "array", "items": element}}]}
def long(n):
    n, found = n << 1, bytearray()
    while n > 0x7F:
        found.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(found) + bytes([n])
SIZE = 999_000
begin, end = b'{"id": "a", "ts": 1767614400, "r": [', b"]}"
many = {
    "objects": begin + b"{}," * (SIZE // 3 - 30) + b"{}" + end,
    "arrays": begin + b"[]," * (SIZE // 3 - 30) + b"[]" + end,
    "cbor": b"\\x9a" + struct.pack(">I", SIZE) + b"\\x80" * SIZE,
    "avro": b"\\0\\0\\0\\0\\7" + long(1) + b"a" + long(1767614400) + long(SIZE - 100) + bytes(SIZE - 100) + long(0),
}
kind = sys.argv[1]
payload = kind if kind in ("cbor", "avro") else "json"
readings = {"series": "id", "time": "ts", "value": "r[*].v" if kind == "avro" else "r[*]", "payload": payload}
decoder = PayloadDecoder(Readings.model_validate(readings), schemas=lambda _: schema)
count = 5
given = Messages([many[kind]] * count, ["t"] * count, [None] * count, [()] * count, np.full(count, 0), np.arange(count))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 28),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (120, 125))
rejected = sorted(at for part in decoder.decode(given) for one in part.rejects for at in one.positions.tolist())
print(rejected == list(range(count)))
"""


@pytest.mark.parametrize("kind", ["objects", "arrays", "cbor", "avro"])
def test_many_large_messages_are_parsed_some_at_a_time(kind: str):
    """Parsed they take up to two hundred times their bytes: five megabytes would take up to one gigabyte."""
    done = forker().run(LIMITED, kind)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr[-2_000:]
