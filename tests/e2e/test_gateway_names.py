"""A gateway on a real Mosquitto that makes pseudonyms: no real name leaves it, and no message is lost by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiltstream.schemas.settings.secrets import PseudonymKey

from .gateway_job import TOPICS, GatewayProcess, Meters, records_of, tally_of, to_folder
from .mosquitto import MosquittoBroker

SECRET = b"correct horse battery staple"
SENT = range(500)


@pytest.mark.assures(
    "privacy",
    "With `pseudonyms` no key, header, file, reject, log or count has the name of a level that is named",
)
def test_messages_are_forwarded_under_pseudonyms_without_loss(mosquitto: MosquittoBroker, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(SECRET + b"\n")
    one = GatewayProcess(to_folder(mosquitto.port, pseudonyms={"file": str(tmp_path / "key"), "level": 2}))
    try:
        one.start()
        confirmed = Meters(mosquitto.port, SENT).join()
        one.wait_until("all acknowledged", lambda: one.metrics()["acknowledged_total"] >= len(SENT))
        assert one.stop() == 0
        records = records_of(one.folder / "spool")
        assert set(tally_of(records)) == confirmed == set(SENT)
        key = PseudonymKey(SECRET)
        assert {record["topic"] for record in records} == {
            f"meters/{key.name(f'm{n}')}/readings" for n in range(TOPICS)
        }
        assert SECRET.decode() not in one.log
        assert "meters/m" not in one.log
    finally:
        one.close()
