"""Alerts, dashboard and manifests for Kubernetes name only what the service has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.app.conftest import settings_at
from tests.app.live import running
from wattcast.app.settings import Settings

DOCKER = Path(__file__).parents[2] / "docker"
NAME = re.compile(r"\b(?:wattcast|process)_[a-z_]+")


def expressions() -> Iterator[str]:
    """Every query of the rules and of the dashboard."""
    rules = yaml.safe_load((DOCKER / "rules.yml").read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"]
            assert rule["labels"]["severity"]
            yield rule["expr"]
    for panel in json.loads((DOCKER / "grafana.json").read_text("utf-8"))["panels"]:
        yield from (target["expr"] for target in panel["targets"])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Kinds of all metrics that a service prints."""
    with running(settings_at(tmp_path_factory.mktemp("home"))) as client:
        page = client.get("/metrics").text
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))


def test_every_metric_of_rules_and_dashboard_is_printed(told: dict[str, str]) -> None:
    names = {name for each in expressions() for name in NAME.findall(each)}
    parts = {name + "_bucket" for name, kind in told.items() if kind == "histogram"}
    assert len(names) > 15
    assert names <= told.keys() | parts


def test_labels_are_those_of_the_metrics() -> None:
    documented = (DOCKER.parent / "docs" / "operations.md").read_text("utf-8")
    rows = re.findall(r"^\| `(wattcast_\w+)` \|([^|]*)\|", documented, re.M)
    labels = {name: {each.strip() for each in given.split(",")} for name, given in rows}
    for each in expressions():
        known = {"le", "instance"}.union(
            *(labels[name.removesuffix("_bucket")] for name in NAME.findall(each)
              if name.startswith("wattcast_"))
        )  # fmt: skip
        for group in re.findall(r"\bby \(([^)]*)\)", each):
            assert {label.strip() for label in group.split(",")} <= known, each
        for one in re.findall(r"[{,](\w+)=~?\"", each):
            assert one in known, each


def test_brackets_of_queries_are_closed() -> None:
    for each in expressions():
        for pair in ("()", "[]", "{}"):
            assert each.count(pair[0]) == each.count(pair[1]), each


def manifests() -> list[dict[str, Any]]:
    folder = DOCKER / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))["resources"]
    assert {path.name for path in folder.glob("*.yaml")} == {*listed, "kustomization.yaml"}
    return [
        one for name in listed for one in yaml.safe_load_all((folder / name).read_text("utf-8"))
    ]


def test_manifests_name_what_is_there(told: dict[str, str]) -> None:
    found = manifests()
    deployments = [one for one in found if one["kind"] == "Deployment"]
    claims = {one["metadata"]["name"] for one in found if one["kind"] == "PersistentVolumeClaim"}
    image = (DOCKER / "Dockerfile").read_text("utf-8")
    components = set()
    for one in deployments:
        template = one["spec"]["template"]
        labels = template["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        components.add(labels["app.kubernetes.io/component"])
        pod = template["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert f"USER {pod['securityContext']['runAsUser']}" in image
        for volume in pod["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        for container in pod["containers"]:
            assert container["args"][0] in ("serve", "worker")
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["securityContext"]["readOnlyRootFilesystem"]
            for each in container.get("env", ()):
                assert each["name"].removeprefix("WATTCAST_").lower() in Settings.model_fields
            for port in container.get("ports", ()):
                assert f"EXPOSE {port['containerPort']}" in image
    for one in found:
        if one["kind"] == "Service":
            assert one["spec"]["selector"]["app.kubernetes.io/component"] in components


def test_probes_of_the_manifests_are_answered(tmp_path: Path) -> None:
    probes = {
        probe["httpGet"]["path"]
        for one in manifests()
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
        for kind, probe in container.items()
        if kind.endswith("Probe")
    }
    assert probes == {"/healthz", "/readyz"}
    with running(settings_at(tmp_path)) as client:
        assert all(client.get(path).status_code == 200 for path in probes)
