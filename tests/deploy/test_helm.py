"""The Helm chart: what Helm makes of it is what Kubernetes and the Flink operator take, and what the package reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.schemas.settings.gateway import GatewaySettings
from quiltstream.schemas.settings.job import Settings, load_settings

from .flink_files import FLINK, ROOT, manifests, run, text

CHART = ROOT / "deploy" / "helm" / "quiltstream"
RELEASE = "quiltstream"

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
    """What Helm makes of the chart under some values."""

    def render(*words: str) -> list[dict[str, Any]]:
        return list(yaml.safe_load_all(helm("template", RELEASE, str(CHART), "--namespace", RELEASE, *words)))

    return render


def of(kind: str, name: str, made: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (one for one in made if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


@pytest.mark.assures(
    "deployments",
    "The Helm chart: Helm finds nothing wrong with it, Kubernetes' schemas take what it makes, its Flink part is the "
    "manifests of `deploy/flink`, and the package reads its settings",
)
@pytest.mark.parametrize("runner", ["prism", "flink"])
def test_helm_and_the_kubernetes_schemas_accept_the_chart(
    runner: str, helm: Callable[..., str], tool: Callable[[str], str], tmp_path: Path
) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), "--set", f"runner={runner}")
    made = tmp_path / "made.yaml"
    made.write_text(helm("template", RELEASE, str(CHART), "--set", f"runner={runner}"), encoding="utf-8")
    said = run([tool("kubernetes-validate"), "--strict", str(made)])
    unknown = [line for line in said.splitlines() if "passed" not in line]
    assert [line.partition("kind ")[2].partition(" ")[0] for line in unknown] == ["FlinkDeployment"] * (
        runner == "flink"
    )


@pytest.mark.assures(
    "deployments",
    "The Helm chart: Helm finds nothing wrong with it, Kubernetes' schemas take what it makes, its Flink part is the "
    "manifests of `deploy/flink`, and the package reads its settings",
)
def test_the_chart_renders_the_flink_manifests(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    made = rendered("--set", "runner=flink")
    assert [one for one in manifests() if one not in made] == []
    assert not [one for one in made if one["metadata"]["name"] == f"{RELEASE}-live"]
    other = rendered("--set", "runner=flink,flink.images.worker=here/worker:2")
    images = [one["image"] for one in of("Job", f"{RELEASE}-submit", other)["spec"]["template"]["spec"]["containers"]]
    assert images == ["here/worker:2"]


@pytest.mark.assures(
    "deployments",
    "The Helm chart: Helm finds nothing wrong with it, Kubernetes' schemas take what it makes, its Flink part is the "
    "manifests of `deploy/flink`, and the package reads its settings",
)
@pytest.mark.parametrize("runner", ["prism", "flink"])
def test_the_package_reads_the_settings_that_the_chart_makes(
    runner: str, rendered: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    data = of("ConfigMap", f"{RELEASE}-settings", rendered("--set", f"runner={runner}"))["data"]
    settings = load_settings(data["settings.yaml"])
    assert settings.ledger.endswith("@postgres:5432/ledger?password_file=/run/secrets/ledger-password")
    assert settings.live.metrics_port == (9466 if runner == "prism" else None)
    assert settings.live.idle is not None
    gateway = GatewaySettings.load(data["gateway.yaml"], folder=tmp_path)
    assert gateway.metrics.port == 9464
    assert yaml.safe_load(data["gateway.yaml"])["mqtt"]["password"] == {"file": "/run/secrets/mqtt/password"}
    shipped = Settings.read(FLINK / "settings" / "settings.yaml")
    places = {"ledger", "live"}
    assert settings.model_dump(exclude=places) == shipped.model_dump(exclude=places)
    assert data["roster.csv"] == text(FLINK / "settings" / "roster.csv")


@pytest.mark.parametrize("name", ["gateway", "live"])
def test_pods_of_the_chart_have_minimal_privileges(name: str, rendered: Callable[..., list[dict[str, Any]]]) -> None:
    made = rendered()
    pod = of("StatefulSet", f"{RELEASE}-{name}", made)["spec"]["template"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    context = pod["spec"]["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 10001)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    volumes = {one["name"] for one in pod["spec"]["volumes"]} | {"state"}
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
        ("runner=spark", "runner"),
        ("ledger.url=sqlite:///ledger.db", "ledger.url"),
        ("ledger.url=postgresql+psycopg://q:hush@db/ledger", "ledger.url"),
        ("settings.ledger=x", "settings"),
        ("live.image=here/live", "live.image"),
        ("gateway.settings.mqtt.password=hush", "mqtt"),
        ("gateway.storage=much", "gateway.storage"),
        ("colour=1", "colour"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_name(words: str, said: str, helm: Callable[..., str]) -> None:
    told = helm("template", RELEASE, str(CHART), "--set", words, code=1)
    assert "values don't meet the specifications of the schema" in told
    assert said in told.replace(".", " ").replace("/", " ") or said in told


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load(text(CHART / "Chart.yaml"))
    (version,) = (
        line.split('"')[1] for line in text(ROOT / "pyproject.toml").splitlines() if line.startswith("version")
    )
    assert (chart["version"], chart["appVersion"]) == (version, version)
    values = text(CHART / "values.yaml")
    assert {line.rpartition(":")[2] for line in values.splitlines() if "registry.example/" in line} == {version}
