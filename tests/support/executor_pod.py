"""The pod that Spark on Kubernetes asks for, made by Spark's own code from given settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["executor_pod"]


def executor_pod(spark: SparkSession, settings: Mapping[str, str]) -> dict[str, Any]:
    """What Spark would send to Kubernetes for an executor of an application with these settings."""
    jvm = spark._jvm

    def singleton(name: str) -> Any:
        return jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)

    conf = jvm.org.apache.spark.SparkConf(False)
    for name, value in settings.items():
        conf.set(name, value)
    none = jvm.scala.Option.empty()
    secrets = singleton("org.apache.spark.internal.config.package").AUTH_SECRET_FILE()
    executor = singleton("org.apache.spark.deploy.k8s.KubernetesConf").createExecutorConf(
        conf, "90042", spark.sparkContext.applicationId, none, 0
    )
    profile = singleton("org.apache.spark.resource.ResourceProfile")
    client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()  # asks nobody
    try:
        made = jvm.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
        spec = made.buildFromFeatures(
            executor,
            jvm.org.apache.spark.SecurityManager(conf, none, secrets),
            client,
            profile.getOrCreateDefaultProfile(conf),
        ).pod()
    finally:
        client.close()
    texts = jvm.io.fabric8.kubernetes.client.utils.Serialization
    pod: dict[str, Any] = json.loads(texts.asJson(spec.pod()))
    container = json.loads(texts.asJson(spec.container()))
    pod["spec"]["containers"] = [container, *pod["spec"].get("containers", [])]
    return pod
