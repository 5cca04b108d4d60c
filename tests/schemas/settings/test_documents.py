"""Settings documents of hostile content: refused with a place and a reason, in bounded memory, and without a quote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from quiltstream.schemas.settings.base import Document, SettingsError
from quiltstream.schemas.settings.gateway import EXAMPLE as GATEWAY
from quiltstream.schemas.settings.gateway import GatewaySettings
from quiltstream.schemas.settings.job import EXAMPLE, Settings

from ...present import present

#: Bytes of address space that reading any document of the largest size may take, with the program itself.
ROOM = 1 << 30


def refused(text: str, kind: type[Document] = Settings) -> str:
    with pytest.raises(SettingsError) as caught:
        kind.load(text)
    return str(caught.value)


def bomb() -> str:
    """500 bytes that stand for 9 ** 9 values."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]")
    return "\n".join(lines) + "\n"


#: What is said of each of some settings files.
READ = """
import resource, sys
from pathlib import Path
from quiltstream.schemas.settings.job import SettingsError, read_settings

resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]), int(sys.argv[1])))
for path in sys.argv[2:]:
    try:
        read_settings(Path(path))
    except SettingsError as error:
        print(str(error).replace("\\n", " "))
"""


@pytest.mark.night
def test_documents_of_hostile_size_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    """In a process that has :data:`ROOM` and no more."""
    hostile = [
        (bomb() + EXAMPLE, "more than 50,000 keys and values"),
        ("a: &a [*a]\n" + EXAMPLE, "an alias within what it stands for"),
        ("[" * 200_000, "more than 64 levels"),
        ("{" * 200_000, "more than 64 levels"),
        ("a: " + "{a: " * 200_000, "more than 64 levels"),
        ("- " * 400_000, "more than 64 levels"),
        (EXAMPLE + "".join(f"key{i}: 1\n" for i in range(40_000)), "more than 50,000 keys and values"),
        ("# " + "x" * (1 << 20), "bytes, and 1,048,576 are the limit"),
    ]
    paths = [tmp_path / f"{number}.yaml" for number in range(len(hostile))]
    for path, (text, _) in zip(paths, hostile, strict=True):
        path.write_text(text, encoding="utf-8")
    said = subprocess.run(
        [sys.executable, "-c", READ, str(ROOM), *map(str, paths)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(said) == len(hostile)
    for line, (_, message) in zip(said, hostile, strict=True):
        assert message in line


def test_yaml_aliases_are_read_and_count_as_their_targets() -> None:
    """A program that writes settings puts them where it holds one value twice."""
    shared = EXAMPLE.replace("{parquet: data/feeder.parquet}", "&it {parquet: data/feeder.parquet}")
    settings = Settings.load(shared.replace("{parquet: out/releases.parquet}", "*it"))
    assert present(settings.sink).path == "data/feeder.parquet"
    nested = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 100))
    assert "more than 64 levels" in refused(nested)


@pytest.mark.parametrize("number", ["1:00:00", "1:30", "-2:30.5"])
def test_a_number_in_sixties_is_none(number: str) -> None:
    """YAML reads sixties between colons."""
    said = refused(EXAMPLE.replace("budget: 2.0", f"budget: {number}"))
    assert f"privacy.budget is '{number}': input should be a valid number" in said


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("roster:   roster.csv", 'roster: "a\\0b"', "roster holds a NUL character"),
        ("scale: 2000", "scale: " + "9" * 5_000, "a value that is not what its form or its tag says at line 2"),
        ("scale: 2000", "scale: !!int secret", "a value that is not what its form or its tag says at line 2"),
        ("scale: 2000", "? [a]\n  : 2000", "a key is neither text nor a number at line"),
        ("interval: 30min", "interval: " + "9" * 5_000 + "d", "is not a positive whole number with a unit"),
    ],
)
def test_a_simple_mistake_is_reported_with_its_setting(old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    said = refused(EXAMPLE.replace(old, new))
    assert message in said
    assert len(said) < 1_200


SECRET = "hunter2"  # noqa: S105 - of this test


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Settings, EXAMPLE.replace("scale: 2000", f"scale: 2000, pseudonyms: {SECRET}")),
        (Settings, EXAMPLE.replace("scale: 2000", f"scale: 2000, pseudonyms: [{SECRET}]")),
        (Settings, EXAMPLE.replace("scale: 2000", f"scale: 2000, pseudonyms: {{{SECRET * 7}}}")),
        (Settings, EXAMPLE.replace("scale: 2000", f"scale: 2000, pseudonyms: {{file: {SECRET}}}")),
        (Settings, EXAMPLE.replace("{parquet: out/releases.parquet}", f"kafka://me:{SECRET}@host/topic")),
        (Settings, EXAMPLE.replace("parquet: out/releases.parquet", f"kafka: 'kafka://me:{SECRET}@host'")),
        (Settings, EXAMPLE.replace("parquet: out/releases.parquet", f"parquet: {{password: {SECRET}}}")),
        (Settings, EXAMPLE.replace("missing:  public", f"missing: 'mqtt://me:{SECRET}@host'")),
        (Settings, EXAMPLE.replace("timezone: UTC", f"timezone: 'http://me:{SECRET}@host/x'")),
        (Settings, EXAMPLE.replace("model:    model.json", f"model: [{SECRET}]")),
        (Settings, EXAMPLE.replace("query:    weekly-load", f"query: 'mqtt://me:{SECRET}@host'")),
        (Settings, EXAMPLE.replace("domain:   london-feeder", f"domain: 'mqtt://me:{SECRET}@host'")),
        (GatewaySettings, f"mqtt: 'mqtt://me:{SECRET}@host'\n"),
        (GatewaySettings, f"mqtt: ['mqtt://me:{SECRET}@host']\n"),
        (GatewaySettings, GATEWAY.replace("{file: mqtt-password}", SECRET)),
        (GatewaySettings, GATEWAY.replace("tls: {ca: broker-ca.pem}", f"tls: {SECRET}")),
        (GatewaySettings, GATEWAY.replace("host: broker.example", f"host: 'mqtt://me:{SECRET}@host'")),
        (GatewaySettings, GATEWAY.replace("[meters/+/readings]", f"['x#mqtt://me:{SECRET} b@host']")),
        (GatewaySettings, GATEWAY.replace("{folder: {path: spool}}", f"'kafka://me:{SECRET}@host'")),
    ],
)
def test_a_secret_in_the_place_of_something_else_is_not_repeated(kind: type[Document], text: str) -> None:
    assert SECRET not in refused(text, kind)


def test_the_text_of_the_library_that_checks_has_no_values() -> None:
    with pytest.raises(ValidationError) as caught:
        GatewaySettings.model_validate({"mqtt": SECRET})
    assert SECRET not in str(caught.value)


def test_a_repr_of_settings_has_no_credentials_of_urls() -> None:
    settings = Settings.load(EXAMPLE.replace("data/feeder.parquet", f"https://me:{SECRET}@host/feeder.parquet"))
    assert SECRET not in repr(settings)
    assert "https://***@host/feeder.parquet" in repr(settings)
