"""The container's entrypoint, given the pod that Spark asks for, is an executor that has channels.

Spark's driver takes in whatever executor comes to its address, so that this needs no Kubernetes.
"""

from __future__ import annotations

import os
from pathlib import Path

import kubernetes_validate
import pyspark
from pyspark.sql import SparkSession

from braided.bench.process_tree import keep
from braided.spark.executors import SparkExecutors
from support import kubernetes_files
from support.cluster_flow import Flow, placed
from support.executor_pod import executor_pod
from support.stream_harness import Lab, wait_until

HOST = "127.0.0.9"


def test_an_executor_from_the_container_joins_the_driver_and_has_channels(
    lab: Lab, spark: SparkSession, tmp_path: Path
) -> None:
    template = tmp_path / "executor.yaml"
    template.write_text(kubernetes_files.texts()["executor.yaml"])
    here = {
        **dict(spark.sparkContext.getConf().getAll()),
        "spark.kubernetes.executor.podTemplateFile": str(template),
    }
    pod = executor_pod(spark, {**kubernetes_files.settings(), **here})
    kubernetes_validate.validate(pod, "1.34", strict=True)
    container = pod["spec"]["containers"][0]
    assert container["args"] == ["executor"]
    assert container["envFrom"][0]["secretRef"]["name"] == "spending-store"
    assert pod["spec"]["serviceAccountName"] == "spending"

    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ},
        **given,
        # What only a pod has: its address and name, the image's directories, its volumes.
        "SPARK_EXECUTOR_POD_IP": HOST,
        "SPARK_EXECUTOR_POD_NAME": "pod-of-a-test",
        "SPARK_HOME": pyspark.__path__[0],
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "SPARK_LOCAL_IP": HOST,
    }
    log = tmp_path / "executor.log"
    entrypoint = kubernetes_files.DIRECTORY / "entrypoint.sh"
    executors = SparkExecutors(spark)
    # An executor keeps the jars of its application in the directory that it runs in.
    command = f"cd '{tmp_path}' && exec '{entrypoint}' {' '.join(container['args'])}"
    keeper = keep(["bash", "-c", command], environment, log)
    try:

        def has_joined() -> bool:
            assert keeper.poll() is None, log.read_text()
            return HOST in {executor.host for executor in executors.observed()}

        wait_until(has_joined, "the executor of the container", timeout_s=300)
        flow = Flow(lab, channels=5)
        flow.run_until(lambda section: HOST in placed(section)["plannedHosts"])
        flow.run_until(lambda section: placed(section)["elsewhere"] == 0)
        flow.check()
    finally:
        keeper.communicate()
    wait_until(
        lambda: HOST not in {executor.host for executor in executors.observed()},
        "the executor to be gone",
    )


def test_the_entrypoint_runs_any_other_command_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    entrypoint = kubernetes_files.DIRECTORY / "entrypoint.sh"
    with keep([str(entrypoint), "echo", "a  b"], {"PATH": os.environ["PATH"]}, log) as keeper:
        keeper.wait()  # to close its input would end the command
    assert log.read_text() == "a  b\n"
