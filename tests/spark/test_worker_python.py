"""Which Python the workers run, where nothing is set and where something is set wrongly."""

from __future__ import annotations

import json
import os
import re
import site
import sys
import tarfile
import venv
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import braided
from support.bare import ROOT, finish, start

PROGRAM = ROOT / "tests/support/cluster_program.py"
SAID = {
    "nothing set": "run 'python3', which on .* is Python .* No module named .*set PYSPARK_PYTHON",
    "no such program": 'which does not run there: Cannot run program "/no/such/python"',
    "another Python": r"which is Python 3\.\d+ there; the driver has Python 2\.7",
    "another braided": r"with braided \S+; the driver has braided 9\.9\.9",
}


@pytest.mark.skipif(sys.platform != "linux", reason="the daemon is for Linux")
def test_workers_of_a_local_master_are_forked_from_what_has_all_imported(
    spark: SparkSession,
) -> None:
    braided.stream(spark.readStream.format("rate").load())

    def forked_from(_: int) -> bytes:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes()

    found = spark.sparkContext.parallelize(range(2), 2).map(forked_from).collect()
    assert all(b"braided.worker_daemon" in each for each in found)


@pytest.mark.slow
def test_workers_of_a_cluster_that_cannot_run_tasks_are_an_error_at_the_start(
    tmp_path: Path,
) -> None:
    # A python3 as a system has it: without the packages of any environment.
    (tmp_path / "bin").mkdir()
    python3 = tmp_path / "bin/python3"
    python3.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python3.chmod(0o755)
    # Executors keep their files below Spark's home.
    home = tmp_path / "spark"
    home.mkdir()
    for path in Path(pyspark.__path__[0]).iterdir():
        (home / path.name).symlink_to(path)
    program = f"{sys.executable} {PROGRAM} {packed_environment(tmp_path)}"
    printed, _ = finish(start(program, tmp_path, tmp_path / "bin", SPARK_HOME=str(home)))
    *refused, right, packed = map(json.loads, printed.splitlines())
    assert [case for case, _, _ in refused] == list(SAID)
    for case, kind, message in refused:
        assert kind == "WorkerPythonError"
        assert re.search(SAID[case], message), message
    assert right == ["right", [[0, 2, sys.executable], [1, 4, sys.executable]]]
    case, rows = packed
    assert (case, [row[:2] for row in rows]) == ("packed", [[0, 2], [1, 4]])
    [python] = {row[2] for row in rows}
    assert python.startswith(f"{home}/work/") and python.endswith("/environment/bin/python")


def packed_environment(directory: Path) -> Path:
    """An environment as `venv-pack` packs them: a link to the interpreter that it was made from,
    and packages, which here are this interpreter's.
    """
    made = directory / "environment"
    venv.create(made, symlinks=True)
    [packages] = made.glob("lib/python*/site-packages")
    ways = [f"import site; site.addsitedir({way!r})\n" for way in site.getsitepackages()]
    (packages / "packages.pth").write_text("".join(ways))
    with tarfile.open(directory / "environment.tar.gz", "w:gz") as archive:
        archive.add(made, ".")
    return directory / "environment.tar.gz"
