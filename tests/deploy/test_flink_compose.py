"""The compose file of the Flink deployment agrees with itself, with the settings, and with what the tests run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..e2e.flink import JAVA, state_arguments
from .flink_files import (
    FLINK,
    PROMETHEUS,
    SECRETS,
    command_of,
    compose,
    flink_properties,
    networks_of,
    options_of,
    run,
    secrets_of,
    services,
    text,
    values,
)

#: Options that say where a job is handed over and where its files are: these differ from the tests'.
OF_THE_PLACE = {
    "--runner",
    "--job_endpoint",
    "--job_name",
    "--flink_master",
    "--flink_leave",
    "--environment_type",
    "--environment_config",
    "--state_backend_storage_path",
    "--checkpointing_interval",
}

#: Services that end by themselves, and those that only the operator starts again.
ONCE = {"topics": "on-failure:5", "submit": "no"}


def test_compose_accepts_the_file(tool: Callable[[str], str]) -> None:
    said = run([tool("docker-compose"), "--file", str(FLINK / "compose.yaml"), "config", "--format", "json"])
    assert set(json.loads(said)["services"]) == set(services())


def test_only_the_broker_port_and_a_local_prometheus_port_are_published() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert published == {"mosquitto": ["8883:8883"], "gateway-network": ["127.0.0.1:9090:9090"]}
    assert not any(service.get("network_mode") == "host" for service in services().values())
    assert compose()["networks"]["inside"] == {"internal": True}
    # the one that the world speaks to reaches nothing but the gateway
    assert networks_of("mosquitto") == {"meters"}
    assert {name for name in services() if "meters" in networks_of(name)} == {
        *("mosquitto", "gateway-network", "gateway", "prometheus")
    }


@pytest.mark.parametrize("name", sorted(services()))
def test_services_drop_capabilities_and_define_a_health_check(name: str) -> None:
    service = services()[name]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged", False)
    assert service["restart"] == ONCE.get(name, "unless-stopped")
    if name not in {*ONCE, "prometheus", "gateway-network"}:
        assert {"test", "interval", "timeout", "retries"} <= set(service["healthcheck"])
    # the database's own start script hands its files over and then gives up being root
    assert service.get("cap_drop") == (None if name == "postgres" else ["ALL"])
    assert not service["image"].endswith(":latest")
    assert ":" in service["image"]


def addresses(document: object) -> set[tuple[str, int]]:
    """Every HOST:PORT that stands in a document."""
    found = (re.findall(r"(?:^|[=/@])([a-z][\w.-]*):(\d{2,5})(?![\w:])", str(one)) for one in values(document))
    return {(host, int(port)) for each in found for host, port in each}


def ports_of(name: str) -> set[int]:
    """The ports that a service says it listens on."""
    options = options_of(command_of(services()[name]))
    known = {
        "kafka": {int(one) for one in re.findall(r":(\d+)", line("listeners"))},
        "postgres": {5432},
        "mosquitto": {
            int(one) for one in re.findall(r"^listener (\d+)$", text(FLINK / "mosquitto/listener.conf"), re.MULTILINE)
        },
        "jobmanager": {8081, int(flink_properties()["metrics.reporter.prometheus.port"])},
        "taskmanager": {int(flink_properties()["metrics.reporter.prometheus.port"])},
        "job-server": {int(options.get("--job-port", 0)), int(options.get("--artifact-port", 0))},
        "ledger-metrics": {int(command_of(services()["ledger-metrics"])[-1].rpartition(":")[2])},
    }
    return known[name]


def line(name: str) -> str:
    """The value of a line of Kafka's configuration."""
    (found,) = re.findall(rf"^{re.escape(name)}=(.+)$", text(FLINK / "kafka" / "server.properties"), re.MULTILINE)
    return found


def settings(name: str) -> dict[str, Any]:
    return yaml.safe_load(text(FLINK / "settings" / name))


#: Settings, and the services that follow them.
FOLLOWED = {"settings.yaml": ["worker", "submit", "ledger-metrics"], "gateway.yaml": ["gateway"]}


def test_services_name_only_hosts_and_ports_that_share_a_network_with_them() -> None:
    documents = [(name, settings(file)) for file, names in FOLLOWED.items() for name in names]
    documents += [("prometheus", yaml.safe_load(text(PROMETHEUS / "prometheus.yml")))]
    documents += [(name, {"command": command_of(service)}) for name, service in services().items()]
    documents += [(name, service.get("healthcheck", {})) for name, service in services().items()]
    checked: set[str] = set()
    for name, document in documents:
        for host, port in addresses(document) - {("localhost", 50000)}:
            assert host in services(), f"{name} speaks to {host}:{port}"
            assert port in ports_of(host), f"{name} speaks to {host}:{port}"
            assert networks_of(name) & networks_of(host), f"{name} cannot reach {host}"
            checked.add(host)
    assert {"kafka", "postgres", "jobmanager", "job-server", "taskmanager", "ledger-metrics"} <= checked


def test_topics_are_made_that_settings_name() -> None:
    script = text(FLINK / "kafka" / "topics.sh")
    made = dict(re.findall(r"^make (\S+) (.*)$", script, re.MULTILINE))
    named = set(re.findall(r"\btopic: ([a-z]\w*)", "".join(text(FLINK / "settings" / name) for name in FOLLOWED)))
    assert set(made) == named == {"readings", "releases", "rejects"}
    assert "cleanup.policy=compact" in made["releases"]
    assert made["readings"].endswith(f"retention.ms={21 * 86_400_000}")
    # what one sends another reads
    forward = settings("gateway.yaml")["forward"]["to"]["kafka"]["topic"]
    assert forward == settings("settings.yaml")["source"]["kafka"]["topic"]


def test_every_secret_is_mounted_in_exactly_the_services_that_read_it() -> None:
    read: dict[str, set[str]] = {}
    for file, who in FOLLOWED.items():
        for path in re.findall(rf"{SECRETS}[\w-]+", text(FLINK / "settings" / file)):
            for name in who:
                read.setdefault(name, set()).add(path)
    for path in re.findall(r"^(?:password_file|certfile|keyfile|cafile) (\S+)", mosquitto(), re.MULTILINE):
        read.setdefault("mosquitto", set()).add(path)
    read["postgres"] = {services()["postgres"]["environment"]["POSTGRES_PASSWORD_FILE"]}
    handed = {name: set(secrets_of(service).values()) for name, service in services().items() if "secrets" in service}
    assert handed == read
    assert {one for service in services().values() for one in secrets_of(service)} == set(compose()["secrets"])


def mosquitto() -> str:
    """The broker's whole configuration, as its container puts it together."""
    return text(FLINK.parent / "mqtt" / "mosquitto.conf") + text(FLINK / "mosquitto" / "listener.conf")


def test_beams_options_are_those_of_the_end_to_end_tests() -> None:
    submit = services()["submit"]["command"]
    assert submit[:5] == ["quiltstream", "run", "--live", "/etc/quiltstream/settings.yaml", "--"]
    ours, tested = options_of(submit[5:]), options_of(state_arguments(Path("/x")))
    assert {name: value for name, value in ours.items() if name not in OF_THE_PLACE} == {
        name: value for name, value in tested.items() if name not in OF_THE_PLACE
    }
    assert set(ours) >= OF_THE_PLACE
    assert (ours["--runner"], ours["--environment_type"]) == ("PortableRunner", "EXTERNAL")


def test_the_job_server_is_started_as_the_end_to_end_tests_start_it() -> None:
    words = command_of(services()["job-server"])
    assert words[:2] == ["java", "@/opt/beam/job-server.args"]
    lines = [line for line in text(FLINK / "job-server.args").splitlines() if not line.startswith("#")]
    assert " ".join(lines).split() == ["-Xmx1g", *JAVA, "-jar", "/opt/beam/flink-job-server.jar"]
    assert {
        "--flink-master",
        "--job-host",
        "--job-port",
        "--artifact-port",
        "--expansion-port",
        "--artifacts-dir",
    } <= set(options_of(words))
    submit = services()["submit"]["command"]
    options = options_of(words)
    assert options_of(submit)["--job_endpoint"] == f"{options['--job-host']}:{options['--job-port']}"
    # the command watches the job where the job server brings it
    assert options_of(submit)["--flink_master"] == options["--flink-master"]
