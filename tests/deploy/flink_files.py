"""What the files of the Flink deployment say, for the tests that hold them against each other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..house.pages import blocks, commands

ROOT = Path(__file__).resolve().parents[2]
FLINK = ROOT / "deploy" / "flink"
PROMETHEUS = ROOT / "deploy" / "prometheus"
GUIDES = ROOT / "docs" / "guides"

#: Where compose puts secrets, in a container.
SECRETS = "/run/secrets/"


def text(path: Path) -> str:
    """A file's text."""
    return path.read_text(encoding="utf-8")


@cache
def compose() -> dict[str, Any]:
    """The compose file, its anchors followed."""
    return yaml.safe_load(text(FLINK / "compose.yaml"))


def services() -> dict[str, dict[str, Any]]:
    """Its services."""
    return compose()["services"]


def command_of(service: dict[str, Any]) -> list[str]:
    """What a service runs: entry point and command."""
    return [*service.get("entrypoint", []), *service.get("command", [])]


def networks_of(name: str) -> set[str]:
    """The networks that a service is in, also where it shares those of another."""
    service = services()[name]
    mode = str(service.get("network_mode", ""))
    return networks_of(mode.removeprefix("service:")) if mode else set(service["networks"])


def secrets_of(service: dict[str, Any]) -> dict[str, str]:
    """The secrets handed to a service, and the paths they have there."""
    found: dict[str, str] = {}
    for one in service.get("secrets", []):
        if isinstance(one, str):
            found[one] = SECRETS + one
        else:
            found[one["source"]] = one["target"]
    return found


def values(node: Any) -> Iterator[Any]:
    """Every scalar in a document."""
    if isinstance(node, dict):
        for one in node.values():
            yield from values(one)
    elif isinstance(node, list):
        for one in node:
            yield from values(one)
    else:
        yield node


def options_of(words: Iterable[str]) -> dict[str, str]:
    """Options such as ``--name=value``; one without a value has an empty one."""
    return {word.partition("=")[0]: word.partition("=")[2] for word in words if word.startswith("--")}


def dockerfile_argument(name: str) -> str:
    """The value of an ARG of the Dockerfile."""
    (found,) = re.findall(rf"^ARG {name}=(\S+)$", text(ROOT / "deploy" / "Dockerfile"), re.MULTILINE)
    return found


def flink_properties() -> dict[str, str]:
    """Flink's configuration in the compose file."""
    return {
        name: str(value)
        for name, value in yaml.safe_load(services()["jobmanager"]["environment"]["FLINK_PROPERTIES"]).items()
    }


def run(command: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None, code: int = 0) -> str:
    """Run a program, see how it ends, and return what it said."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=cwd,
        env=None if env is None else os.environ | env,
        stdin=subprocess.DEVNULL,
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{command} ended with {done.returncode}, not {code}\n{said}"
    return said


def with_secrets_in(source: Path, folder: Path) -> Path:
    """A copy of a settings file whose secrets are in another folder, where each is a file with a word in it."""
    written = text(source)
    folder.mkdir(exist_ok=True)
    for name in re.findall(rf"{SECRETS}([\w-]+)", written):
        (folder / name).write_text("a-word-for-a-test\n", encoding="utf-8")
    copy = folder.parent / source.name
    copy.write_text(written.replace(SECRETS, f"{folder}/"), encoding="utf-8")
    return copy


def guide_commands() -> str:
    """The commands of the guide on compose that make the secrets."""
    page = text(GUIDES / "operate-with-compose.md")
    block = page.split("it writes into the folder of the deployment -->\n```console\n")[1].split("```")[0]
    return re.sub(r"(?m)^[$>] ", "", block)


def calls(guide: str, program: str) -> list[list[str]]:
    """The words of every command of a program on a page, without where the shell takes from or writes to."""
    found = [
        shlex.split(one.replace("\\\n", " "))
        for block in blocks(guide, text(GUIDES / f"{guide}.md"))
        if block.language == "console"
        for one in commands(block.body)
    ]
    kept = [one[: next((at for at, word in enumerate(one) if word in {"<", ">"}), None)] for one in found]
    return [one for one in kept if one[0] == program]
