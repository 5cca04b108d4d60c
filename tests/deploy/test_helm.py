"""The Helm chart: what Helm makes of it is what Kubernetes takes, and what the package reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.schemas.errors import ExitCode
from quiltstream.schemas.settings.gateway import GatewaySettings
from quiltstream.schemas.settings.job import Settings, load_settings

from .flink_files import FLINK, ROOT, run, text

CHART = ROOT / "deploy" / "helm" / "quiltstream"
RELEASE = "quiltstream"

#: The values of an example: the chart has no job of its own.
EXAMPLE = ["--values", str(CHART / "example-values.yaml")]

#: Helm as a Go module knows no release of Kubernetes but an old one.
VERSION = ["--kube-version", "1.31.0"]


@pytest.fixture
def helm(tool: Callable[[str], str], tmp_path: Path) -> Callable[..., str]:
    """Runs Helm, away from the caller's own folders."""
    environment = {f"HELM_{one}_HOME": str(tmp_path / one) for one in ("CACHE", "CONFIG", "DATA")}

    def call(*words: str, code: int = 0) -> str:
        return run(
            [tool("helm"), *words, *VERSION], env={**environment, "KUBECONFIG": str(tmp_path / "none")}, code=code
        )

    return call


@pytest.fixture
def rendered(helm: Callable[..., str]) -> Callable[..., list[dict[str, Any]]]:
    """What Helm makes of the chart under some values, and those of the example unless others are given."""

    def render(*words: str) -> list[dict[str, Any]]:
        values = () if "--values" in words else EXAMPLE
        return list(yaml.safe_load_all(helm("template", RELEASE, str(CHART), "--namespace", RELEASE, *values, *words)))

    return render


def of(kind: str, name: str, made: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (one for one in made if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def test_helm_and_the_kubernetes_schemas_accept_the_chart(
    helm: Callable[..., str], tool: Callable[[str], str], tmp_path: Path
) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), *EXAMPLE)
    made = tmp_path / "made.yaml"
    made.write_text(helm("template", RELEASE, str(CHART), *EXAMPLE), encoding="utf-8")
    said = run([tool("kubernetes-validate"), "--strict", str(made)])
    assert [line for line in said.splitlines() if "passed" not in line] == []


def job_of(made: list[dict[str, Any]]) -> dict[str, Any]:
    """The only job of the chart: its name goes by its values."""
    (found,) = (one for one in made if one["kind"] == "Job")
    return found


def test_a_job_that_failed_for_good_is_not_begun_again_and_any_other_is(
    rendered: Callable[..., list[dict[str, Any]]],
) -> None:
    spec = job_of(rendered())["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    final, drained = spec["podFailurePolicy"]["rules"]
    codes = sorted(int(one) for one in ExitCode if one.final)
    assert final == {
        "action": "FailJob",
        "onExitCodes": {"containerName": container["name"], "operator": "In", "values": codes},
    }
    # a job that ends with 0 is done: a stop ends with another code, so that another node goes on
    assert drained == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert (spec["template"]["spec"]["restartPolicy"], spec["backoffLimit"]) == ("Never", 2**31 - 1)


def test_other_settings_are_another_job_and_the_same_are_the_same(
    rendered: Callable[..., list[dict[str, Any]]],
) -> None:
    first, again, other = (
        job_of(rendered(*words))["metadata"]["name"] for words in ((), (), ("--set", "settings.privacy.epsilon=0.5"))
    )
    assert first == again
    assert first != other
    assert len(other) <= 63


def test_the_package_reads_the_settings_that_the_chart_makes(
    rendered: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    data = of("ConfigMap", f"{RELEASE}-settings", rendered())["data"]
    settings = load_settings(data["settings.yaml"])
    assert settings.ledger.endswith("@postgres:5432/ledger?password_file=/run/secrets/ledger-password")
    assert settings.live.metrics_port == 9466
    assert settings.live.idle is not None
    gateway = GatewaySettings.load(data["gateway.yaml"], folder=tmp_path)
    assert gateway.metrics.port == 9464
    assert yaml.safe_load(data["gateway.yaml"])["mqtt"]["password"] == {"file": "/run/secrets/mqtt/password"}
    shipped = Settings.read(FLINK / "settings" / "settings.yaml")
    places = {"ledger", "live", "memory"}
    assert settings.model_dump(exclude=places) == shipped.model_dump(exclude=places)
    assert data["roster.csv"] == text(FLINK / "settings" / "roster.csv")


def own(tmp_path: Path, **gateway: Any) -> tuple[list[str], dict[str, Any]]:
    """Values of an operator that say as little as a job and a gateway may, and the job."""
    job = {
        "source": {"kafka": {"servers": "kafka:9092", "topic": "t"}},
        "readings": {
            "each": "payload",
            "series": "topic[1]",
            "time": "t",
            "time_unit": "s",
            "value": "w",
            "unit": "W",
        },
        "slots": {"interval": "1h"},
        "states": {"edges": [500], "unit": "W"},
        "model": "model.json",
        "windows": {"size": "7d", "start": "2026-01-01"},
        "privacy": {"epsilon": 1.0},
        "sink": {"kafka": {"servers": "kafka:9092", "topic": "r"}},
        "query": "q",
        "domain": "d",
    }
    said = {"mqtt": {"host": "broker", "client_id": "g", "user": "u"}, **gateway}
    document = {"settings": job, "roster": "series\nm1\n", "model": "{}", "gateway": {"settings": said}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return ["--values", str(tmp_path / "own.yaml")], job


def test_a_job_of_the_chart_is_what_its_values_say_and_no_more(
    rendered: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    words, job = own(tmp_path, forward={"topics": ["m/+"], "to": {"kafka": {"servers": "kafka:9092", "topic": "t"}}})
    data = of("ConfigMap", f"{RELEASE}-settings", rendered(*words))["data"]
    made = load_settings(data["settings.yaml"])
    added = {"ledger": made.ledger, "memory": made.memory, "roster": "roster.csv", "live": {"metrics_port": 9466}}
    assert yaml.safe_load(data["settings.yaml"]) == job | added
    GatewaySettings.load(data["gateway.yaml"], folder=tmp_path)


def test_a_chart_without_a_job_names_all_that_is_missing(helm: Callable[..., str], tmp_path: Path) -> None:
    told = helm("template", RELEASE, str(CHART), code=1)
    example = yaml.safe_load(text(CHART / "example-values.yaml"))
    needed = {name for name, field in Settings.model_fields.items() if field.is_required()}
    for name in needed | {"source", "readings", "sink"}:
        assert f"settings: {name} is required" in told
        assert name in example["settings"]
    assert "gateway.settings: mqtt is required" in told
    assert "roster" in told
    # where there is no gateway none is missed
    (tmp_path / "alone.yaml").write_text(yaml.safe_dump(example | {"gateway": {"enabled": False}}), encoding="utf-8")
    helm("template", RELEASE, str(CHART), "--values", str(tmp_path / "alone.yaml"))


@pytest.mark.parametrize("name", ["gateway", "live"])
def test_pods_of_the_chart_have_minimal_privileges(name: str, rendered: Callable[..., list[dict[str, Any]]]) -> None:
    made = rendered()
    pod = (job_of(made) if name == "live" else of("StatefulSet", f"{RELEASE}-{name}", made))["spec"]["template"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    context = pod["spec"]["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 10001)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    volumes = {one["name"] for one in pod["spec"]["volumes"]}
    for one in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]:
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["resources"]["limits"]["memory"]
        assert {each["name"] for each in one["volumeMounts"]} <= volumes
    policy = of("NetworkPolicy", f"{RELEASE}-{name}", made)["spec"]
    assert (policy["policyTypes"], policy["ingress"]) == (["Ingress"], [])
    assert policy["podSelector"]["matchLabels"] == pod["metadata"]["labels"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ledger.url=sqlite:///ledger.db", "ledger.url"),
        ("ledger.url=postgresql+psycopg://q:hush@db/ledger", "ledger.url"),
        ("settings.ledger=x", "settings"),
        ("live.image=here/live", "live.image"),
        ("settings.live.metrics_port=9000", "settings.live.metrics_port"),
        ("gateway.settings.mqtt.password=hush", "mqtt"),
        ("gateway.settings.metrics.port=9000", "gateway.settings.metrics.port"),
        ("live.storage=much", "live.storage"),
        ("colour=1", "colour"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_name(words: str, said: str, helm: Callable[..., str]) -> None:
    told = helm("template", RELEASE, str(CHART), *EXAMPLE, "--set", words, code=1)
    assert "values don't meet the specifications of the schema" in told
    assert said in told.replace(".", " ").replace("/", " ") or said in told
