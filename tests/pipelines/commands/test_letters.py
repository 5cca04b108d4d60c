"""``quiltstream letters``: keys, and the opening of what was encrypted to them."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.pipelines.connectors.live import live_sinks
from quiltstream.schemas.dead_letters import Letters, decoded_key, new_keys, seal
from quiltstream.schemas.readings import REJECT_SCHEMA
from quiltstream.schemas.settings.job import read_settings
from quiltstream.transforms.common.batches import with_dead_letter_columns
from quiltstream.transforms.payloads.messages import Messages, with_letters
from quiltstream.transforms.sinks import DEAD_LETTERS, WriteDeadLetters, WriteRejects, reject_messages

from ...released import write_rows
from ..jobs import call, job

PAYLOADS = [b'{"half', b"\xff\xfe", "Stra\u00dfe".encode()]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "private.key"


def made(key: Path) -> str:
    done = call("letters", "key", key).ended(0)
    return done.out.strip()


def batch(public: str) -> pa.RecordBatch:
    count = len(PAYLOADS)
    given = Messages(PAYLOADS, ["t"] * count, [None] * count, [()] * count, pa.array([1] * count).to_numpy(), POSITIONS)
    rows = [{"reason": "malformed-row", "source": "t/0", "position": one} for one in POSITIONS.tolist()]
    return with_letters(pa.RecordBatch.from_pylist(rows, schema=REJECT_SCHEMA), given, Letters(public_key=public))


POSITIONS = pa.array([5, 6, 7]).to_numpy()


def test_a_key_file_is_readable_by_its_owner_only_and_never_replaced(key: Path) -> None:
    public = made(key)
    assert len(base64.b64decode(public)) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    assert public.encode() not in before
    call("letters", "key", key).ended(2, "is there already; a key is never replaced")
    assert key.read_bytes() == before


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "avro"])
def test_dead_letters_of_a_rejects_file_are_decrypted_and_printed(tmp_path: Path, key: Path, form: str) -> None:
    path = tmp_path / f"rejects.{form}"
    write_rows(path, form, DEAD_LETTERS.table([batch(made(key))]), DEAD_LETTERS)  # type: ignore[arg-type]
    done = call("letters", "open", "--key", key, path).ended(0)
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [one["position"] for one in found] == [5, 6, 7]
    expected = ['{"half', {"base64": base64.b64encode(b"\xff\xfe").decode()}, "Stra\u00dfe"]
    assert [one["payload"] for one in found] == expected


def test_a_topics_messages_are_opened_from_standard_input(key: Path) -> None:
    lines = b"\n".join(value for _, value, _ in reject_messages(batch(made(key)), "json"))
    result = CliRunner().invoke(main, ["letters", "open", "--key", str(key), "-"], input=lines + b"\n")
    assert result.exit_code == 0
    assert [json.loads(line)["position"] for line in result.stdout.splitlines()] == [5, 6, 7]


def test_letters_for_another_key_are_counted_and_the_others_printed(tmp_path: Path, key: Path) -> None:
    mine, others = batch(made(key)), batch(base64.b64encode(new_keys()[1]).decode())
    path = tmp_path / "rejects.jsonl"
    plain = with_dead_letter_columns(
        pa.RecordBatch.from_pylist([{"reason": "late", "source": "t/0", "position": 1}], schema=REJECT_SCHEMA)
    )
    write_rows(path, "jsonl", DEAD_LETTERS.table([mine, others, plain]), DEAD_LETTERS)
    done = call("letters", "open", "--key", key, path).ended(1)
    assert len(done.out.splitlines()) == 3
    assert done.said("3 letters could not be opened: for another key, or damaged")


def test_a_forged_letter_is_counted_and_the_others_printed(tmp_path: Path, key: Path) -> None:
    """Whoever has the public key can encrypt anything to it."""
    public = made(key)
    rows = batch(public).to_pylist()
    forged = json.dumps({"reason": "malformed-row", "source": "t/0", "position": 5}).encode()
    rows[0]["letter"] = base64.b64encode(seal(forged, decoded_key(public))).decode()
    path = tmp_path / "rejects.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = call("letters", "open", "--key", key, path).ended(1)
    assert [json.loads(line)["position"] for line in done.out.splitlines()] == [6, 7]
    assert done.said("1 letter could not be opened")


def test_a_dead_letter_in_the_row_of_another_message_is_reported(tmp_path: Path, key: Path) -> None:
    rows = batch(made(key)).to_pylist()
    rows[0]["letter"] = rows[1]["letter"]
    path = tmp_path / "rejects.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    call("letters", "open", "--key", key, path).ended(0, "1 letter stands in the row of another message")


@pytest.mark.parametrize("text", ["", "no key", base64.b64encode(bytes(31)).decode()])
def test_a_file_without_a_key_is_reported_without_its_content(tmp_path: Path, key: Path, text: str) -> None:
    key.write_text(text, encoding="utf-8")
    done = call("letters", "open", "--key", key, tmp_path / "rejects.jsonl").ended(2, "holds no private key")
    assert not text or text not in done.err


@pytest.mark.parametrize("first", [b"", b"\n"])
def test_lines_that_are_no_row_are_counted_and_blank_ones_skipped(tmp_path: Path, key: Path, first: bytes) -> None:
    one, two, three = (value for _, value, _ in reject_messages(batch(made(key)), "json"))
    path = tmp_path / "rejects.jsonl"
    path.write_bytes(first + b"\n".join((one, b" ", two[:-9], b"[1]", b'{"a":' * 99_999, b"", three)))
    done = call("letters", "open", "--key", key, path).ended(
        1, "3 letters could not be opened", "a line that is no row"
    )
    assert [json.loads(line)["position"] for line in done.out.splitlines()] == [5, 7]


@pytest.mark.parametrize("data", [b"a,b\n1,2\n", b'{"a": \n', b"PAR1", b"{]\n[1]\n"])
def test_a_file_without_dead_letters_is_reported(tmp_path: Path, key: Path, data: bytes) -> None:
    made(key)
    path = tmp_path / "rejects.jsonl"
    path.write_bytes(data)
    call("letters", "open", "--key", key, path).ended(2, "holds no rejects with letters")


def test_a_live_jobs_folder_of_rejects_has_letters_only_where_a_key_is_named(tmp_path: Path, key: Path) -> None:
    source = {"kafka": {"servers": "b:9092", "topic": "meters"}}
    for encrypted, kind in ((None, WriteRejects), ({"public_key": made(key)}, WriteDeadLetters)):
        rejects = {"jsonl": "rejects"} if encrypted is None else {"jsonl": "rejects", "encrypted": encrypted}
        _, sink = live_sinks(read_settings(job(tmp_path / "job", source=source, rejects=rejects).settings))
        assert sink is not None
        assert type(sink.rejects()) is kind
