"""The program of deploy/kubernetes, with the settings of its pod but for those of the cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from support import kubernetes_files
from support.stream_harness import wait_until

OF_THE_CLUSTER = ("spark.master", "spark.driver.", "spark.kubernetes.", "spark.executor.")


def test_it_ends_at_a_signal_and_goes_on_where_it_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders, output = tmp_path / "orders", tmp_path / "spending"
    orders.mkdir()
    conf = tmp_path / "conf"
    conf.mkdir()
    kept = {
        name: value
        for name, value in kubernetes_files.settings().items()
        if not name.startswith(OF_THE_CLUSTER)
    }
    kept |= {"spark.master": "local[2]", "spark.ui.enabled": "false"}
    (conf / "spark-defaults.conf").write_text("".join(f"{n} {v}\n" for n, v in kept.items()))
    (conf / "log4j2.properties").write_text(kubernetes_files.texts()["log4j2.properties"])
    environment = {
        **{n: os.environ[n] for n in ("PATH", "HOME", "TMPDIR", "JAVA_HOME") if n in os.environ},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SPARK_CONF_DIR": str(conf),
        "INPUT": str(orders),
        "OUTPUT": str(output),
        "CHECKPOINT": str(tmp_path / "checkpoint"),
    }

    def totals() -> dict[str, tuple[int, float]]:
        if not (output / "_spark_metadata").exists():
            return {}
        reader = spark.read.schema("customer string, orders long, total double")
        rows = reader.parquet(str(output)).collect()
        return {row.customer: (row.orders, row.total) for row in sorted(rows, key=lambda r: r[1])}

    def run(start: int, expected: tuple[int, float]) -> None:
        """Another order of the first customer, until the output has it, and then the signal."""
        lines = [{"customer": "a", "amount": 2.0 + start}, {"customer": f"b{start}", "amount": 1.0}]
        (orders / f"{start}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        log = tmp_path / f"{start}.log"
        with log.open("wb") as file:
            program = subprocess.Popen(
                [sys.executable, str(kubernetes_files.DIRECTORY / "query.py")],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

        def is_there() -> bool:
            assert program.poll() is None, log.read_text()
            return totals().get("a") == expected

        try:
            wait_until(is_there, f"the output of start {start}", timeout_s=400)
            program.send_signal(signal.SIGTERM)
            assert program.wait(300) == 0, log.read_text()
        finally:
            program.kill()

    run(0, (1, 2.0))
    run(1, (2, 5.0))
    assert totals() == {"a": (2, 5.0), "b0": (1, 1.0), "b1": (1, 1.0)}
