"""Every command of the guides is run in its nearest form, or what it names is looked up, and its page says which.

What is looked up: files, services, images, objects, options of the real programs, and paths of Flink's REST port that
the end-to-end tests call. Here are commands that are only looked up; those that are run are elsewhere.
"""

from __future__ import annotations

import re
import shlex
import shutil
import stat
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from quiltstream.pipelines.cli import main

from ..house.pages import blocks, commands
from .flink_files import (
    FLINK,
    ROOT,
    compose,
    options_of,
    run,
    services,
    text,
)
from .guide_calls import FOLDER, calls
from .test_flink_settings import guide_commands
from .test_prometheus import rules

#: Options of `docker run` that the guides use; of compose the program itself is asked.
OF_DOCKER = {"--rm", "-it", "--user", "--volume", "--entrypoint", "-b"}


def test_docker_commands_of_the_guides_name_existing_files_services_and_options(
    tool: Callable[[str], str],
) -> None:
    help_of: dict[str, str] = {}
    images = {str(one["image"]) for one in services().values()}
    used: set[str] = set()
    up: set[str] = set()
    for call in calls("docker"):
        used.add(call[1])
        if call[1] == "compose":
            verb, rest = call[2], call[3:]
            if verb not in help_of:
                help_of[verb] = run([tool("docker-compose"), verb, "--help"])
            for word in leading(rest):
                assert not word.startswith("-") or re.search(rf"{word}\b", help_of[verb]), f"{verb} knows no {word}"
            named = rest[len(leading(rest)) :]
            check_services(verb, named)
            if verb == "up":
                up |= with_what_they_need(named or services())
            elif verb == "run" and "--no-deps" in rest:
                assert needed_without_dependencies(named) <= up, f"{call} comes before what it needs is up"
        else:
            assert call[1] == "run"
            assert any(word in images for word in call), call
        if call[1] != "compose":
            assert {word for word in call if word.startswith("-")} <= OF_DOCKER
    assert used == {"compose", "run"}


def leading(words: list[str]) -> list[str]:
    """The options before the first word that is none, with their values."""
    found: list[str] = []
    for word in words:
        if not word.startswith("-") and found[-1:] != ["--signal"]:
            break
        found.append(word)
    return found


def with_what_they_need(names: Collection[str]) -> set[str]:
    """Services, and what compose starts for them."""
    needed = {other for name in names for other in services()[name].get("depends_on", {})}
    return set(names) if needed <= set(names) else with_what_they_need({*names, *needed})


def needed_without_dependencies(words: list[str]) -> set[str]:
    """What has to run for a command in a service that is started alone.

    That is the service whose network it shares, without which it cannot be started; and the ledger for every command
    that looks at it, which a dry run of a job does.
    """
    mode = str(services()[words[0]].get("network_mode", ""))
    found = {mode.removeprefix("service:")} if mode.startswith("service:") else set[str]()
    return found | ({"postgres"} if words[1:3] in (["quiltstream", "run"], ["quiltstream", "ledger"]) else set())


def check_services(verb: str, rest: list[str]) -> None:
    """See that services are there, and that what is run in one is a command that there is."""
    if verb in {"build", "up", "ps", "logs", "stop", "kill"}:
        assert set(rest) <= set(services()), rest
        return
    assert verb in {"run", "exec"}
    assert rest[0] in services(), rest
    if rest[1] == "quiltstream":
        command = main.commands[rest[2]]
        words = rest[3:]
        if hasattr(command, "commands"):
            command, words = command.commands[words[0]], words[1:]  # pyright: ignore[reportAttributeAccessIssue]
        known = {name for one in command.params for name in one.opts}
        assert {word for word in words if word.startswith("-")} <= known
        (path,) = (word for word in words if not word.startswith("-"))
        assert (FLINK / "settings" / path.removeprefix("/etc/quiltstream/")).is_file()
    else:
        assert rest[1] in {"curl", "pg_dump", "pg_restore"}


def test_an_upgrade_recreates_every_service_with_a_built_image() -> None:
    """And what shares the network of one of these: it would stay behind in a network that is gone."""
    (call,) = (call for call in calls("docker") if "--force-recreate" in call)
    named = {word for word in call[3:] if not word.startswith("-")}
    assert named == {
        name
        for name, one in services().items()
        if ("build" in one and name != "mosquitto")
        or str(one.get("network_mode", "")).removeprefix("service:") in named
    }


def test_commands_that_create_topics_name_the_broker_and_the_client_options() -> None:
    """The page's example asks for a password, so its tools must bring one."""
    page = text(ROOT / "docs" / "kafka.md")
    (broker,) = set(re.findall(r"servers: ([\w.-]+:\d+)", page.split("```yaml\n")[1].split("```")[0]))
    found = [
        shlex.split(one.replace("\\\n", " "))
        for block in blocks("kafka", page)
        if block.language == "console"
        for one in commands(block.body)
    ]
    made = [call for call in found if call[0] == "kafka-topics.sh"]
    assert [call[call.index("--topic") + 1] for call in made] == ["meters", "load-released", "load-rejects"]
    for call in made:
        assert call[call.index("--bootstrap-server") + 1] == broker
        assert "--command-config" in call


def test_the_calls_of_the_guides_are_those_the_end_to_end_tests_make() -> None:
    """Method and path of each call to Flink's REST port are in the class that the end-to-end tests talk to it with."""
    source = text(ROOT / "tests" / "e2e" / "flink.py")
    tested = {
        (method or "GET", path) for method, path in re.findall(r'_(?:get|call)\((?:"(\w+)", )?f?"([^"]+)"', source)
    }
    tested = {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in tested}
    found: set[tuple[str, str]] = set()
    inside = [call[call.index("curl") :] for call in calls("docker") if "curl" in call]
    for call in [*calls("curl"), *inside]:
        (url,) = (word for word in call if word.startswith("http"))
        method = call[call.index("--request") + 1] if "--request" in call else "GET"
        found.add((method, re.sub(r"\$\w+", "{}", url.removeprefix("http://127.0.0.1:8081"))))
    assert found <= tested
    assert found >= {("PATCH", "/jobs/{}?mode=cancel"), ("GET", "/jobs/overview")}


def test_the_commands_of_the_guide_create_every_secret_of_the_compose_file(tmp_path: Path) -> None:
    run(["bash", "-euc", guide_commands()], cwd=tmp_path)
    folder = tmp_path / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name, one in compose()["secrets"].items():
        file = tmp_path / one["file"]
        assert file.is_file(), name
        assert stat.S_IMODE(file.stat().st_mode) == 0o444
    assert stat.S_IMODE((folder / "ca-key.pem").stat().st_mode) == 0o400
    assert text(folder / "ledger-password") != text(folder / "mqtt-gateway-password")
    said = run(
        [
            *("openssl", "verify", "-CAfile", str(folder / "mqtt-ca.pem"), "-verify_hostname", "mosquitto"),
            str(folder / "mqtt-certificate.pem"),
        ]
    )
    assert said.endswith(": OK\n")


def test_the_publishing_command_uses_a_topic_and_port_of_the_gateway() -> None:
    (call,) = calls("mosquitto_pub")
    topic = call[call.index("-t") + 1]
    user = call[call.index("-u") + 1]
    assert topic == f"meters/{user}/readings"
    assert re.search(rf"^{user},", text(FLINK / "settings" / "roster.csv"), re.MULTILINE)
    assert call[call.index("-p") + 1] == "8883"
    assert options_of(call) == {"--cafile": ""}


def test_every_alert_is_explained() -> None:
    page = text(FOLDER / "monitoring.md")
    table = page.split("## The alerts")[1].split("## Try the rules")[0]
    named = {name for line in table.splitlines() if line.startswith("|") for name in re.findall(r"`(Quilt\w+)`", line)}
    assert named == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize(
    ("guide", "shipped"),
    [("dataflow.md", "dataflow/settings.yaml"), ("helm.md", "helm/quiltstream/example-values.yaml")],
)
def test_a_guide_says_that_the_noise_of_the_shipped_settings_drowns_counts(
    guide: str, shipped: str, tmp_path: Path
) -> None:
    document = yaml.safe_load(text(ROOT / "deploy" / shipped))
    if "settings" in document:  # a chart's values, of which it makes the files
        (tmp_path / "roster.csv").write_text(document["roster"], encoding="utf-8")
        document = document["settings"] | {"roster": "roster.csv"}
    else:
        shutil.copy(ROOT / "deploy" / "dataflow" / "roster.csv", tmp_path)
    (tmp_path / "settings.yaml").write_text(
        yaml.safe_dump(document | {"ledger": "sqlite:///none.db"}), encoding="utf-8"
    )
    done = CliRunner().invoke(main, ["run", "--dry-run", "--live", str(tmp_path / "settings.yaml")])
    assert done.exit_code == 2, done.output
    assert "THE NOISE DROWNS THE COUNTS" in done.output
    page = " ".join(text(ROOT / "docs" / "guides" / guide).split())
    assert "the stand-in the noise drowns the counts: " in page
    assert "ends with exit code 2, and the" in page
