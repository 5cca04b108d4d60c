"""``quiltstream letters``: keys for the content of rejected messages, and the opening of what was encrypted to them.

The private key is a file of the operator alone; no job, worker or settings file has it.
"""

from __future__ import annotations

import base64
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from ...schemas.dead_letters import KEY_BYTES, LetterError, decoded_key, new_keys, open_letter
from ...schemas.files import MOST_SECRET_BYTES, open_regular, read_regular, reason, whole_file
from ...schemas.table_files import read_rows
from ...transforms.sinks import DEAD_LETTERS
from ..console import plural
from ..errors import CommandError, ExitCode

_EXTRA = "letters need the package cryptography, which is not installed here; pip install 'quiltstream[encrypted]'"
_STDIN = "-"


def make_key(path: Path) -> str:
    """Write a new private key to a file that only its owner can read; return the public key for the settings."""
    try:
        private, public = new_keys()
    except ImportError:
        raise CommandError(_EXTRA) from None
    try:
        with whole_file(path, private=True, new=True) as part:
            part.write_bytes(base64.b64encode(private) + b"\n")
    except FileExistsError:
        raise CommandError(f"{path} is there already; a key is never replaced: name another file") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be written ({reason(error)}); name another file") from None
    return base64.b64encode(public).decode("ascii")


def open_letters(key: Path, files: Sequence[Path]) -> int:
    """Print what the dead letters in files of rejects, or of a topic's messages a line, hold; ``-`` is standard input.

    Returns the exit code: a failure if some dead letter could not be opened.
    """
    private = _private_key(key)
    lost = moved = 0
    for file in files:
        for row in _rows(file):
            if row is None:
                lost += 1
                continue
            letter = row.get("letter")
            if not letter:
                continue
            try:
                inside = open_letter(str(letter), private)
            except LetterError:
                lost += 1
                continue
            except ImportError:
                raise CommandError(_EXTRA) from None
            moved += any(row.get(name) != inside.get(name) for name in ("reason", "source", "position"))
            click.echo(json.dumps(_shown(inside)))
    if lost:
        click.echo(
            f"{plural(lost, 'letter')} could not be opened: for another key, or damaged, or no message inside, or in a "
            "line that is no row",
            err=True,
        )
    if moved:
        stand = "stands" if moved == 1 else "stand"
        click.echo(f"{plural(moved, 'letter')} {stand} in the row of another message; go by what is inside", err=True)
    return ExitCode.FAILURE if lost else ExitCode.OK


def _private_key(path: Path) -> bytes:
    try:
        found = decoded_key(read_regular(path, MOST_SECRET_BYTES).decode("ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--key {path}: cannot be read ({reason(error)})") from None
    if len(found) != KEY_BYTES:
        raise CommandError(f"--key {path}: holds no private key; give the file that `quiltstream letters key` wrote")
    return found


def _rows(path: Path) -> Iterator[dict[str, Any] | None]:
    """The rows of a file of rejects; ``None`` for a line that is none."""
    try:
        if str(path) == _STDIN:
            yield from _lines(sys.stdin.buffer)
            return
        with open_regular(path) as stream:
            if stream.read(1) in (b"{", b"\n", b"\r"):
                stream.seek(0)
                yield from _lines(stream)
                return
        yield from read_rows(path, DEAD_LETTERS).to_pylist()
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise CommandError(
            f"{path}: holds no rejects with letters ({reason(error)}); give a file that `rejects` names, or the "
            "messages of its topic, one a line"
        ) from None


def _lines(stream: Iterable[bytes]) -> Iterator[dict[str, Any] | None]:
    broken = rows = 0
    for line in filter(bytes.strip, stream):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            broken += 1
            continue
        rows += 1
        yield found
    if broken and not rows:
        raise TypeError("no row")
    yield from itertools.repeat(None, broken)


def _shown(inside: dict[str, Any]) -> dict[str, Any]:
    """What a dead letter holds, with bytes as text where they are text, and as ``{"base64": ...}`` where not."""
    headers = [[name, _readable(value)] for name, value in inside["headers"]]
    return inside | {"key": _readable(inside["key"]), "headers": headers, "payload": _readable(inside["payload"])}


def _readable(data: str | None) -> Any:
    if data is None:
        return None
    try:
        return base64.b64decode(data).decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": data}
