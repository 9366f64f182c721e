"""What deploy/kubernetes asks of Kubernetes fits its schemas, and its parts fit each other."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from braided.bench.standalone_cluster import LOST_EXECUTOR_SETTINGS
from support.bare import ROOT
from support.kubernetes_files import DIRECTORY, objects, settings, texts

VERSIONS = ("1.31", "1.34", "1.37")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_and_the_template_of_executors_fit_the_schemas(version: str) -> None:
    template = yaml.safe_load(texts()["executor.yaml"])
    template["spec"]["containers"][0]["image"] = "made-by-spark"
    for each in [*objects().values(), template]:
        kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_is_misspelt_is_seen() -> None:
    broken = objects()["StatefulSet"]
    broken["spec"]["template"]["spec"]["terminationGraceSeconds"] = 120
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_names_ports_and_accounts_agree() -> None:
    found, spark = objects(), settings()
    name = found["StatefulSet"]["metadata"]["name"]
    namespace = found["Namespace"]["metadata"]["name"]
    assert {e["metadata"].get("namespace") for k, e in found.items() if k != "Namespace"} == {
        namespace
    }
    pod = found["StatefulSet"]["spec"]["template"]
    driver = pod["spec"]["containers"][0]
    service = found["Service"]
    assert found["StatefulSet"]["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    assert spark["spark.driver.host"] == f"{service['metadata']['name']}.{namespace}.svc"
    assert spark["spark.kubernetes.driver.pod.name"] == f"{name}-0"
    assert spark["spark.kubernetes.namespace"] == namespace
    ports = {int(spark["spark.driver.port"]), int(spark["spark.blockManager.port"])}
    assert {each["port"] for each in service["spec"]["ports"]} == ports
    assert {each["containerPort"] for each in driver["ports"]} == ports
    account = found["ServiceAccount"]["metadata"]["name"]
    assert pod["spec"]["serviceAccountName"] == account
    assert spark["spark.kubernetes.authenticate.serviceAccountName"] == account
    assert found["RoleBinding"]["subjects"][0]["name"] == account
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert spark["spark.kubernetes.container.image"] == driver["image"]
    mounts: dict[str, Any] = {each["name"]: each["mountPath"] for each in driver["volumeMounts"]}
    template = spark["spark.kubernetes.executor.podTemplateFile"]
    assert template == f"{mounts['settings']}/executor.yaml"
    assert f"SPARK_CONF_DIR={mounts['settings']}" in (DIRECTORY / "Dockerfile").read_text()
    variables = {each["name"] for each in driver["env"]}
    program = (DIRECTORY / "query.py").read_text()
    assert variables == set(re.findall(r'os\.environ\["(\w+)"\]', program))


def test_the_settings_are_those_that_we_recommend() -> None:
    assert LOST_EXECUTOR_SETTINGS.items() <= settings().items()


def test_the_image_copies_files_that_exist() -> None:
    dockerfile = (DIRECTORY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY ((?!--from).*) \S+$", dockerfile, re.M)
    assert copied
    for path in " ".join(copied).split():
        assert (ROOT / path).exists(), path
