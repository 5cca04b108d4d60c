"""The manifests for Kubernetes are what it takes, and name what is there in the others."""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .flink_files import (
    FLINK,
    KUBERNETES,
    PROMETHEUS,
    flink_properties,
    manifest,
    manifests,
    options_of,
    run,
    services,
    text,
    values,
)

BUILT_IN = ["storage.yaml", "network.yaml", "job.yaml", "ledger-metrics.yaml"]

#: Lines of Flink's configuration that are about how a cluster's processes find each other: the operator sets them.
OF_COMPOSE = {
    "jobmanager.rpc.address",
    "jobmanager.bind-host",
    "jobmanager.memory.process.size",
    "rest.address",
    "rest.bind-address",
    "taskmanager.bind-host",
    "taskmanager.memory.process.size",
}


def cluster() -> dict[str, Any]:
    """The FlinkDeployment's own part."""
    return manifest("FlinkDeployment")["spec"]


def test_every_kubernetes_file_is_covered_by_the_tests() -> None:
    assert sorted([*BUILT_IN, "flinkdeployment.yaml"]) == sorted(path.name for path in KUBERNETES.iterdir())


@pytest.mark.parametrize("name", BUILT_IN)
def test_kubernetes_accepts_the_built_in_kinds(tool: Callable[[str], str], name: str) -> None:
    assert "passed" in run([tool("kubernetes-validate"), "--strict", str(KUBERNETES / name)])


def mistakes(right: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The manifest, wrong in one place."""
    for change in (
        lambda spec: spec.update(flinkVersion="1.19"),
        lambda spec: spec.update(taskmanager={}),
        lambda spec: spec["flinkConfiguration"].update({"taskmanager.numberOfTaskSlots": 1}),
    ):
        wrong = copy.deepcopy(right)
        change(wrong["spec"])
        yield wrong


@pytest.fixture
def definition(operator_api: Path) -> dict[str, Any]:
    """The operator's own definition of a FlinkDeployment, as its release brings it."""
    with zipfile.ZipFile(operator_api) as jar:
        return yaml.safe_load(jar.read("META-INF/fabric8/flinkdeployments.flink.apache.org-v1.yml"))


def strict(schema: Any) -> Any:
    """A schema under which a field that it does not name is a mistake, as `kubectl --validate=strict` has it."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(one) for name, one in schema.items()}
    # a field may be called `properties` as well: only of an object that names its fields nothing else is taken
    if schema.get("type") == "object" and "properties" in schema and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made


def test_the_flinkdeployment_is_valid_by_the_operator_definition(
    definition: dict[str, Any], module: Callable[[str], Any]
) -> None:
    right = manifest("FlinkDeployment")
    spec = definition["spec"]
    versions = {one["name"]: one["schema"]["openAPIV3Schema"] for one in spec["versions"]}
    group, version = right["apiVersion"].split("/")
    assert (spec["group"], spec["names"]["kind"], spec["scope"]) == (group, right["kind"], "Namespaced")
    check = module("jsonschema").Draft202012Validator(strict(versions[version]["properties"]["spec"]))
    assert [error.message for error in check.iter_errors(right["spec"])] == []
    assert all(list(check.iter_errors(wrong["spec"])) for wrong in mistakes(right))
    deeper = copy.deepcopy(right["spec"])
    deeper["taskManager"]["podTemplate"]["spec"]["containers"][0]["volumeMount"] = []
    assert [error.message for error in check.iter_errors(deeper)] != []


def templates() -> dict[str, dict[str, Any]]:
    """What the operator makes pods of: the common template, with that of the TaskManager."""
    common, worker = cluster()["podTemplate"]["spec"], cluster()["taskManager"]["podTemplate"]["spec"]
    both = {
        **common,
        "containers": [*common["containers"], *worker["containers"]],
        "volumes": [*common["volumes"], *worker["volumes"]],
    }
    return {"jobmanager": common, "taskmanager": both}


@pytest.mark.parametrize("name", ["jobmanager", "taskmanager"])
def test_the_operators_pod_templates_are_pods(tool: Callable[[str], str], name: str, tmp_path: Path) -> None:
    spec = copy.deepcopy(templates()[name])
    spec["containers"][0]["image"] = cluster()["image"]  # the operator's own doing
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod), encoding="utf-8")
    assert "passed" in run([tool("kubernetes-validate"), "--strict", str(file)])


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods of all manifests, with a name for messages."""
    yield from templates().items()
    for kind in ("Job", "Deployment"):
        yield kind, manifest(kind)["spec"]["template"]["spec"]


def test_every_object_named_by_a_manifest_is_defined_in_the_manifests() -> None:
    claim, service = manifest("PersistentVolumeClaim"), manifest("Service")
    guide = text(FLINK.parents[1] / "docs" / "guides" / "kubernetes.md")
    for where, pod in pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        containers = [*pod.get("initContainers", []), *pod["containers"]]
        mounted = {mount["name"] for one in containers for mount in one["volumeMounts"]}
        assert mounted == set(volumes), where
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
            if "configMap" in volume:
                assert f"create configmap {volume['configMap']['name']} " in guide
            if "secret" in volume:
                assert f"create secret generic {volume['secret']['secretName']} " in guide
    assert {one["metadata"]["namespace"] for one in manifests()} == {"quiltstream"}
    deployment = manifest("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["selector"]["matchLabels"] == labels
    # the operator's service is the cluster's name with -rest behind it
    name = manifest("FlinkDeployment")["metadata"]["name"]
    (server,) = manifest("Job")["spec"]["template"]["spec"]["initContainers"]
    assert options_of(server["args"])["--flink-master"] == f"{name}-rest:8081"


def test_settings_and_secrets_are_mounted_at_the_paths_in_the_settings() -> None:
    path = "/run/secrets/ledger-password"
    assert path in text(FLINK / "settings" / "settings.yaml")
    readers = [
        one for _, pod in pods() for one in pod["containers"] if "registry.example/quiltstream:" in one.get("image", "")
    ]
    assert len(readers) == 3
    for one in readers:
        mounts = {mount["mountPath"]: mount for mount in one["volumeMounts"]}
        assert mounts[path]["subPath"] == "ledger-password"
        assert mounts["/etc/quiltstream"]["readOnly"]


def test_the_cluster_is_configured_as_with_compose() -> None:
    here = cluster()["flinkConfiguration"]
    there = {name: value for name, value in flink_properties().items() if name not in OF_COMPOSE}
    assert {name: here.get(name) for name in there} == there
    assert here["high-availability.type"] == "kubernetes"
    memory = {part: cluster()[part]["resource"]["memory"] for part in ("jobManager", "taskManager")}
    properties = flink_properties()
    assert memory == {
        "jobManager": properties["jobmanager.memory.process.size"],
        "taskManager": properties["taskmanager.memory.process.size"],
    }


def test_flink_state_is_on_a_volume_mounted_by_every_pod_that_uses_it() -> None:
    places = [one for one in cluster()["flinkConfiguration"].values() if one.startswith("file://")]
    job = manifest("Job")["spec"]["template"]["spec"]
    places.append(options_of(job["containers"][0]["args"])["--state_backend_storage_path"])
    places.append("file://" + options_of(job["initContainers"][0]["args"])["--artifacts-dir"])
    assert len(places) == 5
    assert all(one.startswith("file:///var/lib/flink/") for one in places)
    for one in (cluster()["podTemplate"]["spec"]["containers"][0], job["initContainers"][0]):
        assert {"name": "state", "mountPath": "/var/lib/flink"} in one["volumeMounts"]


def test_the_workers_port_is_the_jobs() -> None:
    (worker,) = cluster()["taskManager"]["podTemplate"]["spec"]["containers"]
    (submit,) = manifest("Job")["spec"]["template"]["spec"]["containers"]
    assert options_of(submit["args"])["--environment_config"] == f"localhost:{worker['args'][-1]}"
    # a pod keeps its network when a container of it is started again, so there is nobody to watch
    assert worker["args"] == services()["worker"]["command"][:3]
    assert (
        manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]["command"]
        == services()["ledger-metrics"]["command"]
    )


def test_every_pod_drops_its_capabilities_and_no_job_is_submitted_twice() -> None:
    for where, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True, where
        for one in [*pod.get("initContainers", []), *pod["containers"]]:
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    job = manifest("Job")["spec"]
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (0, "Never")


def test_network_policies_admit_only_required_peers() -> None:
    policies = [one["spec"] for one in manifests() if one["kind"] == "NetworkPolicy"]
    closed = {one["podSelector"]["matchLabels"]["app"]: one["ingress"] for one in policies}
    name = manifest("FlinkDeployment")["metadata"]["name"]
    submit = manifest("Job")["spec"]["template"]["metadata"]["labels"]["app"]
    metrics = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]["app"]
    assert set(closed) == {name, submit, metrics}
    assert closed[submit] == []
    # from elsewhere only the operator, to REST, and Prometheus, to its port
    elsewhere = [rule for rule in closed[name] if any("namespaceSelector" in peer for peer in rule["from"])]
    assert sorted(port["port"] for rule in elsewhere for port in rule["ports"]) == [8081, 9249]
    within = [rule for rule in closed[name] if rule not in elsewhere]
    assert {peer["podSelector"]["matchLabels"]["app"] for rule in within for peer in rule["from"]} == {name, submit}


def test_no_manifest_has_a_secret_in_it() -> None:
    assert not any(one["kind"] == "Secret" for one in manifests())
    words = [str(one) for one in values(list(manifests()))]
    assert not any("password=" in word.lower() for word in words)
    assert str(flink_properties()["metrics.reporter.prometheus.port"]) in text(PROMETHEUS / "prometheus.yml")
